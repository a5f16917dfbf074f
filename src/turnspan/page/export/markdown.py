"""A session as Markdown that a gist or an issue can show.

Rules:

- Words of the model are Markdown already; tags in them are escaped, and images become links: nothing is loaded.
- Everything else is in code blocks whose fence is longer than any in the text.
- Control sequences are removed, as in a terminal.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.page.content import conversation
from turnspan.page.content.code import language_of
from turnspan.page.content.diff import diff_text
from turnspan.page.export.parts import DocumentForm, parts
from turnspan.page.tree import Layout, badges_of, by_parent, figures_of, name_of, time_of_day, turn_name
from turnspan.text import one_line, plain
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text
from turnspan.trace.one_liner import flat, gist_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from turnspan.page.preview import PreviewedTrace
    from turnspan.trace.model import Part, Span, Trace

    Below = Mapping[bytes | None, Sequence[Span]]

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE: Final = re.compile(r"(`+[^`]*`+)")
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")
_BOXES: Final = {"completed": "x"}
_NO_CONTENT: Final = "content not exported"


def pieces(traces: Iterable[PreviewedTrace], path: str, layout: Layout) -> Iterator[str]:
    """Yield the document, each turn as soon as it is read. `path` is the transcript's."""
    return parts(traces, path, layout, DocumentForm(_head, _turn, _foot))


def _head(title: str, facts: dict[str, str]) -> str:
    return f"# {_words(title)}\n\n" + "".join(f"- **{name}:** {_words(value)}\n" for name, value in facts.items())


def _foot(lines: list[str]) -> str:
    return "\n---\n\n" + "".join(f"{_words(line)}  \n" for line in lines)


def _turn(trace: Trace, layout: Layout) -> Iterator[str]:
    below = by_parent(trace)
    first = trace.spans[0]
    about = [
        time_of_day(first.start_ns, layout),
        *(figures_of(first) if first.kind is Kind.TURN else ()),
        *badges_of(first),
    ]
    yield f"\n## {_words(turn_name(trace))}\n\n*{' · '.join(filter(None, about))}*\n"
    yield from _spans(below.get(None, ()), below)


def _spans(spans: Sequence[Span], below: Below) -> Iterator[str]:
    for span in spans:
        children = below.get(span.span_id, ())
        match span.kind:
            case Kind.TURN:
                yield from _speech(conversation(span, has_children=bool(children)), "**Prompt**", quote=True)
                yield from _spans(children, below)
            case Kind.GENERATION:
                yield from _speech(conversation(span), "")
                yield from _spans(children, below)
            case Kind.EVENT:
                yield f"\n*{_words(name_of(span))}: {_words(gist_of(span, is_parent=False))}*\n"
            case _:
                yield from _call(span, children, below)


def _call(span: Span, children: Sequence[Span], below: Below) -> Iterator[str]:
    figures = figures_of(span)
    about = [gist_of(span, is_parent=True)[:200], span.error or "", figures[-1] if figures else ""]
    # Markdown is not interpreted inside of tags.
    summary = " · ".join((f"<b>{escape(name_of(span))}</b>", *(escape(one_line(each)) for each in about if each)))
    yield f"\n<details><summary>{summary}</summary>\n"
    if span.kind is Kind.TOOL:
        yield from _tool(span)
    else:
        yield from _speech(conversation(span, has_children=bool(children)), "**Task**", quote=True)
    yield from _spans(children, below)
    yield "\n</details>\n"


def _speech(span: Span, label: str, *, quote: bool = False) -> Iterator[str]:
    if span.error_message:
        yield f"\n{_fenced(span.error_message, 'text')}"
    for content in (span.input, span.output):
        if not isinstance(content, tuple):
            continue
        for message in content:
            for part in message.parts:
                text = _part(part)
                if not text or (isinstance(part, Text) and part.text == span.error_message):
                    continue
                is_quoted = quote and content is span.input
                yield f"\n{label}\n" if is_quoted and label else ""
                yield "\n" + ("".join(f"> {line}\n" for line in text.split("\n")) if is_quoted else f"{text}\n")


def _part(part: Part) -> str:
    match part:
        case Text():
            return prose(part.text).strip()
        case Reasoning():
            return f"<details><summary>Thinking</summary>\n\n{prose(part.text).strip()}\n\n</details>"
        case Media():
            return f"*{_words(part.mime)}, {part.bytes:,} bytes, {_NO_CONTENT}*"
        case _:
            return ""


# ---- tools


def _tool(span: Span) -> Iterator[str]:
    text = span.input.text if isinstance(span.input, Json) else ""
    output = flat(span.output) if span.output is not None else ""
    try:
        values = msgspec.json.decode(text, type=dict[str, object])
        shown = _TOOLS[span.name](values) if span.name in _TOOLS else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError):
        shown = None
    if span.name == "Bash" and shown is not None:
        yield "\n" + _fenced(f"{shown}\n{output}".rstrip("\n"), "console")
        return
    if shown is None:
        shown = _fenced(text, "json") if text not in {"", "{}"} else ""
    yield f"\n{shown}" if shown else ""
    if output.strip():
        yield "\n" + _fenced(output.strip("\n"), "text")


def _text(values: dict[str, object], name: str) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _edit(values: dict[str, object]) -> str:
    return _file(values) + _fenced(diff_text(_text(values, "old_string"), _text(values, "new_string")), "diff")


def _multi_edit(values: dict[str, object]) -> str:
    edits = msgspec.convert(values["edits"], list[dict[str, object]])
    diffs = (diff_text(_text(edit, "old_string"), _text(edit, "new_string")) for edit in edits)
    return _file(values) + "\n".join(_fenced(each, "diff") for each in diffs)


def _write(values: dict[str, object]) -> str:
    return _file(values) + _fenced(_text(values, "content"), language_of(_text(values, "file_path")) or "text")


def _file(values: dict[str, object]) -> str:
    return f"{_inline_code(_text(values, 'file_path'))}\n\n"


def _todos(values: dict[str, object]) -> str:
    items = msgspec.convert(values["todos"], list[dict[str, object]])
    return "".join(
        f"- [{_BOXES.get(str(item.get('status')), ' ')}] {_words(str(item.get('content')))}\n" for item in items
    )


_TOOLS: Final[dict[str, Callable[[dict[str, object]], str]]] = {
    "Edit": _edit, "MultiEdit": _multi_edit, "Write": _write, "TodoWrite": _todos,
    "Bash": lambda values: f"$ {_text(values, 'command')}",
    "Read": lambda values: f"{_inline_code(_text(values, 'file_path'))}\n",
}  # fmt: skip


# ---- text


def prose(text: str) -> str:
    """Return Markdown without tags and images; code in it stays as it is."""
    lines, fence = [], ""
    for line in plain(text).split("\n"):
        found = _FENCE.match(line)
        if fence:
            fence = "" if found is not None and found[1].startswith(fence) and not line.strip("`~ ") else fence
        elif found is not None:
            fence = found[1]
        else:
            parts = _CODE.split(line)
            line = "".join(part if n % 2 else _escaped(part) for n, part in enumerate(parts))  # noqa: PLW2901 - outside code
        lines.append(line)
    return "\n".join([*lines, fence] if fence else lines)


def _escaped(text: str) -> str:
    return _TAG.sub("&lt;", text).replace("![", "[")


def _words(text: str) -> str:
    """Return one line in which nothing is Markdown or a tag."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", one_line(text))


def _inline_code(text: str) -> str:
    return f"`` {one_line(text)} ``"


def _fenced(text: str, language: str) -> str:
    """Return a code block."""
    text = plain(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}\n"
