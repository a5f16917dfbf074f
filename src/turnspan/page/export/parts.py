"""A document from its head to its foot, made as the session is read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from turnspan.page.tree import foot_lines, head_of, is_continued
from turnspan.text import unstyled
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from turnspan.page.preview import PreviewedTrace
    from turnspan.page.tree import Layout
    from turnspan.trace.model import Trace


class DocumentForm(NamedTuple):
    """How each part of a document is written."""

    head: Callable[[str, dict[str, str]], str]  # the title, and what is known about the session
    turn: Callable[[Trace, Layout], Iterator[str]]
    foot: Callable[[list[str]], str]  # the totals


def parts(traces: Iterable[PreviewedTrace], path: str, layout: Layout, form: DocumentForm) -> Iterator[str]:
    """Yield the parts of a document, each turn as soon as it is read. `path` is the transcript's."""
    total, masked, held = Tally(), Counter[str](), dict[bytes, list[str]]()
    is_begun = False
    for previewed in traces:
        trace = previewed.own
        if not trace.spans:
            continue
        if not is_begun:
            yield form.head(*_about(previewed, path, layout))
            is_begun = True
        if held or is_continued(trace):
            held.setdefault(trace.trace_id, []).extend(form.turn(trace, layout))
        else:
            yield from form.turn(trace, layout)
        total += tally_of(trace)
        masked.update(previewed.masked)
    for turns in held.values():  # what background agents did is below their turn
        yield from turns
    if not is_begun:
        yield form.head("No turns", {})
    yield form.foot([unstyled(line) for line in foot_lines(total, masked, layout)])


def _about(previewed: PreviewedTrace, path: str, layout: Layout) -> tuple[str, dict[str, str]]:
    facts = head_of(previewed, path, layout)
    title = facts.pop("Title", "") or f"Session {previewed.trace.session_id}"
    facts.pop("File", None)  # where it is on the author's disk is of no use to a reader
    return title, {"Session": previewed.trace.session_id, **facts}
