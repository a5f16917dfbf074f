"""Masks the secrets in every string of a trace.

Rules:

- A first walk (`strings`) collects the strings of the trace. Only if one of them may hold a secret, a second one
  replaces them.
- The distinct strings are scanned in long batches; only strings with a hit are masked one by one.
- A secret that is split over two blocks of the transcript (`Trace.blocks`) is searched where the blocks meet, joined.
- A secret is masked in all strings of its trace, unless it is an id of the trace: sessions and calls are found by it.
- Several traces are scanned together first (`clean_traces`): most hold no secret. The others are masked one by one,
  each with a budget of its own, so that the result for a trace does not depend on its neighbours.
- JSON stays JSON: its strings and keys are decoded before they are masked, because an escape can hide a secret, and a
  value is masked by its key, too.
- A text that cannot be masked, because it costs too much or fails, is withheld: `[withheld: …]`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from turnspan.secrets import replace
from turnspan.secrets.names import rule_of_name
from turnspan.secrets.replace import Masked
from turnspan.secrets.scan import OverBudget
from turnspan.trace.model import ToolCall, ToolResult, parts_of
from turnspan.trace.strings import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from turnspan.secrets.replace import RuleSet
    from turnspan.secrets.scan import Meter
    from turnspan.trace.model import Facts, Scalar, Trace

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | float | bool | None"

_BATCH: Final = 250_000  # characters scanned together
_SHORT: Final = 200  # characters, of names and ids
_MOST_KNOWN: Final = 100  # secrets that are searched in all strings of their trace
_SEARCHED: Final = 400_000_000  # characters, for all of these secrets together: some tenths of a second
_NEAR: Final = 2_048  # characters before and after the end of a block in which a secret that spans it is searched
_FAILURES: Final = (ValueError, RecursionError, OverflowError, MemoryError)


def withheld(what: str, *, is_json: bool = False) -> str:
    """Return the replacement for a text that is not exported."""
    return f'"[withheld: {what}]"' if is_json else f"[withheld: {what}]"


def masked_trace(trace: Trace, rules: RuleSet, meter: Meter) -> tuple[Trace, dict[str, int]]:
    """Return the masked trace, and the number of secrets by rule (`withheld`: texts that were not exported)."""
    if rules.is_empty:
        return trace, {}
    suspects, over_budget, known = _Collector(trace).scan(rules, meter)
    if not suspects and not over_budget:
        return trace, {}
    masker = _Masker(rules.with_known(known), meter, suspects, over_budget)
    return walk(trace, masker), masker.counts


def clean_traces(traces: Sequence[Trace], rules: RuleSet, meter: Meter) -> set[int]:
    """Return the places of traces in which nothing has to be masked, from one scan of all; not always of all of them.

    If the scan of all takes no more than `meter` allows, neither does that of one of them.
    """
    suspects, over_budget, _ = _Collector(*traces).scan(rules, meter)
    if over_budget:
        return set()
    return {place for place, trace in enumerate(traces) if not suspects or _Collector(trace).is_clean(suspects)}


class _Collector:
    """Collects the distinct strings of traces and finds those that may hold a secret."""

    def __init__(self, *traces: Trace) -> None:
        self._traces = traces
        self._texts: dict[str, None] = {}
        self._documents: dict[str, None] = {}  # JSON with escapes, which can hide a secret
        self._suspects: set[str] = set()
        self._blocks: dict[str, tuple[str, ...]] = {}  # neighbouring blocks, or what is near their ends, by their text
        for trace in traces:
            walk(trace, self)
            self._blocks |= {"".join(near): near for blocks in trace.blocks for near in _near_ends(blocks)}

    def is_clean(self, suspects: set[str]) -> bool:
        """Return whether none of the strings is among the suspects."""
        return suspects.isdisjoint(self._texts) and suspects.isdisjoint(self._blocks)

    def text(self, text: str) -> str:
        self._texts[text] = None
        return text

    def document(self, text: str) -> str:
        if "\\" in text:
            self._documents[text] = None
        return self.text(text)

    def facts(self, facts: Facts) -> Facts:
        for name, value in facts.items():
            values = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
            self._texts.update(dict.fromkeys((name, *values)))
            if _names_secret(name) and not (name.endswith("_id") and isinstance(value, str)):
                self._suspects.update(values)
        return facts

    def joined(self, parts: list[str]) -> None:
        self.text("".join(parts))

    def scan(self, rules: RuleSet, meter: Meter) -> tuple[set[str], set[str], dict[bytes, str]]:
        """Return the strings that may hold a secret, those that exceeded the budget, and secrets that may recur."""
        holders: dict[str, list[str]] = {}
        for document in self._documents:
            for leaf in self._leaves(document):
                holders.setdefault(leaf, []).append(document)
        suspects, over_budget = self._suspects, set[str]()
        texts = {**self._texts, **dict.fromkeys(holders), **dict.fromkeys(self._blocks)}
        known: dict[bytes, str] = {}
        for batch in _batches(texts):
            try:
                found, secrets = replace.suspects(batch, rules=rules, meter=meter)
                suspects.update(found)
                known.update(secrets)
            except (OverBudget, *_FAILURES):
                over_budget.update(batch)
        known = self._recurring(known, sum(map(len, texts))) if known else known
        known = self._split(rules, meter, suspects, over_budget) | known
        for value in known:
            repeated = value.decode("utf-8", "surrogatepass")
            suspects.update(text for text in texts if repeated in text)
        for leaf, documents in holders.items():
            if leaf in over_budget:
                over_budget.update(documents)
            elif leaf in suspects:
                suspects.update(documents)
        return suspects, over_budget, known

    def _split(self, rules: RuleSet, meter: Meter, suspects: set[str], over_budget: set[str]) -> dict[bytes, str]:
        """Return the secrets that span two blocks, as the text of the blocks holds them."""
        found: dict[bytes, str] = {}
        try:
            for joined, blocks in self._blocks.items():
                if joined in suspects:
                    found |= replace.split_secrets(blocks, rules=rules, meter=meter)
            is_done = over_budget.isdisjoint(self._blocks) and len(found) <= _MOST_KNOWN
        except (OverBudget, *_FAILURES):
            is_done = False
        if not is_done:  # any text of several blocks may hold half a secret
            over_budget.update(text for text in self._texts if "\n" in text)
            found = {}
        return found

    def _recurring(self, known: dict[bytes, str], size: int) -> dict[bytes, str]:
        """Return the secrets to search in all strings: no ids, and fewer in a long trace."""
        ids = [text.encode("utf-8", "surrogatepass") for trace in self._traces for text in _ids_of(trace)]
        found = ((value, rule) for value, rule in known.items() if not any(value in each for each in ids))
        return dict(islice(found, min(_MOST_KNOWN, _SEARCHED // (size + 1) + 1)))

    def _leaves(self, document: str) -> list[str]:
        """Return the strings in a JSON text, keys included."""
        leaves: list[str] = []
        try:
            pending = [_decoded(document)]
            while pending:
                tree = pending.pop()
                if isinstance(tree, str):
                    leaves.append(tree)
                elif isinstance(tree, list):
                    pending += tree
                elif isinstance(tree, dict):
                    pending += tree.keys()
                    pending += tree.values()
                    if any(map(_names_secret, tree)):
                        self._suspects.add(document)
        except _FAILURES:
            self._suspects.add(document)
        return leaves


def _ids_of(trace: Trace) -> set[str]:
    """Return the ids of the session, of calls and of responses."""
    found = {trace.session_id}
    for facts in (trace.facts, *(span.facts for span in trace.spans)):
        found.update(value for name, value in facts.items() if name.endswith("_id") and isinstance(value, str))
    for span in trace.spans:
        for content in (span.input, span.output):
            found.update(call.id for call in parts_of(content, ToolCall))
            found.update(result.id for result in parts_of(content, ToolResult))
    return found


class _Masker:
    """Replaces the strings that may hold a secret."""

    def __init__(self, rules: RuleSet, meter: Meter, suspects: set[str], over_budget: set[str]) -> None:
        self._rules = rules
        self._meter = meter
        self._suspects = suspects
        self._over_budget = over_budget
        self._known: dict[tuple[str, str, bool], Masked] = {}
        self.counts: dict[str, int] = {}

    def text(self, text: str) -> str:
        return self._replace(text)

    def document(self, text: str) -> str:
        return self._replace(text, is_json=True)

    def facts(self, facts: Facts) -> Facts:
        masked = {self._replace(name): self._fact(name if _names_secret(name) else "", facts[name]) for name in facts}
        return facts if masked == facts else masked

    def _fact(self, name: str, value: Scalar) -> Scalar:
        if isinstance(value, str):
            return self._replace(value, name)
        return tuple([self._replace(item, name) for item in value]) if isinstance(value, tuple) else value

    def joined(self, parts: list[str]) -> str | None:
        """Mask the joined texts if a secret spans two of them."""
        text = "".join(parts)
        if text not in self._suspects and text not in self._over_budget:
            return None
        try:
            masked = replace.mask_joined(parts, rules=self._rules, meter=self._meter)
        except OverBudget:
            masked = _withheld("scan budget", is_json=False)
        except _FAILURES:
            masked = _withheld("masking failed", is_json=False)
        if masked is None:
            return None
        self._count(masked.counts)
        return masked.text

    def _replace(self, text: str, name: str = "", *, is_json: bool = False) -> str:
        if text in self._over_budget:
            masked = _withheld("scan budget", is_json=is_json)
        elif text in self._suspects:
            key = text, name, is_json
            if key not in self._known:
                self._known[key] = self._masked(text, name, is_json=is_json)
            masked = self._known[key]
        else:
            return text
        self._count(masked.counts)
        return masked.text

    def _masked(self, text: str, name: str, *, is_json: bool) -> Masked:
        try:
            return self._masked_document(text) if is_json else self._masked_value(name, text)
        except OverBudget:
            return _withheld("scan budget", is_json=is_json)
        except _FAILURES:
            return _withheld("masking failed", is_json=is_json)

    def _masked_value(self, name: str, value: str) -> Masked:
        if name:
            return replace.mask_named(name, value, rules=self._rules, meter=self._meter)
        return replace.mask(value, rules=self._rules, meter=self._meter)

    def _masked_document(self, document: str) -> Masked:
        try:
            tree = _decoded(document)
        except ValueError:
            return self._masked_value("", document)  # not valid JSON
        counts: dict[str, int] = {}
        tree = self._masked_tree(tree, "", counts)
        text = _encoded(tree) if counts else document
        # Some secrets are recognised by their neighbour only: ["--password", "…"].
        again = self._masked_value("", text)
        if again.counts:
            _decoded(again.text)
        return Masked(again.text, _sum(counts, again.counts))

    def _masked_tree(self, tree: Tree, name: str, counts: dict[str, int]) -> Tree:
        if isinstance(tree, dict):
            return {
                str(self._masked_tree(key, "", counts)): self._masked_tree(value, key, counts)
                for key, value in tree.items()
            }
        if isinstance(tree, list):
            return [self._masked_tree(item, name, counts) for item in tree]
        is_code = isinstance(tree, int) and not isinstance(tree, bool) and tree > 999 and _rule(name) == "password"
        if isinstance(tree, str) or is_code:
            masked = self._masked_value(name, str(tree))
            counts.update(_sum(counts, masked.counts))
            return masked.text if masked.counts else tree
        return tree

    def _count(self, counts: Mapping[str, int]) -> None:
        if counts:
            self.counts = _sum(self.counts, counts)


def _withheld(why: str, *, is_json: bool) -> Masked:
    return Masked(withheld(why, is_json=is_json), {"withheld": 1})


def _sum(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {**counts, **{rule: counts.get(rule, 0) + number for rule, number in more.items()}}


def _near_ends(blocks: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what is near the ends of neighbouring blocks: short blocks as they are, of a long one both ends."""
    near: list[str] = []
    for block in blocks:
        if len(block) <= 2 * _NEAR:
            near.append(block)
            continue
        if near:
            yield (*near, block[:_NEAR])
        near = [block[-_NEAR:]]
    if len(near) > 1:
        yield tuple(near)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in batches, names and ids first, so that they are masked even if the budget runs out."""
    short: list[str] = []
    long: list[str] = []
    for text in texts:
        (short if len(text) <= _SHORT else long).append(text)
    yield short
    batch: list[str] = []
    size = 0
    for text in long:
        batch.append(text)
        size += len(text)
        if size > _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def _rule(name: str) -> str | None:
    return rule_of_name(name[-64:].encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1024)
def _names_secret(name: str) -> bool:
    """Return whether a name says that its value is a secret."""
    return _rule(name) is not None


def _decoded(document: str) -> Tree:
    try:
        tree: Tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeEncodeError):
        import json  # noqa: PLC0415  for lone surrogates, which are rare

        tree = json.loads(document)
    return tree


def _encoded(tree: Tree) -> str:
    import json  # noqa: PLC0415  rarely needed

    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(tree, separators=(",", ":"))


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
