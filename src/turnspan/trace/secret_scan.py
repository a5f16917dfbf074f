"""Where the secrets are in a text, without looking at most of it.

Rules:

- Formats with a prefix are looked for only in rows of `RUN` word characters; names, headers and URLs only where one of a
  few literals stands. Both are found by searches of `bytes`, which run at a GB a second.
- What is tried at one place and fails looks at a few hundred bytes; what succeeds is not looked at again. So the scan is
  linear, and a `Meter` that counts its steps bounds it.
- Positions are bytes of UTF-8. Every hit begins and ends at an ASCII character, so no character is torn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from turnspan.trace import secret_formats as formats
from turnspan.trace import secret_names as names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.trace.secret_names import Hit

OWN_CREDENTIAL: Final = "own-credential"
_ATTEMPT: Final = 400  # what trying a rule at one place costs, in characters scanned
_BASE64_MIN, _BASE64_MAX = 40, 350_000  # characters of base64 worth a look inside
_BASE64_DEPTH: Final = 2
_PRIVATE_KEY_MAX: Final = 16_384  # from BEGIN to END


class OverBudget(Exception):  # noqa: N818 - it is not an error but the end of an allowance
    """A text costs more to scan than is allowed."""


class Meter:
    """Counts the steps of a scan down; the clock, where there is one, only stops what steps cannot foresee."""

    def __init__(self, steps: int, is_late: Callable[[], bool] | None = None) -> None:
        self._left = steps
        self._is_late = is_late

    def spend(self, steps: int) -> None:
        """Take `steps` off the allowance."""
        self._left -= steps
        if self._left < 0 or (self._is_late is not None and self._is_late()):
            raise OverBudget


def find(
    data: bytes, credentials: Sequence[bytes], meter: Meter, *, has_builtin: bool = True, depth: int = 0
) -> list[Hit]:
    """Every secret in `data`, in no order, possibly overlapping."""
    meter.spend(len(data) + 50)
    hits: list[Hit] = []
    for credential in credentials:
        at = data.find(credential)
        while at >= 0:
            hits.append((at, at + len(credential), OWN_CREDENTIAL))
            at = data.find(credential, at + len(credential))
    if not has_builtin or len(data) < 8:
        return hits
    if len(data) >= formats.RUN:
        _find_formats(data, credentials, hits, meter, depth)
    folded = data.translate(_FOLD)
    for literal in _NAMES:
        at = folded.find(literal)
        while at >= 0:
            end = at + len(literal)
            if names.may_be_named(data, end):
                meter.spend(_ATTEMPT)
                end = max(end, names.look_at_name(data, at, hits))
            at = folded.find(literal, end)
    at = folded.find(b"auth")
    while at >= 0:
        meter.spend(_ATTEMPT)
        at = folded.find(b"auth", names.look_at_authorization(data, at, hits))
    at = folded.find(b"kkk")
    while at >= 0:
        end = at + 1
        if folded[at - 1 : at + 4] == b"tkkkn":
            if names.may_be_named(data, at + 4):
                meter.spend(_ATTEMPT)
                end = max(end, names.look_at_name(data, at - 1, hits))
        elif names.may_be_named(data, at + 3):
            meter.spend(_ATTEMPT)
            end = max(end, _look_at_middle(data, at, hits))
        at = folded.find(b"kkk", end)
    at = data.find(b"@")
    while at >= 0:
        meter.spend(_ATTEMPT // 10)
        at = data.find(b"@", _look_at_url(data, at, hits))
    return hits


# ---- formats

_WORD_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%"
_IS_WORD: Final = bytes(ord("w" if code in _WORD_CHARACTERS else " ") for code in range(256))
_SMALL: Final = b"abcdefghijklmnopqrstuvwxyz_-"
_RUN: Final = b"w" * formats.RUN
_BASE64: Final = re.compile(
    rb"[A-Za-z0-9+/_-]{40,}+(?:\r?\n[A-Za-z0-9+/]{40,}+)*+(?:\r?\n[A-Za-z0-9+/]{1,80}+(?![A-Za-z0-9+/]))?={0,2}"
)
_BASE64_BACKWARDS: Final = re.compile(rb"[A-Za-z0-9+/]*+")


def _find_formats(data: bytes, credentials: Sequence[bytes], hits: list[Hit], meter: Meter, depth: int) -> None:
    shape = data.translate(_IS_WORD)
    rows: list[tuple[int, int]] = []
    at = shape.find(_RUN)
    while at >= 0:
        end = shape.find(b" ", at)
        if end < 0:
            end = len(data)
        rows.append((at, end))
        at = shape.find(_RUN, end)
    behind = formats.LOOK_BEHIND
    # A row of small letters is a name in somebody's code: what is random has digits or capitals.
    rows = [(start, end) for start, end in rows if data[start:end].translate(None, _SMALL)]
    if not rows:
        return
    if formats.PREFIX.search(b"\n".join([data[max(start - behind, 0) : end] for start, end in rows])):
        done = 0
        for start, end in rows:
            found = formats.PREFIX.search(data, max(start - behind, done), end)
            while found is not None:
                meter.spend(_ATTEMPT // 4)
                done = found.start() + 1
                if (hit := formats.format_at(data, found.start())) is not None:
                    hits.append(hit)
                    done = hit[1]
                found = formats.PREFIX.search(data, done, end)
    done = 0
    for start, end in rows:
        if end - start >= _BASE64_MIN and start >= done and depth < _BASE64_DEPTH:
            done = _look_inside_base64(data, start, credentials, hits, meter, depth)


def _look_inside_base64(
    data: bytes, at: int, credentials: Sequence[bytes], hits: list[Hit], meter: Meter, depth: int
) -> int:
    """Base64 of text that holds a secret is masked as a whole."""
    before = _BASE64_BACKWARDS.match(data[max(0, at - 256) : at][::-1])
    start = at - (before.end() if before is not None else 0)
    found = _BASE64.match(data, start)
    if found is None:
        return at
    beginning = names.from_base64(data[start : start + 16]) or b"\0"
    if found.end() - start > _BASE64_MAX or beginning.translate(None, _PRINTABLE):
        return found.end()
    plain = names.from_base64(found[0])
    if plain is not None and (inside := find(plain, credentials, meter, depth=depth + 1)):
        hits.append((start, found.end(), min(inside)[2]))
    return found.end()


_PRINTABLE: Final = bytes([*range(0x20, 0x7F), 9, 10, 13])


# ---- private keys, URLs, webhooks

_BEGIN: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE \Z")
_END: Final = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE \Z")
_KEY_LIKE: Final = re.compile(rb"[A-Za-z0-9+/=\s\\:,>|#]*+")
_URL: Final = re.compile(
    rb"""://(?:[^\s:/?#@"'<>`\\]{0,128}:(?P<password>[^\s/?#"'<>`\\]{1,256}|(?![0-9]{1,5}/)[^\s@"'<>`\\]{1,256})|(?P<user>[\w-]{20,256}))@"""
)
_WEBHOOK: Final = re.compile(
    rb"hooks\.slack(?:-gov)?\.com\\?/(?:services|workflows|triggers)(?P<slack>[\w/\\-]{20,}+)"
    rb"|hooks\\?/[0-9]{15,22}\\?/(?P<discord>[\w-]{50,}+)",
    re.IGNORECASE,
)


def _look_at_key(data: bytes, at: int, hits: list[Hit]) -> int:
    """The word `key` ends the line that begins or ends a private key, or a name."""
    if not data.startswith((b"KEY-----", b"KEY BLOCK-----"), at):
        joint = data[at - 1 : at]
        if joint in {b" ", b"."}:
            is_owned = data[max(0, at - 14) : at - 1].lower().endswith(names.KEY_OWNERS)
        else:
            is_owned = joint.isalnum() or joint in {b"_", b"-"}
        return names.look_at_name(data, at, hits) if is_owned else at + 3  # most keys are nobody's: `for key in …`
    before = data[max(0, at - 64) : at]
    head = data.index(b"-----", at) + 5
    if (begin := _BEGIN.search(before)) is not None:
        limit = head + _PRIVATE_KEY_MAX
        end = data.find(b"-----END", head, limit)
        if end >= 0 and data.find(b"-----BEGIN", head, end) < 0:
            tail = data.find(b"-----", end + 8, end + 80)
            end = tail + 5 if tail >= 0 else end + 8
        else:
            # It never ends, or not before the next one begins: all that looks like a key goes.
            body = _KEY_LIKE.match(data, head)
            end = body.end() if body is not None else head
        hits.append((at - len(before) + begin.start(), end, "private-key"))
        return end
    if (close := _END.search(before)) is not None:
        end = at - len(before) + close.start()
        body = _KEY_LIKE.match(data[max(0, end - _PRIVATE_KEY_MAX) : end][::-1])
        hits.append((end - (body.end() if body is not None else 0), head, "private-key"))
    return head


def _look_at_url(data: bytes, at: int, hits: list[Hit]) -> int:
    """An `@` may end the user and the password of a URL; only the password goes."""
    start = data.rfind(b"://", max(0, at - 400), at)
    if start < 0 or (found := _URL.match(data, start)) is None or found.end() <= at:
        return at + 1
    value = found["password"] or found["user"]
    if names.is_template(value) or (found["user"] is not None and not names.looks_random(value)):
        return at + 1
    hits.append((*found.span("password" if found["password"] is not None else "user"), "url-password"))
    return found.end()


def _look_at_webhook(data: bytes, at: int, hits: list[Hit]) -> int:
    found = _WEBHOOK.match(data, at)
    if found is None or found.lastgroup is None:
        return at + 5
    hits.append((*found.span(found.lastgroup), f"{found.lastgroup}-webhook"))
    return found.end()


# Four words share their middle once e, k, o and y are one letter, and one search finds them all: t[oke]n, [key],
# c[ook]ie, h[ook]s.
_FOLD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZeoy", b"abcdkfghijklmnkpqrstuvwxkzkkk")
_NAMES: Final = (b"pass", b"pwd", b"skcrkt")  # the last is "secret", folded


def _look_at_middle(data: bytes, at: int, hits: list[Hit]) -> int:
    word = data[max(0, at - 1) : at + 5].lower()
    if data[at : at + 3].lower() == b"key":
        return _look_at_key(data, at, hits)
    if word == b"cookie":
        return names.look_at_cookie(data, at - 1, hits)
    return _look_at_webhook(data, at - 1, hits) if word[:5] == b"hooks" else at + 1
