"""The cost of a response in USD: the tokens of a `Usage` times the prices of its model.

Rules:

- The shipped table `prices.json` is genai-prices' list of Anthropic's own prices plus a small measured supplement;
  `benchmarks/prices.py` writes it, a test compares it with its source. A user's file overrides it (`load_prices`).
- Without a price there is no cost: an unknown model, tokens of a kind or a speed the model has no price for give None,
  never a guess. (The client guesses: it charges unknown models like its default model.)
- A model is looked up as it is written, then by its plain name: no provider, region, date, version or `[1m]`. Bedrock
  and Vertex spellings cost what Anthropic asks, because that is how the client counts them.
- The arithmetic is the client's, step by step, so that its `cost-state` is matched exactly (client 2.1.325):
  each kind is tokens / 1,000,000 x price; input + output + cache read + (5-minute + 1-hour writes); a tenth more when
  inference stays in the US; web searches on top, at one price whatever the model, speed or place.
- A long-context price holds for all tokens of a request whose prompt, cached parts included, is longer than `over`.

A file of prices is a JSON object, model → prices in USD per million tokens:

    {
      "claude-example-7": {
        "input": 4, "output": 20, "cache_read": 0.4, "cache_write_5m": 5, "cache_write_1h": 8,
        "fast": 2,
        "long_context": {"over": 200000, "input": 8, "output": 30, "cache_read": 0.8}
      }
    }

`input` and `output` must be there. `fast` says how many times as much each token costs in fast mode. A list of such
objects, all but the first with `"since": "2026-03-13"`, is a price that changed (at midnight UTC). An entry replaces
all that is shipped for that model. A key in a provider's spelling (`us.anthropic.claude-…`) is for that spelling only.
"""

from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from turnspan import lazy
from turnspan.errors import ConfigError
from turnspan.trace.model import Usage

Usd: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]

WEB_SEARCH_USD = 0.01
US_ONLY_FACTOR = 1.1  # `inference_geo: us`
NS_PER_DAY = 86_400 * 10**9
LONGEST_NAME = 300  # no model has a longer one, and the pattern below is slow on a megabyte

_PLAIN_NAME = lazy.pattern(
    r"(?:^|[./])"  # after any provider, region or ARN
    r"(claude-[a-z0-9.-]+?)"
    r"(?:[-@](?:\d{8}|\d{4}-\d\d-\d\d|latest|default))?"
    r"(?:-v\d+(?::\d+)?)?"  # Bedrock's version
    r"(?:\[\w+\])?$"  # the client's context window suffix
)


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """USD per million tokens, by kind; None if the kind has no price."""

    input: Usd
    output: Usd
    cache_read: Usd | None = None
    cache_write_5m: Usd | None = None
    cache_write_1h: Usd | None = None


class LongRates(Rates, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The rates of requests with a prompt longer than `over` tokens."""

    over: Annotated[int, msgspec.Meta(ge=0)]


class ModelRates(Rates, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """All prices of a model from one day on."""

    fast: Annotated[float, msgspec.Meta(gt=0)] | None = None
    long_context: LongRates | None = None
    since: date | None = None


class Prices(msgspec.Struct, frozen=True, eq=False):
    """All known prices, oldest first for each model. Compared by identity: what is looked up is cached."""

    models: dict[str, tuple[ModelRates, ...]]
    aliases: dict[str, str] = {}  # other plain names of the same model

    def find(self, model: str) -> tuple[ModelRates, ...] | None:
        """Return the prices of a model, in any spelling; None if it is unknown."""
        written = model.lower()
        if (known := self.models.get(written)) is not None:
            return known
        plain = plain_name(written)
        return self.models.get(plain) or self.models.get(self.aliases.get(plain, ""))


@lru_cache(maxsize=256)
def plain_name(model: str) -> str:
    """Return Anthropic's undated name: `claude-opus-4-5` for `us.anthropic.claude-opus-4-5-20251101-v1:0`, or ""."""
    found = _PLAIN_NAME.search(model.lower()) if len(model) <= LONGEST_NAME else None
    return found[1].replace(".", "-") if found else ""


def cost_usd(
    model: str,
    usage: Usage,
    *,
    speed: str | None = None,
    geo: str | None = None,
    prices: Prices | None = None,
    at_ns: int | None = None,
) -> float | None:
    """Return the cost of a response; None if a price is not known.

    `speed` and `geo` are the response's own `speed` and `inference_geo`; without `at_ns` the newest prices hold.
    """
    of_model = _in_force(prices or shipped_prices(), model, at_ns // NS_PER_DAY if at_ns is not None else None)
    if of_model is None:
        return None
    factor = 1.0 if speed in {None, "", "standard"} else of_model.fast if speed == "fast" else None
    if factor is None:
        return None

    rates: Rates = of_model
    prompt = usage.input + usage.cache_read + usage.cache_write
    if of_model.long_context is not None and prompt > of_model.long_context.over:
        rates = of_model.long_context
    try:
        tokens_usd = (
            _usd(usage.input, rates.input, factor)
            + _usd(usage.output, rates.output, factor)
            + _usd(usage.cache_read, rates.cache_read, factor)
            + (
                _usd(usage.cache_write_5m, rates.cache_write_5m, factor)
                + _usd(usage.cache_write_1h, rates.cache_write_1h, factor)
            )
        )
        if geo == "us":
            tokens_usd *= US_ONLY_FACTOR
        return tokens_usd + usage.web_searches * WEB_SEARCH_USD
    except (_NoPriceError, OverflowError):  # overflow: not a plausible count of tokens
        return None


@cache
def shipped_prices() -> Prices:
    """Return the table that is shipped with turnspan."""
    return msgspec.json.decode(Path(__file__).with_name("prices.json").read_bytes(), type=Prices)


def load_prices(path: Path) -> Prices:
    """Return the shipped table, overridden by a user's file."""
    hint = 'a model\'s prices are USD per million tokens: {"claude-…": {"input": 4, "output": 20, …}}'
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except OSError as exc:
        raise ConfigError(
            f"the prices in {path} cannot be read: {exc.strerror or exc}", hint="give the path of a readable file"
        ) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"the prices in {path} are not a JSON object of models: {exc}", hint=hint) from exc
    shipped = shipped_prices()
    models = dict(shipped.models)
    for name, entry in entries.items():
        try:
            models[name.lower()] = _history(entry)
        except (msgspec.DecodeError, ValueError) as exc:
            raise ConfigError(f"invalid price of {name!r} in {path}: {exc}", hint=hint) from exc
    return Prices(models, shipped.aliases)


class _NoPriceError(LookupError):
    """There are tokens of a kind without a price."""


def _usd(tokens: int, rate: float | None, factor: float) -> float:
    if not tokens:
        return 0.0
    if rate is None:
        raise _NoPriceError
    return tokens / 1_000_000 * (rate * factor)


@lru_cache(maxsize=256)  # asked with every response
def _in_force(prices: Prices, model: str, day: int | None) -> ModelRates | None:
    """Return the prices of a model on a day, counted from 1970; the newest without one."""
    history = prices.find(model)
    if not history or day is None:
        return history[-1] if history else None
    epoch = date(1970, 1, 1).toordinal()
    started = (rates for rates in reversed(history) if rates.since is None or rates.since.toordinal() - epoch <= day)
    return next(started, history[0])


def _history(entry: msgspec.Raw) -> tuple[ModelRates, ...]:
    decoded = msgspec.json.decode(entry, type=ModelRates | tuple[ModelRates, ...])
    history = decoded if isinstance(decoded, tuple) else (decoded,)
    starts = [rates.since for rates in history[1:]]
    if not history:
        raise ValueError("it has no prices")
    if None in starts or starts != sorted(start for start in starts if start):
        raise ValueError("every price after the first needs a later `since`")
    return history
