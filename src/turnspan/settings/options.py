"""Everything that can be set: its name, its default, what it does, and how a value is checked.

Rules:

- This table is the only one: `turnspan config --table` prints it, README.md and docs/configuration.md show it.
- A value that cannot be understood is named together with what is allowed. What then holds is the narrowest value:
  whoever mistypes a wish for privacy has still wished for it.
- A value that may be a credential is never part of a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

CAPTURES: Final = ("metadata", "redacted", "full")  # from the least to the most
OFF: Final = frozenset({"0", "false", "no", "off"})
ON: Final = frozenset({"1", "true", "yes", "on"})
_KINDS: Final = {
    bool: "true or false", str: "text", int: "a whole number", float: "a number",
    dict: "a table of texts", list: "a list of texts",
}  # fmt: skip


class Setting(msgspec.Struct, frozen=True):
    """One thing a person can set."""

    name: str
    kind: type
    default: object
    says: str
    env: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    narrowest: object = None  # what holds instead of a value that cannot be understood; None: the default
    is_secret: bool = False


SETTINGS: Final = (
    Setting("enabled", bool, True, "whether anything is exported at all", ("TURNSPAN_ENABLED",), narrowest=False),
    Setting(
        "capture", str, "redacted", "what may leave: `metadata`, `redacted` or `full`", ("TURNSPAN_CAPTURE",), CAPTURES,
        narrowest="metadata",
    ),
    Setting("thinking", bool, True, "export the model's thinking", narrowest=False),
    Setting("tool_inputs", bool, True, "export what tools were called with", narrowest=False),
    Setting("tool_outputs", bool, True, "export what tools gave back", narrowest=False),
    Setting("images", bool, True, "say that there was an image, its type and size", narrowest=False),
    Setting("mask_paths", bool, False, "mask home directories in paths", narrowest=True),
    Setting("patterns", dict, {}, "your own secrets: a table of name = regular expression"),
    Setting(
        "off", list, [], "working directories that are never exported, as patterns (`~/private/**`)", narrowest=["**"]
    ),
    Setting("tags", list, [], "tags on every trace", ("TURNSPAN_TAGS",)),
    Setting("user_id", str, "", "who you are, on every span", ("TURNSPAN_USER_ID",)),
    Setting("environment", str, "", "Langfuse environment", ("TURNSPAN_ENVIRONMENT",)),
    Setting("prices", str, "", "a JSON file with newer prices"),
    Setting("recover", bool, True, "export sessions that were left behind", ("TURNSPAN_RECOVER",)),
    Setting("attribute_max_bytes", int, 60_000, "longest value of one attribute; longer ones are cut"),
)  # fmt: skip
SETTING: Final = {setting.name: setting for setting in SETTINGS}
# What a destination may say for itself instead of taking it from above.
POLICY: Final = ("capture", "thinking", "tool_inputs", "tool_outputs", "images", "attribute_max_bytes")

_ANY: Final = (Setting("max_request_bytes", int, 3_500_000, "longest request; more is sent in several"),)
_TRANSPORT: Final = (
    Setting("headers", dict, {}, "extra headers, a table", ("TURNSPAN_OTLP_HEADERS",), is_secret=True),
    Setting("certificate", str, "", "a CA file to trust instead of the system's store", ("TURNSPAN_OTLP_CERTIFICATE",)),
    Setting("client_certificate", str, "", "for mutual TLS", ("TURNSPAN_OTLP_CLIENT_CERTIFICATE",)),
    Setting("client_key", str, "", "the key file of that certificate", ("TURNSPAN_OTLP_CLIENT_KEY",)),
    Setting("proxy", str, "", "`http://[user:password@]host:port`", ("TURNSPAN_OTLP_PROXY",), is_secret=True),
    Setting("proxy_from_env", bool, False, "take the proxy from `HTTPS_PROXY` and `NO_PROXY`"),
    Setting("timeout_s", float, 10.0, "for a whole exchange", ("TURNSPAN_OTLP_TIMEOUT_S",)),
    Setting("compression", str, "gzip", "`gzip` or `none`", ("TURNSPAN_OTLP_COMPRESSION",)),
)
OPTIONS: Final[dict[str, tuple[Setting, ...]]] = {
    "otlp": (
        Setting(
            "endpoint", str, "", "a base URL; `/v1/traces` is added over HTTP. Plain http only to this machine",
            ("TURNSPAN_OTLP_ENDPOINT",),
        ),
        Setting("protocol", str, "http/protobuf", "`http/protobuf` or `grpc`", ("TURNSPAN_OTLP_PROTOCOL",)),
        *_TRANSPORT,
        Setting("query_url", str, "", "Jaeger's query service, usually port 16686; `verify` asks it"),
        *_ANY,
    ),
    "langfuse": (
        Setting("public_key", str, "", "of the Langfuse project", ("LANGFUSE_PUBLIC_KEY",)),
        Setting("secret_key", str, "", "of the same project", ("LANGFUSE_SECRET_KEY",), is_secret=True),
        Setting(
            "base_url", str, "https://cloud.langfuse.com", "the server, or the region of the cloud",
            ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"),
        ),
        Setting("release", str, "", "Langfuse release"),
        *(msgspec.structs.replace(option, env=()) for option in _TRANSPORT),
        *_ANY,
    ),
    "local": (
        Setting("directory", str, "", "where the files are; `~/.claude/turnspan/traces` unless set"),
        Setting("max_file_bytes", int, 64 * 1024 * 1024, "a new file is begun past this size"),
        Setting("max_files", int, None, "keep so many; nothing is deleted unless set"),
        *_ANY,
    ),
    "sdk": (
        Setting("exporter", str, "", "the name of an installed OpenTelemetry span exporter, such as `console`"),
        *_ANY,
    ),
}  # fmt: skip


def checked(setting: Setting, value: object) -> Any:  # noqa: ANN401 - of the setting's kind
    """The value, if it is one that this setting can have. Raises ConfigError."""
    if setting.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if setting.kind is list and isinstance(value, str):
        value = [value]  # one item is a list of one
    is_right = isinstance(value, setting.kind) and not (setting.kind is int and isinstance(value, bool))
    if is_right and isinstance(value, list):
        is_right = all(isinstance(item, str) for item in value)
    if is_right and isinstance(value, dict):
        is_right = all(isinstance(item, str) for item in value.values())
    if is_right and (not setting.choices or value in setting.choices):
        return value
    allowed = ", ".join(setting.choices) or _KINDS[setting.kind]
    raise ConfigError(f"{setting.name} is {'not right' if setting.is_secret else repr(value)}; allowed: {allowed}")


def from_text(setting: Setting, text: str) -> object:
    """What the text of an environment variable says; the text itself where it says nothing of the kind."""
    word = text.strip()
    if setting.kind is bool and word.lower() in ON | OFF:
        return word.lower() in ON
    if setting.kind is list:
        return [item.strip() for item in text.split(",") if item.strip()]
    if setting.kind is dict:
        return _headers(text)
    if setting.kind is int and word.isascii() and word.isdecimal():
        return int(word)
    if setting.kind is float:
        try:
            return float(word)
        except ValueError:
            return text
    return text


def _headers(text: str) -> dict[str, str]:
    """`name=value,name=value`, as OpenTelemetry writes them; values may be percent-encoded."""
    from urllib.parse import unquote  # noqa: PLC0415  a hook's worker mostly needs none

    headers = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if item.strip() and (not equals or not name.strip()):
            raise ConfigError("headers are written as name=value,name=value")  # the value may be a secret: not repeated
        if item.strip():
            headers[name.strip()] = unquote(value.strip())
    return headers


# ---- the table for people


def table() -> Iterator[str]:
    """All of it as Markdown."""
    yield "| setting | default | environment | what it does |"
    yield "|---|---|---|---|"
    for setting in SETTINGS:
        yield f"| `{setting.name}` | {_default(setting)} | {_names(setting)} | {setting.says} |"
    yield ""
    yield "Each destination is a table of its own, `[destinations.NAME]`, with a `type` and these:"
    yield ""
    yield "| type | option | default | environment | what it is |"
    yield "|---|---|---|---|---|"
    rows: dict[str, tuple[list[str], Setting]] = {}
    for kind, options in OPTIONS.items():
        for option in options:
            types, first = rows.setdefault(option.name, ([], option))
            types.append(kind)
            if option.env and not first.env:
                rows[option.name] = (types, option)
    for types, option in rows.values():
        kinds = ", ".join(f"`{kind}`" for kind in types)
        yield f"| {kinds} | `{option.name}` | {_default(option)} | {_names(option)} | {option.says} |"
    yield ""
    names = ", ".join(f"`{name}`" for name in POLICY)
    yield f"A destination may also have its own {names}."


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or (not value and isinstance(value, (str, list, dict))):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _names(setting: Setting) -> str:
    return ", ".join(f"`{name}`" for name in setting.env)
