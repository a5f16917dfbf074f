"""The critical path of a trace: the responses and tool calls that decided when it ended.

It is followed backwards from the end. Before a tool call comes the response that asked for it, although that one may
still be streaming when the call begins. Before a response comes what ended last among the earlier steps of the same
turn or agent; before the first response of an agent comes the response that launched it. What ran beside the path
could have taken longer without a later end of the turn.

An agent, and the call that launched it, are not steps of their own: the steps are below them. An agent in the
background is never on the path of its turn, which ended without it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from turnspan.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.trace.model import Span


def critical_path(spans: Sequence[Span]) -> frozenset[bytes]:
    """Return the ids of the responses and tool calls on the path."""
    return _Walk(spans).path()


class _Scope:
    """The steps of a turn or an agent, by their start."""

    def __init__(self, steps: list[Span]) -> None:
        steps.sort(key=lambda span: span.start_ns)
        self._starts = [span.start_ns for span in steps]
        self._latest: list[Span] = []  # for each step the one that ends last among it and those before it
        for step in steps:
            self._latest.append(max(self._latest[-1], step, key=_end) if self._latest else step)

    def last(self) -> Span:
        """Return the step that ends last."""
        return self._latest[-1]

    def before(self, start_ns: int) -> Span | None:
        """Return the step that ends last among those that begin before a time."""
        number = bisect_left(self._starts, start_ns)
        return self._latest[number - 1] if number else None


class _Walk:
    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = {span.span_id: span for span in spans}
        self._agents: dict[bytes, list[Span]] = {}  # by the call that launched them
        steps: dict[bytes | None, list[Span]] = {}
        for span in spans:
            if span.kind is Kind.AGENT and span.parent_id is not None and not span.facts.get("background"):
                self._agents.setdefault(span.parent_id, []).append(span)
            elif span.kind in {Kind.GENERATION, Kind.TOOL}:
                steps.setdefault(self._scope_of(span), []).append(span)
        self._scopes = {scope: _Scope(found) for scope, found in steps.items()}

    def path(self) -> frozenset[bytes]:
        tops = [scope.last() for owner, scope in self._scopes.items() if self._launcher(owner) is None]
        current = max(tops, key=_end, default=None)
        path: set[bytes] = set()
        seen: set[bytes] = set()
        while current is not None and current.span_id not in seen:
            seen.add(current.span_id)
            inside = [
                self._scopes[a.span_id].last()
                for a in self._agents.get(current.span_id, ())
                if a.span_id in self._scopes
            ]
            if inside:
                current = max(inside, key=_end)
            else:
                path.add(current.span_id)
                current = self._before(current, seen)
        return frozenset(path)

    def _before(self, step: Span, seen: set[bytes]) -> Span | None:
        """Return the step before one."""
        asked_by = self._spans.get(step.parent_id or b"") if step.kind is Kind.TOOL else None
        if asked_by is not None and asked_by.kind is Kind.GENERATION and asked_by.span_id not in seen:
            return asked_by
        scope = self._scope_of(step)
        earlier = self._scopes[scope].before(step.start_ns)
        if earlier is not None:
            return earlier
        launcher = self._launcher(scope)
        return self._spans.get(launcher.parent_id or b"") if launcher is not None else None

    def _scope_of(self, step: Span) -> bytes | None:
        """Return the turn or agent of a step."""
        asked_by = self._spans.get(step.parent_id or b"")
        is_call = step.kind is Kind.TOOL and asked_by is not None and asked_by.kind is Kind.GENERATION
        return asked_by.parent_id if is_call and asked_by is not None else step.parent_id

    def _launcher(self, scope: bytes | None) -> Span | None:
        """Return the call that launched an agent; None for a turn, and for an agent whose call is elsewhere."""
        owner = self._spans.get(scope or b"")
        if owner is None or owner.kind is not Kind.AGENT:
            return None
        return self._spans.get(owner.parent_id or b"")


def _end(span: Span) -> int:
    return span.end_ns
