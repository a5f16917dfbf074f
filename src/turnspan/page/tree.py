"""Traces as a tree of lines for the terminal.

The guides and columns are drawn here and not by `rich.tree`: with a grid in every node, which the aligned figures need,
it takes 17 times the CPU (0.42 ms a line instead of 0.025, 8 s for 20,000 spans), and its guides are four columns wide:
three nested agents would take 32 of the 56 columns of a narrow terminal.

Rules:

- A span is one line: name, content, tokens, cost, duration. An error has its own line.
- Every figure is measured or marked: `~` inferred, `≥` at least, `?` unknown. The footer explains the marks used.
- Transcript content reaches a line only through `terminal.plain` or `terminal.one_line`.
- Children are in the order of the transcript, events among them where they happened.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.text import (
    broken,
    cells,
    count,
    duration,
    fit,
    one_line,
    paint,
    plain,
    short_model,
    tokens,
    unstyled,
    usd,
)
from turnspan.trace.labels import numbered
from turnspan.trace.model import Kind, Usage
from turnspan.trace.one_liner import flat, gist_of, part_text
from turnspan.trace.tally import Tally, has_tokens, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import tzinfo

    from turnspan.page.preview import PreviewedTrace
    from turnspan.trace.model import Scalar, Span, Trace

_SIGNS: Final = {Kind.TURN: "●", Kind.GENERATION: "◆", Kind.TOOL: "▸", Kind.AGENT: "◉", Kind.EVENT: "·"}
_COLOURS: Final = {
    Kind.TURN: "yellow", Kind.GENERATION: "blue", Kind.TOOL: "cyan", Kind.AGENT: "magenta", Kind.EVENT: "yellow",
}  # fmt: skip
_FAINT: Final = "bright_black"
_MASK: Final = re.compile(r"(\[redacted:[^\]\s]{1,60}\]|\[withheld: [^\]]{1,60}\])")
# The duration is last: a span without tokens uses their columns for its content.
_COLUMNS: Final = (("in", 6), ("out", 6), ("cost", 9), ("time", 7))
NO_ANSWER: Final = "no answer"
NOT_IN_TOTALS: Final = "not in the turn's totals"
COMPACTION: Final = "compaction"
_NARROW: Final = 70  # below this width the token columns are omitted


class Layout(msgspec.Struct, frozen=True):
    """Width and style of a tree."""

    width: int
    zone: tzinfo | None = None  # of the times of day; None is the local time zone
    is_full: bool = False  # all content instead of its first line
    is_wrapped: bool = True  # whether full content is wrapped at the width


# ---- around the tree


def session_lines(shown: Iterable[PreviewedTrace], path: str, layout: Layout) -> Iterator[str]:
    """Yield a session from its header to its footer, each trace as soon as it is read.

    What background agents did is below their turn. They are read last, so from the first turn that launched one on,
    the lines are held.
    """
    total, masked, held = Tally(), Counter[str](), dict[bytes, list[str]]()
    session_id = day = None
    for previewed in shown:
        trace = previewed.own
        if not trace.spans:
            continue
        began = _moment(trace.spans[0].start_ns, layout)
        lines = ["\n".join((*trace_lines(trace, layout, previewed.trace.trace_id), ""))]
        if trace.session_id != session_id:
            session_id = trace.session_id
            lines = [*head_lines(previewed, path, layout), *lines]
        elif began.date() != day and trace.trace_id not in held:
            lines.insert(0, paint(f"{began:%a %Y-%m-%d}", fg=_FAINT))
        day = day if trace.trace_id in held else began.date()
        if held or is_continued(trace):
            held.setdefault(trace.trace_id, []).extend(lines)
        else:
            yield from lines
        total += tally_of(trace)
        masked.update(previewed.masked)
    for blocks in held.values():
        yield from blocks
    if session_id is not None:
        yield from foot_lines(total, masked, layout)


def head_lines(previewed: PreviewedTrace, path: str, layout: Layout) -> Iterator[str]:
    """Yield the header of a session: its id, what is known about it, and the names of the columns."""
    yield paint(f"session {one_line(previewed.trace.session_id)}", fg="yellow")
    for name, value in head_of(previewed, path, layout).items():
        yield f"{name + ':':9}{value}"
    yield ""
    yield paint(_with_figures("", [name for name, _ in _COLUMNS], layout), fg=_FAINT)


def head_of(previewed: PreviewedTrace, path: str, layout: Layout) -> dict[str, str]:
    """Return what is known about a session when its first turn is read."""
    trace = previewed.trace
    facts = {name: one_line(str(value)) for name, value in trace.facts.items()}
    branch = f" ({facts['git_branch']})" if "git_branch" in facts else ""
    entrypoint = f", {facts['entrypoint']}" if "entrypoint" in facts else ""
    known = {
        "Title": facts.get("title", ""),
        "Project": facts.get("cwd", "") + branch,
        "Client": f"Claude Code {one_line(trace.client_version) or '(unknown version)'}{entrypoint}",
        "Date": f"{_moment(trace.spans[0].start_ns, layout):%a %Y-%m-%d %H:%M:%S %z}",
        "After": facts.get("previous_session", ""),
        "File": one_line(path),
        "Export": one_line(previewed.where),
    }
    return {name: value for name, value in known.items() if value}


def foot_lines(total: Tally, masked: Mapping[str, int], layout: Layout) -> Iterator[str]:
    """Yield the totals, the meaning of the marks that were used, and what was masked."""
    used = total.usage
    counted = (
        (total.turns, "turn"),
        (total.generations, "generation"),
        (total.tools, "tool call"),
        (total.agents, "agent"),
    )
    sums = [count(number, word) for number, word in counted if number]
    if total.errors:
        sums.append(paint(count(total.errors, "error"), fg="red"))
    yield " · ".join(sums)
    if total.generations:
        asked = _asked(used)
        cached = f" ({used.cache_read / asked:.0%} from the cache)" if used.cache_read else ""
        cost = usd(total.cost_usd) if total.cost_usd or not total.is_cost_partial else "unknown cost"
        cost = f"at least {cost}" if total.cost_usd and total.is_cost_partial else cost
        yield f"{tokens(asked)} tokens in{cached} · {_output(used)} out · " + paint(cost, is_bold=True)
    for note in _notes(total):
        yield from (paint(line, fg=_FAINT) for line in textwrap.wrap(note, layout.width, subsequent_indent="  "))
    rules = [f"{number:,} {one_line(rule)}" for rule, number in sorted(masked.items())]
    yield paint("masked: " + (" · ".join(rules) or "nothing"), fg="magenta" if rules else _FAINT)


def _notes(total: Tally) -> Iterator[str]:
    if total.inferred:
        requests = count(total.inferred, "request")
        yield f"~ inferred: the client did not record when it sent {requests}"
    if total.incomplete:
        responses = count(total.incomplete, "response")
        yield f"≥ at least: the client did not record the final output tokens of {responses}"
    if total.unpriced:
        yield f"? unknown: no price for {', '.join(sorted(map(one_line, total.unpriced)))}"
    if total.cut_off:
        yield f"? unknown: the client did not record the cost of {count(total.cut_off, 'interrupted response')}"


# ---- the tree


def trace_lines(trace: Trace, layout: Layout, exported_as: bytes | None = None) -> Iterator[str]:
    """Yield a trace as a tree. Spans that arrived after their turn are below a line that names the turn.

    `exported_as`: the id of the trace that it is part of, if that is a caller's.
    """
    below = by_parent(trace)
    tops = below.pop(None, [])
    if layout.is_full:
        trace_id = exported_as or trace.trace_id
        about = {"trace": trace_id.hex(), **trace.facts, **({"tags": ",".join(trace.tags)} if trace.tags else {})}
        yield from _wrapped(_pairs(about), layout, layout.width, fg=_FAINT)
    if all(span.parent_id is None for span in tops):
        for span in tops:
            yield from _span_lines(span, below, "", "", layout)
        return
    when = f" {time_of_day(tops[0].start_ns, layout)}, {NOT_IN_TOTALS}"
    yield paint(f"○ {turn_name(trace)}", fg="yellow", is_bold=True) + paint(when, fg=_FAINT)
    yield from _branches(tops, below, "", layout)


def is_continued(trace: Trace) -> bool:
    """Whether an agent works on in the background: what it did is another part of the same trace."""
    return any(span.kind is Kind.TOOL and "background" in span.facts for span in trace.spans)


def turn_name(trace: Trace) -> str:
    """Return the name of a turn, or of what was added to it later: `Turn 22 · background agent`."""
    name, top = one_line(numbered(trace.name)), trace.spans[0]
    if top.parent_id is None:
        return name
    return f"{name} · {'background agent' if top.kind is Kind.AGENT else 'continued'}"


def by_parent(trace: Trace) -> dict[bytes | None, list[Span]]:
    """Return the spans by parent; None is the parent of spans whose parent is not in this trace."""
    present = {span.span_id for span in trace.spans}
    below: dict[bytes | None, list[Span]] = {}
    for span in trace.spans:
        siblings = below.setdefault(span.parent_id if span.parent_id in present else None, [])
        place = len(siblings)
        if span.kind is Kind.EVENT:
            place = next((n for n, other in enumerate(siblings) if _is_later(other, span)), place)
        siblings.insert(place, span)
    return below


def _is_later(span: Span, event: Span) -> bool:
    """Whether a span is below an event; a compaction at the start of a turn was before its prompt."""
    is_compaction = event.facts.get("event") == COMPACTION
    return span.start_ns >= event.start_ns if is_compaction else span.start_ns > event.start_ns


def _branches(
    spans: Sequence[Span], below: Mapping[bytes | None, Sequence[Span]], stem: str, layout: Layout
) -> Iterator[str]:
    for span in spans:
        is_last = span is spans[-1]
        yield from _span_lines(
            span, below, stem + ("└─" if is_last else "├─"), stem + ("  " if is_last else "│ "), layout
        )


def _span_lines(
    span: Span, below: Mapping[bytes | None, Sequence[Span]], branch: str, stem: str, layout: Layout
) -> Iterator[str]:
    """Yield a span and everything below it. `branch` is the guide of its line, `stem` that of all others."""
    children = below.get(span.span_id, ())
    yield _line(span, branch, layout, children)
    inner = stem + ("│ " if children else "  ")
    room = max(layout.width - cells(inner), 20)
    guide = paint(inner, fg=_FAINT)
    if span.error is not None and span.kind is not Kind.TURN:  # the response that failed a turn has the message
        why = ": ".join(filter(None, (one_line(span.error), one_line(span.error_message))))
        yield guide + paint(fit(f"✗ {why}", room), fg="red")
    if layout.is_full:
        details = details_of(span) | tokens_by_kind(span)
        yield from (guide + line for line in _wrapped(_pairs(details), layout, room, fg=_FAINT))
        for line in _content_lines(span):
            yield from (guide + piece for piece in _wrapped(line, layout, room))
    yield from _branches(children, below, stem, layout)


def _line(span: Span, branch: str, layout: Layout, children: Sequence[Span]) -> str:
    colour = "red" if span.error is not None else _COLOURS[span.kind]
    figures = figures_of(span, children)
    room = _room(figures, layout) - cells(branch) - 2
    name = fit(name_of(span), room)
    room -= cells(name)
    line = paint(branch, fg=_FAINT) + paint(_SIGNS[span.kind], fg=colour) + " "
    line += paint(name, fg=colour, is_bold=span.kind is Kind.TURN)
    for gap, text, style in (
        (1, time_of_day(span.start_ns, layout) if span.kind is Kind.TURN else "", _FAINT),
        (1, " ".join(f"[{badge}]" for badge in badges_of(span)), "yellow"),
        (2, gist_of(span, is_parent=bool(children)), None),
    ):
        if text and room > gap + 2:
            shown = fit(text, room - gap)
            room -= cells(shown) + gap
            line += " " * gap + _highlighted(shown, fg=style)
    return _with_figures(line, figures, layout)


def _highlighted(text: str, fg: str | None) -> str:
    """Return the text with masked parts in a colour of their own."""
    pieces = _MASK.split(text)
    return "".join(paint(piece, fg="magenta" if n % 2 else fg) for n, piece in enumerate(pieces) if piece)


def name_of(span: Span) -> str:
    """Return the name of a span."""
    if span.kind is Kind.GENERATION:
        return short_model(span.name)
    return one_line(numbered(span.name))  # the prompt is next to it


def badges_of(span: Span) -> Iterator[str]:
    """Yield what is unusual about a span, in a word or two each."""
    facts = span.facts
    origin = str(facts.get("origin", "human"))
    if origin not in {"human", "sdk"}:
        yield one_line(origin).replace("_", " ")
    if facts.get("background"):
        yield "background"
    if facts.get("interrupted") or facts.get("aborted"):
        yield "interrupted"
    if facts.get("incomplete"):
        yield "no result" if span.kind is Kind.TOOL else NO_ANSWER


# ---- all content


def details_of(span: Span) -> dict[str, Scalar]:
    """Return the ids and facts of a span."""
    facts = {"id": span.span_id.hex(), **({"model": span.model} if span.model is not None else {}), **span.facts}
    if span.first_token_ns is not None:
        facts["first_token"] = duration(span.first_token_ns - span.start_ns)
    for link in span.links:
        facts[link.relation] = f"{link.trace_id.hex()}/{link.span_id.hex()}"
    return facts


def tokens_by_kind(span: Span) -> dict[str, Scalar]:
    """Return the tokens of a response, or the sum below a turn or an agent, by kind; kinds without any are omitted."""
    used = span.usage or span.totals
    if used is None:
        return {}
    kinds: dict[str, Scalar] = {
        "input": used.input,
        "cache_read": used.cache_read,
        "cache_write_5m": used.cache_write_5m,
        "cache_write_1h": used.cache_write_1h,
        "output": used.output,
        "web_searches": used.web_searches,
    }
    if used.is_incomplete:
        kinds["output"] = f"≥{used.output}"
    return {name: number for name, number in kinds.items() if number}


def _pairs(facts: Mapping[str, object]) -> str:
    return " ".join(one_line(f"{name}={value}") for name, value in facts.items())


def _content_lines(span: Span) -> Iterator[str]:
    return (line for label, text in sections_of(span) for line in _labelled(label, text))


def sections_of(span: Span) -> Iterator[tuple[str, str]]:
    """Yield all content of a span as (label, text)."""
    if span.error_message:
        yield "error", span.error_message
    for label, content in (("in", span.input), ("out", span.output)):
        if isinstance(content, tuple):
            for message in content:
                for part in message.parts:
                    yield f"{label} {one_line(message.role)}", part_text(part)
        elif content is not None:
            yield label, flat(content)


def _labelled(label: str, text: str) -> Iterator[str]:
    first, *rest = plain(text).expandtabs(4).rstrip().split("\n")
    yield f"{label}: {first}"
    yield from (f"  {line}" for line in rest)


def _wrapped(line: str, layout: Layout, width: int, fg: str | None = None) -> Iterator[str]:
    pieces = broken(line, width) if layout.is_wrapped else [line]
    return (_highlighted(piece, fg) for piece in pieces)


# ---- figures


def figures_of(span: Span, children: Sequence[Span] = ()) -> list[str]:
    """Return tokens in, tokens out, cost and duration of a span; empty where it has none.

    A call has the tokens and the cost of the agents that it launched, which are among its children.
    """
    if span.kind is Kind.EVENT:
        return []
    inferred = "~" if span.facts.get("time.inferred") == "start" else ""
    time = inferred + duration(span.end_ns - span.start_ns)
    if span.kind is Kind.TOOL and "incomplete" in span.facts:
        time = "?"
    used, cost = span.usage or span.totals, span.cost_usd if span.usage is not None else span.totals_cost_usd
    if span.kind is Kind.TOOL and (agents := [each for each in children if each.totals is not None]):
        used = sum((each.totals or Usage() for each in agents), start=Usage())
        costs = [each.totals_cost_usd for each in agents]
        cost = None if None in costs else sum(each or 0.0 for each in costs)
    if used is None or not has_tokens(used):
        return ["", "", "", time]
    shown = "?" if cost is None else usd(cost, is_partial=used.is_incomplete)
    return [tokens(_asked(used)), _output(used), shown, time]


def _asked(usage: Usage) -> int:
    """Return all input tokens, cached or not."""
    return usage.input + usage.cache_read + usage.cache_write


def _output(usage: Usage) -> str:
    return tokens(usage.output, is_partial=usage.is_incomplete)


def _columns(figures: Sequence[str], layout: Layout) -> str:
    """Return the figures in their columns."""
    cells = [f" {figure:>{width}}" for figure, (_, width) in zip(figures, _COLUMNS, strict=False)]
    if layout.width < _NARROW:
        cells = cells[2:]
    return "".join(cells).rstrip() if any(figures) else ""


def _room(figures: Sequence[str], layout: Layout) -> int:
    """Return the width that remains for the tree."""
    return max(layout.width - len(_columns(figures, layout).lstrip()) - 2, 20)


def _with_figures(line: str, figures: Sequence[str], layout: Layout) -> str:
    right = _columns(figures, layout).lstrip()
    return line + " " * max(layout.width - len(right) - cells(unstyled(line)), 1) + right if right else line


def _moment(at_ns: int, layout: Layout) -> datetime:
    return datetime.fromtimestamp(at_ns / 1e9, layout.zone).astimezone(layout.zone)


def time_of_day(at_ns: int, layout: Layout) -> str:
    """Return a time as HH:MM; empty if unknown."""
    return f"{_moment(at_ns, layout):%H:%M}" if at_ns else ""
