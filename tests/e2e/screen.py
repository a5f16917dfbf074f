"""A terminal emulator: bytes that a program wrote → rows of text.

It supports only what the client uses: text, cursor movement, erasing, inserting and deleting, scrolling at the bottom.
Colours, titles and modes are skipped. Input may be cut anywhere: an unfinished sequence is kept until its rest arrives.
"""

from __future__ import annotations

import re
import unicodedata

SEQUENCE = re.compile(
    r"\x1b\[([?>=<]?)([\d;:]*)[ -/]*([@-~])"  # a command with its numbers
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP.*?\x1b\\|\x1b[()#][A-Z0-9]|\x1b[=>78cDEHM]",
    re.DOTALL,
)
UNFINISHED = 4096  # longer than any valid escape sequence


class Screen:
    """The cells of a terminal."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = b""

    def text(self) -> str:
        """Return the text on the screen."""
        return "\n".join("".join(row).rstrip() for row in self._cells)

    def feed(self, data: bytes) -> None:
        """Process more output."""
        raw = self._rest + data
        self._rest = b""
        cut = raw.rfind(b"\x1b")
        if cut >= 0 and len(raw) - cut < UNFINISHED and not SEQUENCE.match(raw[cut:].decode(errors="replace")):
            raw, self._rest = raw[:cut], raw[cut:]
        while raw and raw[-1] >= 0x80 and not _is_text(raw) and len(self._rest) < UNFINISHED:
            raw, self._rest = raw[:-1], raw[-1:] + self._rest
        text, at = raw.decode(errors="replace"), 0
        for found in SEQUENCE.finditer(text):
            self._put(text[at : found.start()])
            if found.group(3) and not found.group(1):
                self._command(found.group(3), [int(n or 0) for n in re.split("[;:]", found.group(2))])
            at = found.end()
        self._put(text[at:])

    def _put(self, text: str) -> None:
        for char in text:
            if char == "\r":
                self._column = 0
            elif char == "\n":
                self._down(1, scroll=True)
            elif char == "\b":
                self._column = max(0, self._column - 1)
            elif char >= " " and char != "\x7f" and not unicodedata.combining(char):
                self._show(char)

    def _show(self, char: str) -> None:
        width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if self._column + width > self.columns:
            self._column = 0
            self._down(1, scroll=True)
        self._cells[self._row][self._column] = char
        if width == 2:
            self._cells[self._row][self._column + 1] = ""
        self._column += width

    def _down(self, count: int, *, scroll: bool = False) -> None:
        for _ in range(count):
            if self._row < self.rows - 1:
                self._row += 1
            elif scroll:
                self._cells = [*self._cells[1:], [" "] * self.columns]

    def _command(self, name: str, numbers: list[int]) -> None:  # noqa: C901 - a table of cases
        count = max(1, numbers[0])
        row = self._cells[self._row]
        if name == "A":
            self._row = max(0, self._row - count)
        elif name == "B":
            self._down(count)
        elif name == "C":
            self._column = min(self.columns - 1, self._column + count)
        elif name == "D":
            self._column = max(0, self._column - count)
        elif name == "G":
            self._column = min(self.columns, count) - 1
        elif name == "d":
            self._row = min(self.rows, count) - 1
        elif name in "Hf":
            self._row = min(self.rows, count) - 1
            self._column = min(self.columns, max(1, numbers[1] if len(numbers) > 1 else 1)) - 1
        elif name == "K":
            self._erase_line(numbers[0])
        elif name == "J":
            self._erase_screen(numbers[0])
        elif name == "X":
            row[self._column : self._column + count] = [" "] * min(count, self.columns - self._column)
        elif name == "P":
            row[self._column :] = [*row[self._column + count :], *[" "] * count][: self.columns - self._column]
        elif name == "@":
            row[self._column :] = [*[" "] * count, *row[self._column :]][: self.columns - self._column]

    def _erase_line(self, how: int) -> None:
        row = self._cells[self._row]
        first, last = (self._column, self.columns) if how == 0 else (0, self._column + 1 if how == 1 else self.columns)
        row[first:last] = [" "] * (last - first)

    def _erase_screen(self, how: int) -> None:
        if how == 0:
            self._erase_line(0)
        blank = range(self._row + 1, self.rows) if how == 0 else range(self._row if how == 1 else self.rows)
        for at in blank:
            self._cells[at] = [" "] * self.columns


def _is_text(raw: bytes) -> bool:
    try:
        raw[-4:].decode()
    except UnicodeDecodeError as exc:
        return exc.reason != "unexpected end of data"
    return True
