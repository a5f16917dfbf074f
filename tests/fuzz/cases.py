"""A case: the files of a project in one byte string, which a fuzzer can change and a developer can read.

    == 0f0e7a52-1111-4222-8333-944455556666.jsonl
    {"type":"user",…}
    == 0f0e7a52-1111-4222-8333-944455556666/subagents/agent-a1.jsonl
    {"type":"user",…}

Rules:

- A line `== name` starts a file. Text before the first such line is the file of a separate session.
- A name that points outside the project is not valid: the line is then content.
- If a name occurs again, the content is appended. `split` and `joined` are inverse functions.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
CRASHES = FIXTURES / "crashes"
FIRST = "00000000-0000-4000-8000-000000000000.jsonl"
_NAME = re.compile(
    rb"(?m)^== ([A-Za-z0-9][A-Za-z0-9_-]{0,63}(?:/subagents/agent-[A-Za-z0-9_-]{1,64})?\.(?:meta\.json|jsonl))\n"
)
_LONG = 160  # characters; longer texts would only slow the fuzzer down
_SEED_BYTES = 10_000
# Rows that are skipped by their first bytes: one of each kind is enough.
_BULKY = ("api-request-blob", "api-request-shape", "file-history-snapshot", "progress")


def split(data: bytes) -> dict[str, bytes]:
    """Return the files of a case, by their names in the project."""
    pieces = _NAME.split(data)
    files = {FIRST: pieces[0]} if pieces[0] else {}
    for name, content in zip(pieces[1::2], pieces[2::2], strict=True):
        key = name.decode()
        files[key] = files.get(key, b"") + content
    return files


def joined(files: dict[str, bytes]) -> bytes:
    """Return a case with these files."""
    return b"".join(
        b"== %s\n%s%s" % (name.encode(), content, b"" if content.endswith(b"\n") else b"\n")
        for name, content in files.items()
    )


def put(files: dict[str, bytes], project: Path) -> None:
    """Write the files of a case into a project's directory."""
    for name, content in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# ---- seeds


@cache
def stories() -> tuple[bytes, ...]:
    """Return the stories of `fixtures/`: the same on every machine."""
    found = [_project(path) for path in sorted(FIXTURES.glob("*/projects/*")) if path.is_dir()]
    return tuple(case for case in found if 0 < len(case) <= _SEED_BYTES)


@cache
def seeds() -> tuple[bytes, ...]:
    """Return the stories, recordings of real clients if available, and all known crashes."""
    corpus = _corpus()
    paths = sorted(corpus.glob("*/*/projects/*")) if corpus is not None else []
    recorded = [_project(path) for path in paths if path.is_dir()]
    crashes = [path.read_bytes() for path in sorted(CRASHES.glob("*.case"))]
    return (*stories(), *(case for case in recorded if 0 < len(case) <= _SEED_BYTES), *crashes)


def seed_lines() -> list[bytes]:
    """Return pairs of rows, some of each kind."""
    rows: dict[object, list[bytes]] = {}
    for case in seeds():
        for row in case.splitlines(keepends=True):
            rows.setdefault(_keys(row), []).append(row)
    some = [row for found in rows.values() for row in found[:2]]
    return [b"".join(some[at : at + 2]) for at in range(0, len(some), 2)]


def _keys(row: bytes) -> object:
    try:
        value = json.loads(row)
    except ValueError:
        return row[:8]
    return (value.get("type"), value.get("subtype"), frozenset(value)) if isinstance(value, dict) else type(value)


def _corpus() -> Path | None:
    named = os.environ.get("TURNSPAN_CORPUS")
    above = (parent / "shared" / "corpus" for parent in Path(__file__).resolve().parents)
    return Path(named) if named else next((path for path in above if path.is_dir()), None)


def _project(project: Path) -> bytes:
    files = {
        str(path.relative_to(project)): _slim(path.read_bytes())
        for path in sorted(project.rglob("*"))
        if path.is_file() and path.suffix in {".json", ".jsonl"}
    }
    return joined(files)


def _slim(content: bytes) -> bytes:
    lines, met = [], set()
    for line in content.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            lines.append(line[:4000])
            continue
        kind = row.get("type") if isinstance(row, dict) else None
        if kind in _BULKY and kind in met:
            continue
        met.add(kind)
        lines.append(json.dumps(_shortened(row), separators=(",", ":")).encode() + b"\n")
    return b"".join(lines)


def _shortened(value: object) -> object:
    match value:
        case str():
            return value[:_LONG]
        case list():
            return [_shortened(item) for item in value[:12]]
        case dict():
            return {key: _shortened(item) for key, item in value.items()}
        case _:
            return value
