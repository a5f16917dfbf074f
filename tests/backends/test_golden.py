"""The complete requests of one rich session in each naming, as files to be read.

`pytest tests/backends/test_golden.py --update-golden` writes them anew; read the difference before you commit it.
"""

import json
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from backends.servers import spans_in
from turnspan.delivery.destinations import targets_of
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "fixtures"
STORIES = ("agents-background", "api-errors", "command-custom")  # agents, a notification, an error, a command
CONFIG = """
user_id = "ada"
environment = "staging"
host = "laptop"
service_name = "{project}"
tags = ["golden"]

[destinations.otlp]
endpoint = "http://127.0.0.1:1"

[destinations.langfuse]
base_url = "http://127.0.0.1:1"
public_key = "pk-lf-1"
secret_key = "sk-lf-123456"
release = "r1"
"""


@pytest.fixture
def targets(tmp_path):
    """Return the destinations by their names."""
    home = tmp_path / "turnspan"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(CONFIG)
    (home / "config.toml").chmod(0o600)
    config = load_config({"CLAUDE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)})
    return {target.destination.name: target for target in targets_of(config)}


@pytest.mark.parametrize("name", ["otlp", "langfuse"])
def test_the_request_is_the_reviewed_one(name, targets, request):
    """Every name, time, status, link and attribute, as this destination gets it."""
    target = targets[name]
    found = []
    for story in STORIES:
        for session in all_sessions(FIXTURES / story / "projects"):
            masked = [target.mask(trace).trace for trace in Reader.for_people().traces(session)]
            found += spans_in(ExportTraceServiceRequest.FromString(target.backend.encode(masked)))
    for span in found:
        assert span["resource"].pop("telemetry.sdk.version")
    golden = HERE / "golden" / f"{name}.json"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(json.dumps(found)) == json.loads(golden.read_text())
