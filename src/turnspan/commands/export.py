"""`turnspan export`: a session as one file to share."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnspan.commands.declare import command, preview_option, session_argument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnspan.page.preview import PreviewedTrace

_FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}


@command()
@session_argument()
@click.option("-o", "--output", metavar="FILE", help="File to write, or - for stdout (default: SESSION.html).")
@click.option(
    "--format", "form", type=click.Choice(["html", "md", "json"]),
    help="Format (default: by the suffix of FILE; md for stdout).",
)  # fmt: skip
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only this turn.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite an existing file.")
@preview_option
def export(
    *, session: str | None, output: str | None, form: str | None, turn: int | None, is_forced: bool, to: str | None
) -> None:
    """Save a session as one file to share.

    The content is what would be exported, with secrets masked: read it before you
    share it. Nothing is sent. The file can be read only by you until you change its
    permissions.

      turnspan export                        the latest session of this directory
      turnspan export 3f2a9c -o story.html   a page that needs no server and no script
      turnspan export 3f2a9c -o story.md     Markdown, for a gist or an issue
      turnspan export 3f2a9c -o story.json   the records of `show --json` as one list
      turnspan export --turn 4 -o - | less   one turn to stdout

    SESSION is an id, the beginning of one, or the path of a transcript.
    """
    from turnspan.commands.printing import remark, settings_in_force, working_directory
    from turnspan.delivery.destinations import destination_named
    from turnspan.errors import TranscriptError
    from turnspan.page.preview import Preview
    from turnspan.source.find import find_session, require_transcript
    from turnspan.source.sessions import projects_dir
    from turnspan.text import count

    form = form or _format_of(output)
    config = settings_in_force()
    found = find_session(projects_dir(config.claude_home), session, working_directory())
    require_transcript(found.path)
    preview = Preview(found, config, destination_named(config, to))
    counted = _Counted(preview.traces(turn))
    first = next(counted, None)
    if first is None and turn is not None:
        raise TranscriptError(f"session {found.session_id} has no turn {turn}", hint="omit --turn to export all turns")
    if first is None:
        raise TranscriptError(f"session {found.session_id} has no turns yet")
    pieces = _pieces(form, _again(first, counted), str(found.path))
    if output == "-":
        for piece in pieces:
            sys.stdout.write(piece)
    else:
        path = Path(output or f"{found.session_id[:8]}.{form}")
        _save(pieces, path, is_forced=is_forced)
        remark(f"wrote {count(counted.number, 'trace')} to {path}, secrets masked; read it before you share it")
    for note in preview.notes():
        remark(note)


def _format_of(output: str | None) -> str:
    if output is None:
        return "html"
    if output == "-":
        return "md"
    form = _FORMATS.get(Path(output).suffix.lower())
    if form is None:
        raise click.UsageError(f"the suffix of {output!r} is not .html, .md or .json; use --format")
    return form


class _Counted:
    """Traces, and how many there were."""

    def __init__(self, traces: Iterable[PreviewedTrace]) -> None:
        self._traces = iter(traces)
        self.number = 0

    def __iter__(self) -> Iterator[PreviewedTrace]:
        return self

    def __next__(self) -> PreviewedTrace:
        found = next(self._traces)
        self.number += 1
        return found


def _again(first: PreviewedTrace, rest: Iterator[PreviewedTrace]) -> Iterator[PreviewedTrace]:
    yield first
    yield from rest


def _pieces(form: str, traces: Iterable[PreviewedTrace], path: str) -> Iterator[str]:
    if form == "json":
        return _json(traces)
    from turnspan.page.export import html, markdown
    from turnspan.page.tree import Layout

    made = html.pieces if form == "html" else markdown.pieces
    return made(traces, path, Layout(width=100))


def _json(traces: Iterable[PreviewedTrace]) -> Iterator[str]:
    from turnspan.commands.records import line_of, trace_record

    for number, previewed in enumerate(traces):
        yield (",\n" if number else "[\n") + line_of(trace_record(previewed.trace, previewed.masked))
    yield "\n]\n"


def _save(pieces: Iterable[str], path: Path, *, is_forced: bool) -> None:
    """Write a file that only its owner can read; an incomplete one is removed."""
    import os

    from turnspan.errors import ConfigError

    if path.is_dir():
        raise ConfigError(f"{path} is a directory", hint="name a file in it")
    if not is_forced:
        try:  # reserve the name
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError as exc:
            raise ConfigError(f"{path} exists", hint="use --force to overwrite it") from exc
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(pieces)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        if not is_forced:
            path.unlink(missing_ok=True)
        raise
