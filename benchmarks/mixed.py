"""Write an archive that looks like real people's files: recorded shapes, forks, many versions, lines of every length.

    python benchmarks/mixed.py OUT --megabytes 60 [--seed 1] [--in-turn]

A trick that is tuned on generated patterns can cost time on real files. So this archive is made of the stories in
`fixtures/`, which have the shapes of clients from 1.0 to the newest: copied history, subagents of every layout, damaged
lines, progress rows. Each copy has ids and times of its own. Results of tools are filled with pieces of Python's
standard library whose lengths have the long tail of real ones (median 1 KB, one in a thousand over 200 KB), and some
stories are repeated until a session has hundreds of turns. Sessions of a project overlap in time; `--in-turn` puts them
one after the other.

The same options give the same bytes with the same Python.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sysconfig
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FIXTURES = Path(__file__).parent.parent / "fixtures"
FIRST_DAY = datetime(2026, 8, 1, tzinfo=UTC)
SPAN = timedelta(days=90)
# Damaged rows keep their bytes; what names a row, a response, a call, a request or an agent gets a name of its own.
_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b(?:msg|toolu|req)_\w+"
    r'|(?<="agentId":")[\w-]+|(?<=agent-)[\w-]+(?=\.jsonl|\.meta)'
)
_TIMES = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def library() -> str:
    """Return about 2 MB of real source text."""
    texts = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, texts)) > 2_000_000:
            break
    return "\n".join(texts)


class Copy:
    """One copy of a story: its ids, its place in time, and its results."""

    def __init__(self, number: int, shift: timedelta, rng: random.Random, text: str) -> None:
        self._salt = str(number).encode()
        self._shift = shift
        self._rng = rng
        self._text = text

    def named(self, text: str) -> str:
        """Return a text with the ids and times of this copy."""
        return _TIMES.sub(self._time, _IDS.sub(self._id, text))

    def _id(self, found: re.Match[str]) -> str:
        digest = sha256(self._salt + found[0].encode()).hexdigest()
        fresh = iter(digest * 4)
        kept = found[0].find("_") + 1
        return found[0][:kept] + "".join(next(fresh) if sign.isalnum() else sign for sign in found[0][kept:])

    def _time(self, found: re.Match[str]) -> str:
        moved = datetime.fromisoformat(found[0]) + self._shift
        return moved.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moved.microsecond // 1000:03}Z"

    def rows(self, path: Path) -> Iterator[bytes]:
        """Yield the rows of a transcript, with results as long as real ones."""
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                row = json.loads(line)
            except ValueError:
                yield line
                continue
            if isinstance(row, dict):
                for block in self._results(row):
                    size = int(self._rng.lognormvariate(6.9, 1.7))
                    start = self._rng.randrange(len(self._text))
                    block["content"] = f"{block['content']}\n{self._text[start : start + size]}"
            text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
            if not text.isprintable():  # half an emoji can only be escaped
                text = json.dumps(row, separators=(",", ":"))
            yield self.named(text).encode() + b"\n"

    @staticmethod
    def _results(row: dict[str, Any]) -> list[dict[str, Any]]:
        message = row.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else ()
        kinds = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
        return [block for block in kinds if isinstance(block.get("content"), str)]


def first_time(path: Path) -> datetime:
    found = _TIMES.search(path.read_text(encoding="utf-8", errors="replace"))
    return datetime.fromisoformat(found[0]) if found else FIRST_DAY


def write_archive(out: Path, megabytes: float, seed: int, *, in_turn: bool) -> tuple[int, float]:
    """Write the tree; return the number of files and the megabytes."""
    rng, text = random.Random(seed), library()
    stories = sorted(path for path in FIXTURES.glob("*/projects/*") if any(path.glob("*.jsonl")))
    files, size, number = 0, 0, 0
    while size < megabytes * 1e6:
        story = rng.choice(stories)
        number += 1
        first = min((first_time(path) for path in story.rglob("*.jsonl")), default=FIRST_DAY)
        at = timedelta(minutes=40 * number) if in_turn else SPAN * rng.random()
        times = rng.choice((1, 1, 1, 1, 1, 1, 20, 200))  # few sessions are long
        shifts = [FIRST_DAY + at + n * timedelta(minutes=3) - first for n in range(times)]
        parts = [Copy(number * 1000 + n, shift, rng, text) for n, shift in enumerate(shifts)]
        for path in sorted(story.rglob("*")):
            if not path.is_file():
                continue
            target = out / "projects" / f"-home-dev-{number % 7}" / parts[0].named(str(path.relative_to(story)))
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                if path.suffix != ".jsonl":
                    file.write(parts[0].named(path.read_text(encoding="utf-8")).encode())
                    continue
                own = parts[0].named(path.stem)
                for part in parts if path.parent == story else parts[:1]:
                    for row in part.rows(path):  # all parts are of one session
                        file.write(row.replace(part.named(path.stem).encode(), own.encode()))
            when = (FIRST_DAY + at + len(parts) * timedelta(minutes=3)).timestamp()
            os.utime(target, (when, when))
            files, size = files + 1, size + target.stat().st_size
    return files, size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="a new or empty directory; use it as CLAUDE_CONFIG_DIR")
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in-turn", action="store_true", help="sessions do not overlap in time")
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty")
    files, size = write_archive(options.out, options.megabytes, options.seed, in_turn=options.in_turn)
    print(f"{size:,.0f} MB, {files:,} files")


if __name__ == "__main__":
    main()
