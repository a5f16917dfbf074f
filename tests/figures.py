"""Figures of a test run: printed at its end, and optionally written into `docs/reliability.md`.

A suite calls `note("kill", "…")`. With `TURNSPAN_FIGURES=1` that text replaces what is between `<!-- kill -->` and
`<!-- / -->` on the page, so that the page shows the figures of the last run. (This does not work with `pytest -n`: notes
are not sent from its worker processes.)
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reliability.md"
IS_ALL = os.environ.get("TURNSPAN_FAULTS") == "all"
_noted: dict[str, str] = {}


def note(key, text, *, is_sampled=False):
    """Record a figure; the last one for a key counts. `is_sampled`: by default the suite runs only a sample."""
    _noted[key] = f"{text} (a sample)" if is_sampled and not IS_ALL else text


def noted():
    """Return the figures of this run."""
    return dict(_noted)


def write(page, figures):
    """Write figures into a page; a figure without a marker is an error."""
    text = page.read_text(encoding="utf-8")
    for key, figure in figures.items():
        place = re.compile(rf"(<!-- {re.escape(key)} -->).*?(<!-- / -->)", re.DOTALL)
        text, count = place.subn(lambda found, figure=figure: f"{found[1]}{figure}{found[2]}", text)
        assert count == 1, f"{page.name} has {count} places for {key!r}"
    page.write_text(text, encoding="utf-8")
