"""Mutations of transcripts: rows are removed, repeated, swapped, truncated, joined, or get fields of other types.

A fuzzer that flips single bytes would spend its time on invalid JSON. This one changes rows and values, and only
sometimes bytes. `mutated` is a pure function of its arguments.
"""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ODD = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, "", " ", "x", "0",
    "\ufffd", "\ud800", "é世\U0001f469\u200d\U0001f4bb", "a" * 300, "<synthetic>", "[Request interrupted by user]", "Warmup", "/compact",
    "<command-name>/x</command-name><command-args>y</command-args>", "<task-notification><tool-use-id>toolu_1</tool-use-id>",
    "<bash-input>ls</bash-input>", "<bash-stdout>", "<ide_selection>a</ide_selection>", "Stop hook feedback:\nno",
    "agentId: a1", "Exit code 1", "sk-ant-api03-" + "Ab1_" * 20, "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z",
    "2026-01-01T00:00:00", "2026-13-01", 1, 1_760_000_000, 1_760_000_000_000, [], {}, [[]], [None], ["x", 1], {"": None},
    {"type": "text", "text": "x"}, [{"type": "tool_use", "id": "toolu_1", "name": "Task", "input": {}}],
    [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}], {"type": None}, {"x": {"x": {"x": {}}}},
)  # fmt: skip
KINDS = (
    "user", "assistant", "system", "attachment", "queue-operation", "api-request", "summary", "tag", "progress", "mode",
    "fork-context-ref", "ai-title", "unknown-type",
)  # fmt: skip
_MARK = b"== "


def mutated(
    data: bytes,
    max_size: int,
    seed: int,
    others: Sequence[bytes] = (),
    bytewise: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Change a case a little. `others` are cases to take rows from; `bytewise` is the fuzzer's own mutation."""
    chance = random.Random(seed)
    if bytewise is not None and chance.random() < 0.1:
        return bytewise(data)[:max_size]
    rows = data.splitlines(keepends=True) or [b"{}\n"]
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        _change(rows, chance, others, bytewise)
        rows = rows or [b"{}\n"]
    if sum(map(len, rows)) > max_size:
        at = chance.randrange(len(rows))
        rows = rows[at:] + rows[:at] if chance.random() < 0.2 else rows
    return b"".join(rows)[:max_size]


def _change(  # noqa: C901  a table of cases
    rows: list[bytes], chance: random.Random, others: Sequence[bytes], bytewise: Callable[[bytes], bytes] | None
) -> None:
    at, to = chance.randrange(len(rows)), chance.randrange(len(rows))
    match chance.choices(range(12), (24, 8, 6, 5, 5, 5, 4, 3, 2, 2, 2, 2))[0]:
        case 0 | 1:
            rows[at] = _other_values(rows[at], rows[to], chance)
        case 2:
            del rows[at]
        case 3:
            rows.insert(to, rows[at])
        case 4:
            rows[at], rows[to] = rows[to], rows[at]
        case 5:
            _splice(rows, at, chance, others)
        case 6:
            first, last = sorted((at, to))
            piece = rows[first : min(last, first + 8)]
            rows[last:last] = piece if chance.random() < 0.5 else list(reversed(piece))
        case 7:
            rows[at] = rows[at].rstrip(b"\n")  # joined with the next
        case 8:
            cut = chance.randrange(len(rows[at]) + 1)
            rows[at] = rows[at][:cut] + chance.choice((b"", b"\n", b"\0", b"\xff", b"\r\n", b"}", b'"'))
        case 9:
            rows[at] = chance.choice((b"\0" * 9, b"\xef\xbb\xbf", b" ", b"\n", b"[", b'{"type":"user"}')) + rows[at]
        case 10:
            name = chance.choice([row for row in rows if row.startswith(_MARK)] or [b"== other.jsonl\n"])
            rows.insert(at, name)
        case _:
            rows[at] = bytewise(rows[at]) if bytewise is not None else rows[at][::-1]


def _splice(rows: list[bytes], at: int, chance: random.Random, others: Sequence[bytes]) -> None:
    """Insert rows of another case, sometimes into the same session."""
    taken = chance.choice(others).splitlines(keepends=True) if others else list(rows)
    if not taken:
        return
    start = chance.randrange(len(taken))
    piece = taken[start : start + chance.choice((1, 1, 2, 4, 8, 20))]
    if chance.random() < 0.5:
        piece = [row for row in piece if not row.startswith(_MARK)]
    rows[at:at] = piece


def _other_values(row: bytes, other: bytes, chance: random.Random) -> bytes:
    """Change a value or a key somewhere in a row; a row that is not JSON is returned unchanged."""
    try:
        value, source = json.loads(row), _loaded(other)
    except (ValueError, RecursionError):
        return row
    for _ in range(chance.choice((1, 1, 2))):
        value = _changed(value, source, chance)
    end = b"\n" if row.endswith(b"\n") else b""
    return (
        json.dumps(value, ensure_ascii=chance.random() < 0.2, separators=(",", ":")).encode("utf-8", "surrogatepass")
        + end
    )


def _loaded(row: bytes) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        return {}


def _changed(value: Any, source: Any, chance: random.Random) -> Any:
    holder, key = _somewhere(value, chance)
    if holder is None:
        return _odd(chance)
    match chance.randrange(9):
        case 0:
            del holder[key]
        case 1 | 2:
            holder[key] = _odd(chance)
        case 3 | 4 if isinstance(source, dict) and isinstance(holder, dict):
            other, name = _somewhere(source, chance)  # the value of the same field in another row, or of any field
            if other is not None:
                holder[key] = copy.deepcopy(source.get(key, other[name]) if isinstance(key, str) else other[name])
        case 5:
            holder[key] = chance.choice((str, lambda v: [v], lambda v: {"x": v}, lambda v: [v, copy.deepcopy(v)]))(
                holder[key]
            )
        case 6 if isinstance(holder, dict):
            _another_link(value, source, chance)
        case 7 if isinstance(value, dict):
            value["type"] = chance.choice(KINDS)
        case 8 if isinstance(holder, dict):
            holder[
                chance.choice(("isMeta", "isSidechain", "isCompactSummary", "isApiErrorMessage", "agentId", "uuid"))
            ] = _odd(chance)
        case _:
            holder[key] = _odd(chance)
    return value


def _odd(chance: random.Random) -> Any:
    return copy.deepcopy(chance.choice(ODD))  # a copy: it may be changed in turn


def _another_link(value: Any, source: Any, chance: random.Random) -> None:
    """Let a row refer to another row, response, call or session."""
    if isinstance(value, dict) and isinstance(source, dict):
        names = (
            "uuid",
            "parentUuid",
            "sessionId",
            "promptId",
            "requestId",
            "timestamp",
            "message",
            "version",
            "toolUseResult",
        )
        name = chance.choice(names)
        value[name] = copy.deepcopy(source.get(name, source.get("uuid")))


def _somewhere(value: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return a container inside a value and one of its keys; deeper ones as often as shallow ones."""
    places = []
    waiting = [value]
    while waiting and len(places) < 400:
        holder = waiting.pop()
        if isinstance(holder, dict):
            places += [(holder, key) for key in holder]
            waiting += [item for item in holder.values() if isinstance(item, (dict, list))]
        elif isinstance(holder, list):
            places += [(holder, key) for key in range(len(holder))]
            waiting += [item for item in holder if isinstance(item, (dict, list))]
    return chance.choice(places) if places else (None, None)
