"""Destinations become backends: found by entry point, opened late, each with its own identity.

Nothing is opened before something is sent: an event with nothing new pays for no backend and no masking rules.

A backend of ours is imported by name, without asking the packaging metadata: that would cost more than all else an
event does. Third parties are found in the group `turnspan.backends`.
"""

from __future__ import annotations

import importlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.lazy import blake2b
from turnspan.private_files import private_directory, read_private, replace_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Backend
    from turnspan.delivery.policy import Mask
    from turnspan.settings.config import Config, Destination
    from turnspan.trace.cost import Prices

OURS: Final = ("otlp", "langfuse", "local", "sdk")
_SLACK_S: Final = 60.0


class Target:
    """A destination, and what it takes to send there, made when it is first needed."""

    def __init__(self, destination: Destination, config: Config) -> None:
        self.destination = destination
        self.identity = identity_of(destination)
        self._config = config
        self._is_open = False

    @cached_property
    def backend(self) -> Backend:
        """Where it sends to. Raises ConfigError or BackendError."""
        destination, config = self.destination, self._config
        options = dict(destination.options)
        options["attribute_max_bytes"] = destination.policy["attribute_max_bytes"]
        for name in ("user_id", "environment"):
            if config.values[name]:
                options[name] = config.values[name]
        backend = _opener(destination.type)(options, name=destination.name, home=config.home)
        self._is_open = True
        return backend

    @cached_property
    def mask(self) -> Mask:
        """What may leave for it."""
        from turnspan.delivery.policy import Mask, rules_of  # noqa: PLC0415  compiling the rules takes as long as sending

        return Mask(self.destination, self._config, rules_of(self._config))

    @cached_property
    def prices(self) -> Prices | None:
        """The person's own prices, if there are any."""
        return prices_of(self._config)

    def close(self) -> None:
        """Let go of connections, if there are any."""
        if self._is_open:
            self.backend.close()


def identity_of(destination: Destination) -> str:
    """A destination by its name and where it leads, without any secret: another endpoint is another destination."""
    options = destination.options
    leads = ("endpoint", "base_url", "directory", "public_key")
    where = [destination.type, *(str(options.get(key, "")) for key in leads)]
    where += [str(options["exporter"])] if "exporter" in options else []
    digest = blake2b("\0".join(where).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{destination.name}-{digest}"


def targets_of(config: Config, only: str | None = None) -> list[Target]:
    """The destinations of a configuration, or the one of a name."""
    return [Target(each, config) for each in config.destinations if only in {None, each.name}]


def destination_named(config: Config, name: str | None) -> Destination:
    """A destination by its name; the first one without."""
    for destination in config.destinations:
        if name in {None, destination.name}:
            return destination
    names = ", ".join(destination.name for destination in config.destinations)
    raise ConfigError(f"there is no destination {name!r}", hint=f"there are: {names}")


def _opener(kind: str) -> Callable[..., Backend]:
    if kind in OURS:
        opener: Callable[..., Backend] = importlib.import_module(f"turnspan.backends.{kind}").open_backend
        return opener
    from importlib.metadata import entry_points  # noqa: PLC0415  slow, and only for third parties

    for entry_point in entry_points(group="turnspan.backends", name=kind):
        found: Callable[..., Backend] = entry_point.load()
        return found
    raise ConfigError(f"there is no backend {kind!r}", hint="install the package that brings it")


def prices_of(config: Config) -> Prices | None:
    """The person's own prices, if there are any."""
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
