"""Where the secrets are in a text, without looking at most of it.

Rules:

- Formats with a prefix are looked for only in rows of `RUN` word characters; names, headers and URLs only where one of
  a few literals stands. Both are found by searches that run in C.
- What is tried at one place and fails looks at a few hundred bytes; what succeeds is not looked at again. So the scan
  is linear, and a `Meter` that counts its steps bounds it.
- Positions are bytes of UTF-8. Every hit begins and ends next to an ASCII character, so no character is torn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from turnspan import lazy
from turnspan.secrets import formats, names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.secrets.names import Hit

OWN_CREDENTIAL: Final = "own-credential"
_ATTEMPT: Final = 400  # what trying a rule at one place costs, in characters scanned
_BASE64_MIN, _BASE64_MAX = 40, 350_000  # characters of base64 worth a look inside
_BASE64_DEPTH: Final = 2
_PRIVATE_KEY_MAX: Final = 16_384  # from BEGIN to END

Look: TypeAlias = "Callable[[bytes, int, list[Hit]], int]"  # adds the hits at a place, answers where to go on


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
    for literal, place, look in _PLACES:
        if literal not in folded:
            continue
        done = 0
        for found in place.finditer(folded):
            if (at := found.start()) >= done:
                meter.spend(_ATTEMPT)
                done = look(data, at, hits)
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
_BASE64: Final = lazy.pattern(
    rb"[A-Za-z0-9+/_-]{40,}+(?:\r?\n[A-Za-z0-9+/]{40,}+)*+(?:\r?\n[A-Za-z0-9+/]{1,80}+(?![A-Za-z0-9+/]))?={0,2}"
)
_BASE64_BACKWARDS: Final = lazy.pattern(rb"[A-Za-z0-9+/]*+")


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
    # A row of small letters is a name in somebody's code: what is random has digits or capitals.
    rows = [(start, end) for start, end in rows if data[start:end].translate(None, _SMALL)]
    _find_prefixes(data, rows, hits, meter)
    done = 0
    for start, end in rows:
        if end - start >= _BASE64_MIN and start >= done and depth < _BASE64_DEPTH:
            done = _look_inside_base64(data, start, hits, meter, credentials=credentials, depth=depth)


def _find_prefixes(data: bytes, rows: list[tuple[int, int]], hits: list[Hit], meter: Meter) -> None:
    """Looks for prefixes in all rows at once, each with the few bytes before it."""
    starts = [max(start - formats.LOOK_BEHIND, 0) for start, _ in rows]
    joined = b"\n".join([data[start:end] for start, (_, end) in zip(starts, rows, strict=True)])
    found = formats.PREFIX.search(joined)
    if found is None:
        return
    places = list(accumulate((end - start + 1 for start, (_, end) in zip(starts, rows, strict=True)), initial=0))
    done = 0
    while found is not None:
        meter.spend(_ATTEMPT // 2)
        row = bisect_right(places, found.start()) - 1
        at = starts[row] + found.start() - places[row]
        go_on = found.start() + 1
        if at >= done and (hit := formats.format_at(data, at)) is not None:
            hits.append(hit)
            done = hit[1]
            go_on = max(go_on, min(places[row + 1], go_on + done - at - 1))
        found = formats.PREFIX.search(joined, go_on)


def _look_inside_base64(
    data: bytes, at: int, hits: list[Hit], meter: Meter, *, credentials: Sequence[bytes], depth: int
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

# What may stand in a key that was cut: its letters, escapes, headers, and the line numbers Claude Code writes (1→).
_KEY_LIKE: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\xe2\x86\x92)*+")
_KEY_LIKE_BACKWARDS: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\x92\x86\xe2)*+")
_URL: Final = lazy.pattern(
    rb"""://(?:[^\s:/?#@"'<>`\\]{0,128}:(?P<password>[^\s/?#"'<>`\\]{1,256}|(?![0-9]{1,5}/)[^\s@"'<>`\\]{1,256})|(?P<user>[\w-]{20,256}))@"""
)
_USER: Final = lazy.pattern(rb""" -u ["']?[^\s:"']{1,64}:(?P<password>[^\s"'\\]++)""")
_WEBHOOK: Final = lazy.pattern(
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
    head = data.index(b"-----", at) + 5
    begin = data.rfind(b"-----", max(0, at - 64), at)
    if begin < 0 or not data.startswith(b"PRIVATE ", at - 8):
        return head
    if data.startswith(b"-----BEGIN ", begin):
        tail = data.find(b"-----", head, head + _PRIVATE_KEY_MAX)
        if tail >= 0 and data.startswith(b"-----END", tail):
            close = data.find(b"-----", tail + 8, tail + 80)
            end = close + 5 if close >= 0 else tail + 8
        else:  # it never ends, or not before the next one begins: all that looks like a key goes
            body = _KEY_LIKE.match(data, head)
            end = body.end() if body is not None else head
        hits.append((begin, end, "private-key"))
        return end
    if data.startswith(b"-----END ", begin):  # the beginning was cut off
        since = max(hits[-1][1] if hits and hits[-1][1] <= begin else 0, begin - _PRIVATE_KEY_MAX)
        body = _KEY_LIKE_BACKWARDS.match(data[since:begin][::-1])
        hits.append((begin - (body.end() if body is not None else 0), head, "private-key"))
    return head


def _look_at_url(data: bytes, at: int, hits: list[Hit]) -> int:
    """An `@` may end the user and the password of a URL; only the password goes."""
    if data[at + 1 : at + 2] in {b"@", b" ", b"\n", b""}:
        return at + 1
    start = data.rfind(b"://", max(0, at - 400), at)
    if start < 0 or (found := _URL.match(data, start)) is None or found.end() <= at:
        return at + 1
    value = found["password"] or found["user"]
    if names.is_template(value) or (found["user"] is not None and not names.looks_random(value)):
        return at + 1
    hits.append((*found.span("password" if found["password"] is not None else "user"), "url-password"))
    return found.end()


def _look_at_user(data: bytes, at: int, hits: list[Hit]) -> int:
    """The user and the password that curl takes after `-u`."""
    found = _USER.match(data, at)
    if found is None or b"curl" not in data[max(0, at - 300) : at] or names.is_template(found["password"]):
        return at + 1
    hits.append((*found.span("password"), "basic-auth"))
    return found.end()


def _look_at_webhook(data: bytes, at: int, hits: list[Hit]) -> int:
    found = _WEBHOOK.match(data, at)
    if found is None or found.lastgroup is None:
        return at + 5
    hits.append((*found.span(found.lastgroup), f"{found.lastgroup}-webhook"))
    return found.end()


# ---- places worth a look
#
# A pattern that begins with a literal is searched for as fast as bytes.find does it, but not if it ignores case. So the
# text is folded: capitals become small, and e, k, o and y become one letter. Then t[oke]n, [key], c[ook]ie and h[ook]s
# share their middle, and one search finds the four of them. What follows tells a name from a mere word.

_FOLD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZeoy", b"abcdkfghijklmnkpqrstuvwxkzkkk")
_AS_NAME: Final = (
    rb"""(?:[_-]?[a-z]{1,10}+|[_-]?[0-9]{1,3}+)?+(?:\\{0,3}["'`])?+\]?+"""
    rb"""(?:[ \t]{0,8}+(?:[:=!]|[,(][ \t]?[\\"'`])|[\s,]{1,24}+[\\"']{0,4}+valuk|>|[ ]is[ :])"""
)


def _look_at_middle(data: bytes, at: int, hits: list[Hit]) -> int:
    word = data[max(0, at - 1) : at + 5].lower()
    if word[:5] == b"token":
        return names.look_at_name(data, at - 1, hits)
    if data[at : at + 3].lower() == b"key":
        return _look_at_key(data, at, hits)
    if word == b"cookie":
        return names.look_at_cookie(data, at - 1, hits)
    return _look_at_webhook(data, at - 1, hits) if word[:5] == b"hooks" else at + 1


_PLACES: Final[tuple[tuple[bytes, re.Pattern[bytes], Look], ...]] = tuple(
    (literal, lazy.pattern(literal + rb"(?=" + follows + rb")"), look)
    for literal, follows, look in (
        (
            b"pass",
            rb"(?:wkrd|wd|phrask|ckdk)?" + _AS_NAME + rb"|(?<=[ -]pass)(?:wkrd|phrask)? [^ -]",
            names.look_at_name,
        ),
        (b"pwd", _AS_NAME, names.look_at_name),
        (b"skcrkt", _AS_NAME + rb"|(?<=-skcrkt) [^ -]", names.look_at_name),
        (
            b"kkk",
            rb"n?" + _AS_NAME + rb"|(?<=[_-]kkk) [^ -]|(?<=-tkkk)n [^ -]|ik|s[./\\]|(?: blkck)?-----",
            _look_at_middle,
        ),
        (b"auth", rb"kri|" + _AS_NAME, names.look_at_authorization),
        (b" -u ", rb"[^ ]{1,64}:", _look_at_user),
    )
)
