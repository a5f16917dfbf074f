"""The cost of sessions, compared with the client's own figure: `cost-state.totalCostUSD`."""

import os
from pathlib import Path

import msgspec
import pytest

from turnspan.trace.cost import cost_usd
from turnspan.trace.model import Usage
from turnspan.trace.usage import Costs


class CacheCreation(msgspec.Struct):
    ephemeral_1h_input_tokens: int = 0
    ephemeral_5m_input_tokens: int = 0


class ServerTools(msgspec.Struct):
    web_search_requests: int = 0


class Counts(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation | None = None
    server_tool_use: ServerTools | None = None
    speed: str | None = None
    inference_geo: str | None = None


class Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    usage: Counts | None = None


class Row(msgspec.Struct, rename="camel"):
    type: str = ""
    timestamp: str = ""
    message: Message | None = None
    requested_model: str | None = None
    is_aborted_mid_stream: bool = False
    total_cost_usd: float | None = msgspec.field(default=None, name="totalCostUSD")


class Truth(msgspec.Struct):
    event: str
    message_id: str | None = None
    session_id: str | None = None
    model: str = ""
    aux: str | None = None
    http_status: int | None = None
    aborted: bool = False
    usage: Counts | None = None


def total_usd(costs):
    """Add costs up as the product does."""
    total = Costs()
    for cost in costs:
        total.add(cost, Usage())
    return total.value


def corpus():
    """Return the recordings: `TURNSPAN_CORPUS`, or `shared/corpus` next to the checkout or above it."""
    if named := os.environ.get("TURNSPAN_CORPUS"):
        return Path(named)
    above = (parent / "shared" / "corpus" for parent in Path(__file__).resolve().parents)
    found = next((path for path in above if path.is_dir()), None)
    if found is None:
        pytest.skip("no recordings here: set TURNSPAN_CORPUS to a directory of them")
    return found


def rows(path, kind):
    """Return the lines of a JSONL file that have the shape we look for."""
    decoder = msgspec.json.Decoder(kind)
    decoded = []
    for line in path.read_bytes().splitlines():
        try:
            decoded.append(decoder.decode(line))
        except msgspec.ValidationError:  # a prompt's message, say, whose content we do not describe
            continue
    return decoded


def cost(model, counts):
    """Return what a response cost, from its usage as the API words it."""
    split = counts.cache_creation or CacheCreation()
    written = max(counts.cache_creation_input_tokens, split.ephemeral_1h_input_tokens + split.ephemeral_5m_input_tokens)
    usage = Usage(
        input=counts.input_tokens,
        output=counts.output_tokens,
        cache_read=counts.cache_read_input_tokens,
        cache_write_5m=written - split.ephemeral_1h_input_tokens,
        cache_write_1h=split.ephemeral_1h_input_tokens,
        web_searches=(counts.server_tool_use or ServerTools()).web_search_requests,
    )
    usd = cost_usd(model, usage, speed=counts.speed, geo=counts.inference_geo)
    assert usd is not None, f"no price for {model}"
    return usd


def recorded_costs(session):
    """Return message id → cost for a session and its subagents, in the order the responses ended."""
    last = {}
    for path in [session, *session.with_suffix("").glob("subagents/**/*.jsonl")]:
        for row in rows(path, Row):
            if row.type == "assistant" and row.message and row.message.usage and row.message.model != "<synthetic>":
                last[row.message.id] = row
    ended = sorted(last.items(), key=lambda item: item[1].timestamp)
    return {
        # The client prices the requested model, and an aborted response not at all.
        id_: 0.0 if row.is_aborted_mid_stream else cost(row.requested_model or row.message.model, row.message.usage)
        for id_, row in ended
    }


def test_sessions_cost_what_the_client_says():
    """Every session's total is exactly the client's, except for requests that no file records."""
    compared, exact, unrecorded_usd, all_usd = 0, 0, [], []
    for recording in sorted(path.parent for path in corpus().glob("*/*/truth.jsonl")):
        responses = [truth for truth in rows(recording / "truth.jsonl", Truth) if truth.event == "response"]
        for session in sorted(recording.glob("projects/*/*.jsonl")):
            totals = [row.total_cost_usd for row in rows(session, Row) if row.type == "cost-state"]
            if not totals:
                continue
            ours = recorded_costs(session)
            unrecorded = [
                truth
                for truth in responses
                if truth.session_id == session.stem and truth.usage and truth.http_status == 200
                if truth.message_id not in ours and not truth.aborted
            ]
            where = f"{recording.parent.name}/{recording.name} {session.stem}"
            assert all(truth.aux for truth in unrecorded), f"{where}: a response of the conversation is missing"
            if unrecorded:
                rest = [cost(truth.model, truth.usage) for truth in unrecorded]
                assert total_usd([*ours.values(), *rest]) == pytest.approx(totals[-1], abs=1e-9, rel=0), where
                unrecorded_usd += rest
            else:
                assert total_usd(ours.values()) == totals[-1], where
                exact += 1
            compared += 1
            all_usd.append(totals[-1])
    if not compared:
        pytest.skip("none of these recordings has a cost-state")
    print(  # noqa: T201 - the figures are what one runs this for
        f"{compared} sessions with {total_usd(all_usd):.7f} USD: {exact} equal to the last digit, {compared - exact} "
        f"with {len(unrecorded_usd)} requests ({total_usd(unrecorded_usd):.7f} USD) that no transcript holds"
    )
