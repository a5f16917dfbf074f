"""The commands: each reads its arguments, asks one module, and prints what that gives.

Rules:

- Only this file decides what a person sees of an error: a sentence and a hint on stderr, exit code 1, or 2 where the
  command was not understood; a traceback only with `TURNSPAN_DEBUG=1`.
- A command imports what it needs when it runs: `--version` and completion load none of it.
- Colour is for terminals only, and never with `NO_COLOR`. A reader that goes away (`| head`) is no error.
- A new command is a function here, or in a module that `_ELSEWHERE` names, and a word in `SECTIONS`.
"""

# ruff: noqa: PLC0415 - the second rule

from __future__ import annotations

import importlib
import inspect
import io
import os
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from turnspan import __version__
from turnspan.errors import TranscriptError, TurnspanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType, TracebackType

    from click.shell_completion import CompletionItem

    from turnspan.view.preview import Leaving

# The order and the headings of `turnspan --help`.
SECTIONS: Final = {
    "See": ("show", "sessions", "view"),
    "Set up": ("install", "uninstall", "config"),
    "Bring in": ("backfill", "verify", "retention", "forget"),
    "Check": ("status", "doctor"),
}
_ELSEWHERE: Final = {
    "install": "commands.install",
    "uninstall": "commands.install",
    "backfill": "commands.backfill",
    "verify": "commands.backfill",
    "retention": "commands.backfill",
    "status": "commands.status",
    "doctor": "commands.status",
    "config": "commands.status",
    "forget": "commands.status",
    "view": "commands.view",
}
_INTERRUPTED: Final = 130


class _Command(click.Command):
    """A command whose help is printed as it is written."""

    def format_help_text(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, formatter)


class _Frame(click.Group):
    """A group whose help lists commands by what they are for. A command under no heading is not for people."""

    command_class = _Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _ELSEWHERE:
            self._add_from(importlib.import_module(f"turnspan.{_ELSEWHERE[cmd_name]}"), cmd_name)
        return super().get_command(ctx, cmd_name)

    def _add_from(self, module: ModuleType, name: str) -> None:
        if hasattr(module, "commands"):  # it makes its commands by itself
            for command in module.commands(_Command):
                self.add_command(command)
        else:
            self.command(name)(getattr(module, name))

    def format_help_text(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_help(self, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in SECTIONS.items():
            known = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(68)) for name, command in known])


def _write_help(command: click.Command, formatter: click.HelpFormatter) -> None:
    formatter.write_paragraph()
    for line in inspect.cleandoc(command.help or "").splitlines():
        formatter.write(f"  {line}".rstrip() + "\n")


@click.group(cls=_Frame, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="turnspan", message="%(prog)s %(version)s")
def frame() -> None:
    """Claude Code sessions as traces: every turn exactly once.

      turnspan sessions            which sessions there are
      turnspan show                the latest session of this directory, as a tree
      turnspan show 3f2a --turn 4  one turn of another one
      turnspan view                the same as a page in the browser
      turnspan COMMAND --help      what a command can do, with examples

    Completion for your shell, in its start-up file:
      bash  eval "$(_TURNSPAN_COMPLETE=bash_source turnspan)"
      zsh   eval "$(_TURNSPAN_COMPLETE=zsh_source turnspan)"
      fish  _TURNSPAN_COMPLETE=fish_source turnspan | source

    Environment:
      CLAUDE_CONFIG_DIR  where Claude Code keeps its files, if not in ~/.claude
      NO_COLOR=1         no colours; FORCE_COLOR=1 also where there is no terminal
      TURNSPAN_DEBUG=1   tracebacks
    """


# ---- see


def _complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from turnspan.commands.completion import session_items

    return session_items(incomplete)


@frame.command("show")
@click.argument("session", required=False, shell_complete=_complete_session)
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only this turn.")
@click.option("--full", "is_full", is_flag=True, help="All content instead of a line each.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per trace and line.")
@click.option("--to", metavar="DESTINATION", help="As it would leave for this destination; the first one if not given.")
def show_command(session: str | None, turn: int | None, is_full: bool, is_json: bool, to: str | None) -> None:
    """A session's traces as a tree.

    SESSION is an id, the beginning of one, or the path of a transcript; without
    it, the latest session of this directory. What you see is what would leave
    this machine, secrets masked. Nothing is sent.

      turnspan show                      the latest session of this directory
      turnspan show 3f2a9c               a session by the beginning of its id
      turnspan show ./old/3f2a….jsonl    a transcript anywhere
      turnspan show --turn 4 --full      all that turn 4 said and did
      turnspan show --json | jq '.spans[] | select(.error)'

    ● turn   ◆ response of the model   ▸ tool call   ◉ agent   · event
    in: tokens sent, those from the cache included; out: tokens received
    ~ inferred   ≥ at least   ? unknown: every other figure is measured

    --json, a line for each trace; null where there is nothing:
      trace_id name session_id client_version tags facts masked{rule: times} spans[…]
    and in each of the spans, parents before children:
      span_id parent_id          hexadecimal
      kind                       turn, generation, tool, agent, event
      name start end first_token UTC, ISO 8601
      duration_ms model
      usage cost_usd             of a generation
      totals totals_cost_usd     of a turn or agent: the sum of what is below
      error error_message        api_error, tool_error, permission_denied, interrupted
      input output               messages, a value, or text
      facts links
    usage and totals: input output cache_read cache_write_5m cache_write_1h
    web_searches is_incomplete; input does not include the cached tokens.
    A trace_id may come again: what a background agent did leaves when it is done.
    """
    from turnspan.commands.printing import answer, remark, settings_in_force, width, working_directory
    from turnspan.delivery import state
    from turnspan.delivery.destinations import destination_named
    from turnspan.source.sessions import find_session, is_safe_id, projects_dir
    from turnspan.source.validate import require_transcript
    from turnspan.view.preview import Preview
    from turnspan.view.records import line_of, trace_record
    from turnspan.view.tree import Layout, session_lines

    config = settings_in_force()
    unread: dict[str, str] = {}
    try:
        found = find_session(projects_dir(config.claude_home), session, working_directory(), unread)
    finally:
        for why in unread.values():
            remark(f"passed over: {why}")
    require_transcript(found.path)
    preview = Preview(found, config, destination_named(config, to))
    known = state.peek(config.home, found.session_id) if is_safe_id(found.session_id) else None
    is_off = known is not None and known.is_off
    shown = _staying(preview.traces(turn)) if is_off else preview.traces(turn)
    is_anything = False
    if is_json:
        for leaving in shown:
            is_anything = True
            answer(line_of(trace_record(leaving.trace, leaving.masked)))
    else:
        layout = Layout(width(), is_full=is_full, is_wrapped=sys.stdout.isatty())
        for line in session_lines(shown, str(found.path), layout):
            is_anything = True
            answer(line)
    if turn is not None and not is_anything:
        raise TranscriptError(f"session {found.session_id} has no turn {turn}", hint="without --turn you see them all")
    if not is_anything:
        remark(f"session {found.session_id} has no turn yet")
    if is_off:
        remark("this session is switched off: nothing of it leaves")
    for note in preview.notes():
        remark(note)


def _staying(shown: Iterator[Leaving]) -> Iterator[Leaving]:
    """The traces of a session that is switched off."""
    from msgspec.structs import replace

    return (replace(leaving, where="nowhere: this session is switched off") for leaving in shown)


@frame.command("sessions")
@click.option("--project", metavar="P", help="Only those of a directory and below, or with P in their path.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per session and line.")
@click.pass_context
def sessions_command(ctx: click.Context, project: str | None, limit: int, is_json: bool) -> None:
    """The sessions on this machine, newest first.

      turnspan sessions                  the 20 newest
      turnspan sessions --project .      those of this directory
      turnspan sessions --project api    those with `api` in their path
      turnspan sessions --limit 500 --json | jq -s 'map(.cost_usd) | add'

    TOKENS are all tokens, from the cache or not; ≥ says that some were not counted
    by the client, or that a response has no known price. SENT is how much has
    arrived where the least has: all, 3/5 turns, no; off if it never leaves.

    Exit code: 1 if some could not be read; which ones is said on stderr.

    --json, a line for each session:
      session_id path title project client_version last_activity
      turns generations tools agents errors
      usage cost_usd is_cost_partial sent
    """
    from turnspan.commands.printing import answer, remark, settings_in_force, width
    from turnspan.view.overview import overview
    from turnspan.view.records import line_of, summary_record
    from turnspan.view.sessions_table import table_head, table_row

    config = settings_in_force()
    now_ns, columns = time.time_ns(), width()
    unread: dict[str, str] = {}
    is_anything = False
    for summary, sent in overview(config, limit=limit, project=project, unread=unread):
        if is_json:
            answer(line_of(summary_record(summary, sent)))
        else:
            if not is_anything:
                answer(click.style(table_head(columns, has_sent=True), bold=True))
            answer(table_row(summary, columns, now_ns=now_ns, sent=sent))
        is_anything = True
    if not is_anything and not unread:
        whose = f" of {project!r}" if project is not None else ""
        remark(f"there are no sessions{whose} below {config.claude_home / 'projects'}")
    for why in unread.values():
        remark(f"passed over: {why}")
    ctx.exit(1 if unread else 0)


# ---- what Claude Code calls


@frame.command("hook", hidden=True)
def hook_command() -> None:
    """Take one event from stdin, as Claude Code gives it."""
    from turnspan.hook import main as hook

    hook()


# ---- the frame


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # whatever the locale cannot spell
    if not _is_debugging():
        sys.excepthook = _confess
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = frame.main(arguments, prog_name="turnspan", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        _drop_output()
        return 0
    except TurnspanError as error:
        if _is_debugging():
            raise
        _complain(str(error.args[0]), error.hint)
        return 1
    except OSError as error:
        if _is_debugging():
            raise
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", "")
        _drop_output()
        return 1
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Discard what stdout still buffers: the interpreter's last flush would fail again, with exit code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _confess(kind: type[BaseException], error: BaseException, _where: TracebackType | None) -> None:
    """What is left to say of an error that nobody foresaw."""
    _complain(f"turnspan failed: {kind.__name__}: {error}", "run it with TURNSPAN_DEBUG=1 and report what it prints")


def _complain(sentence: str, hint: str) -> None:
    from turnspan.commands.printing import complain

    complain(sentence, hint)


def _is_debugging() -> bool:
    return os.environ.get("TURNSPAN_DEBUG") == "1"
