"""Randomness, clocks, the files being written, and counts of what was written."""

from __future__ import annotations

import math
import operator
import os
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from generator.templates import PRICES, TOKEN_CLASSES, Seas, Shape, line_forms

if TYPE_CHECKING:
    from pathlib import Path

    from generator.templates import Era

ALWAYS_REPORTED = ("turns", "generations", "tool_calls", "tool_errors", "subagents", "api_errors", "lines", "bytes")


# ---------------------------------------------------------------- chance and time


class Dice:
    """The source of all randomness in a run: the order of calls matters."""

    def __init__(self, seed: int, result_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.seas = Seas(random.Random(0))  # the same texts whatever the seed
        sizes, spread = random.Random(0), 1.15
        middle = math.log(result_bytes) - spread**2 / 2
        self._sizes = [min(28_000, int(sizes.lognormvariate(middle, spread)) + 30) for _ in range(4096)]
        self._hex, self._at = b"", 0

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def size(self) -> int:
        """Size of a tool's result: `result_bytes` on average, at most 28 KB."""
        return self._sizes[int(self.random() * 4096)]

    def hex(self, length: int) -> bytes:
        if self._at + length > len(self._hex):
            self._hex, self._at = self.rng.randbytes(65_536).hex().encode(), 0
        self._at += length
        return self._hex[self._at - length : self._at]

    def uuid(self) -> bytes:
        h = self.hex(30)
        return b"%b-%b-4%b-a%b-%b" % (h[:8], h[8:12], h[12:15], h[15:18], h[18:30])

    def prose(self, size: int) -> bytes:
        return self.seas.prose.cut(self.random(), size)

    def words(self) -> bytes:
        """A short sentence on one line."""
        return self.seas.prose.cut(self.random(), 40).replace(b"\\n", b"")

    def base64(self, size: int) -> bytes:
        begin = self.below(300_000)
        return self.seas.base64[begin : begin + size]


_days: dict[int, bytes] = {}


def stamp(ms: int) -> bytes:
    day, rest = divmod(ms, 86_400_000)
    if day not in _days:
        _days[day] = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400)).encode()
    seconds, ms = divmod(rest, 1000)
    minutes, seconds = divmod(seconds, 60)
    return b"%bT%02d:%02d:%02d.%03dZ" % (_days[day], *divmod(minutes, 60), seconds, ms)


# ---------------------------------------------------------------- truth


class Tally:
    """Counts of what was written: one per session, and others for agents that belong to no turn."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
        self.tools: dict[str, int] = defaultdict(int)
        self.origins: dict[str, int] = defaultdict(int)

    def add(self, other: Tally) -> None:
        for mine, theirs in ((self.counts, other.counts), (self.tools, other.tools), (self.origins, other.origins)):
            for key, value in theirs.items():
                mine[key] += value
        for model, tokens in other.tokens.items():
            self.tokens[model] = [a + b for a, b in zip(self.tokens[model], tokens, strict=True)]

    def cost(self) -> int:
        """Cost in 1e-8 USD; only for the newest client, whose models have prices here."""
        return sum(sum(map(operator.mul, tokens, PRICES[model])) for model, tokens in self.tokens.items())

    def report(self) -> dict[str, object]:
        total = [sum(column) for column in zip(*self.tokens.values(), strict=True)] or [0] * 5
        return {
            **dict(sorted({**dict.fromkeys(ALWAYS_REPORTED, 0), **self.counts}.items())),
            "tokens": dict(zip(TOKEN_CLASSES, total, strict=True)),
            "tokens_by_model": {m: dict(zip(TOKEN_CLASSES, t, strict=True)) for m, t in sorted(self.tokens.items())},
            "tool_calls_by_name": dict(sorted(self.tools.items())),
            "turns_by_origin": dict(sorted(self.origins.items())),
        }


class Archive(NamedTuple):
    """State that is shared in a run."""

    projects: Path
    dice: Dice
    forms: dict[tuple[Era, bool], dict[str, Shape]]
    kinds: dict[str, list[int]]  # kind of line → lines, bytes

    def forms_of(self, era: Era, *, is_agent: bool) -> dict[str, Shape]:
        key = (era, is_agent)
        if key not in self.forms:
            self.forms[key] = line_forms(era, is_agent=is_agent, seas=self.dice.seas)
        return self.forms[key]


class Sink:
    """One file being written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.bytes, self.lines = path, 0, 0
        self.file = path.open("wb", buffering=1 << 18)

    def close(self, now_ms: int) -> None:
        """Set the file's time to that of its last line: `--since` and the order of sessions depend on it."""
        self.file.close()
        os.utime(self.path, (now_ms / 1000, now_ms / 1000))


class Transcript:
    """One chain of lines, with its own clock: a session's, or a subagent's."""

    def __init__(
        self, archive: Archive, sink: Sink, era: Era, marks: dict[bytes, bytes], *, now: int, tally: Tally
    ) -> None:
        self.archive, self.sink, self.era, self.now, self.tally = archive, sink, era, now, tally
        self.agent = marks.get(b"@agent@", b"")
        self.folder = archive.projects / marks[b"@project@"].decode() / marks[b"@sid@"].decode()
        self.model = era.agent_model if self.agent else era.model
        self.forms = archive.forms_of(era, is_agent=bool(self.agent))
        self.marks = marks
        self.bound: dict[str, Shape] = {}
        self.parent, self.prompt_id, self.prompt = b"null", archive.dice.uuid(), b""
        self.request = archive.dice.uuid()
        self.context, self.fresh = 18_000 if not self.agent else 9_000, 600
        self.mirror: tuple[Transcript, bytes] | None = None  # parent that shows these lines as progress; call id
        self.notices: list[tuple[int, bytes, bytes, bytes]] = []  # background agents: ended at, name, call, report
        self.depth = 0

    def put(self, kind: str, /, **holes: bytes) -> None:
        if kind not in self.bound:
            text, pick = self.forms[kind]
            for mark, value in self.marks.items():
                text = text.replace(mark, value)
            self.bound[kind] = Shape(text + b"\n", pick)
        text, pick = self.bound[kind]
        line = text % pick(holes)
        self.sink.file.write(line)
        self.sink.bytes += len(line)
        self.sink.lines += 1
        count = self.archive.kinds[kind]
        count[0] += 1
        count[1] += len(line)

    def link(self, kind: str, /, **holes: bytes) -> bytes:
        uuid = self.archive.dice.uuid()
        self.put(kind, parent=self.parent, uuid=uuid, at=stamp(self.now), prompt_id=self.prompt_id, **holes)
        self.parent = b'"%b"' % uuid
        return uuid

    def tick(self, low_ms: int, high_ms: int) -> int:
        took = low_ms + int(self.archive.dice.random() * (high_ms - low_ms))
        self.now += took
        return took
