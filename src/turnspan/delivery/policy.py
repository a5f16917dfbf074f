"""The export policy: what of a trace may be exported to one destination, as the user and the trace's project allow it.

`ship` sends what it returns, `show`, `view` and the dry run show it. It is the only code that decides this.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.state import narrower
from turnspan.secrets.replace import compile_rules
from turnspan.settings.config import narrowed
from turnspan.trace.labels import labelled
from turnspan.trace.redact import CaptureMode, Policy, redact, redact_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.secrets.replace import RuleSet
    from turnspan.settings.config import Config, Destination, Narrowing
    from turnspan.trace.model import Trace
    from turnspan.trace.redact import Redacted


# Headers that hold a name, such as `x-project-name` (Phoenix) and `X-Scope-OrgID` (Tempo). Any other may be a secret.
_LABELS: Final = ("dataset", "environment", "orgid", "project", "service", "tenant", "type", "user-agent", "version")
_SECRETS: Final = ("auth", "key", "pass", "secret", "token")


def is_label(header: str) -> bool:
    """Return whether a header's value is a name, which content may hold as well, and not a credential."""
    name = header.lower()
    return any(word in name for word in _LABELS) and not any(word in name for word in _SECRETS)


def rules_of(config: Config) -> RuleSet:
    """Return what is masked: the built-in rules, the user's own, and every configured credential."""
    credentials: list[str] = []
    pairs: list[tuple[str, str]] = []
    for destination in config.destinations:
        options = destination.options
        credentials += [str(value) for name, value in (options.get("headers") or {}).items() if not is_label(str(name))]
        if options.get("secret_key"):
            pairs.append((str(options.get("public_key", "")), str(options["secret_key"])))
    return compile_rules({str(k): str(v) for k, v in config.values["patterns"].items()}, credentials, pairs)


class ExportPolicy:
    """What of a trace may be exported to one destination."""

    def __init__(self, destination: Destination, config: Config) -> None:
        self._destination = destination
        self._config = config
        self._narrowings: dict[str, Narrowing] = {}  # these two by working directory
        self._policies: dict[str, Policy] = {}
        self._of_sessions: dict[str, ExportPolicy] = {}  # by capture mode

    def of_session(self, capture: str) -> ExportPolicy:
        """Return the policy for a session that an event restricted to a capture mode; "" is no restriction."""
        mode = narrower(capture, self._destination.policy["capture"])
        if mode == self._destination.policy["capture"]:
            return self
        if mode not in self._of_sessions:
            policy = {**self._destination.policy, "capture": mode}
            found = ExportPolicy(msgspec.structs.replace(self._destination, policy=policy), self._config)
            found._rules = self._rules  # the same for all sessions, and expensive
            self._of_sessions[mode] = found
        return self._of_sessions[mode]

    def __call__(self, trace: Trace) -> Redacted | None:
        """Return the trace as it is exported: tagged, masked and labelled; None if its directory is switched off."""
        return None if self.is_off(trace.cwd) else self.masked(trace)

    def masked(self, trace: Trace) -> Redacted:
        """Return the trace, tagged, masked and labelled, also if its directory is switched off."""
        return self._labelled(redact(self._tagged(trace), self._policy(trace.cwd)))

    def masked_all(self, traces: Sequence[Trace]) -> list[Redacted]:
        """Return several traces as `masked` returns each of them, in less time."""
        by_cwd: dict[str, list[int]] = {}
        for place, trace in enumerate(traces):
            by_cwd.setdefault(trace.cwd, []).append(place)
        found: dict[int, Redacted] = {}
        for cwd, places in by_cwd.items():
            redacted = redact_all([self._tagged(traces[place]) for place in places], self._policy(cwd))
            found.update(zip(places, map(self._labelled, redacted), strict=True))
        return [found[place] for place in range(len(traces))]

    def _tagged(self, trace: Trace) -> Trace:
        tags = (*map(str, self._config.values["tags"]), *self._narrowing(trace.cwd).tags)
        if tags:
            trace = msgspec.structs.replace(trace, tags=tuple(dict.fromkeys((*trace.tags, *tags))))
        return trace

    def _labelled(self, redacted: Redacted) -> Redacted:
        by_prompt = self._destination.policy["turn_names"] == "prompt"
        return redacted._replace(trace=labelled(redacted.trace, by_prompt=by_prompt))

    def is_off(self, cwd: str) -> bool:
        """Return whether nothing of a working directory may be exported."""
        return self._narrowing(cwd).is_off

    def why_off(self, cwd: str) -> str:
        """Return why nothing of a working directory is exported; "" if it is."""
        if not self._config.is_enabled:
            return f"switched off by {self._config.sources['enabled']}"
        narrowing = self._narrowing(cwd)
        return narrowing.why if narrowing.is_off else ""

    def capture(self, cwd: str) -> CaptureMode:
        """Return the capture mode of a working directory."""
        return self._policy(cwd).capture

    @cached_property
    def _rules(self) -> RuleSet:
        return rules_of(self._config)  # takes as long as sending: only if something is masked

    def _narrowing(self, cwd: str) -> Narrowing:
        if cwd not in self._narrowings:
            self._narrowings[cwd] = self._config.narrowing(cwd)
        return self._narrowings[cwd]

    def _policy(self, cwd: str) -> Policy:
        if cwd not in self._policies:
            wanted = narrowed(self._destination.policy, self._narrowing(cwd))
            self._policies[cwd] = Policy(
                CaptureMode(wanted["capture"]), wanted["thinking"], wanted["tool_inputs"], wanted["tool_outputs"],
                wanted["images"], bool(self._config.values["mask_paths"]), self._rules,
            )  # fmt: skip
        return self._policies[cwd]
