"""Finds the positions of secrets in a text, and reads only a small part of it in Python.

Hand-written because a scanner that runs about a hundred regular expressions one after the other costs a hundred times
as much as encoding the text; `benchmarks/masking.py` measures both.

**Token formats** (`formats`) have a prefix and many word characters. The text is reduced to "word character or not"
(one `bytes.translate`), and prefixes are searched only in runs of at least `formats.RUN` word characters.

**Names, headers and flags** (`names`) are searched by a few literals (`_PLACES`), in the text in small letters. `re`
finds a pattern that begins with a literal in a quarter of a nanosecond a byte, but not if it ignores case, and not if
it begins with a choice. So words that have an infrequent letter in common are found by one search for that letter:

    letter    words
    p         password, pwd, psk, PAT
    c         secret, credentials
    k         key, token, cookie, hooks

What a search finds is only a candidate: each `look_at_…` reads the original text at that position and decides.

**URLs** are searched by their `@`, JSON web keys by their `"kty"`.

Cost: a candidate that is not a secret costs a few hundred bytes of reading; a secret is read once. So the scan is
linear, and a `Meter` that counts steps bounds it.

Positions are bytes of UTF-8. Every hit begins and ends next to an ASCII character, so no character is torn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Final, TypeAlias

from turnspan import lazy
from turnspan.secrets import formats, names, values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.secrets.names import Hit

OWN_CREDENTIAL: Final = "own-credential"
_ATTEMPT: Final = 400  # steps for one candidate; a step is one character of plain text
_BASE64_MIN, _BASE64_MAX = 40, 350_000  # characters of base64 that are decoded and scanned
_BASE64_DEPTH: Final = 2
_PRIVATE_KEY_MAX: Final = 16_384  # bytes between BEGIN and END

Look: TypeAlias = "Callable[[bytes, int, list[Hit]], int]"  # appends the hits at a position; returns where to continue


class OverBudget(Exception):  # noqa: N818  expected: the caller withholds the text
    """Scanning the text would exceed the budget."""


class Meter:
    """A budget of steps for a scan; `is_late`, if given, also ends it when its time is up."""

    def __init__(self, steps: int, is_late: Callable[[], bool] | None = None) -> None:
        self._left = steps
        self._is_late = is_late

    def spend(self, steps: int) -> None:
        """Use `steps` of the budget; raise `OverBudget` when it is used up."""
        self._left -= steps
        if self._left < 0 or (self._is_late is not None and self._is_late()):
            raise OverBudget


def find(
    data: bytes, credentials: Sequence[bytes], meter: Meter, *, has_builtin: bool = True, depth: int = 0
) -> list[Hit]:
    """Return every secret in `data`, in any order, possibly overlapping."""
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
    _find_names(data, hits, meter)
    if len(data) >= _SMALL or b'"kty' in data:  # in a long text, the pattern is found in half the time
        done = 0
        for found in _KTY.finditer(data):
            if (at := found.start()) >= done:
                meter.spend(_ATTEMPT)
                done = _look_at_jwk(data, at, hits)
    at = data.find(b"@")
    while at >= 0:
        meter.spend(_ATTEMPT // 10)
        at = data.find(b"@", _look_at_url(data, at, hits))
    return hits


def _find_names(data: bytes, hits: list[Hit], meter: Meter) -> None:
    lower = data.lower()
    for literal, heads, pattern, look in _PLACES:
        done = lower.find(literal)
        # Every text has a `p`, and compiling its pattern takes a hundredth of an event.
        if done < 0 or (len(lower) < _SMALL and not any(head in lower for head in heads)):
            continue
        for found in pattern.finditer(lower, done):
            if (at := found.start()) >= done:
                meter.spend(_ATTEMPT)
                done = look(data, at, hits)


# ---- formats

_WORD_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%+/"
_IS_WORD: Final = bytes(ord("w" if code in _WORD_CHARACTERS else " ") for code in range(256))
_IDENTIFIER_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyz_-/"
_RUN: Final = b"w" * formats.RUN
_SMALL: Final = 8192  # bytes; in longer texts one search is faster than a look for each prefix
_BASE64: Final = lazy.pattern(
    rb"[A-Za-z0-9+/_-]{40,}+(?:\r?\n[A-Za-z0-9+/]{40,}+)*+(?:\r?\n[A-Za-z0-9+/]{1,80}+(?![A-Za-z0-9+/]))?={0,2}"
)
_BASE64_BACKWARDS: Final = lazy.pattern(rb"[A-Za-z0-9+/]*+")


class _Allowance:
    """An amount of text that is searched for literals first; after that, compiling the patterns costs less."""

    def __init__(self, size: int) -> None:
        self._left = size

    def covers(self, size: int) -> bool:
        """Use some of the amount; return whether the text is short, and within the amount."""
        self._left -= size
        return size < _SMALL and self._left >= 0


_HEADS_FIRST: Final = _Allowance(8 * _SMALL)


def _find_formats(data: bytes, credentials: Sequence[bytes], hits: list[Hit], meter: Meter, depth: int) -> None:
    shape = data.translate(_IS_WORD)
    runs: list[tuple[int, int]] = []
    at = shape.find(_RUN)
    while at >= 0:
        end = shape.find(b" ", at)
        if end < 0:
            end = len(data)
        runs.append((at, end))
        at = shape.find(_RUN, end)
    # Only small letters: an identifier in code. Tokens have digits or capitals.
    others = b"\n".join([data[start:end] for start, end in runs]).translate(None, _IDENTIFIER_CHARACTERS)
    runs = list(compress(runs, others.split(b"\n")))
    _find_prefixes(data, runs, hits, meter)
    done = 0
    for start, end in runs:
        if end - start >= _BASE64_MIN and start >= done and depth < _BASE64_DEPTH:
            done = _look_inside_base64(data, start, hits, meter, credentials=credentials, depth=depth)


def _find_prefixes(data: bytes, runs: list[tuple[int, int]], hits: list[Hit], meter: Meter) -> None:
    """Search all runs at once, each with the few bytes before it, for prefixes of token formats."""
    starts = [max(start - formats.LOOK_BEHIND, 0) for start, _ in runs]
    joined = b"\n" + b"\n".join([data[start:end] for start, (_, end) in zip(starts, runs, strict=True)])
    # Most turns have no prefix, and compiling the patterns takes a twentieth of an event.
    has_prefix = not _HEADS_FIRST.covers(len(joined)) or any(head in joined for head in formats.HEADS)
    offsets: list[int] = []
    for pattern in (*(formats.PREFIX if has_prefix else ()), formats.ODD_PREFIX):
        done = 0
        found = pattern.search(joined)
        while found is not None:
            meter.spend(_ATTEMPT // 2)
            offsets = offsets or list(
                accumulate((end - start + 1 for start, (_, end) in zip(starts, runs, strict=True)), initial=1)
            )
            prefix = found.start("prefix")
            run = bisect_right(offsets, prefix) - 1
            at = starts[run] + prefix - offsets[run]
            next_start = prefix
            if at >= done and (hit := formats.format_at(data, at)) is not None:
                hits.append(hit)
                done = hit[1]
                next_start = max(prefix, min(offsets[run + 1] - 1, prefix + done - at - 1))
            found = pattern.search(joined, max(next_start, found.start() + 1))


def _look_inside_base64(
    data: bytes, at: int, hits: list[Hit], meter: Meter, *, credentials: Sequence[bytes], depth: int
) -> int:
    """Decode base64 and scan the result; with a secret inside, all of the base64 is a hit."""
    before = _BASE64_BACKWARDS.match(data[max(0, at - 256) : at][::-1])
    start = at - (before.end() if before is not None else 0)
    found = _BASE64.match(data, start)
    if found is None:
        return at
    beginning = values.from_base64(data[start : start + 16]) or b"\0"
    if found.end() - start > _BASE64_MAX or beginning.translate(None, _PRINTABLE):
        return found.end()
    plain = values.from_base64(found[0])
    if plain is not None and (inside := find(plain, credentials, meter, depth=depth + 1)):
        hits.append((start, found.end(), min(inside)[2]))
    return found.end()


_PRINTABLE: Final = bytes([*range(0x20, 0x7F), 9, 10, 13])


# ---- private keys, URLs, webhooks

# Characters of a truncated key: base64, escapes, headers, and the line numbers that Claude Code writes (1→).
_KEY_LIKE: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\xe2\x86\x92)*+")
_KEY_LIKE_BACKWARDS: Final = lazy.pattern(rb"(?:[A-Za-z0-9+/=\s\\:,>|#]|\x92\x86\xe2)*+")
_URL: Final = lazy.pattern(
    rb"""://(?:[^\s:/?#@"'<>`\\]{0,128}:(?P<password>[^\s/?#"'<>`\\]{1,256}|(?![0-9]{1,5}/)[^\s@"'<>`\\]{1,256})|(?P<user>[\w-]{20,256}))@"""
)
_FLAG: Final = lazy.pattern(rb"-{1,2}[a-z_-]{2,30}?(?P<word>token|key|pwd) ", re.IGNORECASE)  # --apikey ...
_OPTION: Final = lazy.pattern(
    rb"""[ ]-(?:
        (?:u[ ]|-user[ =])["']?[^\s:"']{0,64}:(?P<user>[^\s"'\\]{1,256})
      | p["']?(?P<attached>[^\s"'\\-][^\s"'\\]{2,128})
      | p[ ]{1,4}["']?(?P<spaced>[^\s"'\\-][^\s"'\\]{2,128})
      | P[ ]{0,4}["']?(?P<capital>[^\s"'\\-][^\s"'\\]{2,128})
      | a[ ]{1,4}["']?(?P<redis>[^\s"'\\-][^\s"'\\]{2,128})
    )""",
    re.VERBOSE,
)
# The commands for which such an option is a password.
_COMMANDS: Final = {
    "user": lazy.pattern(rb"\bcurl\b"),
    "attached": lazy.pattern(rb"\b(?:mysql|mariadb)(?:dump|admin|import|show|check|-\w+)?\b|\bsshpass\b"),
    "spaced": lazy.pattern(
        rb"\bsshpass\b|\b(?:docker|podman|nerdctl|buildah|oras|crane|skopeo|helm|az|oc|cf)\b.* login\b"
    ),
    "capital": lazy.pattern(rb"\b(?:sqlcmd|bcp|zip|unzip)\b"),
    "redis": lazy.pattern(rb"\bredis-cli\b"),
}
_SQL: Final = lazy.pattern(
    rb"""identified[ ](?:with[ ][\w"'`]{1,40}[ ])?(?:by|as)[ ](?:password[ ])?
    \\{0,3}["'](?P<password>[^"'\\\r\n]{3,256})""",
    re.IGNORECASE | re.VERBOSE,
)
_KTY: Final = lazy.pattern(rb'"kty')
_JWK_MEMBER: Final = lazy.pattern(
    rb"""\\{0,3}"(?:d|p|q|dp|dq|qi|k)\\{0,3}"\s{0,8}:\s{0,8}\\{0,3}"(?P<value>[\w-]{16,}+)"""
)
_JWK_MAX: Final = 4_096  # bytes of a key before and after its "kty"
_WEBHOOK: Final = lazy.pattern(
    rb"hooks\.slack(?:-gov)?\.com\\?/(?:services|workflows|triggers)(?P<slack>[\w/\\-]{20,}+)"
    rb"|hooks\\?/[0-9]{15,22}\\?/(?P<discord>[\w-]{50,}+)"
    rb"|hookb2\\?/(?P<teams>[\w@/\\-]{60,}+)",
    re.IGNORECASE,
)


def _look_at_key(data: bytes, at: int, hits: list[Hit]) -> int:
    """`key` ends a name, or the first or the last line of a private key."""
    if data.startswith(b"Key-File-", at):
        return _look_at_putty_key(data, at, hits)
    if not data.startswith((b"KEY-----", b"KEY BLOCK-----"), at):
        joint = data[at - 1 : at]
        if joint in {b" ", b"."}:
            is_owned = data[max(0, at - 14) : at - 1].lower().endswith(names.KEY_OWNERS)
        else:
            # https://…?key=…
            is_owned = (
                joint.isalnum() or joint in {b"_", b"-"} or (joint in {b"?", b"&"} and data[at + 3 : at + 4] == b"=")
            )
        return names.look_at_name(data, at, hits) if is_owned else at + 3  # `for key in …`: not part of a name
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
            end = body.end() if body is not None else head
        hits.append((begin, end, "private-key"))
        return end
    if data.startswith(b"-----END ", begin):  # the beginning was cut off
        since = max(hits[-1][1] if hits and hits[-1][1] <= begin else 0, begin - _PRIVATE_KEY_MAX)
        body = _KEY_LIKE_BACKWARDS.match(data[since:begin][::-1])
        hits.append((begin - (body.end() if body is not None else 0), head, "private-key"))
    return head


def _look_at_url(data: bytes, at: int, hits: list[Hit]) -> int:
    """`@` may end the user and the password of a URL; only the password is a hit."""
    if data[at + 1 : at + 2] in {b"@", b" ", b"\n", b""}:
        return at + 1
    start = data.rfind(b"://", max(0, at - 400), at)
    if start < 0 or (found := _URL.match(data, start)) is None or found.end() <= at:
        return at + 1
    value = found["password"] or found["user"]
    if values.is_template(value) or (found["user"] is not None and not values.looks_random(value)):
        return at + 1
    hits.append((*found.span("password" if found["password"] is not None else "user"), "url-password"))
    return found.end()


def _look_at_putty_key(data: bytes, at: int, hits: list[Hit]) -> int:
    """The private lines of a key file of PuTTY."""
    lines = data.find(b"Private-Lines:", at, at + _PRIVATE_KEY_MAX)
    body = _KEY_LIKE.match(data, lines + 14) if lines >= 0 else None
    if body is None or len(body[0]) < _BASE64_MIN:
        return at + 9
    hits.append((*body.span(), "private-key"))
    return body.end()


def _look_at_jwk(data: bytes, at: int, hits: list[Hit]) -> int:
    """The private members of a JSON web key, before and after its `kty`."""
    start = max(data.rfind(b"{", max(0, at - _JWK_MAX), at), data.rfind(b"}", max(0, at - _JWK_MAX), at), at - _JWK_MAX)
    end = data.find(b"}", at, at + _JWK_MAX)
    end = end if end >= 0 else min(at + _JWK_MAX, len(data))  # after `at`: the search continues here
    hits += ((*found.span("value"), "private-key") for found in _JWK_MEMBER.finditer(data, max(start, 0), end))
    return end


def _look_at_sql(data: bytes, at: int, hits: list[Hit]) -> int:
    """The password in `CREATE USER … IDENTIFIED BY '…'`."""
    found = _SQL.match(data, at)
    if found is None or values.is_placeholder(found["password"]):
        return at + 10
    hits.append((*found.span("password"), "password"))
    return found.end()


def _look_at_option(data: bytes, at: int, hits: list[Hit]) -> int:
    """Passwords after one-letter options: `curl -u user:…`, `mysql -p…`, `sshpass -p …`, `redis-cli -a …`."""
    flag = _FLAG.match(data, at)
    if flag is not None:
        return max(names.look_at_name(data, flag.start("word"), hits), at + 2)
    option = _OPTION.match(data, at - 1)
    if option is None or option.lastgroup is None:
        return at + 2
    kind = option.lastgroup
    command = data[max(0, at - 300) : at]
    if kind != "user":  # curl is often written over several lines
        command = command[max(command.rfind(b"\n"), command.rfind(b"\\n")) + 1 :]
    if _COMMANDS[kind].search(command) is None or values.is_template(option[kind]):
        return at + 2
    hits.append((*option.span(kind), "basic-auth" if kind == "user" else "password"))
    return option.end()


def _look_at_webhook(data: bytes, at: int, hits: list[Hit]) -> int:
    found = _WEBHOOK.match(data, at)
    if found is None or found.lastgroup is None:
        return at + 5
    hits.append((*found.span(found.lastgroup), f"{found.lastgroup}-webhook"))
    return found.end()


# ---- candidates

# What follows a word that is the end of a name: a suffix, a quote, then an operator, a comma, a bracket or a tag. Most
# words of prose and code are rejected before that: no suffix begins with these letters (`passed`, `keyword`), and after
# a space only `is`, `value` and N'…' can follow (not `token of`).
_NO_NAME: Final = rb"""(?![acefgijkqruwxyz)]|[ .,] ?[a-hj-mo-uw-z0-9])"""
_FOLLOWS_NAME: Final = (
    rb"""(?:[_-]?[a-z]{1,10}+[0-9]{0,2}+|[_-]?[0-9]{1,3}+)?+(?:\\{0,3}["'`])?+\]?+(?:\*\*)?+"""
    rb"""(?:[ \t]{0,40}+(?:[:=!|]|-{1,2}>?[ ]["'`]|[?+.]{1,2}=|\?:|n?["'`]|[,(][ \t]?[\\"'`])"""
    rb"""|[\s,]{1,24}+[\\"']{0,4}+value|[ ]-{1,2}(?:value|body|>)|%(?:22%)?3[ad]|[ ]\{\s{1,24}+(?:type|default|get;)"""
    rb"""|</key>|>|[ ]is[ :])"""
)
_AS_NAME: Final = _NO_NAME + _FOLLOWS_NAME
# After all words but those for passwords, a value of fewer than eight characters is not a secret: `token: str`, `token
# is None`. It must be all of the value (`names._BEFORE_VALUE`), and not the type of the value (`token: str = "…"`).
_SHORT_VALUE: Final = (
    rb"(?:[ ]is[ ]|:[ ]?+)[\w.:/-]{0,7}+"
    rb"(?:[)};\r\n]|\\[nrtu]|(?<![ ])[ ,](?!\|\||\?\?|or[ ]|[\w.\[\], |&'<>?]{0,40}+=))"
)
_AS_TOKEN: Final = _NO_NAME + rb"(?!" + _SHORT_VALUE + rb")" + _FOLLOWS_NAME
_PASSWORD: Final = rb"(?:wor[dt]|wd|phrase|code)?"  # the rest of the word, after `pass`


def _look_at_key_token_cookie_or_hook(data: bytes, at: int, hits: list[Hit]) -> int:
    if (run := _RUN_OF_KEY.match(data, at)) is not None:
        return _look_at_key(data, at + run[0].lower().rfind(b"key"), hits)
    if data[at + 1 : at + 2] in b"eE":
        return names.look_at_name(data, at - 2, hits)
    if data[at + 1 : at + 2] in b"iI":
        # In `cookieKey`, the last letter of the one word and the letters of the other are one run: not a name.
        rest = _LETTERS_OF_KEY.match(data, at + 2)
        return max(names.look_at_cookie(data, at - 3, hits), rest.end() if rest is not None else 0)
    return _look_at_webhook(data, at - 3, hits)


# `key`, and more of its letters and `o`: of several `key` in such a run, the last one counts.
_RUN_OF_KEY: Final = lazy.pattern(rb"key[eoyk]*+", re.IGNORECASE)
_LETTERS_OF_KEY: Final = lazy.pattern(rb"[eoyk]++", re.IGNORECASE)


def _look_at_secret_or_credentials(data: bytes, at: int, hits: list[Hit]) -> int:
    is_secret = data[max(0, at - 2) : at].lower() == b"se"
    return max(names.look_at_name(data, at - 2 if is_secret else at, hits), at + 3)


def _look_at_auth(data: bytes, at: int, hits: list[Hit]) -> int:
    return names.look_at_authorization(data, at - 1, hits)


def _place(literal: bytes, follows: bytes, look: Look, *, heads: Sequence[bytes] = ()) -> _Place:
    return literal, heads or (literal,), lazy.pattern(literal + follows), look


_Place: TypeAlias = "tuple[bytes, Sequence[bytes], re.Pattern[bytes], Look]"
# A literal, what follows it, the function that decides, and the beginnings of the words if the literal is a single
# letter. Only letters that are not the literal are consumed, so that no candidate hides the next one.
_PLACES: Final = (
    _place(
        b"p",  # password, pwd, PAT
        # Alternatives that begin with a literal are skipped fastest.
        rb"(?:a(?:ss(?![aefgijkqruxyz)])(?=" + _PASSWORD + _AS_NAME + rb"|(?<=[a-z _-]pass)" + _PASSWORD + rb" [^ -])"
        rb"""|t(?=s?(?:\\{0,3}["'`])?+\]?+[ ]?[:=]))"""
        rb"|w(?=d?" + _AS_NAME + rb"|(?<=[a-z_-]pw) [^ -]|d(?<=[a-z_-]pwd) [^ -])|sk(?=" + _AS_NAME + rb"))",
        names.look_at_name,
        heads=(b"pass", b"pw", b"psk", b"pat"),
    ),
    _place(
        b"c",  # secret, credentials
        rb"re(?:t(?=" + _AS_TOKEN + rb"|(?<=[a-z_-]secret)[ \t][^ -])|d(?=(?:ential)?s?" + _AS_TOKEN + rb"))",
        _look_at_secret_or_credentials,
        heads=(b"cret", b"cred"),
    ),
    _place(
        b"k",  # key, token, cookie, hooks
        rb"(?:e(?:y(?=[eoyk]{0,40}+(?:[eoyk]|n?" + _AS_TOKEN + rb"|(?<=[_-]key)[ \t][^ -]|ie|s[./\\]|b2/"
        rb"|(?: block)?-----|-file-[0-9]))"
        rb"|n(?<=token)(?=" + _AS_TOKEN + rb"|(?<=[_-]token)[ \t][^ -]))"
        rb"|ie(?<=cookie)|s[./\\](?<=hooks.)|b2/(?<=hookb2/))",
        _look_at_key_token_cookie_or_hook,
        heads=(b"key", b"token", b"cookie", b"hooks", b"hookb2/"),
    ),
    _place(b"identified", rb"(?= (?:with|by))", _look_at_sql),
    _place(b"u", rb"th(?<=auth)(?=ori|" + _AS_NAME + rb")", _look_at_auth, heads=(b"auth",)),
    _place(
        b"-",
        rb"(?<= -)(?=u [^ ]{0,64}:|-user[ =]|p[^-]|a [^-]|-?[a-z_-]{2,40}+(?<=[nyd]) [^ -])",
        _look_at_option,
        heads=(b" -",),
    ),
)
