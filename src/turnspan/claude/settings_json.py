"""Lossless editor of Claude Code's settings.json: adds and removes our hooks and keeps every other byte.

It is hand-written because `uninstall` promises to restore the file exactly, and `json` or `msgspec` discard layout,
line ends, the spelling of numbers and duplicate keys when they write a file back. Positions come from the standard
library's `raw_decode`; only the text between two of them is cut or inserted.

Rules:

- Text in, text out. All else keeps its bytes: order, indentation, line ends, unknown keys.
- Anything but one JSON object is refused with a message, never repaired: Claude Code does not read it either.
- Ours is a hook whose complete command is our launcher or our module. A longer command is the user's own.
- An empty list or object that was there before is kept (`kept`); one that our removal empties is removed.
"""

from __future__ import annotations

import json
import os.path
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

Hook = dict[str, object]  # one command as settings.json holds it: type, command, timeout

_MARK: Final = "\ufeff"  # the byte order mark some editors begin a file with
_BLANK: Final = f" \t\r\n{_MARK}"
_SPACE: Final = re.compile(f"[{_BLANK}]*")
_MEMBER: Final = re.compile(r"[\r\n]([ \t]+)\"")
_DECODER: Final = json.JSONDecoder()
_MENTION: Final = re.compile(
    r"turnspan-hook|find-turnspan|turnspan[/\\]hook\.py|turnspan\.hook\b|\bturnspan(\.exe)?[\"']?\s+hook\b"
)
_PYTHON_CODE: Final = "from turnspan.hook import main"


# ---- reading


def parse_settings(text: str) -> dict[str, object]:
    """Parse the text. Raises ConfigError for anything but one JSON object; an empty text has no settings."""
    if not text.strip(_BLANK):
        return {}
    try:
        value = json.loads(text.removeprefix(_MARK), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}, column {error.colno}: {error.msg}{_likely_cause(text)}") from error
    except RecursionError as error:
        raise ConfigError("it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(value, dict):
        raise ConfigError(f"it contains {_kind(value)}, not an object")
    return value


def hooks_by_event(settings: Mapping[str, object]) -> Iterator[tuple[str, Hook]]:
    """Every hook with its event; values of another shape are skipped, as Claude Code does."""
    hooks = settings.get("hooks")
    for event, groups in hooks.items() if isinstance(hooks, dict) else ():
        for group in groups if isinstance(groups, list) else ():
            entries = group.get("hooks") if isinstance(group, dict) else None
            for hook in entries if isinstance(entries, list) else ():
                if isinstance(hook, dict):
                    yield event, hook


def command_of(hook: Mapping[str, object]) -> str:
    """A hook's command and arguments as one line."""
    command, arguments = hook.get("command"), hook.get("args")
    words = [command, *(arguments if isinstance(arguments, list) else ())]
    return " ".join(str(word) for word in words if isinstance(word, str))


def mentions_us(hook: Mapping[str, object]) -> bool:
    """Whether this hook runs turnspan, as `install` registers it or in a command of the user's own."""
    return bool(_MENTION.search(command_of(hook))) or is_ours(hook)


def is_ours(hook: Mapping[str, object]) -> bool:
    """Whether `install` wrote this hook, so that it can change or remove it."""
    words = words_of(hook)
    if not words:
        return False
    program = os.path.basename(words[0].replace("\\", "/")).removesuffix(".exe")  # noqa: PTH119 - any system's path
    return (
        (program == "turnspan-hook" and len(words) in {1, 3})
        or (program == "turnspan" and words[1:] == ["hook"])
        or (words[1:4] == ["-I", "-S", "-c"] and _PYTHON_CODE in words[4] and len(words) == 6)
    )


def guarded(words: Sequence[str]) -> str:
    """A shell command that runs a program, or exits with 0 if it does not exist: turnspan may have been removed."""
    return f"[ ! -x {shlex.quote(words[0])} ] || exec {shlex.join(words)}"


def words_of(hook: Mapping[str, object]) -> list[str]:
    """The words of a hook's command, without the guard that `install` puts in front; empty if it is not a command."""
    words = _words(hook)
    is_guarded = len(words) > 7 and words[:3] == ["[", "!", "-x"] and words[4:7] == ["]", "||", "exec"]
    return words[7:] if is_guarded and words[3] == words[7] else words


def _words(hook: Mapping[str, object]) -> list[str]:
    command, arguments = hook.get("command"), hook.get("args")
    if not isinstance(command, str):
        return []
    if isinstance(arguments, list):
        return [command, *map(str, arguments)]
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)  # a shell operator is a word of its own
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # an unclosed quote
        return []


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _likely_cause(text: str) -> str:
    if re.search(r"^\s*(//|/\*|#)", text, re.MULTILINE):
        return " (JSON has no comments)"
    if re.search(r",\s*[}\]]", text):
        return " (perhaps a comma before a closing bracket)"
    return ""


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


# ---- places


@dataclass(frozen=True, slots=True)
class _Part:
    """A member of an object or an element of a list, and its position in the text."""

    key: str | int
    start: int
    value: int  # where its value starts: after the key
    end: int


def _parts(text: str, at: int) -> list[_Part]:
    """The parts of the object or list that starts at `at`, in valid JSON."""
    closing = "}" if text[at] == "{" else "]"
    found: list[_Part] = []
    at = _skip(text, at + 1)
    while text[at] != closing:
        start = at
        key: str | int = len(found)
        if closing == "}":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value = at
        at = _DECODER.raw_decode(text, value)[1]
        found.append(_Part(key, start, value, at))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _part(text: str, at: int, key: str) -> _Part | None:
    found = [part for part in _parts(text, at) if part.key == key]
    if len(found) > 1:
        raise ConfigError(f"it contains {key!r} twice")
    return found[0] if found else None


def _container(text: str, part: _Part, opening: str, name: str) -> int:
    """Where the value of a part starts. Raises ConfigError if it is of another kind."""
    if text[part.value] != opening:
        expected = "an object" if opening == "{" else "a list"
        raise ConfigError(f"`{name}` in it is not {expected}, which Claude Code does not accept either")
    return part.value


# ---- writing


def with_hooks(text: str, wanted: Mapping[str, Hook]) -> str:
    """The text with exactly these hooks of ours: an older one is replaced in place, a missing one appended."""
    text = without_hooks(text if text.strip(_BLANK) else "{}\n", events_left=wanted)
    for event, hook in wanted.items():
        text = _with_hook(text, event, hook)
    return text


def without_hooks(text: str, kept: Collection[str] = (), *, events_left: Collection[str] = ()) -> str:
    """The text without our hooks. `kept` are containers that stay even when empty, `events_left` keep one hook."""
    parse_settings(text)
    while (path := _unwanted(text, events_left)) is not None:
        text = _cut(text, path, kept)
    return text


def containers(text: str) -> tuple[str, ...]:
    """The lists and objects that hold hooks in this text: `hooks`, `hooks.Stop`."""
    hooks = parse_settings(text).get("hooks")
    if not isinstance(hooks, dict):
        return ()
    return ("hooks", *(f"hooks.{event}" for event in hooks))


def _ours(text: str) -> Iterator[tuple[_Part, _Part, _Part, _Part]]:
    """The positions of our hooks: the member `hooks`, the event, the group with its matcher, the hook itself."""
    top = _skip(text, 0)
    hooks = _part(text, top, "hooks") if text[top:] else None
    if hooks is None:
        return
    for event in _parts(text, _container(text, hooks, "{", "hooks")):
        for group in _parts(text, _container(text, event, "[", f"hooks.{event.key}")):
            entries = _part(text, group.value, "hooks") if text[group.value] == "{" else None
            for entry in _parts(text, entries.value) if entries and text[entries.value] == "[" else ():
                hook = _DECODER.raw_decode(text, entry.value)[0]
                if isinstance(hook, dict) and is_ours(hook):
                    yield hooks, event, group, entry


def _unwanted(text: str, events_left: Collection[str]) -> tuple[_Part, _Part, _Part, _Part] | None:
    seen: set[str | int] = set()
    for path in _ours(text):
        event = path[1].key
        if event not in events_left or event in seen:
            return path
        seen.add(event)
    return None


def _cut(text: str, path: tuple[_Part, _Part, _Part, _Part], kept: Collection[str]) -> str:
    """The text without one hook, and without each container around it that this leaves empty."""
    hooks, event, group, entry = path
    entries = _part(text, group.value, "hooks")
    assert entries is not None
    if len(_parts(text, entries.value)) > 1:
        return _without_part(text, entries.value, entry)
    if len(_parts(text, event.value)) > 1 or f"hooks.{event.key}" in kept:
        return _without_part(text, event.value, group)
    if len(_parts(text, hooks.value)) > 1 or "hooks" in kept:
        return _without_part(text, hooks.value, event)
    return _without_part(text, _skip(text, 0), hooks)


def _without_part(text: str, container: int, part: _Part) -> str:
    siblings = _parts(text, container)
    place = next(n for n, sibling in enumerate(siblings) if sibling.start == part.start)
    if place > 0:  # with the comma before it, as it was appended
        return text[: siblings[place - 1].end] + text[part.end :]
    if len(siblings) > 1:
        return text[: part.start] + text[siblings[1].start :]
    return text[: container + 1] + text[_skip(text, part.end) :]


def _with_hook(text: str, event: str, hook: Hook) -> str:
    for _, found, _, entry in _ours(text):
        if found.key == event:
            if _DECODER.raw_decode(text, entry.value)[0] == hook:
                return text
            indent = _line_indent(text, entry.value) if _is_broken(text[entry.value : entry.end]) else None
            return text[: entry.value] + _rendered(text, hook, indent) + text[entry.end :]
    top = _skip(text, 0)
    group = {"hooks": [hook]}
    hooks = _part(text, top, "hooks")
    if hooks is None:
        return _with_part(text, top, "hooks", {event: [group]})
    at = _container(text, hooks, "{", "hooks")
    groups = _part(text, at, event)
    if groups is None:
        return _with_part(text, at, event, [group])
    return _with_part(text, _container(text, groups, "[", f"hooks.{event}"), None, group)


def _with_part(text: str, container: int, key: str | None, value: object) -> str:
    """The text with one more part at the end of a container, laid out like the part before it."""
    siblings = _parts(text, container)
    outer = _line_indent(text, container)
    indent = outer + _unit(text) if _is_broken(text.strip(_BLANK)) or container == _skip(text, 0) else None
    if siblings:
        start, end = siblings[-1].end, siblings[-1].end
        gap = (
            text[siblings[-2].end : siblings[-1].start]
            if len(siblings) > 1
            else text[container + 1 : siblings[0].start]
        )
        lead = gap.rpartition(",")[2]
        indent = _after_newline(lead) if _is_broken(lead) else None
        before, after = "," + (lead or " "), ""
    else:
        start, end = container + 1, _skip(text, container + 1)
        before, after = ("", "") if indent is None else (_newline(text) + indent, _newline(text) + outer)
    label = "" if key is None else f"{json.dumps(key)}: "
    return text[:start] + before + label + _rendered(text, value, indent) + after + text[end:]


def _rendered(text: str, value: object, indent: str | None) -> str:
    """A value in the style of the text, for a line with this indentation; on one line without one."""
    if indent is None:
        return json.dumps(value, ensure_ascii=False)
    lines = json.dumps(value, ensure_ascii=False, indent=_unit(text)).split("\n")
    return (_newline(text) + indent).join(lines)


def _is_broken(text: str) -> bool:
    return "\n" in text or "\r" in text


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _after_newline(space: str) -> str:
    return re.split(r"[\r\n]", space)[-1]


def _line_indent(text: str, at: int) -> str:
    line = _after_newline(text[:at])
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """The indentation of one level: that of the first member on a line of its own."""
    match = _MEMBER.search(text)
    return match[1] if match else "  "
