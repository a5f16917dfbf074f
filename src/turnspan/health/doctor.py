"""Runs every check and prints the results.

Rules:

- A failed check does not stop the others; only without a home directory there is nothing to check.
- Checks change nothing. With `is_sending`, one test trace is sent to each destination.
- No message contains a credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.errors import TurnspanError
from turnspan.health.checks import Mark
from turnspan.health.checks.destinations import destination_checks
from turnspan.health.checks.files import FILES, file_checks, setting_checks
from turnspan.health.checks.hooks import hook_checks
from turnspan.health.checks.package import package_checks
from turnspan.health.checks.transcripts import transcript_checks
from turnspan.settings.config import load_config
from turnspan.text import count, one_line, paint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from turnspan.health.checks import Check

_SIGNS: Final = {Mark.GOOD: ("✓", "green"), Mark.DOUBT: ("!", "yellow"), Mark.BAD: ("✗", "red")}


def examine(
    env: Mapping[str, str],
    project: Path,
    *,
    now_s: float,
    only: str | None = None,
    is_sending: bool = False,
    managed: Sequence[Path] | None = None,
) -> Iterator[Check]:
    """Run all checks; `only` restricts them to one destination."""
    yield from package_checks()
    try:
        config = load_config(env)
    except TurnspanError as error:
        yield FILES.bad(str(error.args[0]), error.hint)
        return
    yield from hook_checks(env, project, managed)
    yield from file_checks(config.home)
    yield from setting_checks(config, project)
    for destination in config.destinations:
        if only in {None, destination.name}:
            yield from destination_checks(destination, config, now_s=now_s, is_sending=is_sending)
    yield from transcript_checks(config, int(now_s * 1e9))


def doctor_lines(checks: Iterable[Check]) -> Iterator[str]:
    """The checks as lines, each as soon as it is made, and a summary."""
    group = ""
    marks: list[Mark] = []
    for check in checks:
        if check.group != group:
            yield ("\n" if group else "") + paint(one_line(check.group), is_bold=True)
            group = check.group
        sign, colour = _SIGNS[check.mark]
        marks.append(check.mark)
        yield f"  {paint(sign, colour)} {one_line(check.says)}"
        if check.todo:
            yield f"    → {one_line(check.todo)}"
    bad, doubt = marks.count(Mark.BAD), marks.count(Mark.DOUBT)
    yield ""
    if not bad and not doubt:
        yield paint("no problems found", "green")
    else:
        words = [count(bad, "error")] if bad else []
        words += [count(doubt, "warning")] if doubt else []
        yield paint(", ".join(words), "red" if bad else "yellow")
