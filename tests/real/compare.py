"""Compares the spans that a backend should have with those that its own API returns.

Rules:

- The expected spans are built from the final files by `turnspan.source.reader`, masked for the destination and named as it
  requires. They do not pass through our encoder, which is under test, too.
- A backend may add derived attributes; a suite lists their names and values. It must not remove any.
- All differences are reported, each with its span, so that one run shows everything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnspan.backends.naming import scrubbed
from turnspan.delivery.destinations import Target
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.trace.model import Span, Trace

Key = tuple[str, str]  # trace id, span id


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as a backend returns it."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    error: str | None  # the message of an ERROR status; None for any other status
    attributes: dict[str, Any]

    @property
    def key(self) -> Key:
        """The key that identifies it."""
        return self.trace_id, self.span_id


@dataclass(frozen=True, slots=True)
class Wanted:
    """An expected span, from one reading of the final files."""

    trace: Trace
    span: Span
    attributes: dict[str, Any]

    @property
    def key(self) -> Key:
        """The key that identifies it."""
        return self.trace.trace_id.hex(), self.span.span_id.hex()

    @property
    def parent_id(self) -> str | None:
        """The id of its parent."""
        return None if self.span.parent_id is None else self.span.parent_id.hex()

    @property
    def error(self) -> str | None:
        """The message of its status, if that is ERROR."""
        return None if self.span.error is None else self.span.error_message


def wanted_in(projects, env) -> dict[Key, Wanted]:
    """Return all spans of a transcript tree as the destination configured in `env` should have them."""
    config = load_config(env)
    target = Target(config.destinations[0], config)
    naming = target.backend._naming
    found: dict[Key, Wanted] = {}
    for session in all_sessions(projects):
        for trace in Reader.for_people().traces(session):
            masked = scrubbed(target.mask(trace).trace)
            for span in masked.spans:
                attributes = {**naming.of_trace(masked), **naming.of_span(masked, span)}
                one = Wanted(masked, span, {key: _listed(value) for key, value in attributes.items()})
                assert one.key not in found, f"{span.name!r} was built twice"
                found[one.key] = one
    target.close()
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def differences(
    wanted: dict[Key, Wanted],
    seen: Iterable[Seen],
    *,
    precision_ns: int,
    derived: Callable[[Wanted], dict[str, Any]],
    same: Callable[[Any, Any], bool] = lambda ours, theirs: ours == theirs,
) -> list[str]:
    """Return what is missing, unexpected, duplicated or different. `derived` gives the attributes that the backend adds."""
    seen = list(seen)
    counts = Counter(one.key for one in seen)
    found = [f"{key}: {count} times" for key, count in counts.items() if count > 1]
    found += [f"{key}: missing: {wanted[key].span.name}" for key in wanted.keys() - counts.keys()]
    found += [f"{key}: unexpected" for key in counts.keys() - wanted.keys()]
    for one in seen:
        if (ours := wanted.get(one.key)) is not None:
            label = f"{ours.trace.session_id[:8]} {ours.trace.name} {ours.span.kind} {ours.span.name}"
            found += [f"{label}: {what}" for what in _of_span(ours, one, precision_ns, derived(ours), same)]
    return found


def _of_span(ours: Wanted, seen: Seen, precision_ns: int, derived: dict[str, Any], same) -> list[str]:
    found = []
    for what, left, right in (
        ("parent", ours.parent_id, seen.parent_id),
        ("name", ours.span.name, seen.name),
        ("error", ours.error, seen.error),
    ):
        if left != right:
            found.append(f"{what} is {right!r}, not {left!r}")
    for what, left, right in (("start", ours.span.start_ns, seen.start_ns), ("end", ours.span.end_ns, seen.end_ns)):
        if abs(left - right) > precision_ns:
            found.append(f"{what} is {right}, not {left}")
    expected = {**derived, **ours.attributes}
    for key, value in expected.items():
        if key not in seen.attributes:
            found.append(f"{key} is missing; expected {value!r}")
        elif not same(value, seen.attributes[key]):
            found.append(f"{key} is {seen.attributes[key]!r}, not {value!r}")
    found += [f"{key} = {seen.attributes[key]!r} is unexpected" for key in seen.attributes.keys() - expected.keys()]
    return found
