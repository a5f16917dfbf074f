r"""Secrets recognised by what is around them: options of commands, headers, cookies, SQL. One line of data each.

A form has words that are searched for in small letters, and a pattern that is matched in the text where one of them
begins, or up to `back` bytes before. The group `value` is the secret, if the form's test says so. A pattern reads a
bounded number of bytes, so that the scan stays linear.

In the patterns, `VALUE` is a value as a shell would read it, `LINE` the rest of a command before the option.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from turnspan import lazy
from turnspan.secrets.names import rule_of_name
from turnspan.secrets.values import Style, is_basic, is_placeholder, is_secret, is_template, looks_random
from turnspan.secrets.words import WordRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.secrets.words import Hit, Look


class SecretForm(NamedTuple):
    """A rule, the words to search for, what must follow them, the pattern, and the test of the value."""

    rule: str
    words: tuple[bytes, ...]
    follows: bytes
    pattern: str
    test: Callable[[bytes], bool]
    back: int = 0  # bytes before the word in which the pattern may begin


def _is_any(value: bytes) -> bool:
    return not is_template(value)


def _is_password(value: bytes) -> bool:
    return is_secret("password", value, Style.PLAIN)


def _is_named(value: bytes) -> bool:
    return not is_placeholder(value)


def _is_no_word(value: bytes) -> bool:
    is_word = value.isalpha() and (value.islower() or value.isupper() or value.istitle())
    return not is_word and not is_placeholder(value)


_MACROS: Final = {
    "VALUE": r"""["']?(?P<value>(?<=")[^"\r\n]{3,200}|(?<=')[^'\r\n]{3,200}|(?<!["'])[^\s"'\\][^\s"']{2,200})""",
    "LINE": r"(?:[^\r\n|;]|\\\r?\n|\\n){0,200}?",
    "QUOTE": r"""(?:\\{0,3}["'`])?""",
    "ECHO": r"\b(?:echo|printf)(?:[ ]-\w{1,3})*[ ](?:%s[ ])?",
    "CONSUMER": r"(?:sudo\s|chpasswd|passwd\s--stdin|[^\r\n|]{0,80}--?(?:password-stdin|with-token)|kinit\b)",
}
FORMS: Final = (
    # ---- commands
    SecretForm("password", (b"sudo -", b"sudo chpasswd", b"| chpasswd", b"-stdin", b"--with-token", b"| kinit"), b"",
         r"""ECHO(?:[\"']?[\w.-]{1,32}:(?=[^\r\n]{1,200}chpasswd))?VALUE[\"']?\s{0,4}\|\s{0,4}CONSUMER""",
         _is_any, 200),
    SecretForm("password", (b"sudo -", b"secret put ", b"kinit ", b"cryptsetup "), b"",
         r"(?:sudo|secret[ ]put|kinit|cryptsetup)\b[^\r\n<]{0,80}<<<\s?VALUE", _is_any),
    SecretForm("password", (b"passwd -",), b"[a-z]*b",
         r"passwd\s-(?:[a-mo-zA-Z]{0,6}\s[^\s]{1,120}|[a-zA-Z]{0,4}n[a-zA-Z]{0,4})\s[\w.@-]{1,60}\sVALUE",
         _is_password),
    SecretForm("password", (b" -u",), rb"[ =]?[^\s%-][^\s%]{0,40}[ ]-",
         r"""(?<!mysql)(?<!mysqldump)(?<!mysqladmin)(?<!mariadb)[ ]-[uU][ =]?[\"']?[\w.@\\+-]{1,60}[\"']?"""
         r"(?:[ ]-[a-z][ ][^\s-][^\s]{0,60}){0,2}[ ]-p[ =]?(?![0-9.:/~]+(?:\s|\Z))VALUE", _is_password),
    SecretForm("password", (b" -u",), rb"[ ]?[\"']?[\w.\\/@-]{1,40}%",
         r"""[ ](?-i:-U)[ ]?[\"']?[\w.\\/@-]{1,60}%(?P<value>[^\s\"']{3,200})""", _is_password),
    SecretForm("basic-auth", (b"curl",), b"",
         r"""curl\b LINE[ ](?:-[uU][ ]?|--(?:proxy-)?user[ =])["']?[^\s:"']{0,64}:(?P<value>[^\s"'\\]{1,256})""",
         _is_any),
    SecretForm("basic-auth", (b"http -a",), b"[ ]",
         r"""http\s-a\s[\w.@-]{1,60}:(?P<value>[^\s\"']{3,200})""", _is_any),
    SecretForm("password", (b"mysql", b"7z ", b"7za "), b"",
         r"(?:mysql(?:dump|admin|import|show|check)?|7za?)\b LINE[ ](?-i:-h?p)(?![ ])VALUE", _is_password),
    SecretForm("password", (b"sshpass", b"useradd", b"cker login", b"podman login", b"unlock-keychain"), rb"[ ]",
         r"(?:sshpass|useradd|cker[ ]login|podman[ ]login|unlock-keychain)\b LINE[ ](?-i:-p)[ ]{0,4}VALUE",
         _is_password),
    SecretForm("password", (b"zip ", b"sqlcmd", b"bcp "), b"",
         r"(?:zip|sqlcmd|bcp)\b LINE[ ](?-i:-P)[ ]{0,4}VALUE", _is_password),
    SecretForm("password", (b"redis-cli",), b"[ ]",
         r"redis-cli\b LINE[ ](?:-a|AUTH(?:[ ][\w-]{1,40}(?=[ ][^\s-]))?)[ ]{1,4}VALUE", _is_password),
    SecretForm("password", (b"auth ",), rb"[^\s-]",
         r"(?:(?m:^)|(?<=>[ ]))(?-i:AUTH[ ](?![A-Z5-]{4,16}\b))(?:[\w-]{1,40}[ ])?VALUE[ ]{0,2}(?="
         r"[\r\n]|\Z)", _is_password),
    SecretForm("password", (b"masterauth ",), b"",
         r"(?m:^)masterauth[ ]VALUE", _is_password),
    SecretForm("password", (b"ldapsearch", b"ldapmodify", b"ldapadd"), rb"[ ]",
         r"ldap\w{3,12}\b LINE[ ]-w[ ]?VALUE", _is_password),
    SecretForm("password", (b"generic-password",), b"[ ]",
         r"generic-password\b LINE[ ]-w[ ]VALUE", _is_password),
    SecretForm("password", (b"ssh-keygen",), b"[ ]",
         r"ssh-keygen\b LINE[ ](?-i:-[NP])[ ]?VALUE", _is_password),
    SecretForm("password", (b"openssl",), b"[ ]",
         r"openssl\b LINE[ ](?-i:-[kK])[ ]VALUE", _is_password),
    SecretForm("password", (b"sqlplus", b"sqlldr"), b"[ :]",
         r"""(?:sqlplus|sqlldr)(?:[ ]-[^\s]{1,12})*[ :][\"']?[\w$#]{1,40}/(?P<value>[^\s@/\"']{2,64})(?=@|"""
         r"""[\"']?(?:\s|\Z))""", _is_password),
    SecretForm("password", (b"lftp ",), b"",
         r"""lftp\b LINE-u[ ][\w.-]{1,40},(?P<value>[^\s\"']{3,200})""", _is_password),
    SecretForm("password", (b" /p:", b"/pass:"), b"",
         r"[ ]?/p(?:ass(?:word)?)?:VALUE", _is_password),
    SecretForm("password", (b"net user ", b"net use "), b"",
         r"net[ ]use(?:r[ ][\w.\\-]{1,40}|[ ][^\s]{1,40}[ ]\\\\[^\s]{1,120})[ ](?P<value>[^\s/*-][^\s]{2,100})"
         r"[ ]/", _is_password),
    SecretForm("password", (b"mqctl",), b"[ ]",
         r"mqctl[ ](?:add_user|change_password)[ ][^\s]{1,60}[ ]VALUE", _is_password),
    SecretForm("password", (b"http-basic.",), b"",
         r"http-basic\.[^\s]{1,60}[ ][^\s]{1,60}[ ]VALUE", _is_password),
    SecretForm("secret", (b"secret set",), b"[ ]",
         r"secret[ ]set\b LINE[ ](?:--(?:value|body)[ =]|-b[ ]?)VALUE", _is_any),
    SecretForm("password", (b"securestring",), b"[ ]",
         r"""securestring(?:[ ]-string)?[ ](?=[\"'])VALUE""", _is_any),
    SecretForm("token", (b"--auth",), b"[ =]",
         r"--auth[ =]VALUE", looks_random),
    # ---- headers, cookies, fields
    SecretForm("authorization", (b"authori",), b"",
         r"authori[sz]ation QUOTE\]?[ \t]{0,4}(?:=>|[:=,])[ \t]{0,4}[bruf]{0,2}QUOTE"
         r"(?:bearer|basic|token|bot|api-?key|key|splunk|negotiate|ntlm)"
         r"""[ \t]{1,4}(?P<value>[^\s"'`\\,;<>()]{6,4096})""",
         _is_no_word),
    SecretForm("authorization", (b"authori",), b"",  # several values, some of them in quotes
         r"authori[sz]ation QUOTE\]?[ \t]{0,4}(?:=>|[:=,])[ \t]{0,4}[bruf]{0,2}QUOTE(?:digest|hawk|aws4-hmac-sha256)"
         r"""[ \t]{1,4}(?P<value>[^\s"'`\\,;<>()]{6}[^\r\n\\`']{0,4096})""", _is_named),
    SecretForm("authorization", (b"authori",), b"",
         r"authori[sz]ation QUOTE\]?[ \t]{0,4}(?:=>|[:=,])[ \t]{0,4}[bruf]{0,2}QUOTE(?P<value>"
         r"""[^\s"'`\\,;<>()]{6,4096})""", looks_random),
    SecretForm("authorization", (b"auth",), rb"[\\\"'` \t]{0,4}[:=]",  # of Docker and npm
         r"auth QUOTE[ \t]{0,4}[:=][ \t]{0,4}QUOTE(?P<value>[A-Za-z0-9+/]{8,512}={0,2})", is_basic),
    SecretForm("password", (b"auth",), rb"[ ]?[=:][ ]?\(",
         r"""auth[ ]?[=:][ ]?\(\s{0,4}[\"'][^\"'\r\n]{1,60}[\"'],\s{0,4}[\"'](?P<value>[^\"'\r\n]{3,100})""",
         _is_password),
    SecretForm("token", (b'-oauth"',), b"",
         r"""-oauth"\s{0,4}:\s{0,4}\{\s{0,24}"[\w.-]{3,60}"\s{0,2}:\s{0,2}"(?P<value>[^"\r\n]{16,256})""",
         looks_random),
    SecretForm("cookie", (b"cookie",), b"",
         r"cookie QUOTE\]?(?:[ \t]{0,4}[:=,]|(?<=--cookie)[ ])[ \t]{0,4}QUOTE(?P<value>[\w.!-]{1,80}="
         r"""[^\s"'`\\;,]{4,512}[^\r\n"'`\\]{0,8192})""", lambda value: not is_placeholder(value.partition(b"=")[2])),
    SecretForm("cookie", (b"curl",), b"",
         r"""curl\b LINE[ ]-b[ ]["']?(?P<value>[\w.!-]{1,80}=[^\s"'`\\]{8,512})""", _is_any),
    SecretForm("cookie", (b"\ttrue\t",), b"",
         r"\tTRUE\t(?:/[^\t\r\n]{0,80}\t(?:TRUE|FALSE)\t)?[0-9]{1,12}\t[^\t\r\n]{1,80}\t(?P<value>"
         r"[^\t\r\n]{8,1024})", looks_random),
    SecretForm("", (b'"value"', b"- value:"), b"",
         r"""value["']?:\s{0,4}["']?(?P<value>[^"'\r\n]{3,200})["']?,?\s{1,24}["']?(?:name|key)["']?:\s{0,4}"""
         r"""["']?(?P<name>[\w.-]{1,60})""", _is_any, 3),
    # ---- SQL, webhooks
    SecretForm("password", (b"user ", b"@"), rb"[^\s]{1,64}[ ]identified ",
         r"""(?:user[ ]|@)[^\s]{1,64}[ ]identified[ ](?:with[ ][\w"'`]{1,40}[ ])?(?:by|as)[ ](?:password[ ])?"""
         r"""(?:\\{0,3}["'](?P<value>[^"'\\\r\n]{3,256}))""", _is_named),
    SecretForm("password", (b"user ",), rb"[^\s]{1,64}[ ]identified by [^'\"\\]",
         r"""user[ ][^\s]{1,64}[ ]identified[ ]by[ ](?P<value>[^\s\"'\\;]{3,100})(?=;|\s{0,4}(?:\"|\Z))""",
         _is_password),
    SecretForm("slack-webhook", (b"hooks.sla",), b"",
         r"hooks\.slack(?:-gov)?\.com\\?/(?:services|workflows|triggers)(?P<value>[\w/\\-]{20,512})", _is_any),
    SecretForm("discord-webhook", (b"hooks",), rb"\\?/[0-9]",
         r"hooks\\?/[0-9]{15,22}\\?/(?P<value>[\w-]{50,256})", _is_any),
    SecretForm("teams-webhook", (b"hookb2",), b"",
         r"hookb2\\?/(?P<value>[\w@/\\-]{60,512})", _is_any),
)  # fmt: skip


def rows() -> list[WordRow]:
    """Return the words to search for, and the looks that match the forms."""
    return [WordRow(word, _look(form), form.follows) for form in FORMS for word in form.words]


def _compiled(source: str) -> re.Pattern[bytes]:
    for name, pattern in _MACROS.items():
        source = source.replace(name, pattern)
    return lazy.pattern(source.encode(), re.IGNORECASE | re.VERBOSE)


def _look(form: SecretForm) -> Look:
    pattern = _compiled(form.pattern)

    def look(data: bytes, at: int, hits: list[Hit]) -> int:
        found = pattern.search(data, max(0, at - form.back), at + 700) if form.back else pattern.match(data, at)
        if found is None or not form.test(found["value"]):
            return at + 1
        rule = form.rule or rule_of_name(found["name"])
        if rule is None or (not form.rule and not is_secret(rule, found["value"], Style.QUOTED)):
            return at + 1
        hits.append((*found.span("value"), rule))
        return max(found.end("value"), at + 1)

    return look
