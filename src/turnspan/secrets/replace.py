"""Replaces the secrets in a text by `[redacted:<rule>]`.

Rules:

- The same text and rules give the same masked text; masking a masked text changes nothing.
- `scan` finds secrets; this module replaces them and scans again until none is left.
- The cost is bounded: a `Meter` counts steps, not seconds, so that the result does not depend on the machine. When the
  budget is used up, `OverBudget` is raised and the caller withholds the text.
- turnspan's own credentials are masked in every spelling and in every capture mode.
- A secret that was recognised in one place is masked in all others, too: `TOKEN=…`, and later "I use … now".
- The user's patterns run on pieces of a few thousand characters, cut at line ends, and may not match the same text in
  too many ways (`backtracking`).
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping  # noqa: TC003  msgspec reads the annotation
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan import lazy
from turnspan.errors import ConfigError
from turnspan.secrets.names import rule_of_name
from turnspan.secrets.scan import Meter, OverBudget, find
from turnspan.secrets.values import LONGEST_KNOWN, Style, is_distinctive, is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from turnspan.secrets.words import Hit

_SHORTEST_CREDENTIAL: Final = 4  # anything shorter occurs in every text
_MOST_KNOWN: Final = 100  # secrets that are searched everywhere else
_PASSES: Final = 4  # masking can join two halves of a secret, once; more passes mean that rules trigger each other
_PIECE, _OVERLAP = 4_000, 500  # characters, for the user's patterns
_MOST_WAYS: Final = 40_000_000  # to match a piece: less than a second
# Separates texts that are scanned together: no rule matches across it.
_BETWEEN: Final = b"\n\0\n"
_MARKER: Final = lazy.pattern(r"\[redacted:[a-z0-9_-]{1,40}\]")


class Masked(NamedTuple):
    """A masked text, and the number of secrets by rule."""

    text: str
    counts: Mapping[str, int]


class RuleSet(msgspec.Struct, frozen=True):
    """The built-in rules, the user's patterns, and turnspan's own credentials in every spelling."""

    patterns: tuple[tuple[str, re.Pattern[str]], ...] = ()
    credentials: tuple[bytes, ...] = ()
    has_builtin: bool = True
    known: Mapping[bytes, str] = {}  # secrets that were recognised elsewhere, and the rule of each

    def __repr__(self) -> str:
        return f"RuleSet({len(self.patterns)} patterns, {len(self.credentials)} credentials)"  # never their values

    @property
    def is_empty(self) -> bool:
        """Whether nothing is masked."""
        return not (self.has_builtin or self.patterns or self.credentials)

    def credentials_only(self) -> RuleSet:
        """Return the rules of capture mode `full`."""
        return msgspec.structs.replace(self, patterns=(), has_builtin=False)

    def with_known(self, known: Mapping[bytes, str]) -> RuleSet:
        """Return these rules for a text that may repeat secrets of other texts."""
        return msgspec.structs.replace(self, known=known) if known else self

    def with_pattern(self, name: str, pattern: re.Pattern[str]) -> RuleSet:
        """Return these rules with one more pattern."""
        return msgspec.structs.replace(self, patterns=(*self.patterns, (name, pattern)))


def compile_rules(
    patterns: Mapping[str, str] | None = None,
    credentials: Iterable[str] = (),
    basic: Iterable[tuple[str, str]] = (),
) -> RuleSet:
    """Return the built-in rules with the user's patterns (name → regex), own credentials, and user-password pairs."""
    own = {text for text in credentials if len(text) >= _SHORTEST_CREDENTIAL}
    for user, password in basic:
        own |= {text for text in (user, password) if len(text) >= _SHORTEST_CREDENTIAL}
        own.add(base64.b64encode(f"{user}:{password}".encode()).decode())
    if own:
        import json  # noqa: PLC0415  local files need no credentials
        from urllib.parse import quote  # noqa: PLC0415
    spelled = {spelling for text in own for spelling in (text, quote(text, safe=""), json.dumps(text)[1:-1])}
    return RuleSet(
        tuple((name, _compiled(name, source)) for name, source in sorted((patterns or {}).items())),
        # The longest first: a public key can be the beginning of a longer credential.
        tuple(sorted((text.encode("utf-8", "surrogatepass") for text in spelled), key=lambda text: (-len(text), text))),
    )


def mask(text: str, *, rules: RuleSet, meter: Meter | None = None) -> Masked:
    """Replace every secret in a text by a marker that names its rule."""
    meter = meter or Meter(1 << 62)
    counts: dict[str, int] = {}
    masked = text
    for name, pattern in rules.patterns:
        masked = _mask_pattern(masked, name, pattern, counts, meter)
    data = masked.encode("utf-8", "surrogatepass")
    data = _mask_bytes(data, rules, counts, meter)
    return Masked(data.decode("utf-8", "surrogatepass"), counts) if counts else Masked(text, counts)


def mask_named(name: str, value: str, *, rules: RuleSet, meter: Meter | None = None) -> Masked:
    """Mask a value like any text, or all of it if its name says that it is a secret."""
    masked = mask(value, rules=rules, meter=meter)
    if masked.counts or not rules.has_builtin:
        return masked
    rule = rule_of_name(name.encode("utf-8", "surrogatepass"))
    if rule is None or not is_secret(rule, value.encode("utf-8", "surrogatepass"), Style.QUOTED):
        return masked
    return Masked(marker(rule), {rule: 1})


def suspects(texts: Sequence[str], *, rules: RuleSet, meter: Meter) -> tuple[set[str], dict[bytes, str]]:
    """Return the texts that `mask` would change, and possibly a few more, from one scan of all texts.

    Also returns the secrets that are to be masked wherever else they occur, with their rules.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    data = _BETWEEN.join(encoded)
    found: set[str] = set()
    known: dict[bytes, str] = {}
    for _, pattern in rules.patterns:
        found.update(text for text in texts if any(_pieces(text, pattern, meter)))
    if hits := find(data, rules.credentials, meter, has_builtin=rules.has_builtin):
        ends = list(accumulate(len(text) + len(_BETWEEN) for text in encoded))
        for start, end, _ in hits:
            found.update(texts[bisect_right(ends, start) : bisect_right(ends, end - 1) + 1])
        known = _distinctive(data, hits)
    return found, known


def split_secrets(texts: Sequence[str], *, rules: RuleSet, meter: Meter) -> dict[bytes, str]:
    """Return the secrets that span several of these texts, as the texts joined with line breaks hold them."""
    encoded, seams, hits = _spanning(texts, rules, meter)
    lines = b"\n".join(encoded)
    return {
        lines[start + bisect_right(seams, start) : end + bisect_left(seams, end)]: rule for start, end, rule in hits
    }


def mask_joined(texts: Sequence[str], *, rules: RuleSet, meter: Meter) -> Masked | None:
    """Return the joined texts, masked; None if no secret spans several of them."""
    encoded, seams, hits = _spanning(texts, rules, meter)
    if not hits:
        return None
    # A text can look like a secret by itself, and not next to another one.
    for at, text in zip((0, *seams), encoded, strict=True):
        own = find(text, rules.credentials, meter, has_builtin=rules.has_builtin)
        hits += ((start + at, end + at, rule) for start, end, rule in own)
    counts: dict[str, int] = {}
    hits = _merged(hits)
    _count(counts, hits)
    again = mask(_spliced(b"".join(encoded), hits).decode("utf-8", "surrogatepass"), rules=rules, meter=meter)
    for rule, number in again.counts.items():
        counts[rule] = counts.get(rule, 0) + number
    return Masked(again.text, counts)


def _spanning(texts: Sequence[str], rules: RuleSet, meter: Meter) -> tuple[list[bytes], list[int], list[Hit]]:
    """Return the texts as bytes, where one follows the other, and the secrets in the joined texts that span those."""
    joined = "".join(texts)
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    data, seams = b"".join(encoded), list(accumulate(map(len, encoded[:-1])))
    hits = find(data, rules.credentials, meter, has_builtin=rules.has_builtin)
    for name, pattern in rules.patterns:
        for found in _pieces(joined, pattern, meter):
            start = len(joined[: found.start()].encode("utf-8", "surrogatepass"))
            hits.append((start, start + len(found[0].encode("utf-8", "surrogatepass")), name))
    return encoded, seams, [hit for hit in hits if bisect_right(seams, hit[0]) < bisect_left(seams, hit[1])]


def marker(rule: str) -> str:
    """Return the replacement for a secret."""
    return f"[redacted:{rule}]"


# ---- the user's patterns


def _compiled(name: str, source: str) -> re.Pattern[str]:
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name) is None:
        raise ConfigError(
            f"the name of the pattern {name!r} cannot be used", hint="use lower-case letters, digits and dashes"
        )
    from turnspan.secrets.backtracking import worst_case  # noqa: PLC0415  most users have no patterns

    try:
        pattern = re.compile(source)
        ways = worst_case(source, _PIECE)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ConfigError(
            f"the pattern {name!r} is not a regular expression: {exc}", hint="correct or remove it"
        ) from exc
    if pattern.search("") is not None:
        raise ConfigError(f"the pattern {name!r} matches an empty text", hint="make it more specific")
    if ways > _MOST_WAYS:
        raise ConfigError(
            f"the pattern {name!r} can match the same text in too many ways, which would take seconds",
            hint="limit its repetitions (`{0,40}` instead of `*`), let them match different characters, or make them"
            " possessive (`*+`)",
        )
    return pattern


def _pieces(text: str, pattern: re.Pattern[str], meter: Meter) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in pieces of a text, so that the cost stays linear."""
    start = 0
    while start < len(text):
        end = min(start + _PIECE, len(text))
        cut = end if end == len(text) else text.rfind("\n", start, end) + 1
        end = cut or end
        meter.spend(4 * (end - start))
        yield from pattern.finditer(text, start, end)
        start = end if cut else end - _OVERLAP


def _mask_pattern(text: str, name: str, pattern: re.Pattern[str], counts: dict[str, int], meter: Meter) -> str:
    hits = [(*found.span(), name) for found in _pieces(text, pattern, meter)]
    if not hits:
        return text
    markers = [found.span() for found in _MARKER.finditer(text)]
    hits = [hit for hit in _merged(hits) if not any(first < hit[1] and hit[0] < last for first, last in markers)]
    _count(counts, hits)
    parts, at = [], 0
    for first, last, _ in hits:
        parts += [text[at:first], marker(name)]
        at = last
    return "".join((*parts, text[at:]))


# ---- bytes


def _mask_bytes(data: bytes, rules: RuleSet, counts: dict[str, int], meter: Meter) -> bytes:
    known = {value: rule for value, rule in rules.known.items() if value in data}
    for _ in range(_PASSES):
        hits = [*find(data, rules.credentials, meter, has_builtin=rules.has_builtin), *_repeats(data, known, meter)]
        if not hits:
            return data
        known.update(_distinctive(data, hits))
        hits = _merged(hits)
        _count(counts, hits)
        data = _spliced(data, hits)
    raise OverBudget


def _distinctive(data: bytes, hits: Iterable[Hit]) -> dict[bytes, str]:
    """Return the secrets that are masked wherever else they occur, with their rules."""
    found = ((data[start:end], rule) for start, end, rule in sorted(hits) if end - start <= LONGEST_KNOWN)
    return dict(islice(((value, rule) for value, rule in found if is_distinctive(rule, value)), _MOST_KNOWN))


def _repeats(data: bytes, known: Mapping[bytes, str], meter: Meter) -> Iterator[Hit]:
    for value, rule in islice(known.items(), _MOST_KNOWN):
        meter.spend(len(data) // 64 + 1)  # searching a literal is much quicker than a scan
        at = data.find(value)
        while at >= 0:
            yield at, at + len(value), rule
            at = data.find(value, at + len(value))


def _merged(hits: list[Hit]) -> list[Hit]:
    """Return the hits in order, overlapping ones merged under the rule of the first (of two, the longer)."""
    merged: list[Hit] = []
    for start, end, rule in sorted(hits, key=lambda hit: (hit[0], -hit[1], hit[2])):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((start, end, rule))
    return merged


def _spliced(data: bytes, hits: Sequence[Hit]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for start, end, rule in hits:
        parts += (data[at:start], marker(rule).encode())
        at = end
    return b"".join((*parts, data[at:]))


def _count(counts: dict[str, int], hits: Sequence[Hit]) -> None:
    for _, _, rule in hits:
        counts[rule] = counts.get(rule, 0) + 1
