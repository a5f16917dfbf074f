"""Totals of traces: turns, tokens, cost and errors.

Rules:

- A total says what it lacks: responses without a known price, and output tokens that the client did not record.
- Usage and cost are summed over generations, each of which is in exactly one trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.trace.model import Kind, Usage

if TYPE_CHECKING:
    from turnspan.trace.model import Trace


class Tally(msgspec.Struct, frozen=True):
    """Totals of some traces."""

    turns: int = 0
    generations: int = 0
    tools: int = 0
    agents: int = 0
    errors: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0  # of responses with a known cost
    cut_off: int = 0  # interrupted responses, whose cost was not recorded
    unpriced: frozenset[str] = frozenset()  # models without a known price
    inferred: int = 0  # responses with an inferred start
    incomplete: int = 0  # responses whose final output tokens were not recorded

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.turns + other.turns,
            self.generations + other.generations,
            self.tools + other.tools,
            self.agents + other.agents,
            self.errors + other.errors,
            self.usage + other.usage,
            self.cost_usd + other.cost_usd,
            self.cut_off + other.cut_off,
            self.unpriced | other.unpriced,
            self.inferred + other.inferred,
            self.incomplete + other.incomplete,
        )

    @property
    def tokens(self) -> int:
        """All tokens, cached ones included."""
        return self.usage.input + self.usage.output + self.usage.cache_read + self.usage.cache_write

    @property
    def is_cost_partial(self) -> bool:
        """Whether the real cost is higher than the total."""
        return bool(self.cut_off or self.unpriced or self.incomplete)


def tally_of(trace: Trace) -> Tally:
    """Return the totals of one trace."""
    turns = generations = tools = agents = errors = inferred = 0
    usage, cost_usd, cut_off, incomplete = Usage(), 0.0, 0, 0
    unpriced = set()
    for span in trace.spans:
        kind = span.kind
        if kind is Kind.GENERATION:
            generations += 1
            errors += span.error is not None
        elif kind is Kind.TOOL:
            tools += 1
            errors += span.error is not None
        elif kind is Kind.TURN:  # a turn or an agent fails because of one of its responses, which is counted
            turns += 1
        elif kind is Kind.AGENT:
            agents += 1
        inferred += span.facts.get("time.inferred") == "start"
        if span.usage is None:
            continue
        usage += span.usage
        incomplete += span.usage.is_incomplete
        if span.cost_usd is not None:
            cost_usd += span.cost_usd
        elif "aborted" in span.facts:
            cut_off += 1
        elif has_tokens(span.usage):
            unpriced.add(span.model or span.name)
    return Tally(
        turns, generations, tools, agents, errors, usage, cost_usd, cut_off, frozenset(unpriced), inferred, incomplete
    )


def has_tokens(usage: Usage) -> bool:
    """Whether any tokens were counted."""
    return bool(usage.input or usage.output or usage.cache_read or usage.cache_write)
