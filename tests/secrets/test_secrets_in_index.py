"""No secret in a transcript reaches the index: its bytes are searched for secrets of every rule."""

import os
from random import Random

import pytest
from rows import Writer
from secret_samples import MAKERS
from test_secrets_stay import STORIES, poisoned

from turnspan.delivery.policy import ExportPolicy
from turnspan.index import NAME, opened
from turnspan.index.rows import rows_of
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import SessionFile


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


def test_texts_are_masked_as_for_an_export(claude_home):
    """The texts in the index are those of each trace as it is exported, also where some of many turns have secrets."""
    project = claude_home / "projects" / "-home-ada-loom"
    project.mkdir(parents=True)
    samples = [make(Random(3)) for make in MAKERS[:12]]
    writer = Writer()
    for number in range(120):
        sample = samples[number % 12] if number > 60 else None
        words = f"{sample.text}\nand again {sample.secret}" if sample is not None else "nothing to hide"
        writer.turn(f"Question {number}: {words}", f"Answer {number}")
    path = writer.save(project)
    config = load_config(os.environ)
    policy = ExportPolicy(config.destinations[0], config)
    traces = [policy.masked(trace).trace for trace in Reader.for_people().traces(SessionFile(path.stem, path))]
    expected = [row for trace in traces for row in rows_of(trace, "").texts]
    with opened(config) as index:
        found = index.connection.execute("SELECT span_id, kind, body FROM text WHERE kind <> 'title' ORDER BY rowid")
        assert found.fetchall() == expected
        names = [name for (name,) in index.connection.execute("SELECT name FROM turn ORDER BY position")]
    assert names == [trace.name for trace in traces]
