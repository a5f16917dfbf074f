"""No secret in a transcript reaches the index: its bytes are searched for secrets of every rule."""

import os
from random import Random

import pytest
from secret_samples import MAKERS
from test_secrets_stay import STORIES, poisoned

from turnspan.index import NAME, opened
from turnspan.settings.config import load_config


@pytest.mark.parametrize("is_linked", [True, False])
def test_no_secret_is_in_the_index(claude_home, is_linked):
    """Secrets of every rule in every string of the transcripts: the file of the index has none of them."""
    samples = [make(Random(seed)) for seed in range(2) for make in MAKERS]
    for number, story in enumerate(STORIES):
        poisoned(story, claude_home / "projects" / story, samples, number * 37, is_linked)
    for path in list((claude_home / "projects").glob("*/*")):  # projects of several stories have the same name
        path.rename(claude_home / "projects" / f"{path.parent.name}-{path.name}")
    with opened(load_config(os.environ)) as index:
        assert not index.is_in_memory, index.remarks
        texts = index.connection.execute("SELECT count(*) FROM text").fetchone()[0]
        assert texts > 50
    home = claude_home / "turnspan"
    data = b"".join(path.read_bytes() for path in home.glob(f"{NAME}*"))
    assert b"redacted" in data
    found = sorted({sample.rule for sample in samples if sample.secret.encode() in data})
    assert found == []
