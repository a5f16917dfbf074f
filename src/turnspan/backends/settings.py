"""The settings of one destination, read once into values; a wrong setting is an error that says what to change.

Rules:

- Every error names the setting, the value and what is allowed. A value that may hold a credential is never shown.
- Unknown settings are errors: a misspelt `timeout` must not silently give the default.
- Plain http is allowed only to this machine.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from turnspan import lazy
from turnspan.backends.naming import scrub_text
from turnspan.errors import ConfigError
from turnspan.settings import options
from turnspan.settings.options import OPTION, PASSED_ON, SETTING

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON = frozenset({*PASSED_ON, *(option.name for option in options.COMMON)})
TRANSPORT = frozenset(option.name for option in options.TRANSPORT)

_URL = lazy.pattern(
    r"(?P<scheme>https?)://"
    r"(?:(?P<user>[^/@\s]*)@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?))"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?"
)
_TOKEN = lazy.pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = frozenset({"host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"})


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a server or a proxy."""

    is_tls: bool
    host: str
    port: int
    path: str = ""
    user: str = ""  # "name:password" of a proxy

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without a slash at its end."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path.rstrip('/')}"

    def __repr__(self) -> str:
        return f"Endpoint({'https' if self.is_tls else 'http'}://{self.authority}{self.path})"


class Capture(msgspec.Struct, frozen=True):
    """The settings of every destination about the spans themselves."""

    attribute_max_bytes: int = int(str(SETTING["attribute_max_bytes"].default))
    user_id: str = ""
    environment: str = ""
    host: str = ""
    service_name: str = ""  # a pattern; empty: the default
    tags: tuple[str, ...] = ()
    span_names: str = "plain"
    tool_parent: str = "response"


class DestinationSettings:
    """The settings of one destination, each read with a type and a range."""

    def __init__(self, settings: Mapping[str, object], *, name: str, known: frozenset[str]) -> None:
        self._settings = settings
        self._name = name
        for key in settings:
            if key not in known:
                allowed = ", ".join(sorted(known))
                raise ConfigError(f"destination {name}: unknown setting {key!r}", hint=f"available: {allowed}")

    def wrong(self, key: str, allowed: str, *, is_secret: bool = False) -> ConfigError:
        """Return the error for one setting."""
        value = self._settings.get(key)
        if value is None:
            return ConfigError(
                f"destination {self._name}: the setting {key!r} is missing", hint=f"it must be {allowed}"
            )
        shown = "a value that is not shown" if is_secret else _shown(value)
        return ConfigError(f"destination {self._name}: the setting {key!r} is {shown}; it must be {allowed}")

    def text(self, key: str, default: str = "", *, is_secret: bool = False) -> str:
        """Return a string."""
        value = self._settings.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string", is_secret=is_secret)
        return scrub_text(value)

    def choice(self, key: str) -> str:
        """Return one of a few words; the first is the default."""
        allowed = (OPTION.get(key) or SETTING[key]).choices
        value = self._settings.get(key, allowed[0])
        if value not in allowed:
            raise self.wrong(key, " or ".join(f'"{word}"' for word in allowed))
        assert isinstance(value, str)
        return value

    def flag(self, key: str) -> bool:
        """Return true or false; false unless set."""
        value = self._settings.get(key, False)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def integer(self, key: str, *, most: int = 2**40) -> int:
        """Return an integer in the range of its option."""
        option = OPTION.get(key) or SETTING[key]
        value, least = self._settings.get(key, option.default), int(option.least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(key, f"an integer from {least} to {most}")
        return value

    def seconds(self, key: str) -> float:
        """Return a duration in the range of its option."""
        most = OPTION[key].most
        value = self._settings.get(key, OPTION[key].default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise self.wrong(key, f"a number of seconds above 0, at most {most:g}")
        return float(value)

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._settings.get(key, ())
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(scrub_text(item) for item in value)

    def headers(self) -> dict[str, str]:
        """Return the extra headers: no line breaks, nothing that would change the framing."""
        value = self._settings.get("headers", {})
        if not isinstance(value, dict):
            raise self.wrong("headers", "a table of strings", is_secret=True)
        for name, content in value.items():
            if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _FRAMING:
                raise ConfigError(
                    f"destination {self._name}: the header name {_shown(name)} cannot be set",
                    hint=f"it must be letters, digits and -, and none of {', '.join(sorted(_FRAMING))}",
                )
            if not isinstance(content, str) or not content.isascii() or not content.isprintable():
                raise ConfigError(
                    f"destination {self._name}: the value of header {name!r} (not shown) cannot be sent",
                    hint="it must be printable ASCII on one line",
                )
        return dict(value)

    def file(self, key: str) -> str:
        """Return the path of a readable file, or an empty string."""
        path = self.text(key)
        if path and not (Path(path).is_file() and os.access(path, os.R_OK)):
            raise self.wrong(key, "the path of a readable file")
        return path

    def directory(self, key: str, default: Path) -> Path:
        """Return the path of a directory, which need not exist."""
        value = self._settings.get(key, default)
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise self.wrong(key, "the path of a directory")
        return Path(value).expanduser()

    def endpoint(self, key: str, default: str = "") -> Endpoint:
        """Return a base URL: https to any host, http only to this machine."""
        url = self.text(key, default or str(OPTION[key].default if key in OPTION else ""), is_secret=True)
        endpoint = parse_url(url)
        if endpoint is None or endpoint.user or "?" in endpoint.path or "#" in endpoint.path:
            # The value may hold a password.
            raise self.wrong(key, "a URL like https://host:port, without user, query or fragment", is_secret="@" in url)
        if not endpoint.is_tls and not is_loopback(endpoint.host):
            raise ConfigError(
                f"destination {self._name}: insecure endpoint {_shown(url)} in the setting {key!r}",
                hint="it must be https; plain http is allowed only to this machine (localhost, 127.0.0.1, [::1])",
            )
        return endpoint

    def proxy(self, target: Endpoint) -> Endpoint | None:
        """Return the proxy: the one set, or with `proxy_from_env` the one in the environment."""
        allowed = "a URL like http://host:port or http://user:password@host:port"
        url = self.text("proxy", is_secret=True)
        if self.flag("proxy_from_env") and not url:
            url = proxy_from_environment(target, dict(os.environ))
        if not url:
            return None
        proxy = parse_url(url)
        if proxy is None or proxy.is_tls or proxy.path not in ("", "/"):
            raise self.wrong("proxy", allowed, is_secret=True)
        if not target.is_tls and not is_loopback(proxy.host):
            raise ConfigError(
                f"destination {self._name}: insecure endpoint: plain http through the proxy {proxy.authority}",
                hint="use an https endpoint, or no proxy",
            )
        return proxy

    def is_gzip(self, target: Endpoint, proxy: Endpoint | None) -> bool:
        """Whether requests are compressed; by default only if they may leave this machine, since it takes CPU time."""
        compression = self.choice("compression")
        if compression == "auto":
            return proxy is not None or not is_loopback(target.host)
        return compression == "gzip"

    def capture(self) -> Capture:
        """Return the settings about the spans themselves."""
        return Capture(
            attribute_max_bytes=self.integer("attribute_max_bytes"),
            user_id=self.text("user_id"),
            environment=self.text("environment"),
            host=self.text("host"),
            service_name=self.text("service_name"),
            tags=self.strings("tags"),
            span_names=self.choice("span_names"),
            tool_parent=self.choice("tool_parent"),
        )


class Server(msgspec.Struct, frozen=True):
    """What a probe must know about a server."""

    endpoint: Endpoint
    settings: DestinationSettings
    is_grpc: bool = False
    has_credentials: bool = False


def parse_url(url: str) -> Endpoint | None:
    """Return the parts of an http or https URL; None for anything else."""
    match = _URL.fullmatch(url)
    if match is None:
        return None
    is_tls = match["scheme"] == "https"
    port = int(match["port"] or (443 if is_tls else 80))
    if not 0 < port < 65536:
        return None
    user = match["user"] or ""
    if "%" in user:
        from urllib.parse import unquote  # noqa: PLC0415 - rarely needed

        user = unquote(user)
    return Endpoint(is_tls, match["ipv6"] or match["host"], port, match["path"] or "", user)


def is_loopback(host: str) -> bool:
    """Whether this host is certainly this machine."""
    if host.lower() == "localhost":
        return True
    for family, loopback in ((socket.AF_INET, b"\x7f"), (socket.AF_INET6, bytes(15) + b"\x01")):
        try:
            return socket.inet_pton(family, host).startswith(loopback)
        except OSError:
            continue
    return False


def proxy_from_environment(target: Endpoint, environ: Mapping[str, str]) -> str:
    """Return the proxy URL for this target from HTTPS_PROXY, NO_PROXY and the like; empty for none."""
    environ = {name.lower(): value for name, value in environ.items()}
    host = target.host.lower()
    if is_loopback(host):
        return ""
    for item in environ.get("no_proxy", "").split(","):
        pattern = item.strip().lower().lstrip("*.")
        if item.strip() == "*" or (pattern and (host == pattern or host.endswith("." + pattern))):
            return ""
    url = environ.get("https_proxy" if target.is_tls else "http_proxy") or environ.get("all_proxy", "")
    return url if "://" in url or not url else f"http://{url}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
