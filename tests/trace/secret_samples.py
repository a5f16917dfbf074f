"""Generates secrets for every rule. No file of the project contains one."""

from __future__ import annotations

import base64
import string
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ALNUM = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URL64 = ALNUM + "-_"
B64 = ALNUM + "+/"


class Sample(NamedTuple):
    """A secret, and a text that contains it in a realistic form."""

    rule: str
    secret: str
    text: str


def some(random: Random, alphabet: str, n: int) -> str:
    """Return `n` random characters: at least one digit if the alphabet has any, and a letter at the end."""
    made = [random.choice(alphabet) for _ in range(n)]
    made[n // 2] = random.choice([c for c in alphabet if c.isdigit()] or alphabet)
    made[-1] = random.choice([c for c in alphabet if c.isalpha()] or alphabet)
    return "".join(made)


def _prefixed(rule: str, prefix: str, alphabet: str, n: int) -> Callable[[Random], Sample]:
    def make(random: Random) -> Sample:
        secret = prefix + some(random, alphabet, n)
        around = random.choice(
            ["{}", "see {} there", "x={}", '"{}"', "export A={}\n", "a\n{}\nb", "({})", "A_{}", "{},"]
        )
        return Sample(rule, secret, around.format(secret))

    return make


def _inside(rule: str, template: str, alphabet: str, n: int) -> Callable[[Random], Sample]:
    def make(random: Random) -> Sample:
        secret = some(random, alphabet, n)
        return Sample(rule, secret, template.replace("{}", secret))

    return make


def _jwt(random: Random) -> Sample:
    def part(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    payload = part(f'{{"sub":"{some(random, string.digits, 10)}","name":"A B"}}')
    secret = ".".join((part('{"alg":"HS256","typ":"JWT"}'), payload, some(random, URL64, 43)))
    return Sample("jwt", secret, f"got {secret} back")


def _pem(kind: str, *, ends: bool = True, begins: bool = True, newline: str = "\n") -> Callable[[Random], Sample]:
    def make(random: Random) -> Sample:
        lines = [some(random, B64, 64) for _ in range(12)]
        dashes = "-" * 5
        head = f"{dashes}BEGIN {kind}PRIVATE KEY{dashes}"
        tail = f"{dashes}END {kind}PRIVATE KEY{dashes}"
        text = newline.join(([head] if begins else []) + lines + ([tail] if ends else []))
        return Sample("private-key", lines[5], f"cat key\n{text}" + ("\ndone." if ends else ""))

    return make


def _basic(random: Random) -> Sample:
    secret = base64.b64encode(f"admin:{some(random, ALNUM, 12)}".encode()).decode()
    return Sample("authorization", secret, f"Authorization: Basic {secret}\nAccept: */*")


def _loose_basic(random: Random) -> Sample:
    secret = base64.b64encode(f"someone:{some(random, ALNUM, 14)}".encode()).decode()
    return Sample("basic-auth", secret.rstrip("="), f'auth = "Basic {secret}"')


def _docker(random: Random) -> Sample:
    secret = base64.b64encode(f"me:{some(random, ALNUM, 12)}".encode()).decode()
    return Sample("authorization", secret, f'{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{secret}"}}}}}}')


def _in_base64(random: Random) -> Sample:
    token = "gh" + "p_" + some(random, ALNUM, 36)
    secret = base64.b64encode(f'{{"user": "me", "value": "{token}"}}'.encode()).decode().rstrip("=")
    return Sample("github-token", secret, f'{{"blob": "{secret}"}}')


def _discord(random: Random) -> Sample:
    secret = "." + some(random, ALNUM, 6) + "." + some(random, ALNUM, 38)
    return Sample("discord-token", secret, f"bot = 'M{some(random, ALNUM, 23)}{secret}'")


def _aws_pair(random: Random) -> Sample:
    secret = some(random, B64, 40)
    return Sample("aws-access-key", secret, f"AK{'IA'}{some(random, UPPER, 16)},{secret}")


PREFIXED = (
    ("aws-access-key", "AK" + "IA", UPPER, 16), ("aws-access-key", "AS" + "IA", UPPER, 16),
    ("google-api-key", "AI" + "za", URL64, 35), ("google-oauth", "GOC" + "SPX-", URL64, 28),
    ("google-oauth", "ya" + "29.", URL64, 60), ("google-oauth", "1/" + "/0", URL64, 50),
    *(("github-token", f"gh{kind}_", ALNUM, 36) for kind in "pousr"),
    ("github-token", "github" + "_pat_", ALNUM, 82), ("gitlab-token", "gl" + "pat-", URL64, 20),
    ("gitlab-token", "gl" + "dt-", URL64, 20), ("gitlab-token", "gl" + "rt-", URL64, 20),
    ("bitbucket-token", "AT" + "BB", ALNUM, 32), ("atlassian-token", "ATA" + "TT3", URL64, 180),
    ("npm-token", "np" + "m_", ALNUM, 36), ("pypi-token", "py" + "pi-Ag", URL64, 150),
    ("rubygems-token", "ruby" + "gems_", HEX, 48), ("docker-token", "dck" + "r_pat_", URL64, 27),
    ("slack-token", "xo" + "xb-12345678901-", ALNUM, 24), ("slack-token", "xo" + "xp-123456789012-", ALNUM, 32),
    ("slack-token", "xa" + "pp-1-", ALNUM, 40), ("stripe-key", "sk_" + "live_", ALNUM, 24),
    ("stripe-key", "rk_" + "live_", ALNUM, 24), ("stripe-key", "sk_" + "test_", ALNUM, 24),
    ("stripe-key", "wh" + "sec_", ALNUM, 32), ("twilio-key", "S" + "K", HEX, 32), ("mailgun-key", "ke" + "y-", HEX, 32),
    ("anthropic-key", "sk-" + "ant-api03-", URL64, 95), ("langfuse-key", "sk-" + "lf-", HEX + "-", 36),
    ("langfuse-key", "pk-" + "lf-", HEX + "-", 36), ("openai-key", "sk-", ALNUM, 48),
    ("openai-key", "sk-" + "proj-", URL64, 120), ("huggingface-token", "h" + "f_", ALNUM, 34),
    ("groq-key", "gs" + "k_", ALNUM, 52), ("xai-key", "xa" + "i-", ALNUM, 80),
    ("perplexity-key", "pp" + "lx-", ALNUM, 48), ("replicate-token", "r" + "8_", ALNUM, 37),
    ("digitalocean-token", "do" + "p_v1_", HEX, 64),
    ("shopify-token", "sh" + "pat_", HEX, 32), ("square-token", "sq" + "0atp-", URL64, 22),
    ("square-token", "EA" + "AA", URL64, 60), ("heroku-key", "HR" + "KU-", URL64, 60),
    ("vault-token", "hv" + "s.", URL64, 90), ("databricks-token", "da" + "pi", HEX, 32),
    ("notion-token", "nt" + "n_", ALNUM, 46), ("linear-key", "lin" + "_api_", ALNUM, 40),
    ("figma-token", "fi" + "gd_", URL64, 40), ("postman-key", "PM" + "AK-", HEX, 59),
    ("sentry-token", "sn" + "trys_", ALNUM, 60), ("grafana-token", "gl" + "sa_", ALNUM, 41),
    ("newrelic-key", "NR" + "AK-", UPPER, 27), ("supabase-token", "sb" + "p_", HEX, 40),
    ("netlify-token", "nf" + "p_", ALNUM, 40), ("planetscale-token", "psc" + "ale_tkn_", URL64, 43),
    ("doppler-token", "dp" + ".pt.", ALNUM, 43), ("alibaba-key", "LT" + "AI", ALNUM, 20),
    ("age-key", "AGE-SECRET" + "-KEY-1", UPPER, 58),
)  # fmt: skip

INSIDE = (
    ("telegram-token", "https://api.telegram.org/bot123456789:" + "AA{}/getMe", URL64, 33),
    ("sendgrid-key", "S" + "G." + "a1B2c3D4e5F6g7H8i9J0kl" + ".{}", URL64, 43),
    ("azure-sas", "https://x.blob.core.windows.net/c?sv=2022-11-02&sig={}%3D&sp=r", ALNUM, 43),
    ("azure-key", "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={}==;EndpointSuffix=y", B64, 86),
    ("azure-key", "Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey={}=", B64, 43),
    ("azure-secret", "AZURE=abc8" + "Q~{}", ALNUM, 34),
    ("aws-secret-key", "aws_secret_access_key = {}", B64, 40),
    ("aws-secret-key", '{"SecretAccessKey": "{}"}', B64, 40),
    ("slack-webhook", "https://hooks.slack.com/services/T0A1B2C3D/B0A1B2C3D/{}", ALNUM, 24),
    ("discord-webhook", "https://discord.com/api/webhooks/123456789012345678/{}", URL64, 68),
    ("url-password", "postgres://app:{}@db.internal:5432/app", ALNUM, 12),
    ("url-password", "mongodb+srv://root:{}@cluster0.mongodb.net/?w=1", ALNUM, 12),
    ("url-password", "redis://:{}@localhost:6379/0", ALNUM, 12),
    ("url-password", "mysql://root:{}@127.0.0.1/x", ALNUM, 10),
    ("url-password", "amqp://guest:{}@mq:5672/", ALNUM, 10),
    ("url-password", "git clone https://me:{}@git.internal/x.git", ALNUM, 16),
    ("bearer", 'call("Bearer {}")', ALNUM, 40),
    ("authorization", "Authorization: Bearer {}\r\nHost: x", ALNUM, 12),
    ("authorization", "curl -H 'Authorization: token {}' https://x", ALNUM, 18),
    ("cookie", "Cookie: theme=dark; session={}\r\n", ALNUM, 26),
    ("cookie", "Set-Cookie: sid={}; Path=/; HttpOnly", ALNUM, 26),
    ("password", "DB_PASSWORD={}", ALNUM, 10),
    ("password", 'password = "{}"', ALNUM, 8),
    ("password", '{"user": "me", "password": "{}"}', ALNUM, 9),
    ("password", '{\\"password\\": \\"{}\\"}', ALNUM, 9),
    ("password", "db:\n  password: {}\n  host: x\n", ALNUM, 9),
    ("password", "mysql --user me --password {} --host x", ALNUM, 9),
    ("password", "<connection><password>{}</password></connection>", ALNUM, 9),
    ("password", "- name: DB_PASSWORD\n  value: {}\n", ALNUM, 9),
    ("password", 'def connect(password: str = "{}"): ...', ALNUM, 9),
    ("password", "     7→password={}\n     8→x=1", string.ascii_lowercase, 12),
    ("password", "     7→  password: {}\n", string.ascii_lowercase, 12),
    ("password", "machine x.org login me password {}\n", ALNUM, 9),
    ("basic-auth", "curl -s -u admin:{} https://x/api", ALNUM, 9),
    ("aws-secret-key", "aws configure set aws_secret_access_key {}", B64, 40),
    ("password", "my password is {} and yours?", ALNUM, 9),
    ("secret", "client_secret={}", ALNUM, 24),
    ("secret", 'secret: "{}"', ALNUM, 24),
    ("token", '"access_token": "{}"', ALNUM, 24),
    ("token", "export DEPLOY_TOKEN={}", ALNUM, 24),
    ("token", "deploy --auth-token {} --now", ALNUM, 24),
    ("api-key", "DD_API_KEY={}", HEX, 32),
    ("api-key", "X-Api-Key: {}", ALNUM, 32),
    ("api-key", 'headers["X-API-Key"] = "{}"', ALNUM, 32),
    ("api-key", "const apiKey = '{}'", ALNUM, 32),
    ("key", "BRAINTREE_KEY={}", ALNUM, 32),
    ("github-token", '{"text": "\\u0067\\u0068\\u0070_{}"}', ALNUM, 36),
)  # fmt: skip

MAKERS: tuple[Callable[[Random], Sample], ...] = (
    *(_prefixed(*row) for row in PREFIXED),
    *(_inside(*row) for row in INSIDE),
    _jwt, _pem(""), _pem("RSA "), _pem("OPENSSH "), _pem("EC ", newline="\\n"), _pem("RSA ", ends=False),
    _pem("RSA ", begins=False), _basic, _loose_basic, _docker, _in_base64, _discord, _aws_pair,
)  # fmt: skip
