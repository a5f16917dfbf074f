"""The table of options: names, types, defaults, ranges, environment variables, help texts, and how values are checked.

Rules:

- This is the only table. `turnspan config --table` prints it, docs/configuration.md shows it, `turnspan install` asks
  by it, and the backends read names, defaults and ranges from it.
- An invalid value is reported together with the allowed ones, and the most restrictive value is used until it is
  fixed: a mistyped privacy setting must not export more.
- A value that may be a credential is never part of a message.
- Choices and ranges of a destination's options are checked by its backend, which knows the destination's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.settings.matrix import SettingSource, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CAPTURES: Final = ("metadata", "redacted", "full")  # from the least to the most
TURN_NAMES: Final = ("prompt", "number")
SPAN_NAMES: Final = ("plain", "hint", "semconv")
TOOL_PARENTS: Final = ("response", "turn")
TRACE_NAMES: Final = ("turn", "project")
TRACEPARENTS: Final = ("off", "link", "parent")
PROTOCOLS: Final = ("http/protobuf", "grpc")
COMPRESSIONS: Final = ("auto", "gzip", "none")
OFF: Final = frozenset({"0", "false", "no", "off"})
ON: Final = frozenset({"1", "true", "yes", "on"})
_KINDS: Final = {
    bool: "true or false", str: "text", int: "an integer", float: "a number",
    dict: "a table of strings", list: "a list of strings",
}  # fmt: skip


class Setting(msgspec.Struct, frozen=True):
    """One setting, or one option of a destination."""

    name: str
    kind: type
    default: object
    help: str
    env: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    narrowest: object = None  # used instead of an invalid value; None: the default
    is_secret: bool = False
    least: float = 0
    most: float = 2**40
    prompt: str = ""  # the question of `turnspan install`; empty: it does not ask
    proposal: str | None = ""  # what Enter answers; None: an answer is required
    places: tuple[tuple[str, str], ...] = ()  # well-known values, each with a short name that can be typed instead


SETTINGS: Final = (
    Setting("enabled", bool, True, "export anything at all", ("TURNSPAN_ENABLED",), narrowest=False),
    Setting(
        "capture", str, "redacted", "what is exported: `metadata`, `redacted` or `full`", ("TURNSPAN_CAPTURE",),
        CAPTURES, narrowest="metadata",
    ),
    Setting("thinking", bool, True, "export the model's thinking", narrowest=False),
    Setting("tool_inputs", bool, True, "export the arguments of tool calls", narrowest=False),
    Setting("tool_outputs", bool, True, "export the results of tool calls", narrowest=False),
    Setting("images", bool, True, "export the type and size of images (never the image)", narrowest=False),
    Setting("mask_paths", bool, False, "mask home directories in paths", narrowest=True),
    Setting("patterns", dict, {}, "custom secrets to mask: a table of name = regular expression"),
    Setting(
        "off", list, [], "working directories that are never exported, as patterns (`~/private/**`)", narrowest=["**"]
    ),
    Setting("tags", list, [], "tags on every trace", ("TURNSPAN_TAGS",)),
    Setting("user_id", str, "", "user id on every span", ("TURNSPAN_USER_ID",)),
    Setting("environment", str, "", "Langfuse environment", ("TURNSPAN_ENVIRONMENT",)),
    Setting("host", str, "", "a name for this machine, as `host.name` and as a tag", ("TURNSPAN_HOST",)),
    Setting(
        "service_name", str, "claude-code", "`service.name`; `{project}` is the name of the project's directory",
        ("TURNSPAN_SERVICE_NAME",),
    ),
    Setting(
        "turn_names", str, "prompt", "name turns after their `prompt`, or by their `number` only",
        ("TURNSPAN_TURN_NAMES",), TURN_NAMES, narrowest="number",
    ),
    Setting(
        "span_names", str, "plain", "names of tools and agents: `plain` (`Bash`), `hint` (`Bash: pytest -q`), or "
        "`semconv` (`execute_tool Bash`, `chat MODEL`)", ("TURNSPAN_SPAN_NAMES",), SPAN_NAMES,
    ),
    Setting(
        "tool_parent", str, "response", "a tool call is below the `response` that asked for it, or beside it, below "
        "the `turn` or agent", ("TURNSPAN_TOOL_PARENT",), TOOL_PARENTS,
    ),
    Setting(
        "traceparent", str, "link", "what `TRACEPARENT`, the trace of a program that runs Claude Code, is to a turn: "
        "a `link`, its `parent`, or nothing (`off`)", ("TURNSPAN_TRACEPARENT",), TRACEPARENTS,
    ),
    Setting("prices", str, "", "a JSON file with newer prices"),
    Setting(
        "recover", bool, True, "export sessions whose worker crashed or never ran", ("TURNSPAN_RECOVER",),
        narrowest=False,
    ),
    Setting(
        "index", bool, True, "keep an index of sessions in `~/.claude/turnspan/index.sqlite3`, for fast commands",
        ("TURNSPAN_INDEX",), narrowest=False,
    ),
    Setting(
        "view_images", bool, False, "show images of transcripts on the page of `turnspan view`; they are never "
        "exported, and secrets in them are not masked", ("TURNSPAN_VIEW_IMAGES",), narrowest=False,
    ),
    Setting("attribute_max_bytes", int, 60_000, "maximum size of one attribute; longer values are cut", least=256),
)  # fmt: skip
SETTING: Final = {setting.name: setting for setting in SETTINGS}
# Settings that a destination can override.
POLICY: Final = settings_of(SettingSource.DESTINATION)
# Settings that reach a backend together with the options of its destination.
PASSED_ON: Final = (
    "attribute_max_bytes", "user_id", "environment", "host", "service_name", "tags", "span_names", "tool_parent",
)  # fmt: skip

COMMON: Final = (
    Setting("max_request_bytes", int, 3_500_000, "maximum request size; larger batches are split", least=10_000),
)
TRANSPORT: Final = (
    Setting(
        "headers", dict, {}, "extra headers, a table", ("TURNSPAN_OTLP_HEADERS",), is_secret=True,
        prompt="Headers (name=value,…; hidden; Enter for none)",
    ),
    Setting("certificate", str, "", "CA file to trust instead of the system's store", ("TURNSPAN_OTLP_CERTIFICATE",)),
    Setting("client_certificate", str, "", "certificate for mutual TLS", ("TURNSPAN_OTLP_CLIENT_CERTIFICATE",)),
    Setting("client_key", str, "", "key file of that certificate", ("TURNSPAN_OTLP_CLIENT_KEY",)),
    Setting("proxy", str, "", "`http://[user:password@]host:port`", ("TURNSPAN_OTLP_PROXY",), is_secret=True),
    Setting("proxy_from_env", bool, False, "use the proxy of `HTTPS_PROXY` and `NO_PROXY`"),
    Setting(
        "timeout_s", float, 10.0, "timeout of a complete exchange, in seconds", ("TURNSPAN_OTLP_TIMEOUT_S",), most=600
    ),
    Setting(
        "compression", str, "auto", "`gzip`, `none`, or `auto`: `gzip` unless the endpoint is on this machine",
        ("TURNSPAN_OTLP_COMPRESSION",), COMPRESSIONS,
    ),
)  # fmt: skip
_LANGFUSE_CLOUD: Final = "https://cloud.langfuse.com"
LANGFUSE_REGIONS: Final = (  # https://langfuse.com/security/data-regions
    ("eu", _LANGFUSE_CLOUD),
    ("us", "https://us.cloud.langfuse.com"),
    ("jp", "https://jp.cloud.langfuse.com"),
    ("hipaa", "https://hipaa.cloud.langfuse.com"),
)
OPTIONS: Final[dict[str, tuple[Setting, ...]]] = {
    "otlp": (
        Setting(
            "endpoint", str, "", "base URL; `/v1/traces` is added over HTTP. Plain http only to localhost",
            ("TURNSPAN_OTLP_ENDPOINT",), prompt="OTLP endpoint", proposal="http://localhost:4318",
        ),
        Setting("protocol", str, "http/protobuf", "`http/protobuf` or `grpc`", ("TURNSPAN_OTLP_PROTOCOL",), PROTOCOLS),
        *TRANSPORT,
        Setting("query_url", str, "", "Jaeger's query service, usually port 16686, for `verify`, `doctor` and links"),
        *COMMON,
    ),
    "langfuse": (
        Setting(
            "base_url", str, _LANGFUSE_CLOUD, "the server, or the region of the cloud",
            ("LANGFUSE_BASE_URL", "LANGFUSE_HOST"),
            prompt="Langfuse URL: a region, or your own server", proposal=_LANGFUSE_CLOUD, places=LANGFUSE_REGIONS,
        ),
        Setting(
            "public_key", str, "", "public key of the Langfuse project", ("LANGFUSE_PUBLIC_KEY",),
            prompt="Public key (pk-lf-…)", proposal=None,
        ),
        Setting(
            "secret_key", str, "", "secret key of the same project", ("LANGFUSE_SECRET_KEY",), is_secret=True,
            prompt="Secret key (sk-lf-…, hidden)", proposal=None,
        ),
        Setting("release", str, "", "Langfuse release; `{branch}` is the git branch"),
        Setting(
            "trace_name", str, "turn", "name of a trace: that of the `turn`, or the `project`'s directory",
            choices=TRACE_NAMES,
        ),
        *(msgspec.structs.replace(option, env=(), prompt="") for option in TRANSPORT),
        *COMMON,
    ),
    "local": (
        Setting("directory", str, "", "directory of the files (default: `~/.claude/turnspan/traces`)"),
        Setting("max_file_bytes", int, 64 * 1024 * 1024, "rotate after this many bytes", least=1_000),
        Setting("max_files", int, None, "number of files to keep (default: all)", least=1),
        *COMMON,
    ),
    "sdk": (
        Setting("exporter", str, "otlp", "name of an installed OpenTelemetry span exporter, such as `console`"),
        *COMMON,
    ),
}  # fmt: skip
OPTION: Final = {option.name: option for options in OPTIONS.values() for option in options}


def checked(setting: Setting, value: object) -> Any:  # noqa: ANN401 - of the setting's kind
    """Return the value if it is valid for this setting. Raises ConfigError."""
    value = of_kind(setting, value)
    if not setting.choices or value in setting.choices:
        return value
    raise _invalid(setting, value)


def of_kind(setting: Setting, value: object) -> Any:  # noqa: ANN401 - of the setting's kind
    """Return the value if it has the type of this setting. Raises ConfigError."""
    if setting.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if setting.kind is list and isinstance(value, str):
        value = [value]  # one item is a list of one
    is_valid = isinstance(value, setting.kind) and not (setting.kind is int and isinstance(value, bool))
    if is_valid and isinstance(value, list):
        is_valid = all(isinstance(item, str) for item in value)
    if is_valid and isinstance(value, dict):
        is_valid = all(isinstance(item, str) for item in value.values())
    if is_valid:
        return value
    raise _invalid(setting, value)


def narrower(setting: Setting, one: Any, other: Any) -> Any:  # noqa: ANN401 - of the setting's kind
    """The more restrictive of two values."""
    if setting.narrowest in (one, other):
        return setting.narrowest
    return min(one, other, key=setting.choices.index) if setting.choices else one


def restricted(values: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """The values that have a limit, each the more restrictive of the two."""
    return {name: narrower(SETTING[name], values[name], limit) for name, limit in limits.items() if name in values}


def _invalid(setting: Setting, value: object) -> ConfigError:
    allowed = ", ".join(setting.choices) or _KINDS[setting.kind]
    return ConfigError(f"{setting.name} is {'not valid' if setting.is_secret else repr(value)}; allowed: {allowed}")


def from_text(setting: Setting, text: str) -> object:
    """The value of an environment variable's text; the text itself if it is not of the setting's kind."""
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
    """Parse `name=value,name=value`, OpenTelemetry's format; values may be percent-encoded."""
    from urllib.parse import unquote  # noqa: PLC0415 - few workers need it

    headers = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if item.strip() and (not equals or not name.strip()):
            raise ConfigError("headers must be name=value,name=value")  # the value may be a secret: not shown
        if item.strip():
            headers[name.strip()] = unquote(value.strip())
    return headers


# ---- the table as Markdown


def table() -> Iterator[str]:
    """All settings and options as Markdown tables."""
    yield "| setting | default | environment | description |"
    yield "|---|---|---|---|"
    for setting in SETTINGS:
        yield f"| `{setting.name}` | {_default(setting)} | {_names(setting)} | {setting.help} |"
    yield ""
    yield "Each destination is a table `[destinations.NAME]` with a `type` and these options:"
    yield ""
    yield "| type | option | default | environment | description |"
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
        yield f"| {kinds} | `{option.name}` | {_default(option)} | {_names(option)} | {option.help} |"
    yield ""
    names = ", ".join(f"`{name}`" for name in POLICY)
    yield f"A destination can also override {names}."


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or (not value and isinstance(value, (str, list, dict))):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _names(setting: Setting) -> str:
    return ", ".join(f"`{name}`" for name in setting.env)
