"""Destinations and their backends: found by entry point, opened late, each with its own identity.

Nothing is opened before something is sent: an event with nothing new loads no backend and no masking rules.

Built-in backends are imported by name: a look at the packaging metadata would cost more than the rest of an event.
Third-party backends are found in the entry-point group `turnspan.backends`.
"""

from __future__ import annotations

import importlib
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.state import OnDisk, was_sent
from turnspan.errors import ConfigError, TurnspanError
from turnspan.files import private_directory, read_private, replace_private
from turnspan.settings.options import SETTING

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Backend
    from turnspan.delivery.policy import ExportPolicy
    from turnspan.delivery.state import Checkpoints
    from turnspan.settings.config import Config, Destination
    from turnspan.source.reader import Reader
    from turnspan.trace.cost import Prices

OURS: Final = ("otlp", "langfuse", "local", "sdk")
_SINCE: Final = "since.json"
_SLACK_S: Final = 60.0


class Target:
    """A destination with its backend, its export policy and its prices, each made when it is first needed.

    `checkpoints` says when what it acknowledged is committed: at once, unless something else is given.
    """

    def __init__(self, destination: Destination, config: Config, checkpoints: Checkpoints | None = None) -> None:
        self.destination = destination
        self.identity = identity_of(destination)
        self.home = config.home
        self.claude_home = config.claude_home
        self.checkpoints = checkpoints if checkpoints is not None else OnDisk(config.home)
        self._config = config
        self._is_open = False

    @cached_property
    def backend(self) -> Backend:
        """The backend. Raises ConfigError or BackendError."""
        backend = self.checkpoints.outbox(self.identity, self._opened())
        self._is_open = True
        return backend

    def _opened(self) -> Backend:
        destination, config = self.destination, self._config
        options = dict(destination.options)
        options["attribute_max_bytes"] = destination.policy["attribute_max_bytes"]
        for name in ("span_names", "tool_parent"):
            if destination.policy[name] != SETTING[name].default:
                options[name] = destination.policy[name]
        for name in ("user_id", "environment", "host", "service_name"):
            if config.values[name] != SETTING[name].default:
                options[name] = config.values[name]
        return _opener(destination.type)(options, name=destination.name, home=config.home)

    @cached_property
    def mask(self) -> ExportPolicy:
        """The export policy: it tags and masks a trace."""
        from turnspan.delivery.policy import ExportPolicy  # noqa: PLC0415  only if there is something to export

        return ExportPolicy(self.destination, self._config)

    @cached_property
    def prices(self) -> Prices | None:
        """The user's own prices, if there are any."""
        return prices_of(self._config)

    @cached_property
    def reader(self) -> Reader:
        """Reads what this destination gets: without copies of turns that it got from a session since deleted."""
        from turnspan.source.reader import Reader  # noqa: PLC0415  an event with nothing new must not load it

        return Reader(self.prices, partial(was_sent, self.home, identity=self.identity))

    def link(self, trace_id: bytes) -> str | None:
        """Return the URL of a trace at this destination, without a network request; None if it has none."""
        from turnspan.backends import Linkable  # noqa: PLC0415  an event links to nothing

        try:
            return self.backend.link(trace_id) if isinstance(self.backend, Linkable) else None
        except TurnspanError:
            return None

    def close(self) -> None:
        """Close the backend if it was opened."""
        if self._is_open:
            self.backend.close()


def identity_of(destination: Destination) -> str:
    """Return a name made of a destination's name and address, without secrets: another endpoint is another identity."""
    options = destination.options
    leads = ("endpoint", "base_url", "directory", "public_key")
    where = [destination.type, *(str(options.get(key, "")) for key in leads)]
    where += [str(options["exporter"])] if "exporter" in options else []
    digest = blake2b("\0".join(where).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{destination.name}-{digest}"


def targets_of(config: Config, only: str | None = None) -> list[Target]:
    """Return the destinations of a configuration, or the one with a name."""
    return [Target(each, config) for each in config.destinations if only in {None, each.name}]


def destination_named(config: Config, name: str | None) -> Destination:
    """Return a destination by its name; the first one if no name is given. Raises ConfigError."""
    for destination in config.destinations:
        if name in {None, destination.name}:
            return destination
    names = ", ".join(destination.name for destination in config.destinations)
    raise ConfigError(f"unknown destination {name!r}", hint=f"available: {names}")


def _opener(kind: str) -> Callable[..., Backend]:
    if kind in OURS:
        opener: Callable[..., Backend] = importlib.import_module(f"turnspan.backends.{kind}").open_backend
        return opener
    from importlib.metadata import entry_points  # noqa: PLC0415  slow, and only for third parties

    for entry_point in entry_points(group="turnspan.backends", name=kind):
        found: Callable[..., Backend] = entry_point.load()
        return found
    raise ConfigError(f"unknown backend {kind!r}", hint=f"available: {', '.join(OURS)}")


def prices_of(config: Config) -> Prices | None:
    """Return the user's own prices, if there are any."""
    if not config.values["prices"]:
        return None
    from turnspan.trace.cost import load_prices  # noqa: PLC0415  only for users with prices of their own

    return load_prices(Path(config.values["prices"]).expanduser())


def since(config: Config, identity: str, now_s: float) -> float:
    """Return when a destination was first used; now if it was not. Older sessions wait for `backfill` (decision 7)."""
    private_directory(config.home)
    known = first_uses(config.home)
    if identity not in known:
        known[identity] = now_s - _SLACK_S
        replace_private(config.home / _SINCE, msgspec.json.encode(known))
    return known[identity]


def first_uses(home: Path) -> dict[str, float]:
    """Return when each destination was first used. Raises StateError if that cannot be read."""
    raw = read_private(home / _SINCE, 1 << 20)
    try:
        return msgspec.json.decode(raw, type=dict[str, float]) if raw is not None else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
