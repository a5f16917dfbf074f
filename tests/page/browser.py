"""A headless browser, controlled over a pair of pipes (Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 30.0
# The address in the bar is shown completely: see place.js.
SETTLED = "document.getElementById('main')?.dataset.shown === location.hash"


def found() -> str | None:
    """The browser of this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser."""

    def __init__(self, width: int = 1400, height: int = 900, *, is_dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # The browser reads from 3 and writes to 4.
        script = f'exec 3<&{to_read} 4>&{to_write}; exec "$@"'
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}",
            *(("--blink-settings=preferredColorScheme=0",) if is_dark else ()),
        )  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", found() or "", *options],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.said: list[str] = []  # what the console showed, errors of the page's own script among it
        self.asked: list[str] = []  # every address that was asked for
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def tell(self, method: str, **parameters: object) -> dict:
        """Send one command to the page and return the result."""
        return self._call(method, session=self._session, **parameters)

    def visit(self, url: str) -> None:
        """Go to an address; of the page that `view` serves, wait until it is shown completely."""
        before = self.value("location.href")
        self.tell("Page.navigate", url=url)
        if url.startswith("http:"):
            # The document stays if only the hash changes: what the last address showed must not count.
            self.wait(f"location.href !== {json.dumps(before)} && {SETTLED}")

    def settle(self) -> None:
        """Wait until the address that a key, a click or the history has led to is shown completely."""
        self.wait(SETTLED)

    def value(self, expression: str) -> object:
        """The value of an expression in the page."""
        answer = self.tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> object:
        """Wait until an expression is true; return its value."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found_now := self.value(expression):
                return found_now
            time.sleep(0.02)
        raise AssertionError(
            f"it never became true: {expression}\n{str(self.value('document.body.innerText'))[:1500]}\n{self.said}"
        )

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        code = {"code": "Tab", "windowsVirtualKeyCode": 9} if key == "Tab" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {}))

    def picture(self, path: Path) -> None:
        """Save a screenshot."""
        path.write_bytes(base64.b64decode(self.tell("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, session: str = "", **parameters: object) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" not in self._buffer:
                if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise AssertionError(f"the browser does not answer {method}")
                chunk = os.read(self._in, 1 << 20)
                assert chunk, f"the browser has ended during {method}"
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.said.append(json.dumps(event["params"]["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(json.dumps(event["params"]["entry"]))
            case "Network.requestWillBeSent":
                self.asked.append(event["params"]["request"]["url"])
