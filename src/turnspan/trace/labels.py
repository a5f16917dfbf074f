"""Short labels for lists: a turn is named after its prompt, and a tool call has a hint of what it ran.

Rules:

- Labels are made from a trace that is masked already. A text that is cut first may end in half a secret, which no rule
  recognises.
- Content that is not exported gives no label: in `metadata` mode a turn is `Turn 3`.
- A further part of a turn does not contain the prompt and keeps the number as its name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.trace.messages import BASH_MODE
from turnspan.trace.model import Json, Kind, Text, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.trace.model import Content, Span, Trace

LONGEST: Final = 60  # characters of a label
HINT: Final = "tool.hint"  # the fact
_LOOKED_AT: Final = 1_000  # characters of a prompt that a label is made from
_SUMMARY_WITHIN: Final = 10_000  # characters of a notification; its summary is near the beginning
_NUMBERED: Final = lazy.pattern(r"(Turn [0-9]+): .*", re.DOTALL)
_TAG: Final = lazy.pattern(r"</?[a-z][a-z_-]*>")
_FROM_EDITOR: Final = lazy.pattern(r"ide_[a-z_]+: ")
_SUMMARY: Final = lazy.pattern(r"<summary>(.*?)</summary>", re.DOTALL)
_TEAMMATE: Final = lazy.pattern(r"\s*<teammate-message\b([^>]*)>(.*?)(?:</teammate-message>|\Z)", re.DOTALL)
_ATTRIBUTE: Final = lazy.pattern(r'(\w+)="([^"]*)"')
_HOST: Final = lazy.pattern(r"[a-z][a-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#]+)", re.IGNORECASE)


def labelled(trace: Trace, *, by_prompt: bool) -> Trace:
    """Return a masked trace with hints, and with the turn named after its prompt if that is wanted."""
    spans = tuple([_with_hint(span) if span.kind is Kind.TOOL else span for span in trace.spans])
    name = trace.name
    if by_prompt and spans and spans[0].kind is Kind.TURN and (label := turn_label(spans[0])):
        name = _cut(f"{name}: {label}")
        spans = (msgspec.structs.replace(spans[0], name=name), *spans[1:])
    return msgspec.structs.replace(trace, name=name, spans=spans)


def numbered(name: str) -> str:
    """Return the name of a turn without its prompt: `Turn 3`; any other name as it is."""
    match = _NUMBERED.fullmatch(name)
    return name if match is None else match[1]


def turn_label(span: Span) -> str:
    """Return the command of a turn, the summary of a notification, or the first words of the prompt."""
    command = span.facts.get("command")
    is_named = isinstance(command, str) and command != BASH_MODE  # a `!` line is its own name
    return _clean(str(command) if is_named else headline(words_of(span)))


def headline(text: str) -> str:
    """Return a prompt without the tags that the client wraps around text it generated: who sent it, and its summary."""
    if not text.lstrip().startswith("<"):
        return text
    if (teammate := _TEAMMATE.match(text)) is not None:
        named = dict(_ATTRIBUTE.findall(teammate[1]))
        words = f"{named.get('teammate_id') or 'teammate'}: {named.get('summary') or teammate[2]}"
    elif (summary := _SUMMARY.search(text[:_SUMMARY_WITHIN])) is not None:
        words = summary[1]
    else:
        return _TAG.sub(" ", text)
    return _unescaped(words[:_SUMMARY_WITHIN]) if "&" in words else words


def _unescaped(text: str) -> str:
    import html  # noqa: PLC0415  few prompts have entities, and its table of them is long

    return html.unescape(text)


def words_of(span: Span) -> str:
    """Return the first text of a prompt; text that an editor added only if there is no other."""
    texts = [part.text for part in parts_of(span.input, Text)]
    typed = (text for text in texts if text.strip() and _FROM_EDITOR.match(text) is None)
    return next(typed, texts[0] if texts else "")


# ---- hints of tool calls


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _host(url: str) -> str:
    match = _HOST.match(url)
    return match[1] if match is not None else url


# The arguments that say best what ran, in order of preference, and what of them is shown.
_HINTS: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    ("description", str), ("command", str), ("file_path", _file_name), ("notebook_path", _file_name), ("pattern", str),
    ("query", str), ("url", _host), ("skill", str), ("subject", str), ("path", _file_name), ("prompt", str),
)  # fmt: skip


# `msgspec.json.decode(…, type=…)` takes three times as long: it looks at the type with every call.
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def _with_hint(span: Span) -> Span:
    hint = tool_hint(span.input)
    return msgspec.structs.replace(span, facts={**span.facts, HINT: hint}) if hint else span


def tool_hint(content: Content | None) -> str:
    """Return what a tool call ran, from its arguments; "" if they do not say."""
    if not isinstance(content, Json):
        return ""
    try:
        fields = _decode_fields(content.text)
        for name, shown in _HINTS:
            if name in fields and bytes(fields[name]).startswith(b'"'):
                hint = short(shown(_decode_text(fields[name])))
                if hint:
                    return hint
    except (msgspec.DecodeError, UnicodeError, RecursionError):  # not an object, or half an emoji
        return ""
    return ""


# ---- text


def short(text: str) -> str:
    """Return a text as one line of at most LONGEST characters."""
    return _cut(_clean(text))


def _clean(text: str) -> str:
    """Return the beginning of a text as one line without control characters."""
    line = " ".join(text[:_LOOKED_AT].split())
    return line if line.isprintable() else "".join(filter(str.isprintable, line))


def _cut(text: str) -> str:
    """Return a text of at most LONGEST characters, cut between words where possible."""
    if len(text) <= LONGEST:
        return text
    cut = text[: LONGEST - 1]
    if text[LONGEST - 1] != " " and (space := cut.rfind(" ")) > LONGEST // 2:
        cut = cut[:space]
    return cut.rstrip(" ,.;:-") + "…"
