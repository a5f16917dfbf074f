"""`turnspan show`: the traces of a session as a tree."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from turnspan.commands.declare import command, json_flag, preview_option, session_argument
from turnspan.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.page.preview import PreviewedTrace


@command()
@session_argument()
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only this turn.")
@click.option("--full", "is_full", is_flag=True, help="Print all content instead of one line per span.")
@click.option("--masked", "is_masked", is_flag=True, help="List what is masked, and what else looks secret.")
@json_flag("One JSON object per trace and line")
@preview_option
def show(
    *, session: str | None, turn: int | None, is_full: bool, is_masked: bool, is_json: bool, to: str | None
) -> None:
    """Show the traces of a session as a tree.

    SESSION is an id, the beginning of one, or the path of a transcript; by default
    the latest session of this directory. The output is what would be exported, with
    secrets masked. Nothing is sent.

      turnspan show                      the latest session of this directory
      turnspan show 3f2a9c               a session by the beginning of its id
      turnspan show ./old/3f2a….jsonl    a transcript anywhere
      turnspan show --turn 4 --full      the complete content of turn 4
      turnspan show --masked             what is masked and where, and what may be missing
      turnspan show --json | jq '.spans[] | select(.error)'

    ● turn   ◆ response of the model   ▸ tool call   ◉ agent   · event
    in: input tokens, cached ones included; out: output tokens
    ~ inferred   ≥ at least   ? unknown; every other figure is measured

    --json, a line for each trace; null where there is no value:
      trace_id name session_id client_version tags facts masked{rule: times} spans[…]
    and in each of the spans, parents before children:
      span_id parent_id          hexadecimal
      kind                       turn, generation, tool, agent, event
      name start end first_token UTC, ISO 8601
      duration_ms model
      usage cost_usd             of a generation
      totals totals_cost_usd     of a turn or agent: the sum over its descendants
      error error_message        api_error, tool_error, permission_denied, interrupted
      input output               messages, a value, or text
      facts links
    usage and totals: input output cache_read cache_write_5m cache_write_1h
    web_searches is_incomplete; input does not include the cached tokens.
    --masked --json, one object: masked[rule turn span field times]
    unmasked[text turn span field pattern]
    A trace_id can occur twice: the spans of a background agent are exported when it
    has finished.
    """
    from turnspan.commands.printing import remark, settings_in_force, working_directory
    from turnspan.commands.progress import progress
    from turnspan.delivery.destinations import destination_named
    from turnspan.page.preview import Preview, TurnPreview
    from turnspan.source.find import find_session, require_transcript
    from turnspan.source.sessions import projects_dir

    config = settings_in_force()
    unreadable: dict[str, str] = {}
    try:
        found = find_session(projects_dir(config.claude_home), session, working_directory(), unreadable)
    finally:
        for why in unreadable.values():
            remark(f"skipped: {why}")
    require_transcript(found.path)
    destination = destination_named(config, to)
    preview: Preview | TurnPreview
    if turn is None:
        preview = Preview(found, config, destination)
        shown = preview.traces()
    else:
        preview = TurnPreview(found, config, destination, turn)
        shown = preview.traces(progress)
    is_anything = (
        _print_report(shown, is_json=is_json)
        if is_masked
        else _print_traces(shown, str(found.path), is_full=is_full, is_json=is_json)
    )
    if turn is not None and not is_anything:
        raise TranscriptError(f"session {found.session_id} has no turn {turn}", hint="omit --turn to see all turns")
    if not is_anything:
        remark(f"session {found.session_id} has no turns yet")
    for note in preview.notes():
        remark(note)


def _print_traces(shown: Iterable[PreviewedTrace], path: str, *, is_full: bool, is_json: bool) -> bool:
    """Print the traces as a tree or as records; return whether there was one."""
    from turnspan.commands.printing import print_line, print_record, width
    from turnspan.commands.records import trace_record
    from turnspan.page.tree import Layout, session_lines

    is_anything = False
    if is_json:
        for previewed in shown:
            is_anything = True
            print_record(trace_record(previewed.trace, previewed.masked))
    else:
        for line in session_lines(shown, path, Layout(width(), is_full=is_full, is_wrapped=sys.stdout.isatty())):
            is_anything = True
            print_line(line)
    return is_anything


def _print_report(shown: Iterable[PreviewedTrace], *, is_json: bool) -> bool:
    """Print what is masked and what may be missing; return whether there was a trace."""
    from turnspan.commands.masked import MaskingReport
    from turnspan.commands.printing import print_lines, print_record

    report = MaskingReport(shown)
    if is_json:
        print_record(report.record())
    else:
        print_lines(report.lines())
    return report.is_anything
