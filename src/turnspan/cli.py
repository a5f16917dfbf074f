"""The frame of the command line: finds commands by name, prints help, turns errors into messages and exit codes.

Rules:

- Only this file decides how an error is shown: a sentence and a hint on stderr, exit code 1, or 2 for wrong usage; a
  traceback only with `TURNSPAN_DEBUG=1`.
- A command is loaded when it runs (`turnspan.commands` has the convention): `--version` and completion load none.
- A reader that closes the pipe (`| head`) is not an error.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from turnspan import __version__
from turnspan.commands.declare import Command, write_help
from turnspan.errors import TurnspanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

# The order and the headings of `turnspan --help`.
SECTIONS: Final = {
    "View": ("demo", "show", "sessions", "view", "stats", "search", "export"),
    "Setup": ("install", "uninstall", "config"),
    "Export": ("backfill", "verify", "retention", "forget"),
    "Diagnose": ("status", "doctor"),
}
COMMANDS: Final = ("hook", *(name for names in SECTIONS.values() for name in names))
_INTERRUPTED: Final = 130
# New objects between two garbage collections: Python's default takes a tenth of a process that reads transcripts.
_GC_THRESHOLD: Final = 100_000


class _PipeClosedError(Exception):
    """The reader of our output closed the pipe. Not an OSError: click would exit with 1."""


@contextmanager
def _closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeClosedError from error
    except OSError as error:
        if sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None:  # a closed pipe, there
            raise _PipeClosedError from error
        raise


class _Frame(click.Group):
    """A group that loads its commands by name, and lists them in sections."""

    command_class = Command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401
    ) -> click.Context:
        with _closed_pipes():  # `--help` prints here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _closed_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(getattr(importlib.import_module(f"turnspan.commands.{cmd_name}"), cmd_name))
        return super().get_command(ctx, cmd_name)

    def format_help_text(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_help(self, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in SECTIONS.items():
            known = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(heading):
                formatter.write_dl([(name, command.get_short_help_str(68)) for name, command in known])


@click.group(cls=_Frame, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="turnspan", message="%(prog)s %(version)s")
def frame() -> None:
    """Export Claude Code sessions as traces, each turn exactly once.

      turnspan sessions            list the sessions on this machine
      turnspan show                the latest session of this directory, as a tree
      turnspan show 3f2a --turn 4  one turn of another session
      turnspan view                the same as a page in the browser
      turnspan stats               tokens and cost by day, project, model, tool
      turnspan search WORDS        words in the content of all sessions
      turnspan COMMAND --help      options and examples of a command

    Shell completion, in the shell's start-up file:
      bash  eval "$(_TURNSPAN_COMPLETE=bash_source turnspan)"
      zsh   eval "$(_TURNSPAN_COMPLETE=zsh_source turnspan)"
      fish  _TURNSPAN_COMPLETE=fish_source turnspan | source

    Environment:
      CLAUDE_CONFIG_DIR  Claude Code's directory, if it is not ~/.claude
      NO_COLOR=1         no colours; FORCE_COLOR=1 also without a terminal
      TURNSPAN_DEBUG=1   print tracebacks
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for characters that the locale cannot encode
    if not _is_debugging():
        sys.excepthook = _report_bug
    gc.set_threshold(_GC_THRESHOLD)
    code = _run(arguments)
    gc.freeze()  # what is left ends with the process: looking for garbage in it took a fifth of a short command
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = frame.main(arguments, prog_name="turnspan", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (_PipeClosedError, BrokenPipeError):
        _drop_output()
        return 0
    except TurnspanError as error:
        if _is_debugging():
            raise
        _print_error(str(error.args[0]), error.hint)
        return 1
    except OSError as error:
        if _is_debugging():
            raise
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}", "")
        _drop_output()
        return 1
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Discard what stdout still buffers: the flush at exit would fail again, with exit code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_bug(kind: type[BaseException], error: BaseException, _where: TracebackType | None) -> None:
    """Print an unexpected error as one sentence."""
    _print_error(f"turnspan failed: {kind.__name__}: {error}", "run it with TURNSPAN_DEBUG=1 and report the output")


def _print_error(sentence: str, hint: str) -> None:
    from turnspan.commands.printing import print_error  # noqa: PLC0415 - `--version` prints no error

    print_error(sentence, hint)


def _is_debugging() -> bool:
    return os.environ.get("TURNSPAN_DEBUG") == "1"
