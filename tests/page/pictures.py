"""`python -m tests.page.pictures DIRECTORY`: the pictures of the README, made from the demo with Chromium."""

from __future__ import annotations

import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.page.browser import Browser
from turnspan.page.demo.sessions import write_sessions
from turnspan.page.preview import Preview
from turnspan.page.server import Viewer
from turnspan.settings.config import load_config
from turnspan.source.sessions import session_of

SIZE = (1360, 860)
AGO = timedelta(minutes=12)


def places(path, config):
    """Yield the name of each picture, the place on the page, and what is there when it is complete."""
    traces = [shown.trace for shown in Preview(session_of(path), config, config.destinations[0]).traces()]
    session, fix, agents = traces[0].session_id, traces[1], traces[2]
    edit = [span for span in fix.spans if span.name == "Edit"][-1]
    yield "overview", "#/", "main table"
    yield "trace", f"#/s/{session}/t/{agents.trace_id.hex()}", ".waterfall .span"
    yield "span", f"#/s/{session}/t/{fix.trace_id.hex()}/{edit.span_id.hex()}", "#details .c-diff"
    yield "chat", f"#/s/{session}?view=chat", "main .c-md"


def main():
    """Take the pictures, light and dark."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="turnspan-pictures-") as directory:
        path = write_sessions(Path(directory), datetime.now(UTC) - AGO)
        config = load_config({"CLAUDE_CONFIG_DIR": directory, "HOME": directory})
        with Viewer(config, config.destinations[0]) as viewer:
            threading.Thread(target=viewer.serve_forever, daemon=True).start()
            for theme in ("light", "dark"):
                for name, place, complete in places(path, config):
                    with Browser(*SIZE, is_dark=theme == "dark") as page:
                        page.visit(viewer.url + place)
                        page.wait(f"document.querySelector('{complete}') !== null")
                        page.wait("document.getAnimations().every(each => each.playState !== 'running')")
                        page.picture(target / f"{name}-{theme}.png")
            viewer.shutdown()


if __name__ == "__main__":
    main()
