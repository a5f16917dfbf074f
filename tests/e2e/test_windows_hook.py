"""The hook as Windows would register it, called by real clients: exported, and no noise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from turnspan.claude.command import hook_of
from turnspan.claude.install import this_runtime

from .client import NEWEST, Unavailable, install, version_tuple
from .stage import Stage
from .test_caller import turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


def register_as_on_windows(client: tuple[int, ...]) -> Callable[[Stage], None]:
    """Return what registers the hook for a client of this version on Windows."""

    def prepare(stage: Stage) -> None:
        stage.env["TURNSPAN_OTLP_ENDPOINT"] = stage.sink.url
        runtime = this_runtime()
        hook = hook_of(type(runtime)(runtime.python, runtime.root, None, "win32"), client)
        settings = json.loads(stage.home.settings.read_text())
        settings["hooks"].setdefault("Stop", []).append({"hooks": [hook]})
        stage.home.settings.write_text(json.dumps(settings))

    return prepare


def play(root: Path, version: str, client: tuple[int, ...]) -> tuple[int, str]:
    """Run one turn; return how many turns arrived, and what the client wrote into its transcript about hooks."""
    try:
        install(version)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Stage(root, version, "one story", register_as_on_windows(client)) as stage:
        stage.run("{hello} hello")
        stage.wait_for_quiet()
        said = "".join(path.read_text() for path in stage.home.transcripts.rglob("*.jsonl"))
        is_there = (root / "sink.jsonl").exists()
        return len(turns(stage)) if is_there else 0, said


@pytest.mark.parametrize("version", ["2.1.98", NEWEST])
def test_a_turn_is_exported_without_noise(tmp_path: Path, version: str) -> None:
    """2.1.98 gets a command for its shell, the newest client a program with `args`."""
    exported, said = play(tmp_path, version, version_tuple(version))
    assert exported == 1
    assert "NameError" not in said
    assert "hook error" not in said.lower()


def test_an_old_client_does_not_know_args(tmp_path: Path) -> None:
    """What `doctor` warns of: 2.1.98 starts a bare interpreter, and nothing is exported."""
    exported, _ = play(tmp_path, "2.1.98", version_tuple(NEWEST))
    assert exported == 0
