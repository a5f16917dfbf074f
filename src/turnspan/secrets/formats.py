"""Token formats: a distinctive prefix, then many random characters. One line of data each.

Rules:

- A format holds at least `RUN` word characters in a row; its prefix begins there or at most `LOOK_BEHIND` bytes before.
- A prefix begins with a literal character, so that one search finds all prefixes.
- A pattern rejects a text within a few hundred bytes, or once for each run; only a match may be long. That keeps the
  scan linear.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.secrets.names import is_basic, looks_random

if TYPE_CHECKING:
    from collections.abc import Iterable

RUN: Final = 20  # the fewest word characters in a row in any of `_FORMATS`: an AWS key id

# Before a short prefix: no letter or digit, unless it ends an escape (\n in JSON, %3D in a URL, a terminal colour).
_LEFT: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=[0-9;\[]m)|(?<=%[0-9A-Fa-f]{2}))"
_NEXT_LINE: Final = r"(?:\\[nr]|\s|[0-9]{1,6}→){1,24}"
_KEY_LINES: Final = (
    rf"[A-Za-z0-9+/]{{20,}}+(?:{_NEXT_LINE}[A-Za-z0-9+/]{{20,}}+)*+(?:{_NEXT_LINE}[A-Za-z0-9+/]{{1,80}}+={{0,2}})?"
)

# rule, prefixes, the pattern after the prefix, the pattern before it
_FORMATS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # An AWS key id, and the secret key if it follows, as in a CSV file.
    ("aws-access-key", "AKIA ASIA ABIA ACCA",
     r"[A-Z0-9]{16}(?:[\s,;:|\"'\\=]{1,6}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?", ""),
    ("google-api-key", "AIza", r"[\w-]{35}", ""),
    ("google-oauth", r"ya29\. GOCSPX- 1//0", r"[\w-]{20,}+", _LEFT),
    ("github-token", "gh[pousr]_ github_pat_", r"\w{30,}+", ""),
    ("gitlab-token", "gl(?:pat|dt|rt|rtr|ptt|ft|cbt|imt|agent|oas|soat|ffct|wt)-", r"[\w.-]{18,}+", ""),
    ("bitbucket-token", "ATBB", r"[A-Za-z0-9]{28,}+", _LEFT),
    ("atlassian-token", "ATATT3 ATCTT3", r"[\w=-]{50,}+", ""),
    ("npm-token", "npm_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("pypi-token", "pypi-Ag", r"[\w-]{40,}+", ""),
    ("rubygems-token", "rubygems_", r"[0-9a-f]{40,}+", ""),
    ("docker-token", "dckr_pat_ dckr_oat_", r"[\w-]{20,}+", ""),
    ("slack-token", r"xox[abceoprs]- xoxe\.xox xapp-", r"[\w.-]{12,}+", _LEFT),
    ("discord-token", r"\.[\w-]{6}\.",
     r"[\w-]{27,}+", "(?:" + "|".join(rf"(?<=[MNO][\w-]{{{n}}})" for n in range(23, 28)) + ")"),
    ("telegram-token", ":AA", r"[\w-]{30,}+", "(?<=[0-9]{8})"),
    ("stripe-key", "sk_live_ rk_live_ sk_test_ rk_test_ whsec_", r"[A-Za-z0-9+/=]{16,}+", ""),
    ("twilio-key", "SK[0-9a-f]{8}", r"[0-9a-f]{24}(?![0-9a-f])", _LEFT),
    ("sendgrid-key", r"SG\.", r"[\w-]{16,64}\.[\w-]{32,}+", _LEFT),
    ("mailgun-key", "key-[0-9a-f]{8}", r"[0-9a-f]{24}(?![0-9a-f])", _LEFT),
    ("anthropic-key", "sk-ant-", r"[\w-]{13,}+", ""),
    ("langfuse-key", "sk-lf- pk-lf-", r"[\w-]{14,}+", ""),
    # CSS class names begin with sk-, too, but have neither digits nor capitals.
    ("openai-key", "sk-", r"(?=[\w-]{0,80}[0-9A-Z])[\w-]{17,}+", _LEFT),
    ("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("groq-key", "gsk_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("xai-key", "xai-", r"[A-Za-z0-9]{40,}+", _LEFT),
    ("perplexity-key", "pplx-", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("replicate-token", "r8_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("digitalocean-token", "do[opr]_v1_", r"[a-f0-9]{40,}+", ""),
    ("shopify-token", "shp(?:at|ca|pa|ss)_", r"[a-fA-F0-9]{28,}+", ""),
    ("square-token", "sq0[a-z]{3}-", r"[\w-]{20,}+", ""),
    ("square-token", "EAAA", r"[\w-]{56,}+", "(?<![A-Za-z0-9+/])"),
    ("heroku-key", "HRKU-", r"[\w-]{20,}+", ""),
    ("vault-token", r"hvs\. hvb\. hvr\. atlasv1\.", r"[\w-]{20,}+", ""),
    ("databricks-token", "dapi", r"[0-9a-f]{32}", _LEFT),
    ("notion-token", "ntn_ secret_", r"[A-Za-z0-9]{40,}+", _LEFT),
    ("linear-key", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{30,}+", ""),
    ("figma-token", "figd_", r"[\w-]{30,}+", _LEFT),
    ("postman-key", "PMAK-", r"[0-9a-f-]{40,}+", ""),
    ("sentry-token", "sntrys_ sntryu_", r"[\w+/=-]{40,}+", ""),
    ("grafana-token", "glsa_ glc_", r"[\w+/=-]{30,}+", _LEFT),
    ("newrelic-key", "NRAK- NRJS- NRII-", r"[\w-]{19,}+", ""),
    ("supabase-token", "sbp_", r"[0-9a-f]{40,}+", _LEFT),
    ("netlify-token", "nfp_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("planetscale-token", "pscale_(?:tkn|pw|oauth)_", r"[\w.-]{30,}+", ""),
    ("doppler-token", r"dp\.(?:pt|st|sa|ct|scim|audit)\.", r"[\w.-]{30,}+", _LEFT),
    ("alibaba-key", "LTAI", r"[A-Za-z0-9]{16,}+", _LEFT),
    ("azure-secret", "7Q~ 8Q~", r"[\w~.-]{31,40}+", r"(?<=[\w~.-]{3})"),
    ("azure-sas", "sig=", r"[A-Za-z0-9%+/_-]{40,}+=?", _LEFT),
    ("age-key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{40,}+", ""),
    ("jwt", "eyJ", r"[\w-]{8,512}+\.[\w-]{8,}+(?:\.[\w-]*+)*+", _LEFT),
    # Private keys without their BEGIN line: OpenSSH's magic, and ASN.1's "version 0" of RSA and PKCS #8.
    ("private-key", "b3BlbnNzaC1rZXktdjE", _KEY_LINES, ""),
    ("private-key", "MII[A-Z]", r"[\w+/]{2}IBA[AD]" + _KEY_LINES, _LEFT),
    ("bearer", r"Bearer\x20 bearer\x20 BEARER\x20", r"[A-Za-z0-9._~+/=-]{16,}+", ""),
    ("basic-auth", r"Basic\x20 basic\x20 BASIC\x20", r"[A-Za-z0-9+/]{8,}+={0,2}", ""),
)  # fmt: skip


def _by_first_character(prefixes: Iterable[str]) -> str:
    """Return the alternatives grouped by first character, so that `re` tries one branch instead of all prefixes."""
    tree: dict[str, list[str]] = {}
    for prefix in prefixes:
        cut = 2 if prefix[0] == "\\" else 1
        tree.setdefault(prefix[:cut], []).append(prefix[cut:])
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in tree.items())


PREFIX: Final = lazy.pattern(_by_first_character(one for _, some, _, _ in _FORMATS for one in some.split()).encode())
LOOK_BEHIND: Final = 8  # bytes; the longest prefix that ends before its run of word characters


def format_at(data: bytes, at: int) -> tuple[int, int, str] | None:
    """Return start, end and rule of the token whose prefix begins at `at`."""
    pattern, rules = _formats(data[at : at + 1])
    found = pattern.match(data, at)
    if found is None or found.lastindex is None:
        return None
    rule = rules[found.lastindex - 1]
    start = at + _KEPT.get(rule, 0)
    if rule == "bearer" and not looks_random(data[start : min(found.end(), start + 512)]):
        return None
    if rule == "basic-auth" and not is_basic(data[start : found.end()]):
        return None
    return start, found.end(), rule


_KEPT: Final = {"bearer": 7, "basic-auth": 6, "azure-sas": 4}  # characters of the prefix that are not masked


@cache
def _formats(first: bytes) -> tuple[re.Pattern[bytes], list[str]]:
    """Return the formats with this first character, compiled on first use: most texts hold none."""
    some = [
        (rule, f"({left}(?:{prefix}){rest})")
        for rule, prefixes, rest, left in _FORMATS
        for prefix in prefixes.split()
        if prefix.lstrip("\\").encode().startswith(first)
    ]
    return re.compile("|".join(pattern for _, pattern in some).encode()), [rule for rule, _ in some]
