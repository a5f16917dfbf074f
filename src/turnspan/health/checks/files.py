"""Checks of turnspan's files and configuration."""

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
from turnspan.files import can_write
from turnspan.files import nearest_existing as nearest
from turnspan.health.checks import CheckGroup
from turnspan.health.log_lines import read_log
from turnspan.settings.config import CONFIG_NAME
from turnspan.settings.planted import LOCATING, OURS, planted_in
from turnspan.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config

FILES: Final = CheckGroup("Files")
SETTINGS: Final = CheckGroup("Configuration")
_LITTLE_BYTES: Final = 100_000_000


def file_checks(home: Path) -> Iterator[Check]:
    """The directory, its permissions, free space, state files, and bugs in the log."""
    directory = nearest(home)
    if not directory.is_dir():
        yield FILES.bad(f"{directory} is not a directory", "move it away")
        return
    if not can_write(directory):
        yield FILES.bad(
            f"cannot write to {directory}: nothing is sent, because progress cannot be recorded",
            "make it writable, or set CLAUDE_CONFIG_DIR to a directory that is",
        )
    else:
        yield FILES.good(f"{home} is writable" if directory == home else f"{home} will be created")
    yield from _room(directory)
    unsafe = list(_unsafe(home))
    yield from unsafe
    if directory == home and not unsafe:
        yield FILES.good("only you can read and write them")
    yield from _states(home)
    yield from _bugs(home)


def _room(directory: Path) -> Iterator[Check]:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        yield FILES.doubt(f"free disk space is unknown: {error.strerror}", "check the disk")
        return
    if free < 1_000_000:
        yield FILES.bad("the disk is full: nothing is sent, because progress cannot be recorded", "free some space")
    elif free < _LITTLE_BYTES:
        yield FILES.doubt(f"only {free / 1e6:.0f} MB of disk space are free", "free some space")
    else:
        yield FILES.good(f"{free / 1e9:.0f} GB free" if free >= 1e9 else f"{free / 1e6:.0f} MB free")


def _unsafe(home: Path) -> Iterator[Check]:
    if sys.platform == "win32":  # there the access list of the profile directory decides
        return
    names = ("", CONFIG_NAME, "state", "traces", "turnspan.log", "since.json")
    for path in (home / name if name else home for name in names):
        try:
            found = path.lstat()
        except OSError:
            continue
        owners = {os.geteuid(), 0} if path.name == CONFIG_NAME else {os.geteuid()}  # root may provide the settings
        if found.st_uid not in owners:
            yield FILES.bad(f"{path} belongs to another user", "move it away, or run as its owner")
        elif stat.S_ISLNK(found.st_mode):
            if path.name != CONFIG_NAME:  # a linked config file is allowed
                yield FILES.bad(f"{path} is a link, which turnspan does not follow", "move it away")
        elif found.st_mode & 0o022:
            yield FILES.bad(
                f"other users can write to {path}, so it is not used", f"check it, then run `chmod go-w '{path}'`"
            )
        elif found.st_mode & 0o044:
            yield FILES.doubt(f"other users can read {path}", f"run `chmod go-rwx '{path}'`")


def _states(home: Path) -> Iterator[Check]:
    known = list(state.checkpoints(home))
    damaged = [session_id for session_id, checkpoint in known if checkpoint is None]
    if damaged:
        yield FILES.doubt(
            f"the state of {count(len(damaged), 'session')} is damaged or from a newer turnspan ({damaged[0]})",
            "update turnspan; a damaged file is set aside and rebuilt automatically",
        )
    elif known:
        yield FILES.good(f"state files are valid ({count(len(known), 'session')})")


def _bugs(home: Path) -> Iterator[Check]:
    bugs = [line for line in read_log(home) if line.event == "bug"]
    if bugs:
        last = bugs[-1]
        where = f"{last.facts.get('type', '')} at {last.facts.get('at', '')}"
        yield FILES.doubt(
            f"turnspan itself failed {count(len(bugs), 'time')}, last on {last.at[:10]}: {where}",
            "update turnspan; if it continues, report that line",
        )


def setting_checks(config: Config, cwd: Path) -> Iterator[Check]:
    """Problems in the settings, and whether they disable export here."""
    problems = list(config.problems)
    for read in (rules_of, prices_of):
        try:
            read(config)
        except TurnspanError as error:
            problems.append(str(error))
    narrowing = config.narrowing(str(cwd))
    problems += narrowing.problems
    for problem in problems:
        yield SETTINGS.bad(problem, "fix it; `turnspan config` shows the settings in force")
    if not problems:
        path = config.home / CONFIG_NAME
        is_there = nearest(path) == path
        yield SETTINGS.good(f"{path} was read" if is_there else "no config.toml; none is required")
    yield from _ineffective(config, cwd)
    if not config.is_enabled and not config.is_invalid:  # an invalid file is an error above
        yield SETTINGS.doubt(
            f"turnspan is disabled by {config.sources['enabled']}: nothing is exported", config.how_to_enable
        )
    elif narrowing.is_off:
        yield SETTINGS.doubt(f"{cwd} is not exported: {narrowing.why}", "remove that to export it")


def _ineffective(config: Config, cwd: Path) -> Iterator[Check]:
    """Variables that have no effect: next to a file that names destinations, or set by the project's settings."""
    for sentence in config.ignored:
        if sentence.startswith(("$TURNSPAN_", "TURNSPAN_")):
            yield SETTINGS.doubt(sentence, f"unset it, or change {config.home / CONFIG_NAME} instead")
        else:  # perhaps set for other programs
            yield SETTINGS.good(sentence)
    planted = planted_in({"CLAUDE_PROJECT_DIR": str(cwd)}, cwd, config.claude_home).certain
    names = sorted(name for name in planted if name.startswith(OURS) or name in LOCATING)
    if names:
        yield SETTINGS.doubt(
            f"the Claude Code settings of {cwd} set {', '.join(names)}: turnspan ignores what a project sets, "
            "and uses the most restrictive value instead of a switch or a capture mode",
            "set them in your own settings or in config.toml, and remove them from the project's",
        )
