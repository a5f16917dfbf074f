"""Every string of a trace, without its secrets.

Rules:

- One walk (`_walk`) knows every string: names, ids, keys and values of facts, each part of each message, JSON. It runs
  twice, first to collect, then to replace, so that no string is looked at but not replaced, or the other way round.
- The distinct strings are scanned together in long batches; only those that a rule touched are masked one by one.
- JSON stays JSON: its strings and keys are masked decoded, because an escape may hide a secret, and with their names.
- What cannot be masked, because it costs too much or fails, is withheld: `[withheld: …]`, never the text itself.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import msgspec

from turnspan.trace import secrets
from turnspan.trace.model import Json, Media, Message, Reasoning, Span, Text, ToolCall, ToolResult, Trace
from turnspan.trace.secret_names import rule_of_name
from turnspan.trace.secret_scan import OverBudget
from turnspan.trace.secrets import Masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from turnspan.trace.model import Content, Facts, Part, Scalar
    from turnspan.trace.secret_scan import Meter
    from turnspan.trace.secrets import RuleSet

T = TypeVar("T")
Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | float | bool | None"

_BATCH: Final = 250_000  # characters scanned together
_SHORT: Final = 200  # characters, of names and ids
_FAILURES: Final = (ValueError, RecursionError, OverflowError, MemoryError)


def withheld(what: str) -> str:
    """What stands where a text was held back."""
    return f"[withheld: {what}]"


def masked_trace(trace: Trace, rules: RuleSet, meter: Meter) -> tuple[Trace, dict[str, int]]:
    """The trace without its secrets, how many there were of each rule, and how many texts had to be withheld."""
    seen = _Seen()
    _walk(trace, seen)
    suspects, unread = seen.scan(rules, meter)
    if not suspects and not unread:
        return trace, {}
    masks = _Masks(rules, meter, suspects, unread)
    return _walk(trace, masks), masks.counts


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
                suspects.update(secrets.suspects(batch, rules=rules, meter=meter))
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
            return secrets.mask_named(name, value, rules=self._rules, meter=self._meter)
        return secrets.mask(value, rules=self._rules, meter=self._meter)

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
    marker = withheld(why)
    return Masked(json.dumps(marker) if is_json else marker, {"withheld": 1})


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
        tree = json.loads(document)  # which takes lone surrogates
    return tree


def _encoded(tree: Tree) -> str:
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(tree, separators=(",", ":"))


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


# ---- every string of a trace


class _Strings(Protocol):
    """What is done with each string of a trace."""

    def text(self, text: str) -> str: ...

    def document(self, text: str) -> str:
        """JSON."""

    def facts(self, facts: Facts) -> Facts:
        """Names and values of details."""

    def joined(self, parts: list[str]) -> str | None:
        """Texts that stand next to each other; an answer replaces all of them."""


def _walk(trace: Trace, strings: _Strings) -> Trace:
    text = strings.text
    return Trace(
        trace_id=trace.trace_id,
        name=text(trace.name),
        session_id=text(trace.session_id),
        client_version=text(trace.client_version),
        tags=tuple([text(tag) for tag in trace.tags]),
        facts=strings.facts(trace.facts),
        spans=tuple([_walk_span(span, strings) for span in trace.spans]),
    )


def _walk_span(span: Span, strings: _Strings) -> Span:
    text = strings.text
    name = text(span.name)
    model = span.model and text(span.model)
    error = span.error and text(span.error)
    message = span.error_message and text(span.error_message)
    facts = strings.facts(span.facts)
    went_in, came_out = _walk_content(span.input, strings), _walk_content(span.output, strings)
    if came_out is not span.output and isinstance(span.output, str) and span.output.startswith(span.error_message):
        # The message is the beginning of the output, cut somewhere: perhaps inside a secret.
        message = str(came_out)[: len(span.error_message)]
    if (
        went_in is span.input and came_out is span.output and facts is span.facts
        and name is span.name and model is span.model and error is span.error and message is span.error_message
    ):  # fmt: skip
        return span
    return msgspec.structs.replace(
        span, name=name, model=model, error=error, error_message=message, facts=facts, input=went_in, output=came_out
    )


def _walk_content(content: Content | None, strings: _Strings) -> Content | None:
    if content is None:
        return None
    if isinstance(content, str):
        return strings.text(content)
    if isinstance(content, Json):
        text = strings.document(content.text)
        return content if text is content.text else Json(text)
    return _same(content, tuple([_walk_message(message, strings) for message in content]))


def _walk_message(message: Message, strings: _Strings) -> Message:
    parts = _same(message.parts, tuple([_walk_part(part, strings) for part in message.parts]))
    if len(parts) > 1:
        parts = _same(parts, tuple(_walk_neighbours(parts, strings)))
    role = strings.text(message.role)
    reason = message.finish_reason and strings.text(message.finish_reason)
    if parts is message.parts and role is message.role and reason is message.finish_reason:
        return message
    return Message(role, parts, reason)


def _walk_part(part: Part, strings: _Strings) -> Part:
    text = strings.text
    if isinstance(part, Text | Reasoning):
        words = text(part.text)
        return part if words is part.text else type(part)(words)
    if isinstance(part, ToolResult):
        return _same(part, ToolResult(text(part.id), text(part.result)))
    if isinstance(part, ToolCall):
        return _same(part, ToolCall(text(part.id), text(part.name), strings.document(part.arguments)))
    return _same(part, Media(text(part.mime), part.bytes))


def _same(old: T, new: T) -> T:
    """The old value if the new one is equal: what did not change is not built again."""
    return old if new == old else new


def _walk_neighbours(parts: tuple[Part, ...], strings: _Strings) -> Iterable[Part]:
    """Words that were cut into several parts are looked at together: half a secret is no secret to any rule."""
    at = 0
    while at < len(parts):
        end = at + 1
        first = parts[at]
        if isinstance(first, Text | Reasoning):
            while end < len(parts) and type(parts[end]) is type(first):
                end += 1
        if end - at > 1:
            whole = strings.joined([part.text for part in parts[at:end] if isinstance(part, Text | Reasoning)])
            if whole is not None:
                yield Text(whole) if isinstance(first, Text) else Reasoning(whole)
                at = end
                continue
        yield from parts[at:end]
        at = end
