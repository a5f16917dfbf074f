"""Each sentence of docs/privacy.md about what is masked, and what is not, holds."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from turnspan.secrets.replace import compile_rules, mask

RULES = compile_rules()
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "privacy.md").read_text().split())
WORD, TOKEN, POLICY = "letmein", "aB3dE5fG7hJ9" + "kL2mN4pQ6rS8", "Summer_2024!"

# What the page says, a text with {w}: a common password, {p}: one that a policy made, {t}: a token.
MASKED = (
    ("`curl -u`", "curl -uadmin:{w} https://x"),
    ("`curl -u`", "curl -s \\\n  -u admin:{p} https://x"),
    ("`mysql -p…`", "mysql -h db -p{p} shop"),
    ("`docker login -p`", "docker login -u me -p {w} r.example.com"),
    ("`sshpass -p`", "sshpass -p {w} ssh me@x"),
    ("`redis-cli -a`", "redis-cli -h x -a {w} ping"),
    ("redis `AUTH`", "127.0.0.1:6379> AUTH {w}"),
    ("`requirepass`", "requirepass {w}\n"),
    ("`sqlcmd -P`", "sqlcmd -S x -U sa -P {p}"),
    ("`zip -P`", "zip -r -P {w} a.zip b"),
    ("`7z -p…`", "7z a -p{p} a.7z b"),
    ("`sqlplus user/…@`", "sqlplus scott/{w}@orcl"),
    ("`ldapsearch -w`", "ldapsearch -x -D cn=admin -w {w} -b dc=x"),
    ("`smbclient -U user%…`", "smbclient -U alice%{w} //s/x"),
    ("`openssl -passin pass:…`", "openssl rsa -in k -passin pass:{w} -out x"),
    ("`htpasswd -b`", "htpasswd -b .htpasswd bob {w}"),
    ("`rabbitmqctl add_user`", "rabbitmqctl add_user bob {w}"),
    ("`ssh-keygen -N`", "ssh-keygen -t rsa -N {p} -f k"),
    ("`-u user -p …` of any command", "mongosh -u admin -p {w} --quiet"),
    ("`-u user -p …` of any command", "twine upload -u bob -p {p} dist/a"),
    ("`echo … | sudo -S`", "echo '{p}' | sudo -S apt update"),
    ("`| chpasswd`", 'echo "bob:{p}" | chpasswd'),
    ("`| … --password-stdin`", "echo {w} | docker login -u me --password-stdin x"),
    ("`cargo login`", "cargo login {t}"),
    ("`vault login`", "vault login {t}"),
    ("`poetry config pypi-token.pypi`", "poetry config pypi-token.pypi {t}"),
    ("`gh secret set --body`", "gh secret set NAME --body {p}"),
    ('`ConvertTo-SecureString "…"`', '$p = ConvertTo-SecureString "{w}" -AsPlainText -Force'),
    ("names that end in `password`", "dbPw = '{w}'"),
    ("on the next line in YAML and JSON", "db:\n  password:\n    {p}\n"),
    ("on the next line in YAML and JSON", '{\n "password":\n   "{w}"\n}'),
    ("behind `||`, `??` or `or`", "const pw = process.env.X || '{w}'"),
    ("behind `||`, `??` or `or`", "const dbPassword = process.env.X || '{w}'"),
    ("in an `.env` file", "A=1\nDB_PASSWORD={w}\n"),
    ("in an `.env` file", "DB_PASSWORD=123456\n"),
    ("an ini file", "[client]\nuser = root\npassword = {w}\n"),
    ("an ini file", "     1→[client]\n     2→# comment\n     3→password = {w}\n"),
    ("`.netrc`", "machine x.org\n\tlogin me\n\tpassword {w}\n"),
    ("a form body", "user=bob&password={w}"),
    ("a form body", "password={w}&user=bob"),
    ("a query", "https://x.org/login?password={w}"),
    ("a multipart field", 'Content-Disposition: form-data; name="password"\r\n\r\n{w}\r\n--x'),
    ("a connection string", "Server=db;User Id=sa;Password={w};Encrypt=true"),
    ("a connection string", "host=db user=app password={w} dbname=x"),
    ("`${NAME:-…}`", "password: ${DB_PASSWORD:-{w}}"),
    ("`--password …`", "tool --password {w} --now"),
    ("`--password=…`", "tool --db-password={w}"),
    ("`-Dpassword=…`", "mvn deploy -Dpassword={w}"),
    ("`--set auth.password=…`", "helm install x --set auth.password={w}"),
    ("after `ENV`, `set -x`, `setx`", "ENV DB_PASSWORD {w}\n"),
    ("after `ENV`, `set -x`, `setx`", "set -x DB_PASSWORD {w}\n"),
    ("after `ENV`, `set -x`, `setx`", "setx DB_PASSWORD {w}\n"),
    ("the default of a Terraform variable", 'variable "db_password" {\n  default = "{w}"\n}'),
    ("an argument of a constructor", 'password = SecretStr("{p}")'),
    ("in SQL (`IDENTIFIED BY`, `WITH PASSWORD`)", "CREATE USER a IDENTIFIED BY '{w}'"),
    ("in either order", '{"value": "{w}", "name": "DB_PASSWORD"}'),
    ("in either order", '{"name": "DB_PASSWORD", "value": "{w}"}'),
    ('in a sentence ("the password is …")', "the password is {w}"),
    ('in a sentence ("the password is …")', "The user is bob and the password is {w}, thanks."),
    ('at a prompt ("New password: …")', "New password: {w}\n"),
    ("the password in a URL", "postgres://bob:p@s#w/d?{w}@db.example.com/x"),
    ("the password in a URL", "postgres://bob:{w}@s/d@db/x"),
    ("The colours of a terminal", "\x1b[01;31m\x1b[Kpassword\x1b[m\x1b[K={w}"),
    ("The colours of a terminal", '\x1b[34;1m"password"\x1b[0m\x1b[1;39m:\x1b[0m \x1b[0;32m"{w}"\x1b[0m'),
    ("The colours of a terminal", "gh" + "p_aB3dE5fG7hJ9\x1b[1m{t}\x1b[0m"),
    ("`slack-token` includes `xoxd-`", "xo" + "xd-{t}"),
    ("licence keys (`…NRAL`)", "0123456789abcdef0123456789abcdef0123NR" + "AL"),
    ("cookie files", ".example.com\tTRUE\t/\tTRUE\t1799999999\tsid\t{t}"),
    ("the `auth` of Docker and npm", '"auth": "bWU6aHVudGVyMjIy"'),
)  # fmt: skip
CLEAN = (
    "password = some_variable", "password=password", "PASSWORD = os.environ['DB_PASSWORD']", "password = getpass('Password: ')",
    "connect(user=user, password=pw, host=host)", "interface A {\n  password: string;\n  token?: string | null;\n}",
    "def login(user, password, token=None):", "password: SecretStr", "if password:\n    return\n", "class Token:\n    value\n",
    "use the --password option to log in", "--password STRING  the password", "the password is required", "run --ask-vault-pass first",
    "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com", "sk-ssh-ed25519-cert-v01@openssh.com",
    "arn:aws:secretsmanager:us-east-1:123456789012:secret:prod/db-AbC123",
    'HEX_PAT = "[0-9A-Fa-f]{1,4}-[0-9]{2}"', 'DATE_PAT = r"\\d{4}-\\d{2}-\\d{2}T[0-9:]+"',
    'partition_key = "a1b2c3d4e5f6a7b8c9d0"', "idempotency_key: 8f14e45fceea167a5a36dedd4bea2543",
    'result_key="a1b2c3d4e5f6a7b8c9d0"', "s3_key = 'a1b2c3d4e5f6a7b8c9d0.json'", "http://[user[:password]@]host",
    "docker run -u 1000 -p 8080:80 nginx", "mysql -u root -p shop2", "mkdir -p a1b2", "that would pass is not clear",
    "password = $DB_PASSWORD", "--password changeme", "password: <your password>",
)  # fmt: skip
COMPOUNDS = ("api key", "secret key", "cookie key", "session token", "client secret", "signing key", "access token", "db password")


@pytest.mark.parametrize(("said", "form"), MASKED)
def test_what_the_page_promises_is_masked(said, form):
    """The page says so, and the value is masked."""
    assert said in PAGE
    for sign, secret in (("{w}", WORD), ("{p}", POLICY), ("{t}", TOKEN)):
        form = form.replace(sign, secret)
    masked = mask(form, rules=RULES)
    assert masked.counts
    assert all(secret not in masked.text for secret in (WORD, POLICY[:8], TOKEN, "aHVudGVyMjIy", "123456", "0123456789abcdef"))


@pytest.mark.parametrize("text", CLEAN)
def test_code_documentation_and_ids_stay_readable(text):
    """Variables, types, calls, templates, names of algorithms and keys of data are not masked."""
    assert mask(text, rules=RULES) == (text, {})


@pytest.mark.parametrize("name", COMPOUNDS)
def test_a_name_can_be_spelled_in_any_way(name):
    """Camel, snake, kebab, dotted and upper case are the same name, with each syntax."""
    words = name.split()
    spellings = (
        words[0] + words[1].title(), "".join(map(str.title, words)), "_".join(words), "_".join(words).upper(),
        "-".join(words), ".".join(words), "".join(words),
    )  # fmt: skip
    for spelling, form in product(spellings, ('"{n}": "{s}"', "{n} = '{s}'", "{n}: {s}\n", "{n}={s}\n", "tool --{n} {s} -x")):
        text = form.replace("{n}", spelling).replace("{s}", TOKEN)
        assert TOKEN not in mask(text, rules=RULES).text, text
