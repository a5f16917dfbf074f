"""Private keys, and passwords in URLs: secrets that begin before the word that gives them away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.secrets import values
from turnspan.secrets.words import WordRow

if TYPE_CHECKING:
    from turnspan.secrets.words import Hit

_PRIVATE_KEY_MAX: Final = 16_384  # bytes between BEGIN and END
_SHORTEST_KEY: Final = 40
# Characters of a truncated key: base64, escapes, headers, and the line numbers that Claude Code writes (1→).
_KEY_LIKE: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\xe2\x86\x92)*+")
_KEY_LIKE_BACKWARDS: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\x92\x86\xe2)*+")
_JWK_MEMBER: Final = lazy.pattern(
    rb"""\\{0,3}"(?:d|p|q|dp|dq|qi|k)\\{0,3}"\s{0,8}:\s{0,8}\\{0,3}"(?P<value>[\w-]{16,}+)"""
)
_JWK_MAX: Final = 4_096  # bytes of a key before and after its "kty"
# A password may hold any of `@#/?`. Then it ends at the first `@` before what looks like a host, or at the last one.
_NOT_URL: Final = rb"""\s"'<>`\\"""
_HOST: Final = rb"(?:[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}|localhost|\[[0-9a-fA-F:.]{2,40}\]|[\w-]{1,63}(?=:[0-9]))"
_URL: Final = lazy.pattern(
    rb"://(?:[^:/?#@\[" + _NOT_URL + rb"]{0,128}:(?P<password>"
    rb"[^/?#" + _NOT_URL + rb"]{1,256}?(?=@" + _HOST + rb"(?:[/?#:,;)\]" + _NOT_URL + rb"]|\Z))"
    rb"|(?![0-9]{1,5}[/?#])[^" + _NOT_URL + rb"]{1,256}?(?=@" + _HOST + rb"(?:[/?#:,;)\]" + _NOT_URL + rb"]|\Z))"
    rb"|(?![0-9]{1,5}[/?#])[^" + _NOT_URL + rb"]{1,256}(?=@[\w-]{1,63}(?:[/?#:,;)\]" + _NOT_URL + rb"]|\Z))"
    rb"|[^/?#" + _NOT_URL + rb"]{1,256}"
    rb"|(?![0-9]{1,5}[/?#])[^@" + _NOT_URL + rb"]{1,256})|(?P<user>[\w-]{20,256}))@"
)


def rows() -> list[WordRow]:
    """Return the words to search for."""
    return [
        WordRow(b"key-----", _look_at_pem),
        WordRow(b"key block-----", _look_at_pem),
        WordRow(b"key-file-", _look_at_putty_key),
        WordRow(b'"kty', _look_at_jwk),
        WordRow(b"@", _look_at_url, rb"[^@ \n]"),
    ]


def _look_at_pem(data: bytes, at: int, hits: list[Hit]) -> int:
    """The first or the last line of a private key."""
    if not data.startswith((b"KEY-----", b"KEY BLOCK-----"), at):
        return at + 1
    head = data.index(b"-----", at) + 5
    begin = data.rfind(b"-----", max(0, at - 64), at)
    if begin < 0 or not data.startswith(b"PRIVATE ", at - 8):
        return head
    if data.startswith(b"-----BEGIN ", begin):
        tail = data.find(b"-----", head, head + _PRIVATE_KEY_MAX)
        if tail >= 0 and data.startswith(b"-----END", tail):
            close = data.find(b"-----", tail + 8, tail + 80)
            end = close + 5 if close >= 0 else tail + 8
        else:  # truncated: everything that looks like a key
            body = _KEY_LIKE.match(data, head)
            end = head + len(body[0].rstrip()) if body is not None else head
        hits.append((begin, end, "private-key"))
        return end
    if data.startswith(b"-----END ", begin):  # the beginning was cut off
        since = max(hits[-1][1] if hits and hits[-1][1] <= begin else 0, begin - _PRIVATE_KEY_MAX)
        body = _KEY_LIKE_BACKWARDS.match(data[since:begin][::-1])
        hits.append((begin - (body.end() if body is not None else 0), head, "private-key"))
    return head


def _look_at_putty_key(data: bytes, at: int, hits: list[Hit]) -> int:
    """The private lines of a key file of PuTTY."""
    lines = data.find(b"Private-Lines:", at, at + _PRIVATE_KEY_MAX)
    body = _KEY_LIKE.match(data, lines + 14) if lines >= 0 else None
    if body is None or len(body[0]) < _SHORTEST_KEY:
        return at + 9
    hits.append((*body.span(), "private-key"))
    return body.end()


def _look_at_jwk(data: bytes, at: int, hits: list[Hit]) -> int:
    """The private members of a JSON web key, before and after its `kty`."""
    start = max(data.rfind(b"{", max(0, at - _JWK_MAX), at), data.rfind(b"}", max(0, at - _JWK_MAX), at), at - _JWK_MAX)
    end = data.find(b"}", at, at + _JWK_MAX)
    end = end if end >= 0 else min(at + _JWK_MAX, len(data))  # after `at`: the search continues here
    hits += ((*found.span("value"), "private-key") for found in _JWK_MEMBER.finditer(data, max(start, 0), end))
    return max(end, at + 1)


def _look_at_url(data: bytes, at: int, hits: list[Hit]) -> int:
    """`@` may end the user and the password of a URL; only the password is a hit."""
    start = data.rfind(b"://", max(0, at - 400), at)
    if start < 0 or (found := _URL.match(data, start)) is None or found.end() <= at:
        return at + 1
    value = found["password"] or found["user"]
    if values.is_template(value) or (found["user"] is not None and not values.looks_random(value)):
        return at + 1
    hits.append((*found.span("password" if found["password"] is not None else "user"), "url-password"))
    return found.end()
