"""An index that is brought up to date has the rows of one that is built anew, whatever happened in between."""

import os
import random
import shutil
from pathlib import Path

import pytest
from lives import Life
from rows import Writer

from index.dumps import dump
from turnspan.index import NAME
from turnspan.settings.config import load_config

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORIES = sorted(path.name for path in FIXTURES.iterdir() if (path / "projects").is_dir())


@pytest.fixture
def home(claude_home):
    """A Claude home with a directory for transcripts."""
    (claude_home / "projects").mkdir()
    return claude_home


def updated(home):
    """Return the content of the index after an update."""
    return dump(load_config(os.environ))


def rebuilt(home):
    """Return the content of an index that is built anew."""
    for suffix in ("", "-wal", "-shm"):
        (home / "turnspan" / (NAME + suffix)).unlink(missing_ok=True)
    return updated(home)


def grow(life, directory, sizes):
    """Append to the files what was written to them, up to these sizes; files that did not grow are not touched."""
    for name, size in sizes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.stat().st_size if path.exists() else -1
        if size > known:
            with path.open("ab") as file:
                file.write(life.files[name][max(known, 0) : size])


@pytest.mark.parametrize("story", STORIES)
def test_a_session_that_grows_has_the_rows_of_one_that_was_read_at_its_end(home, story):
    """Rows are the same whether the index was updated at every moment of a session, at some of them, or once."""
    life = Life(FIXTURES / story / "projects")
    chance = random.Random(story)
    moments = sorted(chance.sample(range(1, len(life.steps) + 1), min(40, len(life.steps))))
    for moment in [*moments, len(life.steps)]:
        grow(life, home / "projects", life.sizes(moment))
        lived = updated(home)
    assert lived == rebuilt(home)
