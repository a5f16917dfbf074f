"""The destination that `turnspan install` stores: from flags, the environment and answers, tested at its server.

Rules:

- A secret comes from the environment or is typed without echo. It is never an argument, and never shown.
- A secret is sent only to the server it was entered for: a retry keeps the URL, and proposes no other.
- A destination is stored only if its server accepts the credentials, unless the user says otherwise.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from turnspan.errors import ConfigError, TurnspanError
from turnspan.settings.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.settings.options import Setting

DESTINATIONS: Final = ("local", *(kind for kind in reversed(OPTIONS) if any(one.prompt for one in OPTIONS[kind])))
_LOCATING: Final = ("HOME", "USERPROFILE", "CLAUDE_CONFIG_DIR")  # the variables by which settings are found


class _RefusedError(ConfigError):
    """The server cannot be used as described; it may be stored anyway."""


class _CredentialsError(_RefusedError):
    """The server does not accept the credentials."""


def ask_where() -> str:
    """Ask for the type of the destination."""
    return str(click.prompt("Send traces to", type=click.Choice(DESTINATIONS), default="local"))


def choose(
    to: str, env: Mapping[str, str], flags: Mapping[str, str | None], *, is_asking: bool, is_checked: bool
) -> Destination:
    """Return a destination from what is given and typed. Raises ConfigError if it cannot be used.

    After a failed test the dialog keeps every answer but the secrets. If the server refused the credentials, it asks
    for the secret alone; if it refuses again, for everything, with the previous answers as proposals.
    """
    from turnspan.commands.printing import print_line, remark

    options = [option for option in OPTIONS[to] if option.prompt]
    answers = _given(options, env) | _from_flags(options, flags)
    if not is_asking:
        answers |= {option.name: _default(to, option) for option in options if option.name not in answers}
        config, destination = _described(to, env, options, answers)
        if is_checked:
            print_line(_where_to(destination, config))
            _test(destination, config)
        return destination
    questions = [option for option in options if option.name not in answers]
    refusals = 0
    while True:
        answers |= {option.name: _asked(option, answers) for option in questions}
        try:
            config, destination = _described(to, env, options, answers)
            if is_checked:
                _test(destination, config)
        except TurnspanError as error:
            remark(str(error.args[0]))
            if isinstance(error, _RefusedError) and _is_stored_anyway():
                return destination
            refusals = refusals + 1 if isinstance(error, _CredentialsError) else 0
            questions = [option for option in options if option.is_secret or refusals != 1]
        else:
            return destination


# ---- answers


def _given(options: Sequence[Setting], env: Mapping[str, str]) -> dict[str, str]:
    """The answers in the environment, by option: both Langfuse keys from one place, as `load_config` takes them."""
    places: list[dict[str, str]] = []
    for prefix in ("CC_", ""):
        found = {option.name: next(filter(None, (env.get(prefix + v) for v in option.env)), "") for option in options}
        places.append({name: value for name, value in found.items() if value})
    required = {option.name for option in options if option.proposal is None}
    keys = next((place for place in places if required & place.keys()), places[1])
    others = {name: value for place in reversed(places) for name, value in place.items() if name not in required}
    return others | keys


def _from_flags(options: Sequence[Setting], flags: Mapping[str, str | None]) -> dict[str, str]:
    return {option.name: _spelled_out(option, value) for option in options if (value := flags.get(option.name))}


def _default(to: str, option: Setting) -> str:
    if option.proposal is None:
        raise ConfigError(f"{to} needs {option.env[0]}", hint="set it in the environment, or run this on a terminal")
    return option.proposal


def _asked(option: Setting, answers: Mapping[str, str]) -> str:
    from turnspan.commands.printing import print_line

    for name, value in option.places:
        print_line(f"  {name:6} {value}")
    proposal = option.proposal if option.is_secret else answers.get(option.name) or option.proposal
    answer = click.prompt(
        option.prompt, default=proposal, hide_input=option.is_secret, show_default=not option.is_secret
    )
    return _spelled_out(option, str(answer))


def _spelled_out(option: Setting, answer: str) -> str:
    """The value of an answer that may be the short name of a well-known one."""
    return dict(option.places).get(answer.strip().lower(), answer)


def _is_stored_anyway() -> bool:
    choices = click.Choice(("r", "s"), case_sensitive=False)
    text = "Try again, or save it anyway? [R/s] (s: save)"
    return bool(click.prompt(text, type=choices, default="r", show_default=False, show_choices=False) == "s")


# ---- the destination


def _described(
    to: str, env: Mapping[str, str], options: Sequence[Setting], answers: Mapping[str, str]
) -> tuple[Config, Destination]:
    from turnspan.settings.config import Destination, load_config
    from turnspan.settings.options import POLICY, from_text, of_kind

    config = load_config({name: env[name] for name in _LOCATING if name in env})
    values = {
        option.name: of_kind(option, from_text(option, answers[option.name]))
        for option in options
        if answers[option.name]
    }
    return config, Destination(to, to, values, {name: config.values[name] for name in POLICY}, "")


def _where_to(destination: Destination, config: Config) -> str:
    """Say which server is about to be contacted, and how to choose another region."""
    from turnspan.health.status import where_of

    where = where_of(destination, config.home)
    places = next((option.places for option in OPTIONS[destination.type] if option.places), ())
    is_region = where in dict(places).values()
    names = ", ".join(name for name, _ in places)
    return f"testing {where}" + (f" (other regions: --endpoint {names})" if is_region else "")


def _test(destination: Destination, config: Config) -> None:
    """Probe a destination. Raises ConfigError if it cannot be used."""
    from turnspan.backends import Answer, Outcome, probe
    from turnspan.delivery.destinations import Target

    backend = Target(destination, config).backend
    try:
        found = probe(backend)
    finally:
        backend.close()
    hint = "correct it and try again, or save it untested with --no-check"
    if found.answer is Answer.CREDENTIALS:
        raise _CredentialsError(f"{destination.name} does not accept these credentials: {found.says}", hint=hint)
    if found.outcome is not Outcome.GOOD:
        raise _RefusedError(f"{destination.name} cannot be used: {found.says}", hint=hint)
