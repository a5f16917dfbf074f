"""Write src/turnspan/trace/prices.json from the installed genai-prices package: `python benchmarks/prices.py`.

It holds the prices of Anthropic's models in genai-prices, and those it lacks: FAST, MODELS and LONG below. Run it
after `pip install --upgrade genai-prices`, read the diff, run the tests. It stops at prices that it cannot represent (a
new kind of tier, another price for web searches): extend `turnspan.trace.cost` first.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import msgspec
from genai_prices.data import providers
from genai_prices.types import ClauseOr, ModelPrice, StartDateConstraint, TieredPrices

from turnspan.trace.cost import LongRates, ModelRates, Prices, plain_name

TABLE = Path(__file__).parent.parent / "src" / "turnspan" / "trace" / "prices.json"

KINDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write_5m": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
}

# What genai-prices lacks, measured from the client's own cost-state: client 2.1.325 was run against a scripted API on
# loopback that answered with known usage, one kind of token at a time, and the prices solved from the totals it wrote.
FAST = {  # times the normal price of every kind, when the response says `speed: fast`
    "claude-opus-4-6": 6,
    "claude-opus-4-7": 6,
    "claude-opus-4-8": 2,
    "claude-opus-5": 2,
    "claude-opus-5-5": 2,
}
MODELS = {
    "claude-mythos-5": (ModelRates(10, 50, 1, 12.5, 20),),
    "claude-mythos-5-1": (ModelRates(10, 50, 0.25, 12.5, 20),),
}
# What genai-prices lacks, from Anthropic's price list ("Long context pricing": with the 1M token context, requests
# over 200,000 input tokens cost twice the input and cache prices and 1.5 times the output price; Sonnet 4 and 4.5).
LONG = {
    "claude-sonnet-4-0": LongRates(
        over=200_000, input=6, output=22.5, cache_read=0.6, cache_write_5m=7.5, cache_write_1h=12
    ),
}
SOURCE = {
    "genai-prices": version("genai-prices"),
    "measured from the client's own cost-state (2.1.325)": [f"{name}: fast" for name in FAST] + list(MODELS),
    "Anthropic's price list, long context pricing": list(LONG),
}


def number(price):
    return int(price) if price == int(price) else float(price)


def model_rates(name, price: ModelPrice, since):
    if price.web_searches_kcount not in {None, 10}:
        sys.exit(f"{name}: a web search costs {price.web_searches_kcount / 1000} USD, not 0.01")
    given = {kind: getattr(price, key) for kind, key in KINDS.items() if getattr(price, key) is not None}
    tiered = {kind: value for kind, value in given.items() if isinstance(value, TieredPrices)}
    base = {kind: number(value.base if kind in tiered else value) for kind, value in given.items()}
    long_context = LONG.get(name)
    if tiered:
        if long_context is not None:
            sys.exit(f"genai-prices knows the long-context prices of {name} now: drop them from LONG")
        starts = {tier.start for value in tiered.values() for tier in value.tiers}
        if len(starts) != 1 or tiered.keys() != given.keys():
            sys.exit(f"{name}: tiers that are not one threshold for all kinds of tokens: {tiered}")
        over = starts.pop()
        long_context = LongRates(over=over, **{kind: number(value.tiers[0].price) for kind, value in tiered.items()})
    return ModelRates(**base, fast=FAST.get(name), long_context=long_context, since=since)


def history(name, prices):
    if isinstance(prices, ModelPrice):
        return (model_rates(name, prices, None),)
    periods = []
    for period in prices:
        if period.constraint is not None and not isinstance(period.constraint, StartDateConstraint):
            sys.exit(f"{name}: a price that depends on {period.constraint}")
        periods.append(model_rates(name, period.prices, period.constraint and period.constraint.start_date))
    return tuple(periods)


def names_in(match):
    clauses = match.or_ if isinstance(match, ClauseOr) else [match]
    texts = [getattr(clause, key, "") for clause in clauses for key in ("equals", "starts_with", "contains")]
    names = {plain_name(text.rstrip("@")) for text in texts}
    return {name for name in names if name and not name.endswith("-2025")}  # half of a date


def table() -> Prices:
    anthropic = next(provider for provider in providers if provider.id == "anthropic")
    models, aliases = {}, {}
    for model in anthropic.models:
        name = plain_name(model.id)
        models[name] = history(name, model.prices)
        for alias in names_in(model.match) - {name}:
            if aliases.setdefault(alias, name) != name:
                sys.exit(f"{alias} names both {aliases[alias]} and {name}")
    if known := MODELS.keys() & models.keys():
        sys.exit(f"genai-prices knows {known} now: drop them from MODELS")
    return Prices(models | MODELS, aliases)


def rendered(prices: Prices) -> str:
    """One line per model, so that a diff shows which price changed."""

    def encoded(value):
        return msgspec.json.encode(value).decode()

    models = ",\n".join(f"  {encoded(name)}: {encoded(prices.models[name])}" for name in sorted(prices.models))
    aliases = encoded(dict(sorted(prices.aliases.items())))
    return f'{{\n"source": {encoded(SOURCE)},\n"aliases": {aliases},\n"models": {{\n{models}\n}}}}\n'


if __name__ == "__main__":
    shipped = table()
    TABLE.write_text(rendered(shipped), encoding="utf-8")
    print(f"{len(shipped.models)} models of genai-prices {SOURCE['genai-prices']} and measured, in {TABLE.name}")
