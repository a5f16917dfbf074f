"""A real OpenTelemetry collector with the recipes of docs/collector.md, in front of a real Jaeger and a real Phoenix.

The recipes are read from the page. A second file replaces only their addresses and paths: Phoenix is where the page has
Langfuse, and Jaeger where it has Tempo.
"""

import json
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
from backends.servers import Certificates
from figures import note

from real.collector import Collector, find, validate
from real.compare import differences, wanted_in
from real.homes import PATIENCE_S, STORIES, Past, copy_stories
from real.installing import Unavailable
from real.jaeger import MICROSECOND_NS, ask, same, spans_in
from real.phoenix import derived
from real.server import free_ports

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "collector.md"
SECTIONS = {"team": "For a team", "one machine": "For one machine", "replay": "Replaying local files"}
TOKEN = "b7c1-token-of-the-team"
KEYS = {"TURNSPAN_TOKEN": TOKEN, "LANGFUSE_BASIC": "cGs6c2s="}
FEW = ("several-turns", "agents-background", "parallel-tools")


def block(section, language):
    """Return the only code block of a language in a section of the page."""
    [text] = re.findall(rf"^## {SECTIONS[section]}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    [found] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def otelcol():
    """The collector's binary."""
    try:
        return find()
    except Unavailable as reason:
        pytest.skip(f"the collector cannot be built here: {reason}")


@contextmanager
def one_machine(otelcol, jaeger, directory, **changes):
    """Run the recipe for one machine, in front of a Jaeger; yield the collector and its URL."""
    [port] = free_ports(1)
    replaced = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"otlp_http/jaeger": {"endpoint": jaeger.url, **changes}},
    }
    with Collector(otelcol, directory, block("one machine", "yaml"), replaced) as collector:
        yield collector, f"http://127.0.0.1:{port}"


def home(base, text, stories=FEW):
    """Return a home with some stories and a configuration."""
    past = Past(base, {})
    past.configure(text)
    copy_stories(stories, past.projects)
    return past


def in_jaeger(jaeger, wanted):
    """Return how the spans that Jaeger has differ from those that it should have."""
    seen = jaeger.wait_for(wanted.values())
    return differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=lambda _: {}, same=same)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_collector_accepts_each_recipe_as_it_is(otelcol, tmp_path, section):
    """Word for word, with nothing replaced: every component and every field exists."""
    validate(otelcol, tmp_path, block(section, "yaml"), **KEYS)


def test_the_recipe_for_a_team(otelcol, jaeger, phoenix, tmp_path):
    """TLS and a token in front; behind it two backends, which get every span of every story once, with all attributes."""
    certificate, key = Certificates(tmp_path).sign("collector")
    [port] = free_ports(1)
    http = {"endpoint": f"127.0.0.1:{port}", "tls": {"cert_file": certificate, "key_file": key}}
    project = {"x-project-name": "default"}
    replaced = {
        "extensions": {"file_storage/queue": {"directory": str(tmp_path / "queue")}},
        "receivers": {"otlp": {"protocols": {"http": http}}},
        "exporters": {
            "otlp_http/langfuse": {"endpoint": phoenix.url, "headers": project},
            "otlp_grpc/tempo": {"endpoint": jaeger.grpc_address},
        },
    }
    settings = tomllib.loads(block("team", "toml"))["destinations"]["team"]
    settings |= {"endpoint": f"https://localhost:{port}", "certificate": str(tmp_path / "ca.pem")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if name != "headers"]
    config = "\n".join(["[destinations.team]", *lines, 'headers = {{authorization = "Bearer {token}"}}', ""])
    phoenix.forget("default")
    with Collector(otelcol, tmp_path / "collector", block("team", "yaml"), replaced, **KEYS):
        stranger = home(tmp_path / "stranger", config.format(token="wrong"))
        refused = stranger.run("doctor")
        past = home(tmp_path / "home", config.format(token=TOKEN), STORIES)
        wanted = wanted_in(past.projects, past.env)

        assert refused.returncode == 1
        assert "HTTP 401" in refused.stdout
        assert past.turnspan("backfill")["spans"] == len(wanted)
        assert in_jaeger(jaeger, wanted) == []
        assert jaeger.warnings(wanted.values()) == set()
        seen = phoenix.wait_for("default", len(wanted))
        assert differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=derived) == []
        assert past.turnspan("verify")["is_complete"]
    phoenix.forget("default")
    note("collector-team", f"{len(wanted)} spans of {len(STORIES)} stories, in Jaeger and in Phoenix")


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_spans_in_the_queue_survive_the_end_of_the_collector(otelcol, jaeger, tmp_path, how):
    """Jaeger is not running, the collector acknowledges and is ended or killed; later both run, and Jaeger has every span once."""
    with one_machine(otelcol, jaeger, tmp_path / "collector") as (collector, url):
        past = home(tmp_path / "home", f'[destinations.otlp]\nendpoint = "{url}"\nquery_url = "{jaeger.query_url}"\n')
        wanted = wanted_in(past.projects, past.env)
        jaeger.__exit__()

        assert past.turnspan("backfill")["spans"] == len(wanted)
        if how == "killed":
            collector.kill()
        else:
            collector.__exit__()
        jaeger.restart()
        collector.restart()
        assert in_jaeger(jaeger, wanted) == []
        assert jaeger.warnings(wanted.values()) == set()
        assert past.turnspan("verify")["is_complete"]


def test_a_full_queue_is_retried_by_turnspan(otelcol, jaeger, tmp_path):
    """A queue of one request, and Jaeger is not running: what does not fit is not acknowledged; `backfill` waits and sends it again."""
    queue = {"queue_size": 1, "num_consumers": 1}
    with one_machine(otelcol, jaeger, tmp_path / "collector", sending_queue=queue) as (collector, url):
        past = home(tmp_path / "home", f'[destinations.otlp]\nendpoint = "{url}"\nmax_request_bytes = 10000\n')
        wanted = wanted_in(past.projects, past.env)
        jaeger.__exit__()
        with past.started("backfill", "--json") as backfill:
            collector.wait_for_line("sending queue is full")
            jaeger.restart()
            out, err = backfill.communicate(timeout=PATIENCE_S)

        assert backfill.returncode == 0, err
        assert json.loads(out)["is_complete"]
        assert in_jaeger(jaeger, wanted) == []


def test_local_files_are_replayed(otelcol, jaeger, tmp_path):
    """The files of `local`, one trace of them longer than 1 MiB, arrive in Jaeger; a restart sends nothing again, and a new line is sent."""
    past = home(
        tmp_path / "home", "[destinations.local]\nmax_request_bytes = 20000000\nattribute_max_bytes = 2000000\n"
    )
    traces = past.base / "claude" / "turnspan" / "traces"
    replaced = {
        "receivers": {"otlpjsonfile": {"include": [f"{traces}/*.jsonl"]}},
        "exporters": {"otlp_http/jaeger": {"endpoint": jaeger.url, "sending_queue": {"queue_size": 1}}},
    }
    longer = next(past.projects.glob("*/*.jsonl"))
    longer.write_text(
        longer.read_text().replace("\\n", "\\n" + "a long line of output, again and again\\n" * 40_000, 1)
    )
    past.turnspan("backfill")
    wanted = wanted_in(past.projects, past.env)
    with Collector(otelcol, tmp_path / "collector", block("replay", "yaml"), replaced) as collector:
        assert max(len(line) for file in traces.glob("*.jsonl") for line in file.open("rb")) > 1024 * 1024
        assert in_jaeger(jaeger, wanted) == []
        assert jaeger.warnings(wanted.values()) == set()
        collector.__exit__()
        jaeger.restart()
        copy_stories(["api-errors"], past.projects)
        past.turnspan("backfill")
        collector.restart()
        later = {key: one for key, one in wanted_in(past.projects, past.env).items() if key not in wanted}
        assert later
        assert in_jaeger(jaeger, later) == []
        assert not any(spans_in(ask(jaeger.query_url, f"/api/traces/{trace_id}")) for trace_id, _ in wanted)
