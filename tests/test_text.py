"""Text and figures for the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnspan.text import age, broken, cells, duration, fit, in_ascii, one_line, plain, tokens, usd

ATTACKS = {
    "a colour": ("\x1b[31mred\x1b[0m", "red"),
    "a window title": ("\x1b]0;owned\x07words", "words"),
    "the clipboard": ("\x1b]52;c;ZXZpbA==\x1b\\words", "words"),
    "a title that never ends": ("\x1b]0;words", "0;words"),
    "eight-bit controls": ("\x9b31mred \x9d0;title\x9cwords", "red words"),
    "a cleared screen": ("one\x1b[2J\x1b[Htwo", "onetwo"),
    "an overwritten line": ("rm -rf /\rls -la", "rm -rf / ls -la"),
    "backspaces": ("no\b\byes", "noyes"),
    "reversed text": ("\u202etxt.exe\u202c", "txt.exe"),
    "isolates": ("\u2066a\u2069", "a"),
    "invisible tags": ("a\U000e0041b", "ab"),
    "a device control string": ("\x1bP$q\x1b\\words", "words"),
    "half a character": ("a\ud83db", "a\ufffdb"),
    "other newlines": ("a\x0bb\x85c\u2028d", "a b c d"),
}


@pytest.mark.parametrize(("attack", "left"), ATTACKS.values(), ids=ATTACKS)
def test_control_sequences_are_removed(attack, left):
    """Text from a transcript cannot control the terminal: only its words are printed."""
    assert one_line(attack) == left


@given(st.text(alphabet=st.characters(), max_size=200))
def test_no_text_can_control_the_terminal(text):
    """No text results in a control character, a change of direction or a lone surrogate."""
    shown = plain(text)
    assert not any(character < " " and character not in "\n\t" for character in shown)
    assert not any("\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff" for character in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f")
    shown.encode()
    assert "\n" not in one_line(text)


def test_every_printable_character_is_kept():
    """Only characters that Python calls unprintable are removed: a line without any is printed as it is."""
    printable = "".join(filter(str.isprintable, map(chr, range(0x110000))))
    assert plain(printable) == printable
    assert not "\u200d".isprintable()


@given(st.text(max_size=60).map(one_line), st.integers(0, 40))
def test_text_is_cut_to_the_width_of_its_column(text, width):
    """Chinese, emoji or ASCII: cut text fits its column."""
    assert cells(fit(text, width)) <= width
    assert fit(text, 200) == text
    assert "".join(broken(text, 10)) == text
    assert all(cells(piece) <= 10 for piece in broken(text, 10))


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0ms"), (999, "999ms"), (1000, "1.0s"), (59_940, "59.9s"), (59_990, "1m00s"), (65_000, "1m05s"),
        (3_599_000, "59m59s"), (3_600_000, "1h00m"), (86_340_000, "23h59m"), (90_000_000, "1d01h"),
    ],
)  # fmt: skip
def test_durations_are_short(ms, shown):
    """Any duration fits its column."""
    assert duration(ms * 1_000_000) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0k"),
        (42_840, "42.8k"),
        (142_840, "143k"),
        (1_200_000, "1.2M"),
        (5 * 10**9, "5.0B"),
    ],
)
def test_tokens_are_short(number, shown):
    """Any number of tokens fits its column."""
    assert tokens(number) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "$0.0000"), (0.00001, "<$0.0001"), (0.0225, "$0.0225"), (1.5, "$1.50"), (12345.6, "$12,346")],
)
def test_small_costs_keep_their_digits(amount, shown):
    """A turn costs cents, and their fractions are compared."""
    assert usd(amount) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "now"), (30, "now"), (90, "2m"), (7200, "2h"), (3 * 86400, "3d"), (21 * 86400, "3w"), (800 * 86400, "2.2y")],
)
def test_ages_are_short(seconds, shown):
    """An age has one unit; a time in the future shows as now."""
    assert age(seconds) == shown


def test_symbols_have_an_ascii_form():
    """A terminal without Unicode gets lines of the same width."""
    line = "│ ├─◆ └─▸ ● ◉ ○ ✗ → ≥ … ·"
    assert in_ascii(line).isascii()
    assert len(in_ascii(line)) == len(line)
