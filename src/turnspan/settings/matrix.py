"""The matrix of trust: which source may set, restrict or hide which setting.

This is the only place that says so. `config` and `project` ask it, and docs/configuration.md shows it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class SettingSource(StrEnum):
    """Where a value can come from."""

    FILE = "config.toml"
    DESTINATION = "`[destinations.NAME]` in it"
    ENVIRONMENT = "environment, if config.toml names no destination"
    BESIDE = "environment, if it names one"
    PLANTED = "`env` in a project's Claude Code settings"
    PROJECT = "a project's `.claude/turnspan.toml`"


class Power(StrEnum):
    """What a source may do with a setting."""

    SETS = "sets"
    RESTRICTS = "restricts"  # a value that exports more has no effect
    ADDS = "adds"
    HIDES = "hides"  # the value does not count, and the user's own variable can no longer be seen
    NOTHING = "-"


OPTIONS_ROW: Final = "(endpoint, keys and other options of a destination)"
_MATRIX: Final = f"""
                      file   destination  environment  beside     planted  project
enabled               sets   -            sets         restricts  hides    restricts
capture               sets   sets         sets         restricts  hides    restricts
thinking              sets   sets         -            -          -        restricts
tool_inputs           sets   sets         -            -          -        restricts
tool_outputs          sets   sets         -            -          -        restricts
images                sets   sets         -            -          -        restricts
turn_names            sets   sets         sets         restricts  hides    -
span_names            sets   sets         sets         sets       hides    -
tool_parent           sets   sets         sets         sets       hides    -
attribute_max_bytes   sets   sets         -            -          -        -
mask_paths            sets   -            -            -          -        -
patterns              sets   -            -            -          -        -
off                   sets   -            -            -          -        -
prices                sets   -            -            -          -        -
tags                  sets   -            sets         sets       hides    adds
user_id               sets   -            sets         sets       hides    -
environment           sets   -            sets         sets       hides    -
host                  sets   -            sets         sets       hides    -
service_name          sets   -            sets         sets       hides    -
traceparent           sets   -            sets         sets       hides    -
recover               sets   -            sets         restricts  hides    -
index                 sets   -            sets         restricts  hides    -
view_images           sets   -            sets         restricts  hides    -
{OPTIONS_ROW}         -      sets         sets         -          hides    -
"""
ROWS: Final = {
    words[0].strip(): dict(zip(SettingSource, map(Power, words[1:]), strict=True))
    for words in (line.rsplit(maxsplit=len(SettingSource)) for line in _MATRIX.splitlines()[2:])
}


def power_of(source: SettingSource, setting: str) -> Power:
    """What a source may do with a setting."""
    return ROWS[setting][source]


def settings_of(source: SettingSource) -> tuple[str, ...]:
    """The settings that a source has any power over."""
    return tuple(name for name, row in ROWS.items() if row[source] is not Power.NOTHING and name != OPTIONS_ROW)


def matrix_table() -> Iterator[str]:
    """The matrix as a Markdown table; settings with the same row share it."""
    yield f"| setting | {' | '.join(SettingSource)} |"
    yield "|---" * (len(SettingSource) + 1) + "|"
    shared: dict[tuple[Power, ...], list[str]] = {}
    for name, row in ROWS.items():
        shared.setdefault(tuple(row.values()), []).append(name.strip("()") if name == OPTIONS_ROW else f"`{name}`")
    for powers, names in shared.items():
        yield f"| {', '.join(names)} | {' | '.join('' if power is Power.NOTHING else power for power in powers)} |"
