"""Whether turnspan can keep its own files, and whether its settings are right."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from typing import TYPE_CHECKING, Final

from turnspan.delivery import state
from turnspan.delivery.destinations import prices_of
from turnspan.delivery.policy import rules_of
from turnspan.errors import TurnspanError
from turnspan.health.checks import Group
from turnspan.health.log_lines import read_log
from turnspan.private_files import can_write
from turnspan.private_files import nearest_existing as nearest
from turnspan.settings.config import CONFIG_NAME
from turnspan.terminal import count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config

FILES: Final = Group("Its files")
SETTINGS: Final = Group("Its settings")
_LITTLE_BYTES: Final = 100_000_000


def file_checks(home: Path) -> Iterator[Check]:
    """The directory, who can write to it and read it, and how much room there is."""
    directory = nearest(home)
    if not directory.is_dir():
        yield FILES.bad(f"{directory} is not a directory", "move it away")
        return
    if not can_write(directory):
        yield FILES.bad(
            f"cannot write to {directory}: without a place to note what was sent, nothing is sent",
            "make it writable, or set CLAUDE_CONFIG_DIR to a directory that is",
        )
    else:
        yield FILES.good(f"{home} can be written to" if directory == home else f"{home} can be made")
    yield from _room(directory)
    unsafe = list(_unsafe(home))
    yield from unsafe
    if directory == home and not unsafe:
        yield FILES.good("only you can read and change them")
    yield from _states(home)
    yield from _bugs(home)


def _room(directory: Path) -> Iterator[Check]:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        yield FILES.doubt(f"how much room there is cannot be told: {error.strerror}", "check the disk")
        return
    if free < 1_000_000:
        yield FILES.bad("the disk is full: nothing can be noted, so nothing is sent", "free some space")
    elif free < _LITTLE_BYTES:
        yield FILES.doubt(f"only {free / 1e6:.0f} MB are left on the disk", "free some space")
    else:
        yield FILES.good(f"{free / 1e9:.0f} GB are free" if free >= 1e9 else f"{free / 1e6:.0f} MB are free")


def _unsafe(home: Path) -> Iterator[Check]:
    if sys.platform == "win32":  # the profile directory's access list does this there
        return
    names = ("", CONFIG_NAME, "state", "traces", "turnspan.log", "since.json")
    for path in (home / name if name else home for name in names):
        try:
            found = path.lstat()
        except OSError:
            continue
        if found.st_uid != os.geteuid():
            yield FILES.bad(f"{path} belongs to another user", "move it away, or run as its owner")
        elif stat.S_ISLNK(found.st_mode):
            if path.name != CONFIG_NAME:  # some keep their settings elsewhere
                yield FILES.bad(f"{path} is a link, which turnspan does not follow", "move it away")
        elif found.st_mode & 0o022:
            yield FILES.bad(f"others can write to {path}, so it is not used", f"look at it, then `chmod go-w '{path}'`")
        elif found.st_mode & 0o044:
            yield FILES.doubt(f"others can read {path}", f"`chmod go-rwx '{path}'`")


def _states(home: Path) -> Iterator[Check]:
    known = list(state.checkpoints(home))
    strange = [session_id for session_id, checkpoint in known if checkpoint is None]
    if strange:
        yield FILES.doubt(
            f"the state of {count(len(strange), 'session')} is damaged or from a newer turnspan ({strange[0]})",
            "update turnspan; what is damaged is set aside and read again by itself",
        )
    elif known:
        yield FILES.good(f"the state of {count(len(known), 'session')} is whole")


def _bugs(home: Path) -> Iterator[Check]:
    bugs = [line for line in read_log(home) if line.event == "bug"]
    if bugs:
        last = bugs[-1]
        where = f"{last.facts.get('type', '')} at {last.facts.get('at', '')}"
        yield FILES.doubt(
            f"turnspan itself failed {count(len(bugs), 'time')}, last on {last.at[:10]}: {where}",
            "update turnspan; if it goes on, report that line",
        )


def setting_checks(config: Config, cwd: Path) -> Iterator[Check]:
    """What is wrong in them, and whether they let anything leave here."""
    problems = list(config.problems)
    for read in (rules_of, prices_of):
        try:
            read(config)
        except TurnspanError as error:
            problems.append(str(error))
    narrowing = config.narrowing(str(cwd))
    problems += narrowing.problems
    for problem in problems:
        yield SETTINGS.bad(problem, "correct it; `turnspan config` shows what is in force")
    if not problems:
        path = config.home / CONFIG_NAME
        is_there = nearest(path) == path
        yield SETTINGS.good(f"{path} is right" if is_there else "there is no config.toml, and none is needed")
    if not config.is_enabled:
        yield SETTINGS.doubt(
            f"turnspan is switched off by {config.sources['enabled']}: nothing leaves", "set `enabled` to true"
        )
    elif narrowing.is_off:
        yield SETTINGS.doubt(f"nothing of {cwd} leaves: {narrowing.why}", "take that out if it shall")
