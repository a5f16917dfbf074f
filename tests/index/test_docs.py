"""The page about the index: its queries run, and its tables have the columns it names."""

import os
import re
import shutil
from pathlib import Path

import pytest

from turnspan.index import opened
from turnspan.settings.config import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dev" / "index.md").read_text(encoding="utf-8")
NOT_COLUMNS = {
    "projects", "ok", "error", "denied", "interrupted", "unknown", "prompt", "answer", "thinking", "tool_input",
    "tool_output", "title",
}  # fmt: skip


def test_the_queries_of_the_page_run(claude_home):
    """Every query on the page works, and those about sessions find some."""
    shutil.copytree(ROOT / "fixtures" / "several-turns" / "projects", claude_home / "projects")
    queries = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    with opened(load_config(os.environ)) as index:
        found = [index.connection.execute(query).fetchall() for query in queries]
    assert len(found) == 5
    assert found[0]
    assert found[1]


@pytest.mark.usefixtures("claude_home")
def test_the_tables_have_the_columns_of_the_page():
    """A column that the page names exists."""
    with opened(load_config(os.environ)) as index:
        for table, columns in re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", PAGE, re.MULTILINE):
            known = {row[1] for row in index.connection.execute(f"PRAGMA table_info({table})")}
            assert set(re.findall(r"`(\w+)`", columns)) - known <= NOT_COLUMNS, table
        assert table == "text"
