import pytest

from turnspan.backends.otlp import KNOWN, open_backend
from turnspan.backends.settings import DestinationSettings, Endpoint, is_loopback, parse_url, proxy_from_environment
from turnspan.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "the setting 'endpoint' is missing"),
        ({"endpoint": "example.org:4318"}, "'example.org:4318'"),
        ({"endpoint": "ftp://example.org"}, "https://host:port"),
        ({"endpoint": 4318}, "a string"),
        ({"endpoint": "https://example.org/?x=1"}, "without user, query or fragment"),
        ({"endpoint": "https://example.org:99999"}, "https://host:port"),
        ({"endpoint": "http://example.org"}, "insecure endpoint 'http://example.org'"),
        ({"endpoint": "http://127.0.0.1.example.org"}, "insecure endpoint"),
        ({"endpoint": "http://192.168.1.5:4318"}, "insecure endpoint"),
        ({"endpoint": "https://x", "protocol": "http/json"}, 'is \'http/json\'; it must be "http/protobuf" or "grpc"'),
        ({"endpoint": "https://x", "timeout_s": 0}, "a number of seconds above 0"),
        ({"endpoint": "https://x", "timeout_s": True}, "a number of seconds above 0"),
        ({"endpoint": "https://x", "timeout_s": "10"}, "'10'"),
        ({"endpoint": "https://x", "compression": "zstd"}, '"auto" or "gzip" or "none"'),
        ({"endpoint": "https://x", "attribute_max_bytes": 10}, "an integer from 256"),
        ({"endpoint": "https://x", "max_request_bytes": 1.5}, "an integer"),
        ({"endpoint": "https://x", "tags": "a,b"}, "a list of strings"),
        ({"endpoint": "https://x", "proxy_from_env": "yes"}, "true or false"),
        ({"endpoint": "https://x", "proxy": "https://p:1"}, "http://host:port"),
        ({"endpoint": "https://x", "proxy": "socks5://p:1"}, "http://host:port"),
        ({"endpoint": "http://localhost", "proxy": "http://proxy.example:1"}, "insecure endpoint"),
        ({"endpoint": "https://x", "client_key": "/nonexistent/key"}, "a readable file"),
        ({"endpoint": "https://x", "headers": ["a"]}, "a table of strings"),
        ({"endpoint": "https://x", "headers": {"a b": "c"}}, "header name"),
        ({"endpoint": "https://x", "headers": {"Content-Length": "5"}}, "header name"),
        ({"endpoint": "https://x", "headers": {"X": "a\r\nY: b"}}, "header 'X' (not shown)"),
        ({"endpoint": "https://x", "timeout": 10}, "unknown setting 'timeout'; available: attribute_max_bytes"),
    ],
)
def test_a_wrong_setting_is_a_sentence(settings, words):
    """It names the destination, the setting, the value and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        open_backend(settings, name="mine", home=None)

    assert words in str(caught.value)
    assert str(caught.value).startswith("destination mine: ")


@pytest.mark.parametrize(
    ("settings", "is_gzip"),
    [
        ({"endpoint": "https://example.org"}, True),
        ({"endpoint": "https://192.168.1.5:4318", "compression": "auto"}, True),
        ({"endpoint": "https://127.0.0.1.example.org"}, True),
        ({"endpoint": "https://localhost:4318"}, False),
        ({"endpoint": "http://[::1]:4318"}, False),
        ({"endpoint": "http://127.0.0.1:4318", "protocol": "grpc"}, False),
        ({"endpoint": "http://127.0.0.1:4318", "proxy": "http://127.0.0.1:8080"}, True),
        ({"endpoint": "http://127.0.0.1:4318", "compression": "gzip"}, True),
        ({"endpoint": "https://example.org", "compression": "none"}, False),
    ],
)
def test_requests_to_this_machine_are_not_compressed_by_default(settings, is_gzip):
    """Only a loopback address is certainly this machine, and a proxy may run anywhere. A choice of the user is kept."""
    read = DestinationSettings(settings, name="mine", known=KNOWN)
    endpoint = read.endpoint("endpoint")

    assert read.is_gzip(endpoint, read.proxy(endpoint)) is is_gzip


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "https://me:sesame-open@example.org"},
        {"endpoint": "https://x", "proxy": "https://me:sesame-open@p"},
        {"endpoint": "https://x", "headers": {"X": "sesame-open\n"}},
        {"endpoint": "https://x", "headers": "sesame-open"},
    ],
)
def test_a_wrong_setting_that_may_hold_a_credential_is_not_shown(settings):
    """A password in a URL or a header stays out of the sentence."""
    with pytest.raises(ConfigError) as caught:
        open_backend(settings, name="mine", home=None)

    assert "sesame" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine(host):
    """Plain http is allowed to this host."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["example.org", "localhost.example.org", "128.0.0.1", "::2", "0.0.0.0", "2130706433"])
def test_not_this_machine(host):
    """Plain http is not allowed to this host."""
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://a.b", Endpoint(True, "a.b", 443)),
        ("http://[::1]:4318/x", Endpoint(False, "::1", 4318, "/x")),
        ("http://u:p%40@h:1", Endpoint(False, "h", 1, "", "u:p@")),
        ("https://-a", None),
        ("https://a b", None),
        ("https://", None),
        ("https://a:0", None),
        ("https://a\n", None),
    ],
)
def test_urls(url, endpoint):
    """A URL has parts; anything else is None."""
    assert parse_url(url) == endpoint


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ({"https_proxy": "p:1"}, "http://p:1"),
        ({"all_proxy": "http://p:1"}, "http://p:1"),
        ({"http_proxy": "http://p:1"}, ""),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example.org, x"}, ""),
        ({"https_proxy": "http://p:1", "no_proxy": ".example.org"}, ""),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, ""),
        ({"https_proxy": "http://p:1", "no_proxy": "ample.org"}, "http://p:1"),
    ],
)
def test_the_usual_proxy_variables(environ, proxy):
    """They are read as other programs read them."""
    assert proxy_from_environment(Endpoint(True, "a.example.org", 443), environ) == proxy


def test_a_proxy_is_never_between_us_and_this_machine():
    """Loopback never uses a proxy."""
    assert proxy_from_environment(Endpoint(True, "127.0.0.1", 443), {"https_proxy": "http://p:1"}) == ""
