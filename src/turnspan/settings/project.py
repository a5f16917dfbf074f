"""Restrictions of a project: it can disable export, restrict it and add tags, never widen it.

Rules:

- `.claude/turnspan.toml` applies in its directory and below. If there are several, all apply and the most restrictive
  value wins.
- Any other key is reported and has no effect.
- A file that cannot be read disables export, and an invalid value is taken as the most restrictive one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.settings.matrix import SettingSource, settings_of
from turnspan.settings.options import POLICY, SETTING, checked, restricted
from turnspan.settings.toml_text import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnspan.settings.toml_text import TomlFile

PROJECT_FILE: Final = Path(".claude") / "turnspan.toml"
_ALLOWED: Final = settings_of(SettingSource.PROJECT)


class Narrowing(msgspec.Struct, frozen=True):
    """The restrictions in a working directory."""

    limits: dict[str, Any] = {}  # the most that each setting may be
    tags: tuple[str, ...] = ()
    why: str = ""  # the file or setting they come from
    problems: tuple[str, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether nothing is exported."""
        return self.limits.get("enabled") is False

    @property
    def capture(self) -> str | None:
        """The widest capture mode that is allowed; None: any."""
        return self.limits.get("capture")

    @property
    def withheld(self) -> tuple[str, ...]:
        """The parts of a turn that are not exported."""
        return tuple(name for name in POLICY if self.limits.get(name) is False)

    def and_also(self, other: Narrowing) -> Narrowing:
        """Both restrictions combined."""
        decides = self if self.is_off or not other.is_off else other
        return Narrowing(
            {**self.limits, **other.limits, **restricted(self.limits, other.limits)},
            tags=tuple(dict.fromkeys((*self.tags, *other.tags))),
            why=decides.why or other.why,
            problems=(*self.problems, *other.problems),
        )


def project_narrowing(cwd: str) -> Narrowing:
    """The restrictions of the files in a working directory and its parents."""
    found = Narrowing()
    if not cwd or not os.path.isabs(cwd):  # noqa: PTH117 - a path of any system
        return found
    for directory in (Path(cwd), *Path(cwd).parents):
        file = read_toml(directory / PROJECT_FILE)
        if file.problem:
            found = found.and_also(Narrowing({"enabled": False}, why=file.problem, problems=(file.problem,)))
        elif file.table:
            found = found.and_also(_asked_by(file))
    return found


def _asked_by(file: TomlFile) -> Narrowing:
    problems: list[str] = []
    values: dict[str, Any] = {}
    for key, value in file.table.items():
        if key not in _ALLOWED:
            problems.append(f"{file.at('', key)}: a project cannot set {key!r}; allowed: {', '.join(_ALLOWED)}")
            continue
        try:
            values[key] = checked(SETTING[key], value)
        except ConfigError as error:
            values[key] = SETTING[key].narrowest
            problems.append(f"{file.at('', key)}: {error}")
    tags = tuple(values.pop("tags", None) or ())
    return Narrowing(values, tags, why=str(file.path), problems=tuple(problems))


def narrowed(policy: Mapping[str, Any], narrowing: Narrowing) -> dict[str, Any]:
    """A destination's policy in one project: the more restrictive of the two."""
    return {**policy, **restricted(policy, narrowing.limits)}
