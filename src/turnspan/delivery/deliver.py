"""Sends traces to one backend and acts on each verdict.

Rules:

- Traces are sent in order, in requests below the backend's size limit. The first verdict that is not an acknowledgement
  stops the rest: no trace overtakes another.
- A request that is too large is split, then its texts are cut, then it is reduced to metadata. An invalid request is
  halved until one span is left. Only that span is quarantined, with its id and the reason.
- If *every* span is refused as invalid, the endpoint is probably wrong: nothing is quarantined, everything is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Answer, Verdict
from turnspan.trace.model import Span, Trace, map_content, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.backends import Backend
    from turnspan.trace.model import Content

_MOST_REFUSALS: Final = 64  # requests, if the backend has not accepted any span yet
_MOST_MESSAGES: Final = 50  # of a content that is cut
_CUTS: Final = (20_000, 1_000, 0)  # characters a text keeps when its span alone is too large; 0: metadata only


class RefusedSpan(msgspec.Struct, frozen=True):
    """A span that a backend refused for good; or a trace of a request it accepted in part, if it did not say which."""

    trace_id: bytes
    span_id: bytes  # empty: unknown
    reason: str
    spans: int = 1  # for a request of several traces, the first has the number of all


class Delivery(msgspec.Struct):
    """The result of sending some traces."""

    stopped: Verdict | None = None  # the verdict that stopped it; None: everything is settled
    sent: int = 0  # spans acknowledged
    refused: list[RefusedSpan] = []
    cut: int = 0  # spans that had to be shortened
    requests: int = 0

    @property
    def refused_spans(self) -> int:
        """How many spans were refused: those with an id, and those of which only the number is known."""
        return sum(one.spans for one in self.refused)


def deliver(
    backend: Backend,
    traces: Sequence[Trace],
    acknowledged: Callable[[Sequence[Trace]], None] = lambda _traces: None,
) -> Delivery:
    """Send traces; `acknowledged` is called for each request as soon as it is settled."""
    delivery = Delivery()
    for batch in _batches(backend, traces):
        _send(backend, batch, delivery, acknowledged)
        if delivery.stopped is not None:
            return delivery
    if delivery.refused and not delivery.sent:
        reason = delivery.refused[0].reason
        delivery.refused = []
        delivery.stopped = Verdict(Answer.INVALID, f"every span was refused as invalid: {reason}")
    return delivery


def _batches(backend: Backend, traces: Sequence[Trace]) -> list[list[Trace]]:
    """Return the traces in groups that will probably fit; `_send` splits those that do not."""
    batches: list[list[Trace]] = []
    size = 0
    for trace in traces:
        if not trace.spans:
            continue
        estimate = sum(_size(span) for span in trace.spans)
        if not batches or size + estimate > backend.max_request_bytes * 3 // 4:
            batches.append([])
            size = 0
        batches[-1].append(trace)
        size += estimate
    return batches


def _send(
    backend: Backend, traces: list[Trace], delivery: Delivery, acknowledged: Callable[[Sequence[Trace]], None]
) -> None:
    body = backend.encode(traces)
    if len(body) > backend.max_request_bytes:
        verdict = Verdict(Answer.TOO_LARGE, f"{len(body)} bytes are more than {backend.max_request_bytes}")
    else:
        verdict = backend.send(body)
        delivery.requests += 1
    spans = sum(len(trace.spans) for trace in traces)
    if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL}:
        rejected = min(verdict.rejected, spans) if verdict.answer is Answer.PARTIAL else 0
        delivery.sent += spans - rejected
        if rejected:
            delivery.refused += _rejected(traces, verdict, rejected)
        acknowledged(traces)
    elif verdict.answer in {Answer.TOO_LARGE, Answer.INVALID} and spans > 1:
        if not delivery.sent and delivery.requests > _MOST_REFUSALS:
            delivery.stopped = verdict
            return
        for half in _halves(traces):
            _send(backend, half, delivery, acknowledged)
            if delivery.stopped is not None:
                return
    elif verdict.answer is Answer.TOO_LARGE:
        _send_cut(backend, traces[0], verdict, delivery, acknowledged)
    elif verdict.answer is Answer.INVALID:
        delivery.refused.append(RefusedSpan(traces[0].trace_id, traces[0].spans[0].span_id, verdict.reason))
        acknowledged(traces)
    else:
        delivery.stopped = verdict


def _rejected(traces: list[Trace], verdict: Verdict, rejected: int) -> list[RefusedSpan]:
    """Return what a partial success refused: every span with its id, or only how many if it does not say which."""
    spans = [(trace.trace_id, span.span_id) for trace in traces for span in trace.spans]
    if rejected == len(spans):
        return [RefusedSpan(trace_id, span_id, verdict.reason) for trace_id, span_id in spans]
    why = f"{rejected} of {len(spans)} spans of this request: {verdict.reason}"
    return [RefusedSpan(trace.trace_id, b"", why, 0 if place else rejected) for place, trace in enumerate(traces)]


def _halves(traces: list[Trace]) -> tuple[list[Trace], list[Trace]]:
    if len(traces) > 1:
        middle = len(traces) // 2
        return traces[:middle], traces[middle:]
    trace = traces[0]
    middle = len(trace.spans) // 2
    first = msgspec.structs.replace(trace, spans=trace.spans[:middle])
    return [first], [msgspec.structs.replace(trace, spans=trace.spans[middle:])]


def _send_cut(
    backend: Backend,
    trace: Trace,
    verdict: Verdict,
    delivery: Delivery,
    acknowledged: Callable[[Sequence[Trace]], None],
) -> None:
    """Send one span that is too large by itself: shortened, then without content; else quarantine it."""
    for characters in _CUTS:
        smaller = msgspec.structs.replace(trace, spans=(_cut_span(trace.spans[0], characters),))
        body = backend.encode([smaller])
        if len(body) > backend.max_request_bytes:
            continue
        verdict = backend.send(body)
        delivery.requests += 1
        if verdict.answer in {Answer.TOO_LARGE, Answer.INVALID}:
            continue
        if verdict.answer is Answer.PARTIAL and verdict.rejected:
            break
        if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL}:
            delivery.sent += 1
            delivery.cut += 1
            acknowledged([trace])
        else:
            delivery.stopped = verdict
        return
    delivery.refused.append(RefusedSpan(trace.trace_id, trace.spans[0].span_id, verdict.reason))
    acknowledged([trace])


# ---- cutting


def _cut_span(span: Span, characters: int) -> Span:
    size = _size(span)
    return msgspec.structs.replace(
        span,
        input=_cut_content(span.input, characters),
        output=_cut_content(span.output, characters),
        error_message=_cut(span.error_message, min(characters, 500)),
        facts={
            **{k: _cut(v, max(characters, 200)) if isinstance(v, str) else v for k, v in span.facts.items()},
            "cut_from_bytes": size,
        },
    )


def _cut_content(content: Content | None, characters: int) -> Content | None:
    if content is None or characters == 0:
        return None
    if isinstance(content, tuple):
        content = content[:_MOST_MESSAGES]
    return map_content(content, lambda text: _cut(text, characters), lambda text: _cut_json(text, characters))


def _cut_json(text: str, characters: int) -> str:
    return text if len(text) <= characters else msgspec.json.encode({"cut": _cut(text, characters)}).decode()


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}… [{len(text)} characters]"


def _size(span: Span) -> int:
    """Return about how many bytes a span will take; content twice, under the GenAI names and under OpenInference's."""
    size = 600
    for content in (span.input, span.output):
        if content is not None:
            size += 2 * sum(map(len, texts_of(content)))
    for value in span.facts.values():
        size += len(value) if isinstance(value, str) else 16
    return size
