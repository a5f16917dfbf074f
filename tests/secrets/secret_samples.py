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
BASE36 = string.ascii_lowercase + string.digits
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
    ("1password-token", "ops" + "_eyJ", URL64, 200), ("adafruit-key", "aio_" + "abcd", ALNUM, 24),
    ("adobe-secret", "p8" + "e-", ALNUM, 32), ("airtable-token", "patAbcdef" + "gh1234Z9.", HEX, 64),
    ("artifactory-token", "AK" + "Cp", ALNUM, 69),
    ("bedrock-key", "AB" + "SK", ALNUM, 120),
    ("buildkite-token", "bk" + "ua_", HEX, 40), ("circleci-token", "CCIPAT_Abcde" + "fgh12345678_", HEX, 40),
    ("clickhouse-key", "4b" + "1d", ALNUM, 38), ("clojars-token", "CLOJ" + "ARS_", HEX, 60),
    ("cloudflare-key", "v1.0-0123456789" + "abcdef01234567-", HEX, 146),
    ("contentful-token", "CFP" + "AT-", URL64, 43), ("crates-token", "c" + "io", ALNUM, 32),
    ("dropbox-token", "s" + "l.", URL64, 135), ("duffel-token", "duffel" + "_live_", URL64, 43),
    ("dynatrace-token", "dt0c01.ABCDEFGHI" + "JKLMNOPQRSTUV12.", UPPER, 64), ("e2b-key", "e2" + "b_", HEX, 40),
    ("easypost-key", "EZ" + "AK", ALNUM, 54), ("facebook-token", "EA" + "AC", ALNUM, 120),
    ("firecrawl-key", "f" + "c-", HEX, 32), ("fireworks-key", "f" + "w_", ALNUM, 24),
    ("flutterwave-key", "FLWSEC" + "K_TEST-", HEX, 32), ("fly-token", "fo" + "1_", URL64, 43),
    ("frameio-token", "fio" + "-u-", URL64, 64), ("gitlab-token", "GR13" + "48941", URL64, 20),
    ("harness-key", "pat.Abcdefghijklmnopqrst12" + ".Abcdefghijklmnopqrstuv12.", ALNUM, 20),
    ("huggingface-token", "api_" + "org_", ALNUM, 34), ("infracost-key", "ic" + "o-", ALNUM, 32),
    ("intercom-token", "dG" + "9rO", ALNUM, 55), ("intra42-secret", "s-s4" + "t2ud-", HEX, 64),
    ("apify-token", "api" + "fy_api_", ALNUM, 36), ("launchdarkly-key", "ap" + "i-0123abcd-4567-89ab-cdef-", HEX, 12),
    ("jina-key", "ji" + "na_", URL64, 60), ("langsmith-key", "lsv2" + "_pt_", HEX, 32),
    ("mapbox-token", "sk.eyJ1IjoiYWJjIiwiYSI6ImFiY2" + "RlZmdoaWprbG1ub3BxcnN0dXYifQ.", URL64, 22),
    ("mongodb-secret", "mdb_s" + "a_sk_", URL64, 40), ("nuget-key", "o" + "y2", BASE36, 43),
    ("nvidia-key", "nva" + "pi-", URL64, 64), ("octopus-key", "AP" + "I-", UPPER, 26),
    ("openshift-token", "sha" + "256~", URL64, 43), ("pinecone-key", "pc" + "sk_", ALNUM, 64),
    ("plaid-token", "access-sandbox-0123" + "4567-89ab-cdef-0123-", HEX, 12), ("posthog-key", "ph" + "x_", ALNUM, 43),
    ("prefect-key", "pn" + "u_", ALNUM, 36), ("pulumi-token", "pu" + "l-", HEX, 40),
    ("razorpay-key", "rzp_" + "live_", ALNUM, 14), ("readme-key", "rd" + "me_", BASE36, 70),
    ("render-key", "rn" + "d_", ALNUM, 28), ("resend-key", "re_Abc" + "d1234_", ALNUM, 24),
    ("scalingo-token", "tk-" + "us-", URL64, 48), ("settlemint-token", "sm_" + "pat_", ALNUM, 16),
    ("shippo-token", "shippo" + "_live_", HEX, 40), ("softlayer-key", "soap" + "/v3/", HEX, 64), ("sonarqube-token", "sq" + "u_", HEX, 40),
    ("sourcegraph-token", "sg" + "p_", HEX, 40), ("supabase-token", "sb_se" + "cret_", URL64, 31),
    ("tailscale-key", "tskey" + "-auth-", ALNUM, 30), ("tavily-key", "tv" + "ly-", ALNUM, 32),
    ("together-key", "tgp" + "_v1_", URL64, 43), ("typeform-token", "tf" + "p_", URL64, 59),
    ("brave-key", "BS" + "A", ALNUM, 28), ("cal-key", "cal" + "_live_", HEX, 32), ("cerebras-key", "cs" + "k-", BASE36, 48),
    ("cloudflare-key", "cfu" + "t_", ALNUM, 40), ("context7-key", "ctx" + "7sk-", HEX, 36),
    ("elevenlabs-key", "s" + "k_", HEX, 48), ("google-api-key", "AQ" + ".Ab", URL64, 40),
    ("hubspot-token", "pat" + "-na1-", HEX, 36), ("jenkins-secret", "AQA" + "AABAAA", ALNUM, 40),
    ("neon-key", "na" + "pi_", BASE36, 60), ("polar-token", "polar" + "_oat_", ALNUM, 40),
    ("runpod-key", "rp" + "a_", UPPER, 40), ("trigger-key", "tr" + "_prod_", ALNUM, 24),
    ("wandb-key", "wand" + "b_v1_", ALNUM, 60), ("slack-token", "xo" + "xd-", ALNUM, 60),
    ("vercel-token", "vc" + "p_", ALNUM, 56), ("yandex-key", "AQ" + "VN", URL64, 36),
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
    ("token", "example token - '{}'", ALNUM, 32),
    ("token", "token = ' {} '", ALNUM, 32),
    ("key", "https://api.example.com/v1/user?key={}", ALNUM, 32),
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
    ("1password-token", "account A3-ABCDEF-{}-ABCDE-FGHIJ-KLMN1", UPPER, 11),
    ("facebook-token", "123456789012345|{}", URL64, 27),
    ("mailchimp-key", "mc.auth('{}-us12')", HEX, 32),
    ("maxmind-key", "use Ab12Cd_{}_mmk here", ALNUM, 29),
    ("sendinblue-key", "xkey" + "sib-{}-a1B2c3D4e5F6g7H8", HEX, 64),
    ("voyage-key", "use p" + "a-A1{}", URL64, 41),
    ("teams-webhook", "https://x.webhook.office.com/webhookb2/0123abcd-0123-4567-89ab-0123456789ab@{}/IncomingWebhook/1", ALNUM, 36),
    ("newrelic-key", "license: {}NR" + "AL", HEX, 36),
    ("token", "cargo login {}", ALNUM, 32),
    ("token", "vault login {}", ALNUM, 24),
    ("token", "poetry config pypi-token.pypi {}", ALNUM, 40),
    ("url-token", "https://example.com/callback?code={}&state=1", ALNUM, 32),
    ("url-token", "https://example.com/x?a=1&session={}", ALNUM, 32),
    ("url-token", "https://example.com/app;jsessionid={}", HEX, 32),
    ("url-token", "https://example.com/reset-password/{}", ALNUM, 40),
    ("url-signature", "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={}&a=1", HEX, 64),
    ("github-token", "https://x/?t=gh" + "p%5F{}", ALNUM, 36),
    ("gitlab-token", "Cookie: a=1\n_gitlab_session={}", BASE36, 32),
    *((rule, f'"{name}": "{{}}"', ALNUM, 32) for rule, name in (
        ("api-key", "privateKey"), ("api-key", "service_key"), ("api-key", "licenseKey"), ("api-key", "storage-key"),
        ("key", "stripeKey"), ("key", "STRIPE_KEY"), ("key", "oktakey"), ("key", "monkeyKey"),
    )),
    *(("token", template, alphabet, 32) for alphabet in (BASE36, string.ascii_lowercase + "234567", string.ascii_lowercase)
      for template in ('{"token": "{}"}', "x:\n  token: {}\n", "https://x/?a=1&token={}&b=2")),
    ("password", "<system-reminder>DB_PASSWORD={}</system-reminder>", ALNUM, 12),
    ("token", "<td>TOKEN={}</td>", ALNUM, 32),
    ("password", "tool --pwd {} run", ALNUM, 12),
    ("password", "tool --passwd {} run", ALNUM, 12),
    ("api-key", "tool --apikey {} run", ALNUM, 24),
    ("password", "keytool -list -storepass {}", ALNUM, 12),
    ("basic-auth", "curl --user 'me:{}' https://x", ALNUM, 12),
    ("password", "mysql -u root -p{} shop", ALNUM, 12),
    ("password", "docker login -u me -p {} x.example.com", ALNUM, 12),
    ("password", "sshpass -p '{}' ssh me@x", ALNUM, 12),
    ("password", "redis-cli -h x -a {} ping", ALNUM, 12),
    ("password", "sqlcmd -S x -U sa -P {}", ALNUM, 12),
    ("password", "ALTER LOGIN a WITH PASSWORD = N'{}'", ALNUM, 12),
    ("password", "CREATE ROLE a WITH LOGIN PASSWORD '{}';", ALNUM, 12),
    ("password", "CREATE USER a IDENTIFIED BY '{}';", ALNUM, 12),
    ("password", 'const PASSWORD: &str = "{}";', ALNUM, 12),
    ("password", "private password!: string = '{}';", ALNUM, 12),
    ("credentials", "creds={}", ALNUM, 24),
    ("credentials", "credentials: '{}'", ALNUM, 24),
    ("credentials", "export GITHUB_PAT={}", ALNUM, 32),
    ("password", "| Password | {} |", ALNUM, 12),
    ("password", "- **Password:** {}\n", ALNUM, 12),
    ("password", "<key>Password</key>\n\t<string>{}</string>", ALNUM, 12),
    ("password", '#define WIFI_PASSWORD "{}"', ALNUM, 12),
    ("private-key", '{"kty":"EC","crv":"P-256","x":"abc","d":"{}"}', URL64, 43),
    ("private-key", "PuTTY-User-Key-File-3: ssh-rsa\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 1\n{}\nPrivate-MAC: 00", B64, 64),
    ("github-token", '{"text": "\\u0067\\u0068\\u0070_{}"}', ALNUM, 36),
)  # fmt: skip

MAKERS: tuple[Callable[[Random], Sample], ...] = (
    *(_prefixed(*row) for row in PREFIXED),
    *(_inside(*row) for row in INSIDE),
    _jwt, _pem(""), _pem("RSA "), _pem("OPENSSH "), _pem("EC ", newline="\\n"), _pem("RSA ", ends=False),
    _pem("RSA ", begins=False), _basic, _loose_basic, _docker, _in_base64, _discord, _aws_pair,
)  # fmt: skip
