"""Measures which share of secrets masking misses, by family, and how much clean text it masks, by kind of text.

    python -m benchmarks secrets [--samples 400] [--seed N] [--gitleaks gitleaks.toml] [--vectors FILE]
                                 [--texts DIRECTORY] [--json]

- A sample leaks if a third or more of the secret, in one piece, is in the masked text.
- Samples are generated at random from a name, a syntax and an alphabet; the tests generate theirs separately.
- `--gitleaks`: the rules of another scanner as test vectors. The file is `config/gitleaks.toml` of the Go module
  github.com/zricethezav/gitleaks/v8. Rules of detect-secrets are used if that package is installed. Nothing of them is
  kept in this tree.
- `--vectors`: test vectors of any scanner, one JSON object per line: family, text, secrets (a list). TruffleHog's
  are the `input` and `want` of its Go tests (module github.com/trufflesecurity/trufflehog/v3, pkg/detectors).
- `--texts`: a directory of clean text (output of test runners, compilers, package managers); each file is a kind.
  Default: the installed packages, by suffix.

The file is not called `secrets.py`: that would hide the module of the standard library from the other benchmarks.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import re
import string
import sysconfig
import tomllib
from collections import Counter
from pathlib import Path
from random import Random

from turnspan.secrets.formats import FORMATS
from turnspan.secrets.replace import compile_rules, mask

RULES = compile_rules()
DIGITS, LOWER, UPPER, ALNUM = string.digits, string.ascii_lowercase, string.ascii_uppercase, string.ascii_letters
ALNUM += DIGITS
ALPHABETS = {
    "hex": "0123456789abcdef",
    "a-z": LOWER,
    "A-Z": UPPER,
    "base32": "abcdefghijklmnopqrstuvwxyz234567",
    "base36": LOWER + DIGITS,
    "base62": ALNUM,
    "base64url": ALNUM + "-_",
}
OWNERS = (
    "private", "service", "license", "storage", "stripe", "api", "access", "secret", "signing", "encryption", "master",
    "shared", "client", "account", "google", "deploy", "my", "sonar", "okta", "algolia",
)  # fmt: skip
# {n}: the name, {s}: the secret
SYNTAX = {
    "json": '{"user": "me", "{n}": "{s}", "n": 1}',
    "json escaped": '{\\"user\\": \\"me\\", \\"{n}\\": \\"{s}\\"}',
    "yaml": "service:\n  {n}: {s}\n  port: 1\n",
    "yaml quoted": "service:\n  {n}: '{s}'\n",
    "env": "A=1\n{n}={s}\nB=2\n",
    "export": "export {n}={s}\n",
    "query string": "GET https://example.com/v1/x?a=1&{n}={s}&b=2",
    "form": "a=1&{n}={s}",
    "ini": "[x]\n{n} = {s}\n",
    "toml": '{n} = "{s}"\n',
    "python": "    {n}='{s}',\n",
    "go": '\t{n} := "{s}"\n',
    "rust": 'const {n}: &str = "{s}";',
    "typescript": "  private {n}!: string = '{s}';",
    "kotlin": 'val {n}: String = "{s}"',
    "flag": "deploy --{n} {s} --now",
    "flag =": "deploy --{n}={s} --now",
    "xml": "<a><{n}>{s}</{n}></a>",
    "html": "<td>{n}={s}</td>",
    "reminder": "<system-reminder>{n}={s}</system-reminder>",
    "plist": "<key>{n}</key>\n\t<string>{s}</string>",
    "define": '#define {n} "{s}"',
    "table": "| host | x |\n| {n} | {s} |\n",
    "table, code": "| {n} | `{s}` |",
    "bold": "- **{n}:** {s}\n",
    "bold, code": "**{n}**: `{s}`",
    "name and value": "- name: {n}\n  value: {s}\n",
    "header": "{n}: {s}\r\nAccept: */*",
    "put": 'config.put("{n}", "{s}");',
    "hash": '"{n}" => "{s}"',
}
PASSWORD_NAMES = ("password", "passwd", "passphrase", "pwd", "db_password", "adminPassword", "DB_PASSWORD", "MYSQL_PWD")
COMMANDS = (
    "mysql -u root -p{s} shop", "mysqldump -uroot -p{s} shop > x.sql", "docker login -u me -p {s} registry.example.com",
    "sshpass -p {s} ssh me@host", "sshpass -p '{s}' ssh me@host", "redis-cli -h x -a {s} ping",
    "sqlcmd -S host -U sa -P {s}", "curl -u me:{s} https://x", "curl --user me:{s} https://x",
    "curl --user 'me:{s}' https://x", "keytool -list -keystore a -storepass {s}", "mytool --pwd {s}",
    "mytool --passwd {s} run", "mytool --apikey {s} run", "CREATE USER a IDENTIFIED BY '{s}';",
    "CREATE ROLE a WITH LOGIN PASSWORD '{s}';", "ALTER USER a WITH PASSWORD '{s}'", "PASSWORD = N'{s}'",
    "creds={s}", "credentials={s}", "export GITHUB_PAT={s}", "PAT={s}", "**Password:** {s}", "| Password | {s} |",
    "postgres://app:{s}@db:5432/x", "Authorization: Bearer {s}", "Authorization: token {s}", "X-Api-Key: {s}",
    "Set-Cookie: session={s}; Path=/", "machine x login me password {s}", "wget --password={s} https://x",
)  # fmt: skip
AROUND = ("{}", "see {} there", '"{}"', "x={}\n", "({})", "a\n{}\nb", "https://x/?a={}&b=1", "<b>{}</b>", "{},")


def pick(random: Random, alphabet: str, least: int, most: int | None = None) -> str:
    return "".join(random.choice(alphabet) for _ in range(random.randint(least, most or least)))


def spelled(random: Random, *words: str) -> str:
    return random.choice((
        "_".join(words), "-".join(words), "_".join(words).upper(), "".join(map(str.title, words)),
        words[0] + "".join(map(str.title, words[1:])), "".join(words),
    ))  # fmt: skip


def named_samples(random, count):
    """Yield (family, secret, text) for every syntax and alphabet."""
    for syntax, template in SYNTAX.items():
        for _ in range(count):
            alphabet = random.choice(list(ALPHABETS))
            secret = pick(random, ALPHABETS[alphabet], 32, 48)
            words = random.choice((("token",), ("secret",), ("api", "key"), (random.choice(OWNERS), "key"),
                                   (random.choice(OWNERS), "token"), (random.choice(OWNERS), "secret")))  # fmt: skip
            yield (
                f"name, {syntax}",
                secret,
                template.replace("{n}", spelled(random, *words)).replace("{s}", secret),
            )
    for alphabet, characters in ALPHABETS.items():
        for _ in range(count):
            secret = pick(random, characters, 32)
            syntax = random.choice(("json", "yaml", "query string", "env"))
            text = SYNTAX[syntax].replace("{n}", random.choice(("token", "secret", "api_key"))).replace("{s}", secret)
            yield f"32 characters, {alphabet}", secret, text
    for _ in range(count):
        secret = pick(random, ALPHABETS["base62"], 24, 40)
        syntax = random.choice(("json", "yaml", "env", "toml", "python", "put"))
        name = spelled(random, random.choice(OWNERS), "key")
        yield "names that end in key", secret, SYNTAX[syntax].replace("{n}", name).replace("{s}", secret)


def password_samples(random, count):
    for syntax, template in SYNTAX.items():
        for _ in range(count):
            secret = pick(random, ALNUM + "!#%^*+~", 10, 18) + random.choice(DIGITS) + random.choice(ALNUM)
            text = template.replace("{n}", random.choice(PASSWORD_NAMES)).replace("{s}", secret)
            yield f"password, {syntax}", secret, text


def command_samples(random, count):
    for command in COMMANDS:
        for _ in range(count):
            secret = pick(random, ALNUM, 20, 32)
            yield f"form, {command}", secret, command.replace("{s}", secret)


def key_samples(random, count):
    for _ in range(count):
        lines = "\n".join(pick(random, ALNUM + "+/", 64) for _ in range(8))
        yield (
            "PuTTY key",
            lines[70:100],
            (
                f"PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nComment: x\nPublic-Lines: 6\n{lines[::-1]}\n"
                f"Private-Lines: 8\n{lines}\nPrivate-MAC: {pick(random, ALPHABETS['hex'], 64)}\n"
            ),
        )
        secret = pick(random, ALPHABETS["base64url"], 43)
        yield "JWK", secret, json.dumps({"kty": "EC", "crv": "P-256", "x": pick(random, ALNUM, 43), "d": secret})
        secret = pick(random, ALPHABETS["hex"], 64)
        yield "signed URL", secret, f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={secret}&a=1"
        secret = pick(random, ALNUM, 36)
        yield "percent-encoded prefix", secret, f"https://x/?t=gh{'p'}%5F{secret}"
        secret = base64.b64encode(f"me:{pick(random, ALNUM, 14)}".encode()).decode()
        yield "Basic", secret, f"Authorization: Basic {secret}"


def format_samples(random, count):
    for rule, prefixes, rest, left in FORMATS:
        needs_context = left and not left.startswith("(?:(?<![A-Za-z0-9])")
        if needs_context or rule in {"basic-auth", "bearer", "private-key"}:
            continue  # these need something before the prefix, or more than a pattern says
        for prefix in prefixes.split():
            for _ in range(max(count // 20, 3)):
                secret = sampled(prefix + rest, random)[0]
                yield f"format, {rule}", secret, random.choice(AROUND).format(secret)


def sampled(pattern: str, random: Random, flags: int = 0) -> tuple[str, dict[int, tuple[int, int]]]:  # noqa: C901  one case per kind of node
    """Return a random text that matches a pattern, and the spans of its groups; lookarounds are ignored."""
    out: list[str] = []
    groups: dict[int, tuple[int, int]] = {}

    def one_of(items, ignores_case):
        choices: list[str] = []
        is_negated = False
        for kind, value in items:
            match str(kind):
                case "LITERAL":
                    choices.append(chr(value))
                case "RANGE":
                    choices += map(chr, range(value[0], value[1] + 1))
                case "CATEGORY":
                    choices += {"CATEGORY_DIGIT": DIGITS, "CATEGORY_WORD": ALNUM + "_"}.get(str(value), " ")
                case "NEGATE":
                    is_negated = True
        if is_negated:
            choices = [c for c in ALNUM + "-_" if c not in choices]
        if len(choices) > 20:
            choices = [c for c in choices if c not in "=.%"]  # in real tokens at the end, or rare
        if ignores_case:
            choices += [c.swapcase() for c in choices if c.isascii()]
        return random.choice(choices or ["x"])

    def emit(tree, ignores_case):  # noqa: C901
        for kind, value in tree:
            match str(kind):
                case "LITERAL":
                    out.append(chr(value))
                case "IN":
                    out.append(one_of(value, ignores_case))
                case "ANY" | "NOT_LITERAL":
                    out.append(random.choice(ALNUM))
                case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                    least, most, inner = value
                    for _ in range(random.randint(least, min(int(most), least + 24))):
                        emit(inner, ignores_case)
                case "SUBPATTERN":
                    number, adds, removes, inner = value
                    start = sum(map(len, out))
                    emit(inner, (ignores_case or bool(adds & re.IGNORECASE)) and not removes & re.IGNORECASE)
                    if number:
                        groups[number] = start, sum(map(len, out))
                case "BRANCH":
                    emit(random.choice(value[1]), ignores_case)
                case "ATOMIC_GROUP":
                    emit(value, ignores_case)

    tree = re._parser.parse(pattern, flags)  # noqa: SLF001  the only parser of patterns
    emit(tree, bool(tree.state.flags & re.IGNORECASE))
    return "".join(out), groups


_KEYWORD_RULE = re.compile(r"\[\\w\.-\]\{0,50\}\?\(\?:(?P<words>.*?)\)\(\?:\[ \\t\\w\.-\]\{0,20\}\)")


def in_python(pattern: str) -> str:
    """Return a pattern of Go's `regexp` for `re`: flags in the middle become groups."""
    pattern = pattern.replace("[[:alnum:]]", "[A-Za-z0-9]").replace(r"\z", r"\Z")
    if pattern.startswith("(?i)"):
        return "(?i)" + pattern[4:].replace("(?i)", "")
    return re.sub(r"\(\?i\)((?:\[[^]]*\](?:\{[\d,]+\}|[+*?])?|\\.|[^()|])*)", r"(?i:\1)", pattern)


def gitleaks_samples(path, random, count):
    """Yield samples for every rule: a token in some surroundings, or `keyword_token = "…"` for rules with keywords."""
    for rule in tomllib.loads(path.read_text())["rules"]:
        source = rule.get("regex", "")
        try:
            pattern = in_python(source)
            for _ in range(max(count // 20, 3)):
                text, groups = sampled(pattern, random)
                start, end = groups.get(rule.get("secretGroup", 1), (0, len(text)))
                secret = text[start:end] or text
                if _KEYWORD_RULE.search(source):
                    word = re.sub(r"\W", "", random.choice(rule["keywords"]))
                    name = spelled(random, word, *random.choice((("token",), ("secret",), ("api", "key"), ("key",))))
                    form = random.choice(("json", "yaml", "env", "toml", "python", "go", "ini", "put", "hash"))
                    text = SYNTAX[form].replace("{n}", name).replace("{s}", secret)
                    yield f"gitleaks, {rule['id']}", secret, text
                else:
                    around = "{}" if (start, end) != (0, len(text)) else random.choice(AROUND)
                    yield f"gitleaks, {rule['id']}", secret, around.replace("{}", text)
        except re.error:
            continue


NOT_SECRETS = {"Secret Keyword", "Public IP (ipv4)", "Private Key"}  # the last: only the first line of a key


def detect_secrets_samples(random, count):
    if importlib.util.find_spec("detect_secrets") is None:
        return
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class  # noqa: PLC0415  optional

    for name, plugin in get_mapping_from_secret_type_to_class().items():
        for pattern in getattr(plugin, "denylist", None) or ():
            if name in NOT_SECRETS or not isinstance(pattern, re.Pattern):
                continue
            for _ in range(max(count // 20, 3)):
                text, groups = sampled(pattern.pattern, random, pattern.flags & (re.VERBOSE | re.IGNORECASE))
                start, end = groups.get(1, (0, len(text)))
                if end - start >= 8:
                    yield f"detect-secrets, {name}", text[start:end], random.choice(AROUND).replace("{}", text)


# The families of detect-secrets of which random matches are missed, as their services issue and programs write them:
# its patterns also match what no service issues (any ten characters after AKC) and no program writes (a name, forty
# spaces and a quote of another kind).
ISSUED = {
    "Artifactory": ((), "AKCp[0-9A-Za-z]{69}"),
    "Telegram": ((), "[1-9][0-9]{8,9}:AA[0-9A-Za-z_-]{33}"),
    "Twilio": ((), "SK[0-9a-f]{32}"),
    "Slack": ((), "xox[abp]-[0-9]{10,13}-[0-9]{10,13}-[0-9A-Za-z]{24}"),
    "Square": ((), "sq0csp-[0-9A-Za-z_-]{43}"),
    "JSON Web Token": ((), "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9[.]eyJ[0-9A-Za-z_-]{40,80}[.][0-9A-Za-z_-]{43}"),
    "Basic Auth": ((), "https://[a-z]{4,8}:([0-9A-Za-z]{12,20})@[a-z]{6}[.]example[.]com"),
    "SoftLayer, URL": ((), "https://api[.]softlayer[.]com/soap/v3(?:[.]1)?/([a-z0-9]{64})"),
    "SoftLayer": (("softlayer_api_key", "sl-api-key", "SL_KEY", "softlayer_password"), "[a-z0-9]{64}"),
    "Cloudant": (("cloudant_password", "CLOUDANT_API_KEY", "cl_pw", "cloudant-pwd"), "[0-9a-f]{64}"),
    "IBM Cloud IAM": (("ibm_cloud_api_key", "IBM_API_KEY", "ibm-cloud-pwd", "iam_api_key"), "[0-9A-Za-z_-]{44}"),
    "IBM COS HMAC": (("cos_hmac_secret_access_key", "COS_SECRET_KEY", "secret_access_key"), "[0-9a-f]{48}"),
    "AWS": (("aws_secret_key", "AWS_SECRET", "aws_secret_access_key", "aws_token"), "[0-9A-Za-z/+]{40}"),
}


def issued_samples(random, count):
    forms = ("json", "yaml", "env", "export", "toml", "python", "go", "ini", "put", "hash", "flag =", "header")
    for family, (names, pattern) in ISSUED.items():
        for _ in range(max(count // 4, 3)):
            text, groups = sampled(pattern, random)
            start, end = groups.get(1, (0, len(text)))
            secret = text[start:end]
            if names:
                text = SYNTAX[random.choice(forms)].replace("{n}", random.choice(names)).replace("{s}", secret)
            else:
                text = random.choice(AROUND).replace("{}", text)
            yield f"issued, {family}", secret, text


def vectors(path):
    for line in path.read_text().splitlines():
        vector = json.loads(line)
        for secret in vector["secrets"]:
            if len(secret) >= 6 and secret in vector["text"]:
                yield vector["family"], secret, vector["text"]


def is_leaked(secret: str, text: str) -> bool:
    """Return whether a third or more of the secret is in the masked text."""
    masked = mask(text, rules=RULES).text
    size = max(-(-len(secret) // 3), 4)
    return any(secret[at : at + size] in masked for at in range(len(secret) - size + 1))


def rates(samples):
    total, leaked, examples = Counter(), Counter(), {}
    for family, secret, text in samples:
        total[family] += 1
        if is_leaked(secret, text):
            leaked[family] += 1
            examples.setdefault(family, text)
    return {family: (leaked[family] / total[family], total[family], examples.get(family)) for family in total}


def summary(found):
    """Return the mean rate over families, so that no family counts twice for having more samples."""
    return sum(rate for rate, _, _ in found.values()) / max(len(found), 1)


def clean_texts(directory):
    if directory is not None:
        for file in sorted(file for file in directory.rglob("*") if file.is_file()):
            yield file.name, file.read_text(errors="replace")
        return
    below = Path(sysconfig.get_path("purelib"))
    for suffix in (".py", ".pyi", ".md", ".rst", ".txt", ".json", ".js", ".h"):
        for file in sorted(below.rglob(f"*{suffix}")):
            yield suffix, file.read_text(errors="replace")


def false_positives(directory):
    size, masked, examples = Counter(), Counter(), {}
    for kind, text in clean_texts(directory):
        size[kind] += len(text)
        result = mask(text, rules=RULES)
        if result.counts:
            marks = sum((len(rule) + 11) * number for rule, number in result.counts.items())
            masked[kind] += max(len(text) - len(result.text) + marks, 0)
            lines = set(text.splitlines())
            examples.setdefault(kind, []).extend(line for line in result.text.splitlines() if line not in lines)
    return {kind: (masked[kind] / max(size[kind], 1), size[kind], examples.get(kind, [])) for kind in size}


def show_leaks(group, found, *, has_examples):
    if found:
        print(f"\n{group}: {summary(found):.1%} leaked (mean of {len(found)} families)")
    for family, (rate, number, example) in sorted(found.items(), key=lambda item: -item[1][0]):
        if rate:
            print(f"  {rate:7.1%} of {number:5}  {family}")
            if has_examples:
                print(f"      {example!r}")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks secrets", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--samples", type=int, default=200, help="samples per family")
    parser.add_argument("--seed", type=int, default=None, help="default: another one in every run")
    parser.add_argument("--gitleaks", type=Path, help="config/gitleaks.toml")
    parser.add_argument("--vectors", type=Path, help="test vectors, one JSON object per line")
    parser.add_argument("--texts", type=Path, help="a directory of clean text")
    parser.add_argument("--examples", action="store_true", help="print a missed sample of each family")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    random = Random(options.seed)
    makers = (named_samples, password_samples, command_samples, key_samples, format_samples)
    groups = {
        "covered": rates(sample for make in makers for sample in make(random, options.samples)),
        "detect-secrets": rates(detect_secrets_samples(random, options.samples)),
        "families of detect-secrets, as issued": rates(issued_samples(random, options.samples)),
    }
    if options.gitleaks:
        groups["gitleaks"] = rates(gitleaks_samples(options.gitleaks, random, options.samples))
    if options.vectors:
        groups[options.vectors.stem] = rates(vectors(options.vectors))
    clean = false_positives(options.texts)
    share = sum(rate * size for rate, size, _ in clean.values()) / max(sum(size for _, size, _ in clean.values()), 1)
    if options.json:
        leaks = {group: {family: rate for family, (rate, _, _) in found.items()} for group, found in groups.items()}
        print(json.dumps({"leaks": leaks, "false_positives": {kind: rate for kind, (rate, _, _) in clean.items()}}))
        return
    for group, found in groups.items():
        show_leaks(group, found, has_examples=options.examples)
    print(f"\nclean text masked: {share:.4%} of characters")
    for kind, (rate, size, lines) in sorted(clean.items(), key=lambda item: -item[1][0]):
        print(f"  {rate:9.4%} of {size / 1e6:6.1f} MB  {kind}")
        for line in lines[:12] if options.examples else ():
            print(f"      {line.strip()[:150]!r}")


if __name__ == "__main__":
    main()
