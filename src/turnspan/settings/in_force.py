"""The settings in force as text: each with its value and source.

Rules:

- Secrets are never shown: no key, no header value, no password in a URL, no custom pattern (it may be the secret).
- Variables that have no effect are named. Problems come last, each with its file and line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from turnspan.settings.options import OPTIONS, SETTINGS
from turnspan.text import one_line, paint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from turnspan.settings.config import Config, Destination
    from turnspan.settings.project import Narrowing

HIDDEN: Final = "(set, not shown)"
_SECRET: Final = re.compile(r"key|secret|token|password|passwd|auth|credential|header|dsn", re.IGNORECASE)
_USER_IN_URL: Final = re.compile(r"//[^/@\s]*@")
_PUBLIC_CHARS: Final = 10


def shown_settings(config: Config) -> dict[str, object]:
    """Every setting, without secrets."""
    values = dict(config.values)
    values["patterns"] = dict.fromkeys(config.values["patterns"], HIDDEN)
    return {setting.name: values[setting.name] for setting in SETTINGS}


def shown_options(destination: Destination) -> dict[str, object]:
    """The options of a destination, without secrets."""
    known = {option.name: option for option in OPTIONS.get(destination.type, ())}
    return {
        name: _shown(name, value, is_secret=known[name].is_secret if name in known else bool(_SECRET.search(name)))
        for name, value in destination.options.items()
    }


def _shown(name: str, value: Any, *, is_secret: bool) -> object:  # noqa: ANN401 - as the file has it
    if name == "proxy":
        return _USER_IN_URL.sub("//…@", str(value))
    if isinstance(value, dict):
        return dict.fromkeys(map(str, value), HIDDEN) if is_secret else value
    if is_secret:
        return HIDDEN
    if name == "public_key":
        return f"{str(value)[:_PUBLIC_CHARS]}…"
    return _USER_IN_URL.sub("//…@", value) if isinstance(value, str) else value


def config_lines(config: Config, cwd: str, narrowing: Narrowing, problems: tuple[str, ...]) -> Iterator[str]:
    """The settings in force as lines of text."""
    yield from _rows(shown_settings(config), config.sources)
    for destination in config.destinations:
        yield ""
        yield f"{paint(f'[destinations.{one_line(destination.name)}]', is_bold=True)}  {_from(destination.source)}"
        own = {name: value for name, value in destination.policy.items() if value != config.values[name]}
        yield from _rows({"type": destination.type, **shown_options(destination), **own}, {})
    if narrowing != type(narrowing)():
        yield ""
        yield f"{paint(one_line(cwd), is_bold=True)}  {_from(narrowing.why)}"
        yield from _rows(_asked(narrowing), {})
    for sentence in config.ignored:
        yield ""
        yield paint(f"note: {one_line(sentence)}", "yellow")
    for problem in problems:
        yield ""
        yield paint(f"error: {one_line(problem)}", "red")


def _rows(values: Mapping[str, object], sources: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        source = sources.get(name, "default")
        where = "" if source == "default" else f"  {_from(source)}"
        yield f"{one_line(name):19} {one_line(_text(value))}{where}"


def _from(source: str) -> str:
    return paint("default" if source == "default" else f"from {one_line(source)}", "cyan")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "-"
    return "-" if value in {"", None} else str(value)


def _asked(narrowing: Narrowing) -> dict[str, object]:
    asked: dict[str, object] = {"enabled": False} if narrowing.is_off else {}
    if narrowing.capture is not None:
        asked["capture"] = f"{narrowing.capture} at most"
    asked |= dict.fromkeys(narrowing.withheld, False)
    return asked | ({"tags": list(narrowing.tags)} if narrowing.tags else {})
