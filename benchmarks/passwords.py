"""Measures which passwords leak in which form, and how many lines of real code are masked.

    python -m benchmarks passwords [--seed N] [--examples] [--code DIRECTORY ...] [--no-code]

- Forms x passwords: 1,000 common passwords (of the package `zxcvbn` if it is installed, otherwise words with digits)
  and 1,000 of the kind that a policy makes people choose, in each form in which they are written without quotes, and
  in the usual others. At most 3 % may leak in every form.
- Lines of code: packages of PyPI, npm and Go are downloaded into a temporary directory; at most 0.02 % of their lines
  may be masked. `--code` takes directories instead.
- The forms of `written`: a form leaks if a third of its secret, in one piece, is in the masked text.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections import Counter
from pathlib import Path
from random import Random
from string import ascii_letters, digits
from urllib.parse import quote_plus

import written

from turnspan.secrets.replace import compile_rules, mask

RULES = compile_rules()
MOST_LEAKED, MOST_LINES = 0.03, 0.0002
# {s}: the password. Before the last colon of a name: the way it is spelled there.
FORMS = {
    "--password X": "tool login --user bob --password {s} --host db",
    "--password X, last": "tool login --user bob --password {s}",
    "--password=X": "tool --user=bob --password={s} --host=db",
    "-password X": "tool -user bob -password {s}\n",
    "ini": "[client]\nuser = bob\npassword = {s}\nhost = db\n",
    "ini, no spaces": "[client]\nuser=bob\npassword={s}\n",
    "ini, colon": "[client]\nuser: bob\npassword: {s}\n",
    "properties": "db.url=x\ndb.password={s}\ndb.user=bob\n",
    ".netrc, one line": "machine db.example.com login bob password {s}\n",
    ".netrc, several": "machine db.example.com\n\tlogin bob\n\tpassword {s}\n",
    "form body": "user=bob&password={s}&submit=1",
    "form body, first": "password={s}&user=bob",
    "query": "https://example.com/login?user=bob&password={s}",
    "prose": "the password is {s}",
    "prose, sentence": "The user is bob and the password is {s}. Try again.",
    "prose, comma": "my password is {s}, please log in",
    "double quotes": 'password = "{s}"\n',
    "single quotes": "connect(user='bob', password='{s}')",
    "JSON": '{"user": "bob", "password": "{s}"}',
    "YAML": "db:\n  password: {s}\n  port: 1\n",
    "YAML, quoted": "db:\n  password: '{s}'\n",
    ".env": "DB_USER=bob\nDB_PASSWORD={s}\nDB_PORT=1\n",
    "export": "export DB_PASSWORD='{s}'\n",
    "URL": "postgres://bob:{s}@db.example.com:5432/x",
    "URL, no user": "redis://:{s}@cache:6379/0",
    "connection string": "Server=db;User Id=sa;Password={s};Encrypt=true",
}
WORDS = (
    "summer", "winter", "autumn", "spring", "dragon", "monkey", "master", "shadow", "sunshine", "princess",
    "football", "baseball", "welcome", "freedom", "tiger", "orange", "banana", "silver", "golden", "purple",
    "london", "berlin", "chicago", "dallas", "austin", "michael", "jordan", "thomas", "robert", "daniel", "andrew",
    "jessica", "ashley", "nicole", "hunter", "soccer", "hockey", "ranger", "buster", "killer", "pepper", "ginger",
    "cookie", "coffee", "cheese", "computer", "internet", "matrix", "mustang", "porsche", "ferrari", "yellow",
    "flower", "summertime", "letmein", "iloveyou", "trustno1", "batman", "superman",
)  # fmt: skip


def common_passwords(random: Random) -> list[str]:
    """Return 1,000 common passwords, the most frequent first where `zxcvbn` knows them."""
    if importlib.util.find_spec("zxcvbn") is not None:
        from zxcvbn.frequency_lists import FREQUENCY_LISTS  # noqa: PLC0415  optional

        return list(FREQUENCY_LISTS["passwords"])[:1000]
    made: dict[str, None] = dict.fromkeys(WORDS)
    while len(made) < 1000:
        word = random.choice(WORDS)
        number = random.randint(0, 99_999_999)
        made[random.choice((f"{word}{number % 100}", f"{number:04}", word[:5] + word[-2:], word * 2))] = None
    return list(made)


def policy_password(random: Random) -> str:
    """Return a password with a capital, a digit and a sign, as people make them, or as a generator does."""
    word, other, sign = random.choice(WORDS), random.choice(WORDS), random.choice("!!!!@#$%&*-_.?+")
    number = str(random.choice((random.randint(1, 99), random.randint(1970, 2030), 123, 1234)))
    made = (
        word.title() + number + sign,
        word.title() + sign + number,
        sign + word.title() + number,
        word.title() + sign + other.title() + number,
        word.title() + "_" + number,
        word.title().replace("a", "@").replace("o", "0").replace("e", "3") + number,
        word.title() + number,
        "".join(random.choice(ascii_letters + digits + "!@#$%^*-_+=?.~") for _ in range(random.randint(10, 16))) + "7a",
    )
    return random.choice(made)


def spelled(form: str, password: str) -> str:
    """Return the password as this form can hold it: encoded in a URL, quoted where YAML needs it."""
    if form in {"form body", "form body, first", "query"}:
        return quote_plus(password)
    if form == "YAML" and password[0] in "!&*?@%#-'\"[]{}|>,`":
        return f"'{password}'"
    return password


def is_leaked(secret: str, text: str, before: str = "") -> bool:
    """Return whether a third of the secret, or four characters, is in the masked text after what is before it."""
    masked = mask(text, rules=RULES).text
    masked = masked.removeprefix(before)
    masked = re.sub(r"\[redacted:[\w-]+\]", " ", masked)
    size = max(-(-len(secret) // 3), 4)
    pieces = (secret[at : at + size] for at in range(max(len(secret) - size, 0) + 1))
    return any(piece in masked for piece in pieces)


def leaks_by_form(random: Random):
    """Return the passwords of both lists that leak, by form."""
    lists = {"common": common_passwords(random), "policy": [policy_password(random) for _ in range(1000)]}
    for form, template in FORMS.items():
        before = template.partition("{s}")[0]
        leaked = {}
        for name, passwords in lists.items():
            spelling = [spelled(form, password) for password in passwords]
            leaked[name] = [s for s in spelling if is_leaked(s, template.replace("{s}", s), before)]
        yield form, leaked


def leaks_as_written(random: Random, each: int = 5):
    """Return the forms of `written` that leak, each with its share."""
    common = common_passwords(random)
    makers = {
        "{p}": lambda: policy_password(random),
        "{c}": lambda: random.choice(common),
        "{h}": lambda: f"{random.getrandbits(128):032x}",
        "{H}": lambda: f"{random.getrandbits(256):064x}",
        "{a}": lambda: "".join(random.choices(ascii_letters + digits, k=32)),
        "{b}": lambda: "".join(random.choices(ascii_letters + digits + "+/", k=40)),
        "{n}": lambda: "".join(random.choices(ascii_letters + digits + "-_", k=24)),
        "{B}": lambda: base64.b64encode(f"me:{policy_password(random)}".encode()).decode().rstrip("="),
        "{u}": lambda: str(uuid.UUID(int=random.getrandbits(128), version=4)),
    }
    for group, forms in (("commands", written.COMMANDS), ("files and sentences", written.FILES)):
        for form in forms:
            leaked = 0
            for _ in range(each):
                text, secrets = form.replace("\\u001b", "\x1b"), list[str]()
                for sign, make in makers.items():
                    while sign in text:
                        secret = make()
                        if sign != "{u}" or not secrets:  # with another secret, a UUID is an id
                            secrets.append(secret)
                        text = text.replace(sign, secret, 1)
                leaked += any(is_leaked(secret, text, text.partition(secret)[0]) for secret in secrets)
            yield group, form, leaked / each


# ---- code

SDISTS = ("Django==5.1", "ansible-core==2.17.0", "paramiko==3.4.0", "keystoneauth1==5.6.0", "twisted==24.3.0")
PACKAGES = ("express", "mongoose", "typeorm", "nodemailer", "pg", "mysql2", "firebase-admin", "webpack", "eslint")
MODULES = ("github.com/hashicorp/vault/api@v1.14.0", "k8s.io/client-go@v0.30.0",
           "github.com/go-sql-driver/mysql@v1.8.1", "github.com/jackc/pgx/v5@v5.6.0",
           "github.com/minio/minio-go/v7@v7.0.70")  # fmt: skip
CODE = {".py", ".js", ".ts", ".mjs", ".cjs", ".go", ".c", ".h", ".sh", ".yml", ".yaml", ".md", ".rst", ".txt", ".toml",
        ".cfg", ".ini", ".html", ".xml", ".sql", ".rb", ".java", ".ps1", ".proto", ".graphql"}  # fmt: skip


def download(below: Path) -> None:
    """Download packages of PyPI, npm and Go; a tool that is missing is left out."""
    environment = {**os.environ, "GOMODCACHE": str(below / "go"), "GOFLAGS": "-modcacherw"}
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(below / "npm"), *PACKAGES]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d"]
    go = ["go", "mod", "download"]
    calls = [npm, *([*pip, str(below / "pypi"), name] for name in SDISTS), *([*go, name] for name in MODULES)]
    for call in calls:
        try:
            subprocess.run(call, env=environment, check=False, capture_output=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"left out: {call[0]}: {error}", file=sys.stderr)
    for archive in below.glob("pypi/*"):
        unpacked = below / "pypi" / archive.name.removesuffix(".tar.gz")
        if archive.suffix == ".zip":
            zipfile.ZipFile(archive).extractall(unpacked)
        elif archive.suffix == ".gz":
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")


TESTS = re.compile(r"(?i)(?:^|[/_.-])(?:tests?|testing|testdata|spec|examples?|fixtures?|mocks?)(?:[/_.-]|$)")


def form_of(line: str) -> str:
    """Return how the first masked value of a line is written."""
    before = line.partition("[redacted:")[0]
    if "://" in before[-80:] and before.endswith(":"):
        return "in a URL"
    if before.rstrip().endswith(('"', "'", "`")):
        return "in quotes"
    if re.search(r"(?:is|for \S+:) $", before):
        return "in a sentence"
    if re.search(r"--?[\w-]+[ =]$", before):
        return "after an option"
    return "after = or :" if before.rstrip().endswith(("=", ":")) else "other"


def masked_lines(directories):
    """Return the number of lines, and the masked lines by form; without tests and examples, which hold passwords."""
    lines, masked = 0, dict[str, list[str]]()
    for below in directories:
        for file in sorted(file for file in below.rglob("*") if file.suffix in CODE and file.is_file()):
            name = str(file.relative_to(below))
            text = file.read_text(errors="replace")
            if TESTS.search(name) or max(map(len, text.splitlines()), default=0) > 2000:
                continue  # the second: minified, a line of it is a whole program
            lines += text.count("\n") + 1
            result = mask(text, rules=RULES)
            if result.counts:
                before = Counter(text.splitlines())
                found = [line for line in result.text.splitlines() if "[redacted:" in line and line not in before]
                for line in found:
                    masked.setdefault(form_of(line), []).append(f"{name}: {line.strip()}")
    return lines, masked


def print_code(directories, *, has_examples: bool) -> bool:
    """Print the share of lines that are masked, by form."""
    lines, masked = masked_lines(directories)
    number = sum(map(len, masked.values()))
    print(f"\nlines of code masked: {number} of {lines} ({number / max(lines, 1):.4%}; at most {MOST_LINES:.2%})")
    for form, found in sorted(masked.items()):
        print(f"  {len(found) / lines:9.4%}  {form}")
        for line in found if has_examples else ():
            print(f"      {line[:200]}")
    return number <= MOST_LINES * lines


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks passwords", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=None, help="default: another one in every run")
    parser.add_argument("--code", type=Path, nargs="*", help="directories of code instead of downloads")
    parser.add_argument("--no-code", action="store_true")
    parser.add_argument("--examples", action="store_true", help="print what leaks and what is masked")
    options = parser.parse_args()
    random = Random(options.seed)
    is_good = True
    print(f"passwords that leak, of 1,000 each (at most {MOST_LEAKED:.0%})\n  common  policy  form")
    for form, leaked in leaks_by_form(random):
        common, policy = leaked["common"], leaked["policy"]
        is_good &= max(len(common), len(policy)) <= MOST_LEAKED * 1000
        print(f"  {len(common) / 1000:6.1%}  {len(policy) / 1000:6.1%}  {form}")
        if options.examples:
            print(f"      {' '.join(common[:30])}\n      {' '.join(policy[:20])}")
    rates: dict[str, list[float]] = {}
    for group, form, rate in leaks_as_written(random):
        rates.setdefault(group, []).append(rate)
        if rate and options.examples:
            print(f"  {rate:4.0%}  {form!r}")
    every = [rate for found in rates.values() for rate in found]
    print(f"\nforms as people write them: {sum(every) / len(every):.1%} of {len(every)} leak")
    for group, found in rates.items():
        print(f"  {sum(found) / len(found):6.1%} of {len(found)}  {group}")
    if not options.no_code:
        with tempfile.TemporaryDirectory() as temporary:
            if not options.code:
                download(Path(temporary))
            is_good &= print_code(options.code or [Path(temporary)], has_examples=options.examples)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
