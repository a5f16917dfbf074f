"""What may leave for a destination, from settings to masks."""

import pytest

from turnspan.delivery.policy import rules_of
from turnspan.secrets.replace import mask
from turnspan.settings.config import load_config

HEADERS = "TURNSPAN_OTLP_HEADERS"


def masked(tmp_path, header, text):
    """Return a text as it leaves for a collector that is sent this header."""
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path), "TURNSPAN_OTLP_ENDPOINT": "http://127.0.0.1:4318", HEADERS: header}
    return mask(text, rules=rules_of(load_config(env))).text


@pytest.mark.parametrize("name", ["x-project-name", "X-Scope-OrgID", "x-honeycomb-dataset"])
def test_a_header_that_names_something_masks_nothing(tmp_path, name):
    """A project may be called like anything in a conversation: that is no credential."""
    assert masked(tmp_path, f"{name}=background", "run_in_background") == "run_in_background"


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "x-project-token", "x-honeycomb-team", "cookie"])
def test_any_other_header_is_a_credential(tmp_path, name):
    """What might be a secret is masked wherever it stands, however it is called."""
    assert "hunter2hunter2" not in masked(tmp_path, f"{name}=hunter2hunter2", "it says hunter2hunter2 here")
