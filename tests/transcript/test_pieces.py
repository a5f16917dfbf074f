"""Random rows in random order, read in any pieces, give the turns of one pass."""

import json
import random

import msgspec

from turnspan.transcript.carry import Carry
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.rows import LinePlace

CASES = 1600  # a few seconds
CALL = {"type": "tool_use", "id": "t1", "name": "Skill", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}
WORDS = (
    "Go.", "Go on.", [CALL], [RESULT], [RESULT, {"type": "text", "text": "and hurry"}], "[Request interrupted by user]",
    "<command-name>/x</command-name>", "<bash-input>ls</bash-input>", "<local-command-stdout>x", "Warmup", "Stop hook feedback:\nno",
)  # fmt: skip
BETWEEN = (
    {"type": "system", "subtype": "compact_boundary"}, {"type": "system", "subtype": "stop_hook_summary"},
    {"type": "attachment", "attachment": {"type": "queued_command", "prompt": "hm"}},
    {"type": "queue-operation", "operation": "enqueue", "content": "hm"}, {"type": "queue-operation", "operation": "remove"},
    {"type": "summary", "summary": "Yarn", "leafUuid": "b"}, {"type": "ai-title", "aiTitle": "Loom"},
    {"type": "fork-context-ref"}, {"type": "api-request", "id": "r1", "params": {"model": "m"}},
)  # fmt: skip
LINKS = {
    "uuid": "abcd", "parentUuid": "abcde", "version": ("2.0.36", "2.0.36", "2.1.45"), "timestamp": range(1_772_355_600, 1_772_355_605),
    "isSidechain": (True,), "isMeta": (True,), "isApiErrorMessage": (True,), "requestRef": ("r1",),
}  # fmt: skip
RARE = {"isSidechain", "isMeta", "isApiErrorMessage", "requestRef"}


def a_row(chance):
    """Return a random row: it may lack an id, a parent and a time, or have those of another one."""
    if chance.random() < 0.3:
        row = dict(chance.choice(BETWEEN))
    else:
        role = chance.choice(("user", "assistant", "assistant"))
        row = {
            "type": role,
            "message": {"role": role, "content": chance.choice(chance.choice((WORDS[:1], WORDS)))},
        }
        if role == "assistant" and chance.random() < 0.4:
            row["message"]["id"] = chance.choice(("m1", "m2"))
    for name, values in LINKS.items():
        if chance.random() < (0.03 if name in RARE else 0.5):
            row[name] = chance.choice(values)
    return row


def read(rows, cuts, *, is_agent):
    """Return the turns of reading after each cut, each time from what was remembered, and to the end."""
    lines, at = [], 0
    for number, row in enumerate(rows):
        data = json.dumps(row).encode()
        lines.append((LinePlace(number, at, at + len(data) + 1), data))
        at += len(data) + 1
    by_offset = {place.offset: data for place, data in lines}
    found, offset, carry = [], 0, Carry()
    for cut in (*cuts, len(rows)):
        grouper = Grouper("s", carry, lambda at, _: parse(by_offset[at], Anomalies())[0], is_agent=is_agent)
        new = [
            sealed
            for place, data in lines[:cut]
            if place.offset >= offset
            for entry in parse(data, Anomalies())
            for sealed in grouper.feed(entry, place)
        ]
        if cut == len(rows):
            new += [*grouper.flush(), grouper.seal()]
        for sealed in filter(None, new):
            found += sealed.turns
            offset, carry = sealed.end.end, msgspec.json.decode(msgspec.json.encode(sealed.carry), type=Carry)
    return found


def test_any_rows_in_any_pieces_are_the_turns_of_one_pass():
    """The content of a transcript decides what its turns are, not when it was read."""
    for seed in range(CASES):
        chance = random.Random(seed)
        rows = [a_row(chance) for _ in range(chance.randint(4, 10))]
        is_agent = chance.random() < 0.2
        one = read(rows, [], is_agent=is_agent)
        for cuts in (range(1, len(rows)), sorted(chance.sample(range(1, len(rows)), 2))):
            pieces = read(rows, cuts, is_agent=is_agent)
            assert pieces == one, f"case {seed}, cut after {[*cuts]}:\n" + "\n".join(map(json.dumps, rows))
