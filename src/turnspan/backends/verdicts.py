"""The verdict on an export, read from the HTTP response.

Rules:

- Only a 2xx with a valid OTLP body, or with an empty one, acknowledges. HTML with 200 is a captive portal.
- A redirect is never followed: it would carry credentials to another host.
- After a server error the request may have been stored nevertheless; those verdicts have `is_unknown`.
- The server's text is quoted on one line, shortened, without our credentials.
"""

from __future__ import annotations

from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING

import msgspec

from turnspan.backends import Answer, Verdict
from turnspan.backends.otlp_messages import NotOtlpError, read_response

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_WAIT_S = 3_600.0
_QUOTE_LENGTH = 200


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response, as much of it as was received."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    is_complete: bool = True


class _PartialSuccess(msgspec.Struct, frozen=True, rename="camel"):
    rejected_spans: int | str = 0
    error_message: str = ""


class _JsonResponse(msgspec.Struct, frozen=True, rename="camel"):
    partial_success: _PartialSuccess | None = None


def read_verdict(response: HttpResponse, *, now_s: float, secrets: Iterable[str] = ()) -> Verdict:
    """Return the verdict on one export. `now_s` is the wall clock, for a Retry-After that is a date."""
    status = response.status
    said = _quote(response, secrets)
    if 200 <= status < 300:
        return _read_success(response, secrets)
    if 300 <= status < 400:
        return Verdict(Answer.CONFIGURATION, f"HTTP {status}: redirects are not followed{_target(response)}")
    if status in (401, 403):
        return Verdict(Answer.CREDENTIALS, f"HTTP {status}: the server refused the credentials{said}")
    if status == 407:
        return Verdict(Answer.CREDENTIALS, "HTTP 407: the proxy requires credentials")
    if status == 413:
        return Verdict(Answer.TOO_LARGE, f"HTTP 413: the request is too large for the server{said}")
    if status in (400, 422):
        return Verdict(Answer.INVALID, f"HTTP {status}: the server rejected the request as invalid{said}")
    if status in (408, 425, 429) or status >= 500:
        wait_s = retry_after_s(response.headers.get("retry-after", ""), now_s)
        return Verdict(Answer.LATER, f"HTTP {status}{said}", wait_s, is_unknown=status not in (425, 429))
    return Verdict(Answer.CONFIGURATION, f"HTTP {status}: not an OTLP endpoint{said}")


def partial(rejected: int, message: str, secrets: Iterable[str]) -> Verdict:
    """Return the verdict on a valid OTLP response."""
    said = one_line(message, secrets)
    if rejected > 0:
        return Verdict(Answer.PARTIAL, said or "the server gave no reason", rejected=rejected)
    return Verdict(Answer.ACKNOWLEDGED, said)


def _read_success(response: HttpResponse, secrets: Iterable[str]) -> Verdict:
    body = response.body.strip()
    content_type = response.headers.get("content-type", "").lower()
    if body.startswith(b"<") or "html" in content_type:
        return Verdict(Answer.CONFIGURATION, f"HTTP {response.status} with a web page instead of an OTLP response")
    if not response.is_complete:
        return Verdict(Answer.LATER, f"HTTP {response.status}, but the response was cut off", is_unknown=True)
    if response.status == 204 or not body:
        return Verdict(Answer.ACKNOWLEDGED)
    if body.startswith(b"{"):
        try:
            success = msgspec.json.decode(body, type=_JsonResponse).partial_success or _PartialSuccess()
            return partial(int(success.rejected_spans), success.error_message, secrets)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return _garbled(response)
    try:
        return partial(*read_response(response.body), secrets)
    except NotOtlpError:
        if content_type and "protobuf" not in content_type and "octet-stream" not in content_type:
            return Verdict(Answer.CONFIGURATION, f"HTTP {response.status} with a body that is not an OTLP response")
        return _garbled(response)


def _garbled(response: HttpResponse) -> Verdict:
    return Verdict(Answer.LATER, f"HTTP {response.status} with an unreadable response", is_unknown=True)


def retry_after_s(value: str, now_s: float) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date, at most an hour; None for anything else."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return MAX_WAIT_S if len(value) > 9 else min(float(value), MAX_WAIT_S)
    if not value:
        return None
    try:
        date = parsedate_tz(value)
        return None if date is None else min(max(mktime_tz(date) - now_s, 0.0), MAX_WAIT_S)
    except (ValueError, OverflowError):
        return None


def one_line(text: str, secrets: Iterable[str]) -> str:
    """Return a server's text as it may be logged: short, printable, without our credentials."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = text.replace(secret, "***")
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: _QUOTE_LENGTH * 4]).split())
    return text if len(text) <= _QUOTE_LENGTH else f"{text[:_QUOTE_LENGTH]}…"


def _quote(response: HttpResponse, secrets: Iterable[str]) -> str:
    body = response.body[:4096].strip()
    if not body or body.startswith(b"<"):
        return ""
    try:
        return f": {one_line(body.decode(), secrets)}"
    except UnicodeDecodeError:
        return ""


def _target(response: HttpResponse) -> str:
    """Return the target of a redirect without its path and query, which may hold a token."""
    scheme, separator, rest = response.headers.get("location", "").partition("://")
    host = rest.partition("/")[0].partition("?")[0].rpartition("@")[2]
    return f" (to {scheme}://{host})" if separator and host.isascii() and host.isprintable() else ""
