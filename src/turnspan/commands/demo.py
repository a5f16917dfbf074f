"""`turnspan demo`: the page and the tree with bundled sessions."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import signal
import tempfile
import webbrowser
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from turnspan.commands.declare import command

if TYPE_CHECKING:
    from types import FrameType

    from turnspan.settings.config import Config

_AGO = timedelta(minutes=12)  # of the newest session
_TURN = 2  # a turn with an error and its fix


@command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port to listen on (default: any free port)."
)
@click.option("--no-browser", "is_quiet", is_flag=True, help="Print the URL without opening a browser.")
def demo(*, port: int, is_quiet: bool) -> None:
    """Try turnspan with bundled sessions.

    Prints one turn as a tree and opens the page with four weeks of made-up sessions:
    reads, edits, a failing test and its fix, subagents, a compaction, API retries.
    Nothing is installed, nothing is sent, and your own sessions are not read. Press
    Ctrl-C to stop; the temporary directory is then deleted.

      turnspan demo
      turnspan demo --no-browser --port 8100
    """
    from turnspan.commands.printing import print_line, remark, width
    from turnspan.page.demo.sessions import write_sessions
    from turnspan.page.server import Viewer
    from turnspan.settings.config import load_config

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _stop)
    with tempfile.TemporaryDirectory(prefix="turnspan-demo-") as directory:
        home = Path(directory)
        main = write_sessions(home, datetime.now(UTC) - _AGO)
        # Only this directory: no setting of the user changes what the demo shows.
        config = load_config({"CLAUDE_CONFIG_DIR": directory, "HOME": directory, "USERPROFILE": directory})
        try:
            for line in _tree(main, config, width()):
                print_line(line)
            # At last: nothing is written while the directory is deleted.
            with Viewer(config, config.destinations[0], port=port) as viewer, closing(viewer.indexing):
                viewer.indexing.prepare()
                print_line(viewer.url)
                if not is_quiet and webbrowser.open(viewer.ticket_url()):
                    remark("Opened in your browser. Press Ctrl-C to stop.")
                else:
                    remark("Open this URL in a browser on this machine. Press Ctrl-C to stop.")
                remark("Your own sessions: `turnspan view`. Export them automatically: `turnspan install`.")
                viewer.serve_forever()
        except KeyboardInterrupt:
            return


def _tree(path: Path, config: Config, width: int) -> list[str]:
    """Return one turn of the main session as a tree."""
    from turnspan.page.preview import Preview
    from turnspan.page.tree import Layout, session_lines
    from turnspan.source.sessions import session_of

    preview = Preview(session_of(path), config, config.destinations[0])
    return list(session_lines(preview.traces(_TURN), str(path), Layout(width)))


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
