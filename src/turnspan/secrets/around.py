"""Decides from the text around a name and its value whether code can be there, and so what the value must look like.

`named` is the match of `names._NAMED`; `head` is the text before the name, `name` the part of the name before its word.
"""

from __future__ import annotations

import re
from typing import Final

from turnspan import lazy
from turnspan.secrets.values import NAME_CHARACTERS, TOKEN_CHARACTERS, Style, looks_random

NUMBERED: Final = rb"(?:[ ]{0,6}[0-9]{1,6}(?:\t|\xe2\x86\x92))?"  # Claude Code's Read tool numbers lines
# A bare value ends at an escape of JSON, such as \n; a single backslash can be part of a password.
_BARE_CHARACTER: Final = rb"""(?:[^\s"'`\\,;&(){}\[\]<>|]|\\(?![nrtu"'\\]))"""
_SHELL_CHARACTER: Final = rb"""(?:[^\s"'`\\<]|<(?!/[A-Za-z])|\\(?![nrtu"'\\]))"""
_FORM_CHARACTER: Final = rb"""(?:[^\s"'`\\<&;,)}\]]|\\(?![nrtu"'\\]))"""
_LIST_CHARACTER: Final = rb"""(?:[^\s"'`\\<;,)}\]]|\\(?![nrtu"'\\]))"""
_ENTRY_CHARACTER: Final = rb"""(?:[^\s"'`\\,;(){}\[\]<>|]|\\(?![nrtu"'\\]))"""
_BARE, _SHELL, _FORM, _LIST, _ENTRY = (
    (lazy.pattern(character + rb"{3,512}+"), lazy.pattern(character + rb"*+"))
    for character in (_BARE_CHARACTER, _SHELL_CHARACTER, _FORM_CHARACTER, _LIST_CHARACTER, _ENTRY_CHARACTER)
)
LINE_END: Final = lazy.pattern(rb"[ \t]*(?:\Z|[\r\n]|\\[rn])")
KEY_OWNERS: Final = (
    b"api", b"access", b"account", b"private", b"secret", b"shared", b"encryption", b"encrypt", b"signing", b"master",
    b"auth", b"app", b"application", b"service", b"storage", b"deploy", b"session", b"consumer", b"subscription",
    b"client", b"admin", b"hmac", b"jwt", b"ssh", b"ingest", b"license", b"write", b"server", b"function", b"functions",
    b"cookie", b"token", b"password",
)  # fmt: skip
_CELL_END: Final = lazy.pattern(rb"[^|\r\n]{3,512}\|")
_JOINTS: Final = frozenset({b",", b";", b"|", b"/", b"&", b"(", b"{"})
_SETS: Final = (b" set ", b"env ", b"setenv ", b"set -x ", b"set -gx ", b"set -ux ", b"setx ", b"setx /m ")
_DIRECTIVES: Final = frozenset({b"require", b"root", b"bind"})  # requirepass of Redis, rootpw and bindpw of OpenLDAP
_NO_VALUE: Final = lazy.pattern(  # --ask-vault-pass
    rb"-(?:ask|no|prompt|use|require|show|save|store|with|has|is|skip|allow|enable|disable|read|get)-", re.IGNORECASE
)
_NETRC: Final = lazy.pattern(
    rb"(?:\bmachine\s{1,8}[^\s]{1,80}\s{1,24}|\bdefault\s{1,8}|\A|\n[ \t]{0,8})login\s{1,8}[^\s]{1,80}\s{1,24}\Z"
    rb"|\bmachine\s{1,8}[^\s]{1,80}\s{1,24}\Z"
)
# Before a name that is part of an option's value: `--from-literal=`, `-e "`, `--set `, `-o user=me,`.
_OPTION: Final = lazy.pattern(
    rb"(?:\A|\s)-{1,2}[\w-]{1,30}(?:[ =][\"']?(?:[\w./-]{1,40}[=:][^\s\"']{0,40},)?)?\Z|\bvault\b[^\n]{1,40}\s\Z"
)
_CONNECTION_STRING: Final = lazy.pattern(
    rb"(?:server|source|host|user(?: ?id|name)?|uid|database|databasename|catalog|dsn|port|driver|dbname)"
    rb"[ ]?=[^;=,()\"'\r\n]{0,40}(?:;[ ]?|(?<![ ])[ ])\Z",
    re.IGNORECASE,
)
_SECTION: Final = lazy.pattern(
    NUMBERED + rb"[ \t]{0,8}\[[\w .:/@\"-]{1,80}\][ \t]{0,8}(?:\r?\n"
    + NUMBERED + rb"[ \t]{0,8}(?:[#;][^\r\n]{0,300}+|[\w.:/@-]{1,60}[ \t]{0,40}[=:][^\r\n]{0,300}+)?+[ \t]{0,8})"
    rb"{0,60}+\Z"
)  # fmt: skip
_INI_BYTES: Final = 2_000


def is_no_name(named: re.Match[bytes], before: bytes) -> bool:
    """Return whether `key` is a word of its own, as in `for key in …`; `private key` and `?key=…` are names."""
    joint = before[-1:]
    if named["word"].lower() != b"key" or joint.isalnum() or joint in {b"_", b"-"}:
        return False
    if joint in {b" ", b"."}:
        return not before[:-1].lower().endswith(KEY_OWNERS)
    return joint not in {b"?", b"&"} or named["operator"] != b"="


def _is_long_token(named: re.Match[bytes], data: bytes) -> bool:
    """Return whether a value without an operator before it can only be a token: long, random, with digits."""
    value = _BARE[0].match(data, named.end())
    return (
        value is not None and len(value[0]) >= 20 and named["word"].lower() in {b"key", b"token", b"secret"}
        and not value[0].translate(None, TOKEN_CHARACTERS) and any(digit in value[0] for digit in b"0123456789")
        and looks_random(value[0])
    )  # fmt: skip


def is_code(named: re.Match[bytes], data: bytes, head: bytes, name: bytes) -> bool:
    """Return whether name and value are part of code or prose: an option must begin with a dash, a cell with a pipe."""
    if named["cell"] is not None:
        is_cell = (head.rstrip(b" \t*`").endswith(b"|") or _begins_line(head)) and b"." not in name
        return not is_cell or _CELL_END.match(data, named.end()) is None
    if named["flag"] is not None:
        return not (_is_set(named, data, head, name) or _is_long_token(named, data))
    if named["default"] is not None:
        return not head.endswith(b"${")
    if named["arrow"] is not None:
        return not _is_long_token(named, data)
    return _is_verb(named, head, name)


def _is_set(named: re.Match[bytes], data: bytes, head: bytes, name: bytes) -> bool:
    """Return whether a space is enough between name and value: an option, `setx`, `.netrc`, `requirepass`."""
    if name[:1] == b"-":
        return _NO_VALUE.search(name) is None
    return head.lower().endswith(_SETS) or _is_directive(named, data, head, name)


def _is_directive(named: re.Match[bytes], data: bytes, head: bytes, name: bytes) -> bool:
    """Return whether a name is a directive of a configuration file, or the `password` of .netrc."""
    if name.lower() in _DIRECTIVES:
        return _begins_line(head) or head.lower().endswith(b" set ")
    before = data[max(0, named.start() - 200) : named.start()]
    return not name and named["word"].lower() == b"password" and _NETRC.search(before) is not None


def _is_verb(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether `pass:` is the result of a test or the verb (`--- PASS: TestName`, "that would pass: …")."""
    if named["word"].lower() != b"pass" or name or named["close"]:
        return False
    if named["spaced"] is not None:
        return True
    operator = named["operator"] or b""
    if operator.rstrip(b" \t") == operator:
        return False
    before = head.rstrip(b" \t-*")
    is_colon = operator.strip(b" \t*") == b":"
    return is_colon and (named["word"].isupper() or not (_begins_line(before) or before[-1:] in _JOINTS))


def is_loose(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether name and value are only next to each other: arguments of a call, cells, words of a sentence."""
    if named["spaced"] is not None:
        return not (name[:1] == b"-" or head.lower().endswith((b"#define ", *_SETS)) or named["word"].isupper())
    return any(named[each] is not None for each in ("loose", "cell", "dash"))


def is_shell(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether it is an assignment of a shell or an .env file; `name` is the part of the name before the word."""
    is_attribute = any(named[each] is not None for each in ("attribute", "valued", "variable"))
    if not is_attribute and (named["operator"] != b"=" or named["close"]):
        return False
    if named["word"].isupper() and name == name.upper() and b"-" not in name:
        return True
    return not is_attribute and _begins_line(head)


def is_plain(named: re.Match[bytes], data: bytes, at: int, head: bytes, name: bytes) -> str:
    """Return whether the value cannot be code: "line" if it ends with a space, "list" if also at `;`, "form" at `&`."""
    if named["flag"] is not None:
        is_option = name[:1] == b"-" or named["word"].isupper()
        return "line" if is_option or _is_directive(named, data, head, name) else ""
    if named["multipart"] is not None:
        return "line"
    if named["default"] is not None:
        return "form"
    operator = (named["operator"] or b"").strip(b" \t*")
    if named["operator"] == b"=" and not named["close"]:
        if name[:1] == b"-":
            return "line"
        if head[-1:] in {b"?", b"&"}:
            return "form"
        if _OPTION.search(head) or _CONNECTION_STRING.search(head):
            return "list"
        following = _FORM[0].match(data, named.end())
        if following is not None and _NEXT_FIELD.match(data, following.end()):
            return "form"
    if operator == b":" and head.endswith((b"-passin ", b"-passout ", b"-pass ")):
        return "line"
    return "line" if operator == b"=" and not named["close"] and _is_ini(data, at - len(name)) else ""


_NEXT_FIELD: Final = lazy.pattern(rb"&[\w.\[\]%-]{1,40}=")


def _is_ini(data: bytes, at: int) -> bool:
    """Return whether a line is in a section of an ini file."""
    line = data.rfind(b"\n", max(0, at - 60), at) + 1
    if data[line:at].strip(b" \t0123456789\xe2\x86\x92"):
        return False
    bracket = data.rfind(b"[", max(0, line - _INI_BYTES), line)
    section = data.rfind(b"\n", max(0, bracket - 20), max(bracket, 0)) + 1
    return bracket >= 0 and _SECTION.match(data, section, max(line - 1, section)) is not None


def _begins_line(head: bytes) -> bool:
    """Return whether a name is the first word of its line; a line number of Claude Code's Read tool may precede it."""
    # A backslash: of an escaped line end, whose n was taken for a part of the name.
    if not head or head[-1:] in {b"\n", b"\r", b"\\"} or head.endswith((b"export ", b"set ", b"ENV ", b"ARG ")):
        return True
    return head.endswith(b"\xe2\x86\x92") or (head[-1:] == b"\t" and head[-2:-1].isdigit())


_LABEL_CHARACTERS: Final = NAME_CHARACTERS + b" :,@"


def style_of_bare(data: bytes, named: re.Match[bytes], head: bytes, end: int, *, is_assigned: bool) -> Style:
    """Return the style of a value without quotes."""
    if is_assigned:
        return Style.SHELL
    if named["element"] is not None:
        return Style.QUOTED if data[end : end + 40].lstrip().startswith(b"</") else Style.LOOSE
    if named["prose"] is not None:
        return Style.LOOSE if named["word"].lower() == b"pass" else Style.PROSE  # "what you pass is …"
    if named["cell"] is not None or named["next_line"] is not None:
        is_row = named["cell"] is not None and data[end : end + 2].strip() == b"|" and LINE_END.match(data, end + 2)
        return Style.PROSE if is_row else Style.LOOSE  # | Password | … |
    operator = named["operator"] or b""
    is_yaml = operator.strip(b" \t*") == b":" and operator.rstrip(b" \t*") != operator
    # `password: …` alone in its line, or after words: "New password: …"
    is_entry = is_yaml and (_begins_line(head.rstrip(b" \t-*")) or _begins_line(head.rstrip(_LABEL_CHARACTERS)))
    return Style.YAML if is_entry and LINE_END.match(data, end) else Style.BARE


def pattern_of_bare(
    named: re.Match[bytes], plain: str, *, is_assigned: bool
) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of a value without quotes and of its rest."""
    if plain in {"form", "list"}:
        return _FORM if plain == "form" else _LIST
    if is_assigned or plain or named["prose"] is not None:
        return _SHELL
    return _ENTRY if b":" in (named["operator"] or b"") else _BARE
