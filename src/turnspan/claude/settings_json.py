"""Adds our hooks to the text of Claude Code's settings.json, and removes them from it.

Rules:

- Text in, text out. The text is parsed, changed and written in its own style: indentation, line ends, order of keys,
  escapes. A text that needs no change is returned as it is. `install` restores the exact bytes, from its record.
- Anything but one JSON object is refused with a message, never repaired: Claude Code does not read it either. A key
  that occurs twice is refused too: one of the two values would be lost.
- An empty list or object that was there before is kept; one that our removal empties is removed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from turnspan.claude.command import is_ours
from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from turnspan.claude.command import Hook

_MARK: Final = "\ufeff"  # the byte order mark some editors begin a file with
_BLANK: Final = f" \t\r\n{_MARK}"
_MEMBER: Final = re.compile(r"\n([ \t]*)\"")  # the first one on a line of its own has the indentation of one level
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


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
