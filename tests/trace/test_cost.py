from datetime import UTC, datetime

import pytest

from turnspan.errors import ConfigError
from turnspan.trace.cost import cost_usd, load_prices, plain_name, shipped_prices
from turnspan.trace.model import Usage
from turnspan.trace.usage import Costs

RESPONSE = Usage(input=1000, output=100, cache_read=10_000, cache_write_5m=200, cache_write_1h=100)
A_MILLION = {
    "input": Usage(input=1_000_000),
    "output": Usage(output=1_000_000),
    "cache_read": Usage(cache_read=1_000_000),
    "cache_write_5m": Usage(cache_write_5m=1_000_000),
    "cache_write_1h": Usage(cache_write_1h=1_000_000),
}


# genai-prices lacks the tier of these; ours is Anthropic's price list, "Long context pricing".
LONG_CONTEXT_OF_OURS = {"claude-sonnet-4-0"}


def ns(year, month, day, hour=0):
    """Return a time as in spans."""
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp()) * 10**9


# What client 2.1.325 itself wrote in its `cost-state` for a response with the usage RESPONSE, digit for digit.
BY_THE_CLIENT = {
    "claude-opus-5-5": 0.0098,
    "claude-opus-5": 0.014750000000000001,
    "claude-opus-4-8": 0.014750000000000001,
    "claude-opus-4-5-20251101": 0.014750000000000001,
    "claude-sonnet-5-5": 0.0049,
    "claude-sonnet-5": 0.0059,
    "claude-sonnet-4-6[1m]": 0.00885,
    "claude-sonnet-4-20250514": 0.00885,
    "claude-haiku-5-5": 0.000295,
    "claude-haiku-4-5-20251001": 0.00295,
    "claude-fable-5": 0.029500000000000002,
    "claude-fable-5-1": 0.022,
    "claude-mythos-5-1": 0.022,
    "claude-3-5-haiku-20241022": 0.00236,
    "us.anthropic.claude-opus-4-8-v1:0": 0.014750000000000001,
    "eu.anthropic.claude-sonnet-4-5-20250929-v1:0": 0.00885,
    "global.anthropic.claude-opus-5-5": 0.0098,
    "claude-sonnet-4-5@20250929": 0.00885,
    "anthropic/claude-opus-4.8": 0.014750000000000001,
}


@pytest.mark.parametrize(("model", "usd"), BY_THE_CLIENT.items())
def test_a_response_costs_what_the_client_says(model, usd):
    """A response costs exactly what Claude Code itself recorded for it, in any spelling."""
    assert cost_usd(model, RESPONSE) == usd


@pytest.mark.parametrize(
    ("model", "usd"),
    {"claude-opus-5-5": 0.0196, "claude-opus-4-8": 0.029500000000000002, "claude-opus-4-6": 0.0885}.items(),
)
def test_fast_mode_costs_more(model, usd):
    """A response in fast mode costs two or six times as much, as the client counts it."""
    assert cost_usd(model, RESPONSE, speed="fast") == usd
    assert cost_usd(model, RESPONSE, speed="standard") == cost_usd(model, RESPONSE)


def test_inference_in_the_us_costs_a_tenth_more():
    """US-only inference adds a tenth to the tokens, but nothing to web searches."""
    searched = Usage(input=1000, output=100, cache_read=10_000, cache_write_5m=200, cache_write_1h=100, web_searches=3)
    assert cost_usd("claude-opus-5-5", RESPONSE, geo="us") == 0.010780000000000001
    assert cost_usd("claude-opus-5-5", searched, geo="us") == 0.04078
    assert cost_usd("claude-opus-5-5", searched, geo="us", speed="fast") == 0.05156
    assert cost_usd("claude-opus-5-5", RESPONSE, geo="global") == 0.0098


@pytest.mark.parametrize("model", ["claude-sonnet-4-20250514", "claude-sonnet-4-20250514[1m]", "claude-sonnet-4-5"])
def test_a_long_prompt_of_sonnet_costs_more(model):
    """Beyond 200,000 tokens of prompt, cached ones included, Sonnet 4 and 4.5 cost twice the input, 1.5 times the output."""
    assert cost_usd(model, Usage(input=1000, output=1000, cache_read=199_000)) == pytest.approx(0.0777)
    assert cost_usd(model, Usage(input=1000, output=1000, cache_read=199_001)) == pytest.approx(0.1479006)


def test_a_web_search_costs_a_cent():
    """Web searches cost 10 USD a thousand, whatever the speed."""
    searched = Usage(input=1000, output=100, cache_read=10_000, cache_write_5m=200, cache_write_1h=100, web_searches=3)
    assert cost_usd("claude-opus-5-5", searched) == 0.0398
    assert cost_usd("claude-opus-4-6", searched, speed="fast") == 0.1185


def test_cache_writes_have_two_prices():
    """What is cached for an hour costs more than what is cached for five minutes."""
    assert cost_usd("claude-opus-5-5", Usage(cache_write_5m=1_000_000)) == 5
    assert cost_usd("claude-opus-5-5", Usage(cache_write_1h=1_000_000)) == 8


def test_a_long_prompt_costs_more_from_its_first_token():
    """Past the threshold every token costs the higher price; cached tokens count towards it, output does not."""
    by_the_client = {98_699: 0.0011819899999999997, 98_700: 0.0011819999999999999, 98_701: 0.00591005}
    for cached, usd in by_the_client.items():  # with the other tokens of the prompt: up to 100,000, and one more
        usage = Usage(input=1000, output=100, cache_read=cached, cache_write_5m=200, cache_write_1h=100)
        assert cost_usd("claude-haiku-5-5", usage) == usd
    assert cost_usd("claude-haiku-5-5", Usage(input=99_000, output=5000)) == 0.012400000000000001


def test_a_price_holds_from_its_day_on():
    """A response costs the price of its day."""
    long = Usage(input=300_000)
    assert cost_usd("claude-opus-4-6", long, at_ns=ns(2026, 3, 12, 23)) == 3.0
    assert cost_usd("claude-opus-4-6", long, at_ns=ns(2026, 3, 13)) == 1.5
    assert cost_usd("claude-opus-4-6", long) == 1.5


@pytest.mark.parametrize(
    "model",
    [
        "",
        "<synthetic>",
        "gpt-5",
        "claude",
        "claude-opus-6",
        "claude-opus-4-50",
        "claude-opus-5-5-preview",
        "not-claude-opus-5-5",
        "claude-opus-5-5\nclaude-haiku-4-5 ",
        "claude-" + "9" * 10_000,
    ],
)
def test_an_unknown_model_has_no_cost(model):
    """A model whose price we do not know has no cost, rather than a wrong one."""
    assert cost_usd(model, RESPONSE) is None


def test_without_a_price_there_is_no_cost():
    """Tokens or speeds without a known price make the cost unknown, and so do absurd counts."""
    assert cost_usd("claude-2", Usage(input=1_000_000)) == 8
    assert cost_usd("claude-2", Usage(input=1_000_000, cache_read=1)) is None
    assert cost_usd("claude-sonnet-5-5", RESPONSE, speed="fast") is None
    assert cost_usd("claude-opus-5-5", RESPONSE, speed="ludicrous") is None
    assert cost_usd("claude-opus-5-5", Usage(input=10**400)) is None


def test_nothing_used_costs_nothing():
    """A response without tokens cost zero: that is known."""
    assert cost_usd("claude-opus-5-5", Usage()) == 0.0


@pytest.mark.parametrize(
    "spelling",
    [
        "claude-sonnet-4-5",
        "Claude-Sonnet-4.5",
        "claude-sonnet-4-5[1m]",
        "claude-sonnet-4-5-20250929[1m]",
        "claude-sonnet-4-5@20250929",
        "claude-sonnet-4-5-latest",
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "apac.anthropic.claude-sonnet-4-5-20250929-v1:0[1m]",
        "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "openrouter/anthropic/claude-sonnet-4.5",
    ],
)
def test_a_model_has_many_spellings(spelling):
    """Dates, regions, versions and context suffixes name the same model."""
    assert plain_name(spelling) == "claude-sonnet-4-5"


def test_costs_add_up_the_same_everywhere():
    """A total is the same number on every Python version, and the one the client gets."""
    total = Costs()
    for _ in range(10):
        total.add(0.1, Usage(output=1))
    assert total.value == 0.9999999999999999
    assert Costs().value == 0.0


def test_a_sum_with_an_unknown_part_is_unknown():
    """Tokens without a price make a total unknown; a response without tokens does not."""
    total = Costs()
    total.add(0.5, Usage(output=1))
    total.add(None, Usage())
    assert total.value == 0.5
    total.add(None, Usage(output=1))
    assert total.value is None


def test_a_file_brings_newer_prices(tmp_path):
    """A user's file adds models, replaces shipped ones, and can price a single spelling; the rest stays."""
    file = tmp_path / "prices.json"
    file.write_text("""{
        "claude-opus-9": {"input": 1, "output": 2, "fast": 3},
        "Local-Qwen": {"input": 0, "output": 0, "cache_read": 0},
        "claude-opus-5-5": {"input": 7, "output": 8},
        "us.anthropic.claude-haiku-4-5-20251001-v1:0": {"input": 1.1, "output": 5.5},
        "claude-sonnet-5": [
            {"input": 2, "output": 10, "long_context": {"over": 1000, "input": 4, "output": 20}},
            {"since": "2027-01-01", "input": 3, "output": 15}
        ]
    }""")
    prices = load_prices(file)
    million = Usage(input=1_000_000)
    assert cost_usd("claude-opus-9-20270101", million, prices=prices) == 1
    assert cost_usd("claude-opus-9", million, speed="fast", prices=prices) == 3
    assert cost_usd("local-qwen", Usage(input=5, cache_read=5), prices=prices) == 0
    assert cost_usd("claude-opus-5-5[1m]", million, prices=prices) == 7
    assert cost_usd("claude-opus-5-5", Usage(cache_read=1), prices=prices) is None
    assert cost_usd("us.anthropic.claude-haiku-4-5-20251001-v1:0", million, prices=prices) == 1.1
    assert cost_usd("claude-haiku-4-5-20251001", million, prices=prices) == 1
    assert cost_usd("claude-sonnet-5", million, prices=prices, at_ns=ns(2026, 12, 31)) == 4
    assert cost_usd("claude-sonnet-5", million, prices=prices, at_ns=ns(2027, 1, 1)) == 3
    assert cost_usd("claude-opus-4-8", RESPONSE, prices=prices) == BY_THE_CLIENT["claude-opus-4-8"]
    assert cost_usd("claude-opus-5-5", RESPONSE) == 0.0098, "the shipped table is not touched"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"claude-a": {"input": "4", "output": 20}}', ["claude-a", "$.input"]),
        ('{"claude-a": {"input": 4}}', ["claude-a", "output"]),
        ('{"claude-a": {"input": 4, "output": 20, "cache": 1}}', ["claude-a", "cache"]),
        ('{"claude-a": {"input": -4, "output": 20}}', ["claude-a", "$.input"]),
        ('{"claude-a": {"input": 4, "output": 20, "fast": 0}}', ["claude-a", "$.fast"]),
        ('{"claude-a": {"input": 4, "output": 20, "long_context": {"input": 1}}}', ["claude-a", "long_context"]),
        ('{"claude-a": [{"input": 4, "output": 20}, {"input": 5, "output": 20}]}', ["claude-a", "since"]),
        ('{"claude-a": []}', ["claude-a"]),
        ('{"claude-a": 4}', ["claude-a"]),
        ("[]", ["prices.json"]),
        ("{", ["prices.json"]),
        ("", ["prices.json"]),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, said):
    """A mistake in a file of prices is answered with the file, the model and the key that is wrong."""
    file = tmp_path / "prices.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_prices(file)
    assert all(words in str(caught.value) for words in said)
    assert caught.value.hint


@pytest.mark.parametrize("content", [None, b'{"claude-\xff": {}}'])
def test_an_unreadable_file_is_named(tmp_path, content):
    """A file that is missing or not text is a configuration error."""
    file = tmp_path / "prices.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"prices\.json"):
        load_prices(file)


@pytest.fixture(scope="module")
def anthropic():
    """Anthropic's own prices in the installed genai-prices."""
    data = pytest.importorskip("genai_prices.data", reason="genai-prices is not installed: nothing to compare with")
    return next(provider for provider in data.providers if provider.id == "anthropic")


def theirs_of(anthropic, model, usage, at_ns):
    """Genai-prices' own sum, or None where it has no price for a kind of token that was used."""
    when = datetime.fromtimestamp(at_ns / 1e9, tz=UTC)
    prices = model.get_prices(when)
    cached = usage.cache_read + usage.cache_write
    needs = {
        "cache_read_mtok": usage.cache_read,
        "cache_write_mtok": usage.cache_write_5m,
        "cache_write_1h_mtok": usage.cache_write_1h,
        "web_searches_kcount": usage.web_searches,
    }
    if any(count and getattr(prices, key) is None for key, count in needs.items()):
        return None
    used = pytest.importorskip("genai_prices").Usage(
        input_tokens=usage.input + cached,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        cache_write_1h_tokens=usage.cache_write_1h,
        web_searches=usage.web_searches,
    )
    return float(model.calc_price(used, anthropic, genai_request_timestamp=when).total_price)


def test_every_price_equals_genai_prices(anthropic):
    """Every Claude model and kind of token costs what genai-prices says (if not: `python benchmarks/prices.py`)."""
    usages = [
        RESPONSE,
        *A_MILLION.values(),
        *(Usage(**{kind: 90_000}) for kind in A_MILLION),
        Usage(input=200_000, output=7),
        Usage(input=200_001, output=7),
        Usage(input=1, cache_read=100_000),
    ]
    days = [ns(2024, 6, 1), ns(2026, 3, 12, 23), ns(2026, 3, 13), ns(2026, 11, 16), ns(2030, 1, 1)]
    compared = 0
    for model in anthropic.models:
        for usage in usages:
            for at_ns in days:
                ours, theirs = cost_usd(model.id, usage, at_ns=at_ns), theirs_of(anthropic, model, usage, at_ns)
                if model.id in LONG_CONTEXT_OF_OURS and usage.input + usage.cache_read + usage.cache_write > 200_000:
                    assert ours > theirs, f"genai-prices knows the tier of {model.id} now"
                    continue
                assert ours == (theirs if theirs is None else pytest.approx(theirs, abs=1e-12)), (model.id, usage)
                compared += theirs is not None
    assert compared > 1000


def test_web_searches_equal_genai_prices(anthropic):
    """Where genai-prices has a price for web searches, it is ours."""
    searched, at_ns = Usage(web_searches=1000), ns(2026, 11, 16)
    theirs = {model.id: theirs_of(anthropic, model, searched, at_ns) for model in anthropic.models}
    assert {usd for usd in theirs.values() if usd is not None} == {10.0}
    assert all(cost_usd(name, searched) == 10.0 for name in theirs)


def test_spellings_name_the_model_genai_prices_names(anthropic):
    """Every spelling that has a price here names the same model in genai-prices."""
    names = {plain_name(model.id): model for model in anthropic.models} | {
        alias: next(model for model in anthropic.models if plain_name(model.id) == name)
        for alias, name in shipped_prices().aliases.items()
    }
    for name, model in names.items():
        for spelling in (name, f"{name}-20250514", f"{name}-20991231"):
            found = anthropic.find_model(spelling)
            assert found is None or found is model, spelling
            assert shipped_prices().find(spelling) == shipped_prices().find(model.id), spelling
