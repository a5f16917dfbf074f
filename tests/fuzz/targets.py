"""Properties that hold for any bytes: of the line decoder, and of the path from a project's files to a request.

Rules:

- A target takes bytes and raises if a property does not hold. It needs no fuzzer: tests replay known crashes.
- The positions at which a file is cut depend on the bytes alone, so that a crash is reproducible.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import zlib
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from turnspan.backends import otlp_json
from turnspan.backends.genai import GenAI
from turnspan.backends.langfuse import LangfuseNaming
from turnspan.backends.naming import otlp_time
from turnspan.backends.otlp_messages import encode_request
from turnspan.backends.settings import Capture
from turnspan.source import sessions, tail
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.trace.model import Kind
from turnspan.trace.redact import CaptureMode, Policy, redact
from turnspan.transcript import entries, lines

from .cases import put, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.trace.model import Span, Trace

_SHORT = Capture(attribute_max_bytes=2000)
NAMINGS = (GenAI(_SHORT), LangfuseNaming(_SHORT, "fuzz"))
POLICIES = tuple(Policy(capture=mode) for mode in CaptureMode)
_numbers = count()
_MEMORY = Path("/dev/shm")
_ID = re.compile(rb'"id": *"([^"]*)"')
_SIDECHAIN = re.compile(rb'"isSidechain": *true')


# ---- lines


def check_lines(data: bytes) -> None:
    """Any bytes can be read as lines; each line gives zero or more entries with valid Unicode, wherever reading stopped."""
    descriptor = _in_memory(data)
    try:
        found = list(tail.complete_lines(descriptor, is_complete=lines.is_record))
        assert b"".join(_with_end(line, data) for line in found) == data[: found[-1].end if found else 0]
        assert [line.number for line in found] == list(range(len(found)))
        strict = list(tail.complete_lines(descriptor))
        for cut in _cuts(data, 3):
            first = list(tail.complete_lines(descriptor, until=cut))
            after = (first[-1].end, first[-1].number + 1) if first else (0, 0)
            assert first + list(tail.complete_lines(descriptor, *after)) == strict
    finally:
        os.close(descriptor)
    for line in found:
        check_line(line.data or b"")


def check_line(line: bytes) -> None:
    """Check one line."""
    found = lines.parse(line, lines.Anomalies())
    assert msgspec.json.encode(found) == msgspec.json.encode(lines.parse(line, lines.Anomalies()))
    lines.is_record(line)
    at = 0
    for start, end in lines.records(line):
        assert at <= start <= end <= len(line)
        at = end
    for entry in found:
        assert entry.type in lines.KNOWN
        moment = entries.time_ns(entry)
        assert moment is None or 0 < moment < 2**63
        entries.outcome(entry)
        said = [entries.system_text(entry), entries.raw_text(entry.error)]
        for block in entries.blocks(entry.message) if entry.message is not None else ():
            mime, size = entries.media(block.source)
            assert size >= 0
            said += [mime, *entries.inner_texts(block.content), block.text or "", entries.raw_text(block.input)]
        for text in said:
            text.encode()
            entries.command_of(text)
            entries.without_ide_tags(text)
            entries.exit_code_of(text)
            entries.agent_named_in(text)


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("fuzz") if hasattr(os, "memfd_create") else tempfile.mkstemp()[0]
    os.write(descriptor, data)
    return descriptor


def _with_end(line: tail.Line, data: bytes) -> bytes:
    assert line.data is not None
    return line.data + data[line.offset + len(line.data) : line.end]


def _cuts(data: bytes, most: int) -> list[int]:
    """Return some offsets, ends of lines among them."""
    chance = random.Random(zlib.crc32(data))
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    places = [
        chance.choice(ends) if ends and chance.random() < 0.6 else chance.randint(0, len(data)) for _ in range(most)
    ]
    return sorted(set(places))


# ---- the complete path


def check_path(data: bytes, cuts: Callable[[bytes], Iterable[list[int]]] | None = None) -> int:
    """Any project gives well-formed traces, the same in pieces as in one pass, and each can be encoded.

    Returns the number of spans. `cuts` gives the sizes at which a growing session file is read; by default they, and the
    choice of policy and naming, are derived from the bytes.
    """
    files = split(data)
    place = Path(tempfile.gettempdir() if not _MEMORY.is_dir() else _MEMORY) / f"turnspan-fuzz-{os.getpid()}"
    # A new name each time: caches are keyed by name.
    project = place / str(next(_numbers)) / "-p"
    try:
        put(files, project)
        found = list(sessions.sessions_in(project))
        at_once = {session.session_id: _read(session) for session in found}
        total = 0
        once = (Kind.TURN,) if _share_ids(files) else tuple(Kind)
        for name, traces in at_once.items():
            check_shape(traces, once, name)
            check_sent(traces, None if cuts is not None else zlib.crc32(data))
            total += sum(len(trace.spans) for trace in traces)
        if len(found) == 1:
            name = f"{found[0].session_id}.jsonl"
            content = files[name]
            for places in cuts(content) if cuts is not None else [_cuts(content, 3)]:
                elsewhere = place / str(next(_numbers)) / "-p"
                _check_pieces(files, name, places, at_once[found[0].session_id], elsewhere, once=once)
        return total
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _read(session: sessions.SessionFile) -> list[Trace]:
    return list(Reader.for_people().traces(session))


def _share_ids(files: dict[str, bytes]) -> bool:
    """Whether a response or a call is in two conversations: it is then one span that may occur twice."""
    owners: dict[bytes, object] = {}
    for name, content in files.items():
        for line in content.split(b"\n"):
            conversation = (name, _SIDECHAIN.search(line) is not None)
            if any(owners.setdefault(found, conversation) != conversation for found in _ID.findall(line)):
                return True
    return False


def _check_pieces(
    files: dict[str, bytes],
    name: str,
    places: list[int],
    at_once: list[Trace],
    project: Path,
    *,
    once: tuple[Kind, ...],
) -> None:
    """Read a growing session several times: the spans are those of one pass, each once."""
    put(files, project)
    path = project / name
    session = sessions.SessionFile(path.stem, path)
    progress, traces = Progress(), []
    for size in places:
        path.write_bytes(files[name][:size])
        progress = _continue(session, progress, Ending(), traces)
    path.write_bytes(files[name])
    _continue(session, progress, Ending(is_over=True), traces)
    check_shape(traces, once)
    pieces, one = _by_id(traces), _by_id(at_once)
    for key in pieces.keys() | one.keys():
        assert key in one, f"only in pieces, cut at {places}: {pieces[key]}"
        assert key in pieces, f"only in one pass, cut at {places}: {one[key]}"
        assert pieces[key] == one[key], f"cut at {places}:\n{pieces[key]}\n{one[key]}"
    # A session that was taken for finished too early: no turn occurs twice. (A response or a call in two conversations may.)
    for size in places[:1]:
        early: list[Trace] = []
        path.write_bytes(files[name][:size])
        progress = _continue(session, Progress(), Ending(is_over=True), early)
        path.write_bytes(files[name])
        _continue(session, progress, Ending(is_over=True), early)
        # A prompt without an answer that was repeated by then is left out, and can be answered after all: such a turn has
        # no root. Its prompt is not known any more, and whether it is answered was not known before.
        check_shape(early, once=(Kind.TURN,), may_lack_roots=True)


def _continue(session: sessions.SessionFile, progress: Progress, ending: Ending, traces: list[Trace]) -> Progress:
    for piece in Reader.for_people().read(session, progress, ending).pieces():
        traces += piece.traces
        # Progress is stored and loaded between two readings.
        progress = msgspec.json.decode(msgspec.json.encode(piece.progress), type=Progress)
    return progress


def _by_id(traces: list[Trace]) -> dict[tuple[bytes, bytes], tuple[object, Span]]:
    return {
        (trace.trace_id, span.span_id): (
            (trace.name, trace.session_id, trace.client_version, trace.tags, trace.facts),
            span,
        )
        for trace in traces
        for span in trace.spans
    }


def check_shape(
    traces: list[Trace],
    once: Iterable[Kind] = tuple(Kind),
    session_id: str | None = None,
    *,
    may_lack_roots: bool = False,
) -> None:
    """No id twice, parents before children, no end before its start.

    A copy can have a response that its origin lacks. It is a further part of a turn that the origin's file exports, so its
    parent is not among the traces of `session_id`. With `may_lack_roots`, all spans of a trace may be below one that is
    missing.
    """
    seen = set()
    roots: dict[bytes, bytes | None] = {}
    for trace in traces:
        assert len(trace.trace_id) == 16
        assert any(trace.trace_id)
        for span in trace.spans:
            key = (trace.trace_id, span.span_id)
            assert len(span.span_id) == 8
            assert any(span.span_id)
            assert key not in seen or span.kind not in once, f"twice: {span}"
            is_copied = session_id is not None and trace.session_id != session_id
            has_parent = span.parent_id is None or (trace.trace_id, span.parent_id) in seen
            is_below_root = may_lack_roots and roots.setdefault(trace.trace_id, span.parent_id) == span.parent_id
            assert has_parent or is_copied or is_below_root, f"no parent yet: {span}"
            assert 0 <= span.start_ns <= span.end_ns, f"ends before it starts: {span}"
            seen.add(key)


def check_sent(traces: list[Trace], choice: int | None = None) -> None:
    """Redaction does not change the structure, and the encoded request decodes to the same spans.

    A `choice` selects one policy and one naming; by default all are tried.
    """
    kinds = [(policy, naming) for policy in POLICIES for naming in NAMINGS]
    for policy, naming in kinds if choice is None else [kinds[choice % len(kinds)]]:
        allowed = [redact(trace, policy).trace for trace in traces]
        assert _structure(allowed) == _structure(traces)
        assert allowed == [redact(trace, policy).trace for trace in traces]
        body = encode_request(allowed, naming)
        request = ExportTraceServiceRequest.FromString(body)
        assert request.SerializeToString() == body
        arrived = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        assert all(len({attribute.key for attribute in s.attributes}) == len(s.attributes) for s in arrived)
        # As lists: an id in two conversations occurs twice, and a request is in the order of its resources.
        assert sorted(
            (s.trace_id, s.span_id, s.parent_span_id, s.start_time_unix_nano, s.end_time_unix_nano) for s in arrived
        ) == sorted(
            (trace.trace_id, s.span_id, s.parent_id or b"", otlp_time(s.start_ns), otlp_time(s.end_ns))
            for trace in allowed
            for s in trace.spans
        )
        for line in otlp_json.encode_lines(allowed, naming).splitlines():
            msgspec.json.decode(line)


def _structure(traces: list[Trace]) -> list[object]:
    """Return the fields that no policy changes (a session id may be masked if it looks like a secret)."""
    return [
        (t.trace_id, [(s.span_id, s.parent_id, s.kind, s.start_ns, s.end_ns, s.usage) for s in t.spans]) for t in traces
    ]
