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
from turnspan.secrets.values import is_basic, looks_random

if TYPE_CHECKING:
    from collections.abc import Iterable

RUN: Final = 20  # the fewest word characters in a row in any of `FORMATS`: an AWS key id

# Before a short prefix: no letter or digit, unless it ends an escape (\n in JSON, %3D in a URL, a terminal colour).
_LEFT: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=[0-9;\[]m)|(?<=%[0-9A-Fa-f]{2}))"
_NEXT_LINE: Final = r"(?:\\[nr]|\s|[0-9]{1,6}→){1,24}"
_KEY_LINES: Final = (
    rf"[A-Za-z0-9+/]{{20,}}+(?:{_NEXT_LINE}[A-Za-z0-9+/]{{20,}}+)*+(?:{_NEXT_LINE}[A-Za-z0-9+/]{{1,80}}+={{0,2}})?"
)

# All of these need a sign before the prefix: PREFIX tries them only there.
_AFTER_SIGN: Final = r"(?<=[?&])"
_AFTER_SLASH: Final = "(?<=/)"
_AFTER_COMMAND: Final = (
    r"(?:(?<=cargo )|(?<=vault )|(?<=doctl auth )|(?<=ngrok )|(?<=add-)|(?<=pypi-)|(?<=git(?:hub|lab)-oauth\.))"
)
_BOUNDARIES: Final = frozenset({_LEFT, _AFTER_SIGN, _AFTER_SLASH, _AFTER_COMMAND})

# rule, prefixes, the pattern after the prefix, the pattern before it
FORMATS: Final[tuple[tuple[str, str, str, str], ...]] = (
    # An AWS key id, and the secret key if it follows, as in a CSV file.
    ("aws-access-key", "AKIA ASIA ABIA ACCA A3T[A-Z0-9]",
     r"[A-Z0-9]{16}(?:[\s,;:|\"'\\=]{1,6}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?", _LEFT),
    ("google-api-key", "AIza", r"[\w-]{35}", ""),
    ("google-oauth", r"ya29\. GOCSPX- 1//0", r"[\w-]{20,}+", _LEFT),
    ("github-token", "gh[pousr]_ github_pat_", r"\w{30,}+", ""),
    ("gitlab-token", "session=", r"[0-9a-z]{32}", "(?<=_gitlab_)"),
    ("gitlab-token", "GR1348941", r"[\w-]{20,}+", _LEFT),
    ("gitlab-token", "gl(?:pat|dt|rt|rtr|ptt|ft|cbt|imt|agent|oas|soat|ffct|wt)-", r"[\w.-]{18,}+", ""),
    ("bitbucket-token", "ATBB", r"[A-Za-z0-9]{24,}+", _LEFT),
    ("atlassian-token", "ATATT3 ATCTT3", r"[\w=-]{50,}+", ""),
    ("npm-token", "npm_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("pypi-token", "pypi-Ag", r"[\w-]{40,}+", ""),
    ("rubygems-token", "rubygems_", r"[0-9a-f]{40,}+", ""),
    ("docker-token", "dckr_pat_ dckr_oat_", r"[\w-]{20,}+", ""),
    ("slack-token", r"xox[abcdeoprs]- xoxe\.xox xapp-", r"[\w.%+/=-]{15,}+", _LEFT),
    ("discord-token", r"\.[\w-]{6}\.",
     r"[\w-]{27,}+", "(?:" + "|".join(rf"(?<=[MNO][\w-]{{{n}}})" for n in range(23, 28)) + ")"),
    ("telegram-token", ":AA", r"[\w-]{30,}+", "(?<=[0-9]{8})"),
    ("stripe-key", "sk_(?:live|test|prod)_ rk_(?:live|test|prod)_", r"[A-Za-z0-9]{16,}+", ""),
    ("stripe-key", "whsec_", r"[A-Za-z0-9+/=]{16,}+", ""),
    ("twilio-key", "SK[0-9a-fA-F]{8}", r"[0-9a-fA-F]{24}(?![0-9a-fA-F])", _LEFT),
    ("sendgrid-key", r"SG\.", r"[\w-]{20,64}\.[\w-]{32,}+", _LEFT),
    ("mailgun-key", "key-[0-9a-f]{8}", r"[0-9a-f]{24}(?![0-9a-f])", _LEFT),
    ("anthropic-key", "sk-ant-", r"[\w-]{13,}+", ""),
    ("langfuse-key", "sk-lf- pk-lf-", r"[\w-]{14,}+", ""),
    # CSS class names begin with sk-, too, but have neither digits nor capitals.
    ("openai-key", "sk-", r"(?!(?:ssh|ecdsa)-)(?=[\w-]{0,80}[0-9A-Z])[\w-]{17,}+", _LEFT),
    ("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("groq-key", "gsk_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("xai-key", "xai-", r"[A-Za-z0-9]{40,}+", _LEFT),
    ("perplexity-key", "pplx-", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("replicate-token", "r8_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("digitalocean-token", "do[opr]_v1_", r"[a-fA-F0-9]{40,}+", ""),
    ("shopify-token", "shp(?:at|ca|pa|ss)_", r"[a-fA-F0-9]{28,}+", ""),
    ("square-token", "sq0[a-z]{3}-", r"[\w-]{20,}+", ""),
    ("square-token", "EAAA", r"[\w-]{56,}+", "(?<![A-Za-z0-9+/])"),
    ("heroku-key", "HRKU-", r"[\w-]{20,}+", ""),
    ("vault-token", r"hvs\. hvb\. hvr\. atlasv1\.", r"[\w=-]{20,}+", ""),
    ("databricks-token", "dapi", r"[0-9a-f]{32}", _LEFT),
    ("notion-token", "ntn_ secret_", r"[A-Za-z0-9]{40,}+", _LEFT),
    ("linear-key", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{30,}+", ""),
    ("figma-token", "figd_", r"[\w-]{30,}+", _LEFT),
    ("postman-key", "PMAK-", r"[0-9a-fA-F-]{40,}+", ""),
    ("sentry-token", "sntrys_ sntryu_", r"[\w+/=-]{40,}+", ""),
    ("grafana-token", "glsa_ glc_ eyJrIjoi", r"[\w+/=-]{30,}+", _LEFT),
    ("newrelic-key", "NRAK- NRJS- NRII-", r"[\w-]{19,}+", ""),
    ("newrelic-key", "NRAL", r"(?!\w)", "(?<=[0-9a-zA-Z]{36})"),
    ("supabase-token", "sbp_", r"[0-9a-f]{40,}+", _LEFT),
    ("netlify-token", "nfp_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("planetscale-token", "pscale_(?:tkn|pw|oauth)_", r"[\w.=-]{30,}+", ""),
    ("doppler-token", r"dp\.(?:pt|st|sa|ct|scim|audit)\.", r"[\w.-]{30,}+", _LEFT),
    ("alibaba-key", "LTAI", r"[A-Za-z0-9]{16,}+", _LEFT),
    ("azure-secret", "Q~", r"[\w~.-]{31,40}+", r"(?<=[\w~.-]{3}[0-9])"),
    ("azure-sas", "sig=", r"[A-Za-z0-9%+/_-]{40,}+=?", _LEFT),
    ("age-key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{40,}+", ""),
    ("jwt", "eyJ", r"[\w-]{8,512}+\.[\w-]{8,}+(?:\.[\w-]*+)*+", _LEFT),
    # Sources of the formats below: the vendors' API documentation, GitHub's list of supported secret scanning patterns,
    # and the rule descriptions of gitleaks.
    ("1password-token", "ops_eyJ", r"[\w+/=-]{40,}+", _LEFT),
    ("1password-token", "A3-[A-Z0-9]{6}-", r"[A-Z0-9]{5,11}-[A-Z0-9-]{17,}+", _LEFT),
    ("adafruit-key", "aio_[A-Za-z]{4}", r"[A-Za-z0-9]{24}", _LEFT),
    ("adobe-secret", "p8e-", r"[A-Za-z0-9_-]{32,}+", _LEFT),
    ("airtable-token", r"\.[0-9a-f]{8}", r"[0-9a-f]{56}", "(?<=pat[A-Za-z0-9]{14})"),
    ("apify-token", "apify_api_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("artifactory-token", "AKCp cmVmd", r"[A-Za-z0-9]{56,}+", _LEFT),
    ("bedrock-key", "ABSK bedrock-api-key-", r"[A-Za-z0-9+/=]{28,}+", _LEFT),
    ("buildkite-token", "bkua_ bkaj_ bkct_", r"[0-9a-f]{40,}+", _LEFT),
    ("circleci-token", "CCIPAT_ CCIPRJ_", r"[A-Za-z0-9]{16,}+_[0-9a-f]{30,}+", _LEFT),
    ("clickhouse-key", "4b1d", r"[A-Za-z0-9]{38}(?![A-Za-z0-9])", _LEFT),
    ("clojars-token", "CLOJARS_", r"[0-9A-Za-z]{50,}+", _LEFT),
    ("cloudflare-key", r"v1\.0-[0-9a-f]{24}-", r"[0-9a-f]{146}", _LEFT),
    ("contentful-token", "CFPAT-", r"[\w-]{40,}+", _LEFT),
    ("crates-token", "cio", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])", _LEFT),
    ("dropbox-token", r"sl\.", r"[\w=.-]{100,}+", _LEFT),
    ("duffel-token", "duffel_(?:test|live)_", r"[\w=-]{40,}+", _LEFT),
    ("dynatrace-token", r"dt0[a-z][0-9]{2}\.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{60,}+", _LEFT),
    ("e2b-key", "e2b_", r"[0-9a-f]{40}", _LEFT),
    ("easypost-key", "EZAK EZTK", r"[A-Za-z0-9]{54}", _LEFT),
    ("facebook-token", "EAA[A-Z]", r"[A-Za-z0-9]{90,}+", _LEFT),
    ("facebook-token", r"\|", r"[\w-]{27,40}+", "(?<=[0-9]{15})"),
    ("firecrawl-key", "fc-", r"[0-9a-f]{32}(?![0-9a-f])", _LEFT),
    ("fireworks-key", "fw_", r"(?=[A-Za-z0-9]{0,24}[0-9])[A-Za-z0-9]{22,}+", _LEFT),
    ("flutterwave-key", "FLW(?:SECK|PUBK)(?:_TEST|_LIVE)?-", r"[0-9A-Za-z]{12,}+(?:-X)?", _LEFT),
    ("fly-token", "fo1_ fm1[ar]_ fm2_", r"[\w+/=-]{40,}+", _LEFT),
    ("frameio-token", "fio-u-", r"[\w=-]{60,}+", _LEFT),
    ("harness-key", r"pat\. sat\.", r"[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}", _LEFT),
    ("huggingface-token", "api_org_", r"[A-Za-z0-9]{30,}+", _LEFT),
    ("infracost-key", "ico-", r"[A-Za-z0-9]{32}(?![A-Za-z0-9])", _LEFT),
    ("intercom-token", "dG9rO", r"[A-Za-z0-9+/]{50,}+={0,2}", _LEFT),
    ("intra42-secret", "s-s4t2(?:ud|af)-", r"[0-9a-fA-F]{64}", _LEFT),
    ("jina-key", "jina_", r"[\w-]{50,}+", _LEFT),
    ("langsmith-key", "lsv2_(?:pt|sk)_ ls__", r"[0-9a-f_]{32,}+", _LEFT),
    ("launchdarkly-key", "api-[0-9a-z]{8}- sdk-[0-9a-z]{8}- mob-[0-9a-z]{8}-",
     r"(?:[0-9a-z]{4}-){3}[0-9a-z]{12}(?![\w-])", _LEFT),
    ("mailchimp-key", "-us[0-9]{1,2}", r"(?![\w-])", "(?<=[0-9a-z]{32})"),
    ("mapbox-token", r"sk\.eyJ", r"[\w-]{40,}+\.[\w-]{20,}+", _LEFT),
    ("maxmind-key", "_mmk", r"(?!\w)", "(?<=[A-Za-z0-9]{6}_[A-Za-z0-9]{29})"),
    ("mongodb-secret", "mdb_sa_sk_", r"[\w-]{30,}+", _LEFT),
    ("nuget-key", "oy2", r"[a-z0-9]{43}(?![A-Za-z0-9])", _LEFT),
    ("nvidia-key", "nvapi-", r"[\w-]{40,}+", _LEFT),
    ("octopus-key", "API-", r"[A-Z0-9]{25,26}(?![A-Z0-9])", _LEFT),
    ("openshift-token", "sha256~", r"[\w-]{43}", _LEFT),
    ("pinecone-key", "pcsk_", r"\w{40,}+", _LEFT),
    ("plaid-token", "access-(?:sandbox|development|production)-", r"[0-9a-f-]{36}", _LEFT),
    ("posthog-key", "ph[acprsx]_", r"[A-Za-z0-9]{36,}+", _LEFT),
    ("prefect-key", "pn[ub]_", r"[A-Za-z0-9]{36}", _LEFT),
    ("pulumi-token", "pul-", r"[0-9a-f]{40}", _LEFT),
    ("razorpay-key", "rzp_(?:live|test)_", r"[A-Za-z0-9]{14,}+", _LEFT),
    ("readme-key", "rdme_", r"[a-z0-9]{60,}+", _LEFT),
    ("render-key", "rnd_", r"[A-Za-z0-9]{28,}+", _LEFT),
    ("resend-key", "re_[A-Za-z0-9]{8}_", r"[A-Za-z0-9]{24}", _LEFT),
    ("scalingo-token", "tk-us-", r"[\w-]{48}", _LEFT),
    ("sendinblue-key", "xkeysib- xsmtpsib-", r"[0-9a-f]{64}-[A-Za-z0-9]{16}", _LEFT),
    ("settlemint-token", "sm_(?:aat|pat|sat)_", r"[A-Za-z0-9]{16,}+", _LEFT),
    ("shippo-token", "shippo_(?:live|test)_", r"[0-9a-fA-F]{40}", _LEFT),
    ("sonarqube-token", "sq[apu]_", r"[0-9a-f]{40}", _LEFT),
    ("sourcegraph-token", "sgp_", r"(?:[0-9a-fA-F]{16}_|local_)?[0-9a-fA-F]{40}", _LEFT),
    ("softlayer-key", r"soap/v3(?:\.1)?/", r"[a-z0-9]{64}(?![A-Za-z0-9])", _LEFT),
    ("supabase-token", "sb_secret_", r"[\w-]{30,}+", _LEFT),
    ("tailscale-key", "tskey-", r"[\w-]{20,}+", _LEFT),
    ("tavily-key", "tvly-", r"[\w-]{30,}+", _LEFT),
    ("together-key", "tgp_v1_", r"[\w-]{40,}+", _LEFT),
    ("typeform-token", "tfp_", r"[\w.=-]{50,}+", _LEFT),
    ("url-signature", "nature=", r"[A-Za-z0-9%+/_=-]{26,}+", "(?<=[Ss]ig)"),
    ("vercel-token", "vc[aikpr]_", r"[A-Za-z0-9]{24,}+", _LEFT),
    ("voyage-key", "pa-", r"(?=[\w-]{0,20}[0-9])(?=[\w-]{0,20}[A-Z])[\w-]{43}(?![\w-])", _LEFT),
    ("yandex-key", "AQVN", r"[\w-]{35,38}+", _LEFT),
    ("brave-key", "BSA", r"(?=[\w-]{0,20}[0-9])[\w-]{24,36}+(?![\w-])", _LEFT),
    ("cal-key", "cal_live_", r"[0-9a-f]{32}", _LEFT),
    ("cerebras-key", "csk-", r"[a-z0-9]{40,}+", _LEFT),
    ("cloudflare-key", "cfut_ cfat_ cfk_", r"[\w-]{30,}+", _LEFT),
    ("context7-key", "ctx7sk-", r"[0-9a-f-]{30,}+", _LEFT),
    ("elevenlabs-key", "sk_[0-9a-f]{8}", r"[0-9a-f]{40}(?!\w)", _LEFT),
    ("google-api-key", r"AQ\.Ab", r"[\w-]{30,}+", _LEFT),
    ("hubspot-token", "pat-(?:na|eu|ap)[0-9]-", r"[0-9a-f-]{36}", _LEFT),
    ("jenkins-secret", "AQAAABAAA", r"[\w+/=]{20,}+", _LEFT),
    ("neon-key", "napi_", r"[a-z0-9]{40,}+", _LEFT),
    ("polar-token", "polar_(?:oat|pat)_", r"[\w-]{20,}+", _LEFT),
    ("runpod-key", "rpa_", r"[A-Z0-9]{36,}+", _LEFT),
    ("sentry-token", "sntryi_", r"[\w+/=-]{40,}+", ""),
    ("trigger-key", "tr_(?:dev|prod|stg|pat)_", r"[\w-]{20,}+", _LEFT),
    ("wandb-key", "wandb_v1_", r"\w{40,}+", _LEFT),
    # Tokens after a command, and in URLs: keys of a query, session ids, links that reset or confirm.
    ("token", r"login\x20 init\x20-t\x20 authtoken\x20 token\.pypi\x20 github\.com\x20", r"[\w.=+/-]{16,}+",
     _AFTER_COMMAND),
    ("url-token", "code= session= auth= jwt= ticket= sig= sid=", r"[\w.%~+/=-]{16,}+", _AFTER_SIGN),
    ("url-token", "jsessionid= JSESSIONID= PHPSESSID=", r"[\w.!-]{16,}+", _LEFT),
    ("url-token",
     "reset/ reset-password/ password-reset/ verify/ verify-email/ confirm/ activate/ invite/ magic/ magic-link/",
     r"[\w-]{20,}+", _AFTER_SLASH),
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


def _prefixes(some: str) -> list[str]:
    """Return the prefixes of a format; an underscore can be percent-encoded, as in a URL."""
    return [prefix[0] + prefix[1:].replace("_", "(?:_|%5[Ff])") for prefix in some.split()]


_ALL: Final = [(prefix, left) for _, some, _, left in FORMATS for prefix in _prefixes(some)]
_PLAIN: Final = [(prefix, left) for prefix, left in _ALL if not prefix.startswith("\\")]
# How prefixes begin, up to the first character that means something to `re`: without one of these, `PREFIX` finds none.
HEADS: Final = frozenset(re.split(r"[\\(\[{?*+.|]", prefix)[0].encode() for prefix, _ in _PLAIN)
# Two searches: a prefix that needs a boundary is tried only after a character that can be one.
_ANYWHERE: Final = _by_first_character(prefix for prefix, left in _PLAIN if left not in _BOUNDARIES)
_AT_BOUNDARY: Final = _by_first_character(prefix for prefix, left in _PLAIN if left in _BOUNDARIES)
PREFIX: Final = (
    lazy.pattern(f"(?P<prefix>{_ANYWHERE})".encode()),
    lazy.pattern(
        (
            # Begins with a set of characters, which `re` searches faster than a choice.
            r"[^A-Za-z0-9](?:[nrtbf](?<=\\.)|[0-9A-Fa-f][0-9A-Fa-f](?<=%..)|(?<=[\[;])[0-9]{0,3}m|)"
            f"(?P<prefix>{_AT_BOUNDARY})"
        ).encode()
    ),
)
_ODD: Final = "|".join(prefix for prefix, _ in _ALL if prefix.startswith("\\"))  # those that begin with punctuation
ODD_PREFIX: Final = lazy.pattern(f"(?P<prefix>{_ODD})".encode())
LOOK_BEHIND: Final = 11  # bytes; the longest prefix that ends before its run of word characters


def format_at(data: bytes, at: int) -> tuple[int, int, str] | None:
    """Return start, end and rule of the token whose prefix begins at `at`."""
    pattern, rules = _formats(data[at : at + 1])
    found = pattern.match(data, at)
    if found is None or found.lastindex is None:
        return None
    rule = rules[found.lastindex - 1]
    start = at + _KEPT.get(rule, 0)
    if rule in _EXTENDS_BACK and (before := _WORD_BACKWARDS.match(data[max(0, at - 40) : at][::-1])) is not None:
        start = at - before.end()
    if rule == "token":
        start = data.rfind(b" ", at, found.end()) + 1
    elif rule == "url-token":
        start = min(place for sign in b"=/" if (place := data.find(sign, at, found.end())) >= 0) + 1
    if rule in _RANDOM and not looks_random(data[start : min(found.end(), start + 512)]):
        return None
    if rule == "basic-auth" and not is_basic(data[start : found.end()]):
        return None
    return start, found.end(), rule


# Characters of the prefix that are not masked, and the rules that also mask the characters before their prefix.
_KEPT: Final = {"bearer": 7, "basic-auth": 6, "azure-sas": 4, "url-signature": 7}
_EXTENDS_BACK: Final = frozenset({
    "airtable-token", "azure-secret", "discord-token", "mailchimp-key", "maxmind-key", "newrelic-key", "telegram-token",
})  # fmt: skip
_RANDOM: Final = frozenset({"bearer", "token", "url-signature", "url-token"})  # whose values must look random
_WORD_BACKWARDS: Final = lazy.pattern(rb"[\w-]{0,40}+")


@cache
def _formats(first: bytes) -> tuple[re.Pattern[bytes], list[str]]:
    """Return the formats with this first character, compiled on first use: most texts hold none."""
    some = [
        (rule, f"({left}(?:{prefix}){rest})")
        for rule, prefixes, rest, left in FORMATS
        for prefix in _prefixes(prefixes)
        if prefix.lstrip("\\").encode().startswith(first)
    ]
    return re.compile("|".join(pattern for _, pattern in some).encode()), [rule for rule, _ in some]
