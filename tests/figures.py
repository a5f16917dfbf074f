"""What a run has shown, in figures: printed at its end, and written into `docs/reliability.md` when asked to.

A suite says `note("kill", "…")`. With `TURNSPAN_FIGURES=1` the text between `<!-- kill -->` and `<!-- / -->` on that
page is replaced by it, so that the page tells what was last run and nothing else. (Not with `pytest -n`: the processes that
it starts keep their notes to themselves.)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reliability.md"
IS_ALL = os.environ.get("TURNSPAN_FAULTS") == "all"
_noted: dict[str, str] = {}


def note(key, text, *, is_sampled=False):
    """Remember what a suite has shown; the last word counts. `is_sampled`: by default it shows only a part."""
    _noted[key] = f"{text} (a sample)" if is_sampled and not IS_ALL else text


def noted():
    """Return what was noted in this run."""
    return dict(_noted)


def write(page, figures):
    """Put figures into a page, each in its place; a figure without a place is an error."""
    text = page.read_text(encoding="utf-8")
    for key, figure in figures.items():
        place = re.compile(rf"(<!-- {re.escape(key)} -->).*?(<!-- / -->)", re.DOTALL)
        text, count = place.subn(lambda found, figure=figure: f"{found[1]}{figure}{found[2]}", text)
        assert count == 1, f"{page.name} has {count} places for {key!r}"
    page.write_text(text, encoding="utf-8")
