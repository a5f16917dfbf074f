"""The tokens and cost of a response, as the client counts them, and sums of costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.trace.cost import cost_usd
from turnspan.trace.model import Usage
from turnspan.transcript.carry import version_of
from turnspan.transcript.turns import TurnCall

if TYPE_CHECKING:
    from turnspan.trace.cost import Prices
    from turnspan.transcript import entries as e
    from turnspan.transcript.turns import ModelResponse

# From this version on a response without a stop reason has a streaming placeholder for its output count; before, any
# response may have one.
_PLACEHOLDER_FROM: Final = (2, 1, 20)
_CHARACTERS_PER_TOKEN: Final = 12  # generous: with more text per token, the count is not final
_PLACEHOLDER_TOKENS: Final = 8  # the initial count of a stream


def usage_of(response: ModelResponse, used: e.ApiUsage) -> Usage:
    """Return the tokens of a response."""
    split = used.cache_creation
    five = _count(split.ephemeral_5m_input_tokens) if split is not None else 0
    hour = _count(split.ephemeral_1h_input_tokens) if split is not None else 0
    written = _count(used.cache_creation_input_tokens)
    five = max(written, five + hour) - hour  # no split, or a partial one: the rest has the default lifetime
    return Usage(
        _count(used.input_tokens),
        _count(used.output_tokens),
        _count(used.cache_read_input_tokens),
        five,
        hour,
        _count(used.server_tool_use.web_search_requests) if used.server_tool_use is not None else 0,
        _is_incomplete(response),
    )


def _count(value: int | None) -> int:
    return value if value is not None and 0 < value < 2**53 else 0


def _is_incomplete(response: ModelResponse) -> bool:
    """Whether the output count is a streaming placeholder (docs/dev/decisions.md has the versions)."""
    if response.stop_reason is not None:
        return False
    version = version_of(response.version)
    if response.is_aborted or not version or version >= _PLACEHOLDER_FROM:
        return True
    characters = sum(len(part.arguments if isinstance(part, TurnCall) else part.text) for part in response.parts)
    counted = _count(response.usage.output_tokens) if response.usage is not None else 0
    return counted <= _PLACEHOLDER_TOKENS or characters > _CHARACTERS_PER_TOKEN * counted


def cost_of(
    response: ModelResponse, used: e.ApiUsage, usage: Usage, prices: Prices | None, end_ns: int
) -> float | None:
    """Return the cost of a response as the client counts it: by the requested model, plus an advisor's tokens."""
    if response.is_aborted:
        return None  # the client does not charge for it, and the count is a placeholder
    model = response.requested_model or response.model
    cost = cost_usd(model, usage, speed=used.speed, geo=used.inference_geo, prices=prices, at_ns=end_ns)
    for advice in used.iterations or ():
        if advice.type == "advisor_message" and cost is not None:
            tokens = Usage(
                _count(advice.input_tokens), _count(advice.output_tokens), _count(advice.cache_read_input_tokens),
                _count(advice.cache_creation_input_tokens),
            )  # fmt: skip
            extra = cost_usd(advice.model or model, tokens, prices=prices, at_ns=end_ns)
            cost = None if extra is None else cost + extra
    return cost


class Costs:
    """A sum of costs, unknown if one of them is.

    Added as the client does, in the order the responses ended. Not with `sum`: from Python 3.12 on it corrects rounding
    errors, and the same turn would give other bytes there.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.is_known = True

    def add(self, cost: float | None, usage: Usage) -> None:
        """Add a cost; an unknown one counts only if there are tokens to pay for."""
        if cost is not None:
            self.total += cost
        elif usage.input or usage.output or usage.cache_read or usage.cache_write:
            self.is_known = False

    def merge(self, other: Costs) -> None:
        """Add another sum."""
        self.total += other.total
        self.is_known = self.is_known and other.is_known

    @property
    def value(self) -> float | None:
        """The sum, if it is known."""
        return self.total if self.is_known else None
