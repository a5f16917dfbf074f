"""The styles of the page: enough contrast in both colour schemes, and nothing from elsewhere."""

import re
from pathlib import Path

import pytest

from turnspan import page

STYLES = Path(page.__file__).parent / "web" / "css"
TEXT = ("ink", "faint", "accent", "good", "bad", "warn", "turn", "generation", "tool", "agent", "event")
GROUNDS = ("paper", "raised", "chosen")


def schemes():
    """The colours of the light and of the dark scheme."""
    css = (STYLES / "base.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([a-z]+): (#[0-9a-f]{3,6});", part)) for part in css.split("@media", 2)[:2])
    return {"light": light, "dark": {**light, **dark}}


def luminance(colour):
    """The relative luminance of a colour, by WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ground", GROUNDS)
def test_text_has_enough_contrast(scheme, ground):
    """Every colour of text on every background has the contrast that WCAG AA wants: 4.5 to 1."""
    colours = schemes()[scheme]
    for name in TEXT:
        bright, dim = sorted((luminance(colours[name]), luminance(colours[ground])), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, name


def test_styles_load_nothing():
    """No style names another file, and none is inline in the page."""
    for path in STYLES.glob("*.css"):
        assert not re.search(r"url\(|@import|https?:", path.read_text(encoding="utf-8")), path.name
    assert "style=" not in (STYLES.parent / "page.html").read_text(encoding="utf-8")
