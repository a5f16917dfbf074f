"""The terminal emulator shows what a real terminal would show."""

from __future__ import annotations

import pytest

from .screen import Screen

SHOWN = {
    "words": (b"one\r\ntwo", "one\ntwo"),
    "moving": (b"abc\x1b[2D\x1b[31mX\x1b[0m\x1b[2;3HY", "aXc\n  Y"),
    "erasing": (b"abcdef\r\x1b[3C\x1b[K\r\nxyz\x1b[1A\r\x1b[J", ""),
    "a wide letter": ("世界!".encode(), "世界!"),
    "a title": (b"\x1b]0;a title\x07words", "words"),
    "the end of the screen": (b"1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"),
    "deleting": (b"abcdef\r\x1b[2P\x1b[1@", " cdef"),
}


@pytest.mark.parametrize("case", SHOWN)
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_output_is_shown(case: str, piece: int):
    """The screen is the same wherever the output is cut."""
    written, shown = SHOWN[case]
    screen = Screen(20, 4)
    for at in range(0, len(written), piece):
        screen.feed(written[at : at + piece])
    assert screen.text().rstrip("\n") == shown
