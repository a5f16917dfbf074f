"""Every string of a trace, without its secrets.

Rules:

- A first walk over the trace (`strings`) collects its strings, a second one replaces them.
- The distinct strings are scanned together in long batches; only those that a rule touched are masked one by one.
- JSON stays JSON: its strings and keys are masked decoded, because an escape may hide a secret, and with their names.
- What cannot be masked, because it costs too much or fails, is withheld: `[withheld: …]`, never the text itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from turnspan.secrets import replace
from turnspan.secrets.names import rule_of_name
from turnspan.secrets.replace import Masked
from turnspan.secrets.scan import OverBudget
from turnspan.trace.strings import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from turnspan.secrets.replace import RuleSet
    from turnspan.secrets.scan import Meter
    from turnspan.trace.model import Facts, Scalar, Trace

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | float | bool | None"

_BATCH: Final = 250_000  # characters scanned together
_SHORT: Final = 200  # characters, of names and ids
_FAILURES: Final = (ValueError, RecursionError, OverflowError, MemoryError)


def withheld(what: str, *, is_json: bool = False) -> str:
    """What stands where a text was held back."""
    return f'"[withheld: {what}]"' if is_json else f"[withheld: {what}]"


def masked_trace(trace: Trace, rules: RuleSet, meter: Meter) -> tuple[Trace, dict[str, int]]:
    """The trace without its secrets, how many there were of each rule, and how many texts had to be withheld."""
    if rules.is_empty:
        return trace, {}
    seen = _Seen()
    walk(trace, seen)
    suspects, unread = seen.scan(rules, meter)
    if not suspects and not unread:
        return trace, {}
    masks = _Masks(rules, meter, suspects, unread)
    return walk(trace, masks), masks.counts


class _Seen:
    """Collects the distinct strings of a trace, and finds those that need masking with few, long scans."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._documents: dict[str, None] = {}
        self._suspects: set[str] = set()

    def text(self, text: str) -> str:
        self._texts[text] = None
        return text

    def document(self, text: str) -> str:
        self._texts[text] = None
        if "\\" in text:
            self._documents[text] = None
        return text

    def facts(self, facts: Facts) -> Facts:
        self._texts.update(dict.fromkeys(facts))
        for name, value in facts.items():
            if isinstance(value, str | tuple):
                values = (value,) if isinstance(value, str) else value
                self._texts.update(dict.fromkeys(values))
                if _is_telling(name):
                    self._suspects.update(values)
        return facts

    def joined(self, parts: list[str]) -> str | None:
        self._texts["".join(parts)] = None
        return None

    def scan(self, rules: RuleSet, meter: Meter) -> tuple[set[str], set[str]]:
        """The strings that need masking, or may; and those that the meter did not last for."""
        holders: dict[str, list[str]] = {}
        for document in self._documents:
            for leaf in self._leaves(document):
                holders.setdefault(leaf, []).append(document)
        suspects, unread = self._suspects, set[str]()
        for batch in _batches({**self._texts, **dict.fromkeys(holders)}):
            try:
                suspects.update(replace.suspects(batch, rules=rules, meter=meter))
            except (OverBudget, *_FAILURES):
                unread.update(batch)
        for leaf, documents in holders.items():
            if leaf in unread:
                unread.update(documents)
            elif leaf in suspects:
                suspects.update(documents)
        return suspects, unread

    def _leaves(self, document: str) -> list[str]:
        """The strings in a JSON text, keys included."""
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
                    if any(map(_is_telling, tree)):
                        self._suspects.add(document)
        except _FAILURES:
            self._suspects.add(document)
        return leaves


class _Masks:
    """Replaces the strings that need masking."""

    def __init__(self, rules: RuleSet, meter: Meter, suspects: set[str], unread: set[str]) -> None:
        self._rules = rules
        self._meter = meter
        self._suspects = suspects
        self._unread = unread
        self._known: dict[tuple[str, str, bool], Masked] = {}
        self.counts: dict[str, int] = {}

    def text(self, text: str) -> str:
        return self._replace(text)

    def document(self, text: str) -> str:
        return self._replace(text, is_json=True)

    def facts(self, facts: Facts) -> Facts:
        masked = {self._replace(name): self._fact(name if _is_telling(name) else "", facts[name]) for name in facts}
        return facts if masked == facts else masked

    def _fact(self, name: str, value: Scalar) -> Scalar:
        if isinstance(value, str):
            return self._replace(value, name)
        return tuple([self._replace(item, name) for item in value]) if isinstance(value, tuple) else value

    def joined(self, parts: list[str]) -> str | None:
        """Each part was masked already: what is found now stands across a seam."""
        masked = self._masked("".join(parts), "", is_json=False)
        self._count(masked.counts)
        return masked.text if masked.counts else None

    def _replace(self, text: str, name: str = "", *, is_json: bool = False) -> str:
        if text in self._unread:
            masked = _held_back("scan budget", is_json=is_json)
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
            return _held_back("scan budget", is_json=is_json)
        except _FAILURES:
            return _held_back("masking failed", is_json=is_json)

    def _masked_value(self, name: str, value: str) -> Masked:
        if name:
            return replace.mask_named(name, value, rules=self._rules, meter=self._meter)
        return replace.mask(value, rules=self._rules, meter=self._meter)

    def _masked_document(self, document: str) -> Masked:
        try:
            tree = _decoded(document)
        except ValueError:
            return self._masked_value("", document)  # it only claims to be JSON
        counts: dict[str, int] = {}
        tree = self._masked_tree(tree, "", counts)
        text = _encoded(tree) if counts else document
        # Some secrets show only in how values stand together: ["--password", "…"].
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


def _held_back(why: str, *, is_json: bool) -> Masked:
    return Masked(withheld(why, is_json=is_json), {"withheld": 1})


def _sum(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {**counts, **{rule: counts.get(rule, 0) + number for rule, number in more.items()}}


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in batches, names and ids first, so that structure survives a budget that does not last."""
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
def _is_telling(name: str) -> bool:
    """Whether a name says that its value is a secret."""
    return _rule(name) is not None


def _decoded(document: str) -> Tree:
    try:
        tree: Tree = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeEncodeError):
        import json  # noqa: PLC0415  which takes lone surrogates; few texts hold one

        tree = json.loads(document)
    return tree


def _encoded(tree: Tree) -> str:
    import json  # noqa: PLC0415  few texts hold a secret

    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(tree, separators=(",", ":"))


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
