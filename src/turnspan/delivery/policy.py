"""What may leave of a trace for one destination, as the person and its project allow it.

`ship` sends what this gives, and `show` shows it: there is no second opinion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.secrets.replace import compile_rules
from turnspan.settings.config import narrowed
from turnspan.trace.redact import CaptureMode, Policy, redact

if TYPE_CHECKING:
    from turnspan.secrets.replace import RuleSet
    from turnspan.settings.config import Config, Destination
    from turnspan.trace.model import Trace
    from turnspan.trace.redact import Redacted


# Headers that name something, as `x-project-name` (Phoenix) and `X-Scope-OrgID` (Tempo) do. Any other may be a secret.
_LABELS: Final = ("dataset", "environment", "orgid", "project", "service", "tenant", "type", "user-agent", "version")
_SECRETS: Final = ("auth", "key", "pass", "secret", "token")


def is_label(header: str) -> bool:
    """Whether a header's value is a name that content may well hold, too, and no credential."""
    name = header.lower()
    return any(word in name for word in _LABELS) and not any(word in name for word in _SECRETS)


def rules_of(config: Config) -> RuleSet:
    """What is masked: the built-in rules, the person's own, and every credential that is configured here."""
    credentials: list[str] = []
    pairs: list[tuple[str, str]] = []
    for destination in config.destinations:
        options = destination.options
        credentials += [str(value) for name, value in (options.get("headers") or {}).items() if not is_label(str(name))]
        if options.get("secret_key"):
            pairs.append((str(options.get("public_key", "")), str(options["secret_key"])))
    return compile_rules({str(k): str(v) for k, v in config.values["patterns"].items()}, credentials, pairs)


def policy_of(wanted: dict[str, Any], config: Config, rules: RuleSet) -> Policy:
    """What of a trace may leave, from settings."""
    return Policy(
        CaptureMode(wanted["capture"]), wanted["thinking"], wanted["tool_inputs"], wanted["tool_outputs"],
        wanted["images"], bool(config.values["mask_paths"]), rules,
    )  # fmt: skip


class Mask:
    """What may leave of a trace for one destination, as the person and its project allow it."""

    def __init__(self, destination: Destination, config: Config, rules: RuleSet) -> None:
        self._destination = destination
        self._config = config
        self._rules = rules
        self._known: dict[str, tuple[Policy | None, tuple[str, ...]]] = {}  # by working directory

    def __call__(self, trace: Trace) -> Redacted | None:
        """The trace, tagged and masked; None where it is switched off."""
        cwd = str(trace.facts.get("cwd", ""))
        if cwd not in self._known:
            narrowing = self._config.narrowing(cwd)
            wanted = narrowed(self._destination.policy, narrowing)
            policy = None if narrowing.is_off else policy_of(wanted, self._config, self._rules)
            self._known[cwd] = (policy, (*map(str, self._config.values["tags"]), *narrowing.tags))
        policy, tags = self._known[cwd]
        if policy is None:
            return None
        if tags:
            trace = msgspec.structs.replace(trace, tags=tuple(dict.fromkeys((*trace.tags, *tags))))
        return redact(trace, policy)
