"""Adds our hooks to the text of Claude Code's settings.json, and removes them from it.

Rules:

- Text in, text out. The text is parsed, changed and written in its own style: indentation, line ends, order of keys,
  escapes. A text that needs no change is returned as it is. `install` restores the exact bytes, from its record.
- Anything but one JSON object is refused with a message, never repaired: Claude Code does not read it either. A key
  that occurs twice is refused too: one of the two values would be lost.
- Ours is a hook whose complete command is our launcher or our module. A longer command is the user's own.
- An empty list or object that was there before is kept; one that our removal empties is removed.
"""

from __future__ import annotations

import json
import os.path
import re
import shlex
from typing import TYPE_CHECKING, Any, Final, NoReturn

from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Hook = dict[str, object]  # one command as settings.json holds it: type, command, timeout

_MARK: Final = "\ufeff"  # the byte order mark some editors begin a file with
_BLANK: Final = f" \t\r\n{_MARK}"
_MEMBER: Final = re.compile(r"\n([ \t]*)\"")  # the first one on a line of its own has the indentation of one level
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MENTION: Final = re.compile(
    r"turnspan-hook|find-turnspan|turnspan[/\\]hook\.py|turnspan\.hook\b|\bturnspan(\.exe)?[\"']?\s+hook\b"
)
_PYTHON_CODE: Final = "from turnspan.hook import main"


# ---- reading


def parse_settings(text: str, pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] = dict) -> dict[str, Any]:
    """Parse the text. Raises ConfigError for anything but one JSON object; an empty text has no settings."""
    if not text.strip(_BLANK):
        return {}
    try:
        value = json.loads(text.removeprefix(_MARK), parse_constant=_no_constant, object_pairs_hook=pairs)
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


# ---- writing


def with_hooks(text: str, wanted: Mapping[str, Hook]) -> str:
    """The text with exactly these hooks of ours: an older one is replaced in place, a missing one appended."""
    settings = parse_settings(text, _unique)
    changed = _replaced(settings, wanted)
    for event, hook in wanted.items():
        groups = changed.setdefault("hooks", {}).setdefault(event, [])
        if not any(is_ours(found) for _, found in hooks_by_event({"hooks": {event: groups}})):
            groups.append({"hooks": [hook]})
    return text if changed == settings else _written(changed, text)


def without_hooks(text: str, original: str = "") -> str:
    """The text without our hooks. What `original`, the text before the installation, has as an empty list is kept."""
    settings = parse_settings(text, _unique)
    changed = _replaced(settings, {}, parse_settings(original).get("hooks"))
    return text if changed == settings else _written(changed, text)


def _replaced(settings: dict[str, Any], wanted: Mapping[str, Hook], kept: object = None) -> dict[str, Any]:
    """The settings with the first hook of ours for each event replaced by the wanted one, and all others removed."""
    hooks = _container(settings.get("hooks", {}), dict, "hooks")
    events: dict[str, Any] = {}
    for event, groups in hooks.items():
        ours = [wanted[event]] if event in wanted else []
        left = []
        for group in _container(groups, list, f"hooks.{event}"):
            before = group.get("hooks") if isinstance(group, dict) else None
            if not isinstance(before, list):
                left.append(group)
                continue
            after = []
            for hook in before:
                if not isinstance(hook, dict) or not is_ours(hook):
                    after.append(hook)
                elif ours:
                    after.append(ours.pop())
            if after or not before:
                left.append({**group, "hooks": after})
        if left or not groups or (isinstance(kept, dict) and event in kept):
            events[event] = left
    if events or not hooks or isinstance(kept, dict):
        return {**settings, "hooks": events} if "hooks" in settings else dict(settings)
    return {key: value for key, value in settings.items() if key != "hooks"}


def _container(value: Any, kind: type, name: str) -> Any:  # noqa: ANN401 - of this kind
    if not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise ConfigError(f"`{name}` in it is not {expected}, which Claude Code does not accept either")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [key for key, _ in pairs]
        raise ConfigError(f"it contains {next(key for key in table if names.count(key) > 1)!r} twice")
    return table


def _written(settings: dict[str, Any], like: str) -> str:
    """The settings as JSON in the style of another text."""
    content = like.strip(_BLANK)
    before, _, after = like.partition(content) if content else ("", "", "\n")
    member = _MEMBER.search(content)
    is_one_line = "\n" not in content and content.strip("{ }")
    indent = member[1] if member else None if is_one_line else "  "
    try:
        text = json.dumps(
            settings,
            ensure_ascii="\\u" in content and content.isascii(),
            allow_nan=False,
            indent=indent,
            separators=None if indent is not None or '": ' in content else (",", ":"),
        )
    except RecursionError as error:
        raise ConfigError("it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError("a number in it is too large") from error
    text = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return before + (text.replace("\n", "\r\n") if "\r\n" in content else text) + after
