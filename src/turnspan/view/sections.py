"""The content of a span as sections of safe markup: today every text as it is."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import msgspec

from turnspan.terminal import plain
from turnspan.view.tree import MASK, sections_of

if TYPE_CHECKING:
    from turnspan.trace.model import Span

_LONGEST = 20_000  # characters shown before "show all"


class Section(msgspec.Struct, frozen=True):
    """A part of the content of a span, as markup that was made here."""

    label: str
    kind: str
    html: str
    is_folded: bool = False
    size: int = 0
    is_cut: bool = False


def sections(span: Span, *, is_full: bool = False) -> list[Section]:
    """Return the content of a span."""
    found = []
    for label, text in sections_of(span):
        shown = plain(text)
        is_cut = not is_full and len(shown) > _LONGEST
        pieces = MASK.split(shown[:_LONGEST] if is_cut else shown)
        html = "".join(f"<mark>{escape(one)}</mark>" if n % 2 else escape(one) for n, one in enumerate(pieces))
        found.append(Section(label, "text", f"<pre>{html}</pre>", size=len(shown), is_cut=is_cut))
    return found
