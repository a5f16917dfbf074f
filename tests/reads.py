"""Reads transcripts in one pass, and outlines the traces."""

import msgspec

from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions, session_of


def project_dirs(projects):
    """Return the project directories of a transcript tree."""
    return sorted(path for path in projects.iterdir() if path.is_dir()) if projects.is_dir() else []


def read(path, progress=None, **ending):
    """Read a session once; return its traces and the progress. By default the session is over."""
    progress = progress or Progress()
    traces = []
    for piece in Reader.for_people().read(session_of(path), progress, Ending(**(ending or {"is_over": True}))).pieces():
        traces += piece.traces
        progress = piece.progress
    return traces, progress


def one_pass(projects):
    """Return the traces of a tree, each session read once, from its start to its end."""
    return [trace for session in all_sessions(projects, {}) for trace in read(session.path)[0]]


def as_sent(trace, span):
    """Return a span as bytes, with everything that a backend writes on it."""
    around = (trace.trace_id, trace.name, trace.session_id, trace.client_version, trace.tags, trace.facts)
    return msgspec.json.encode((around, span))


def sent(traces):
    """Return (trace id, span id) → the span as bytes; no span may occur twice."""
    found = {}
    for trace in traces:
        for span in trace.spans:
            key = (trace.trace_id, span.span_id)
            assert key not in found, f"{span.kind} {span.name!r} occurs twice"
            found[key] = as_sent(trace, span)
    return found


def spans(traces, kind=None):
    """Return the spans of some traces, all or of one kind."""
    return [span for trace in traces for span in trace.spans if kind is None or span.kind == kind]


def outline(traces):
    """Return one line for each span, indented below its parent; `…` marks a parent in an earlier trace."""
    lines = []
    for trace in traces:
        depths = {}
        for span in trace.spans:
            known = span.parent_id is None or span.parent_id in depths
            depths[span.span_id] = depths[span.parent_id] + 1 if span.parent_id in depths else 0
            lines.append("  " * depths[span.span_id] + ("" if known else "… ") + _label(span))
    return lines


def outlined(path):
    """Return the traces of a session, as lines."""
    return outline(read(path)[0])


def _label(span):
    if span.kind == "generation":
        said = [getattr(part, "text", None) or getattr(part, "name", "") for part in span.output[0].parts]
        return f"said {' / '.join(said)}" + (f" ({span.error})" if span.error else "")
    if span.kind == "event":
        return f"({span.name})"
    return span.name + (f" ({span.error})" if span.error else "")
