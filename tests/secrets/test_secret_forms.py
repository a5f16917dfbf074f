"""Forms in which secrets are written by programs and people, and texts that only look like one of them."""

import random
import string

import pytest

from turnspan.secrets.replace import compile_rules, mask

RULES = compile_rules()
TOKENS = string.ascii_letters + string.digits
PASSWORDS = ("Winter7774$", "correcthorse43", "Hunter614?", "c46605b49a201186", "k7OGg-fm_yw3")

# {s}: the secret
PASSWORD_FORMS = (
    "DB_PW={s}", "root_pw: {s}", 'userpw = "{s}"', '"LDAP_BIND_PW": "{s}"', "adminPw='{s}'", "tool --bind-pw {s}",
    "export SSHPASS={s}", "passwort = '{s}'", '  psk="{s}"', "PSK={s}", "WIFI_PSK: {s}", 'Passwort: "{s}"',
    "password: |\n  {s}\n", "password: >-\n  {s}\n", "password: !unsafe {s}\n", "ENV DB_PASSWORD {s}\n",
    'password := []byte("{s}")', 'password: SecretStr = SecretStr("{s}")', 'let password = String::from("{s}");',
    'const password = process.env.DB_PASSWORD || "{s}";', "password: process.env.X ?? '{s}',",
    'password = os.getenv("DB_PASSWORD") or "{s}"', 'public string Password { get; set; } = "{s}";',
    'variable "db_password" {\n  default = "{s}"\n}', 'variable "db_password" {\n  type = string\n  default = "{s}"\n}',
    "aws ssm put-parameter --name /app/password --value {s}", 'Set-Item -Path Env:DB_PASSWORD -Value "{s}"',
    'gh secret set DB_PASSWORD --body "{s}"', "setenv DB_PASSWORD {s}", "set -x DB_PASSWORD {s}",
    "password                                = {s}", "password_v2 = '{s}'",
)  # fmt: skip
TOKEN_FORMS = (
    "ENCRYPTION_KEY_V2={s}", 'signing_key_base64 = "{s}"', "secret_b64: {s}", "API_KEY_HEX={s}",
    'api_key: str = Field(default="{s}")', 'jwtSecret := []byte("{s}")', "apiKey = Buffer.from('{s}')",
    "use api_key {s} for it", "DEPLOY_TOKEN\t{s}\n", "client_secret -> {s}", "%7B%22token%22%3A%22{s}%22%7D",
    "data=%7B%22api_key%22%3A%20%22{s}%22%7D", "os.environ['GH_PAT'] = '{s}'", "access_token: |-\n    {s}\n",
    "const token = process.env.TOKEN || '{s}'", 'variable "api_token" {\n  default = "{s}"\n}',
)  # fmt: skip
CLEAN = (
    "pw = 1024", "pw: 640.5, ph: 480", '	CMPW:           "cmpw",', "	AAMSWAPW:   0x070C0 << 15,", "if pw == -1:",
    "ATTR_SAE_PASSWORD                               = 0x115", '"parse-passwd": "^1.0.0",', '"passwd-user": "~4.0.0-rc.1"',
    "acquireTokenByUsernamePassword:371,", 'R.EOF_TOKEN="EOF_TOKEN";', "const SET_TOKEN = 'SET_TOKEN'",
    "	handshakeSecret *tls13.HandshakeSecret", '_TOKEN = lazy.pattern(r"[!#$%&0-9A-Za-z-]+")',
    "previous_key = digest.get('previousDigestS3Object')", 'proc = mod.NewProc("SetupDiOpenDevRegKey")',
    'token = request.headers.get("X-Auth-Token-2024-Beta")', 'password = getpass("Password for user1:")',
    'password = config.get("db_password_2")', "the api_key is passed to create_client_v2_with_defaults",
    '"secret":                               "\\u3299\\ufe0f",', "fn token(self) -> TokenStream2", "secret -> Vault",
    "token: |\n  a text of several words\n", "password: !vault |\n",
    "C4IQMMBwsCQCABIARHBEADQCABLQAAQYIABBAWoiAEcNAAsgAiAHNgIADPkCCyACQQA2AgAgACEBDIQCCy",
)  # fmt: skip


def leaked(secret, text):
    """Return whether a third of the secret, in one piece, is in the text."""
    size = -(-len(secret) // 3)
    return any(secret[at : at + size] in text for at in range(len(secret) - size + 1))


@pytest.mark.parametrize("form", PASSWORD_FORMS)
def test_a_password_in_a_form_that_programs_write(form):
    """Passwords that people choose and that programs generate are masked in each form."""
    for secret in PASSWORDS:
        masked = mask(form.replace("{s}", secret), rules=RULES).text
        assert not leaked(secret, masked), masked


@pytest.mark.parametrize("form", TOKEN_FORMS)
def test_a_token_in_a_form_that_programs_write(form):
    """Random tokens are masked in each form; the text around them stays."""
    dice = random.Random(form)
    for alphabet in ("0123456789abcdef", string.ascii_lowercase + string.digits, TOKENS, TOKENS + "-_"):
        secret = "k4" + "".join(dice.choice(alphabet) for _ in range(34)) + "7z"
        masked = mask(form.replace("{s}", secret), rules=RULES).text
        assert not leaked(secret, masked), masked
        assert masked.startswith(form[:4])


@pytest.mark.parametrize("text", CLEAN)
def test_text_that_only_looks_like_a_secret(text):
    """Registers, versions, constants, patterns and calls that read a secret are not masked."""
    assert mask(text, rules=RULES).counts == {}
