"""What the tests with the newest client share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .client import NEWEST, Unavailable, install
from .play import install_turnspan
from .stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A home with the newest client and turnspan's hooks."""
    try:
        install(NEWEST)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Stage(tmp_path, NEWEST, "one story", install_turnspan) as stage:
        yield stage
