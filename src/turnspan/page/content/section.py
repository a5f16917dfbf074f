"""A section: one piece of a span's content, ready to be displayed. And the budget that rendering has."""

from __future__ import annotations

from time import thread_time
from typing import Final

import msgspec

PREVIEW_CHARACTERS: Final = 16_000  # of a text, where not all of it was requested
PREVIEW_LINES: Final = 300
_MARKDOWN: Final = 60_000  # characters of a span; the worst case takes 0.035 ms each, an ordinary text 0.003
_CODE: Final = 400_000  # likewise; 0.002 ms each
_CODE_S: Final = 1.0  # CPU time: some lexers are quadratic for malformed code


class Section(msgspec.Struct, frozen=True):
    """One piece of a span's content."""

    label: str
    kind: str  # markdown, code, diff, terminal, file, todos, json, text, image, error, thinking
    html: str  # safe markup; classes only
    is_folded: bool = False
    size: int = 0  # characters of the complete text
    is_cut: bool = False  # whether `html` has only the beginning of it


class Budget:
    """How much of a span is still rendered with colours and structure; the rest is plain text."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full = is_full
        self._markdown = _MARKDOWN
        self._code = _CODE
        self._code_until_s: float | None = None

    def allows_markdown(self, text: str) -> bool:
        """Whether a text may be rendered as Markdown; it is then used up."""
        self._markdown -= len(text)
        return self._markdown >= 0

    def allows_code(self, text: str) -> bool:
        """Whether a text may be highlighted; it is then used up."""
        self._code -= len(text)
        return self._code >= 0

    def is_out_of_time(self) -> bool:
        """Whether highlighting has taken too long."""
        if self._code_until_s is None:
            self._code_until_s = thread_time() + _CODE_S
        return thread_time() > self._code_until_s

    def beginning(self, text: str) -> tuple[str, bool]:
        """Return what is shown of a text, and whether something is missing. It ends with a line where possible."""
        if self.is_full:
            return text, False
        at = -1
        for _ in range(PREVIEW_LINES):
            at = text.find("\n", at + 1, PREVIEW_CHARACTERS)
            if at < 0:
                break
        if at >= 0:
            return text[:at], not text[at:].isspace()
        if len(text) <= PREVIEW_CHARACTERS:
            return text, False
        at = text.rfind("\n", PREVIEW_CHARACTERS // 2, PREVIEW_CHARACTERS)
        return text[: at if at > 0 else PREVIEW_CHARACTERS], True
