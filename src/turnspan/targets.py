"""Destinations become backends: found by entry point, opened late, each with its own identity.

A backend of ours is imported by name, without asking the packaging metadata: that would cost more than all else an event
does. Third parties are found in the group `turnspan.backends`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import log
from turnspan.errors import BackendError, ConfigError
from turnspan.home import private_directory, read_private, replace_private
from turnspan.ship import Target, identity_of, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Backend
    from turnspan.config import Config, Destination
    from turnspan.trace.cost import Prices

OURS: Final = ("otlp", "langfuse", "local")
_SLACK_S: Final = 60.0


def open_targets(config: Config, only: str | None = None) -> list[Target]:
    """The destinations that can be sent to. One that cannot is a line in the log, and the others go on."""
    targets = []
    for destination in config.destinations:
        if only is not None and destination.name != only:
            continue
        try:
            targets.append(open_target(destination, config))
        except (ConfigError, BackendError) as error:
            log.log_line(config.home, "ERROR", "setting", destination=destination.name, reason=str(error))
            if only is not None:
                raise
    return targets


def open_target(destination: Destination, config: Config) -> Target:
    """One destination, ready to be sent to."""
    options = dict(destination.options)
    options["attribute_max_bytes"] = destination.policy["attribute_max_bytes"]
    for name in ("user_id", "environment"):
        if config.values[name]:
            options[name] = config.values[name]
    backend = _opener(destination.type)(options, name=destination.name, home=config.home)
    return Target(destination, identity_of(destination), backend, rules_of(config), _prices(config))


def _opener(kind: str) -> Callable[..., Backend]:
    if kind in OURS:
        opener: Callable[..., Backend] = importlib.import_module(f"turnspan.backends.{kind}").open_backend
        return opener
    from importlib.metadata import entry_points  # noqa: PLC0415  slow, and only for third parties

    for entry_point in entry_points(group="turnspan.backends", name=kind):
        found: Callable[..., Backend] = entry_point.load()
        return found
    raise ConfigError(f"there is no backend {kind!r}", hint="install the package that brings it")


def _prices(config: Config) -> Prices | None:
    if not config.values["prices"]:
        return None
    from turnspan.trace.cost import load_prices  # noqa: PLC0415  only for people with prices of their own

    return load_prices(Path(config.values["prices"]).expanduser())


def since(config: Config, identity: str, now_s: float) -> float:
    """When a destination was first used here: nothing that was last written before that leaves unasked (decision 7)."""
    path = private_directory(config.home) / "since.json"
    known: dict[str, float] = {}
    raw = read_private(path, 1 << 20)
    if raw is not None:
        try:
            known = msgspec.json.decode(raw, type=dict[str, float])
        except (msgspec.DecodeError, UnicodeDecodeError):
            known = {}
    if identity not in known:
        known[identity] = now_s - _SLACK_S
        replace_private(path, msgspec.json.encode(known))
    return known[identity]
