"""Replays a session: its files as they were at many moments, with the events of those moments."""

import json

from reads import project_dirs, read

from turnspan.source.sessions import all_sessions
from turnspan.transcript.carry import parse_time
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.rows import LinePlace


class Life:
    """The rows of a transcript tree in the order of their times, and the moments at which turns have ended."""

    def __init__(self, projects):
        self.files = {
            path.relative_to(projects): path.read_bytes()
            for project in project_dirs(projects)
            for path in sorted(project.rglob("*"))
            if path.is_file()
        }
        self.projects = projects
        steps = []
        for name, data in self.files.items():
            if name.suffix != ".jsonl":
                steps.append((0, name, len(data)))
                continue
            end = latest = 0
            for line in data.splitlines(keepends=True):
                end += len(line)
                latest = max(latest, _time_of(line))
                steps.append((latest, name, end))
        order = sorted(range(len(steps)), key=lambda at: (steps[at][0], at))
        self.steps = [steps[at][1:] for at in order]
        sessions = [session.path.relative_to(projects) for session in all_sessions(projects)]
        self.answered = {name: answered_places(self.files[name]) for name in sessions}

    def sizes(self, count):
        """Return the size of each file after the first rows."""
        return dict(self.steps[:count])

    def put(self, directory, sizes):
        """Write the files as they were at a moment."""
        for name, size in sizes.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[name][:size])

    def lived(self, directory, moments):
        """Return the traces of reading at some moments, given as counts of rows, and once more at the end."""
        traces, progress = [], {}
        for count in [*sorted(moments), len(self.steps)]:
            sizes = self.sizes(count)
            self.put(directory, sizes)
            for name, places in self.answered.items():
                if name not in sizes:
                    continue
                is_stopped = any(first <= sizes[name] < after for first, after in places)
                agents = tuple(
                    other.stem.removeprefix("agent-")
                    for other, size in sizes.items()
                    if other.name.startswith("agent-") and size == len(self.files[other])
                )
                ending = {"is_stopped": is_stopped, "agents": agents if is_stopped else ()}
                new, progress[name] = read(directory / name, progress.get(name), **ending)
                traces += new
        for name in self.answered:
            new, _ = read(directory / name, progress.get(name))
            traces += new
        return traces


def answered_places(data):
    """Return where a Stop can occur: from the end of each turn, up to the next row of the conversation."""
    grouper, anomalies, places, ends, at = Grouper("x"), Anomalies(), [], [], 0
    for number, line in enumerate(data.splitlines(keepends=True)):
        for entry in parse(line.rstrip(b"\r\n"), anomalies):
            if entry.type in {"user", "assistant"}:
                places.append(at)
            ends += [sealed.end.end for sealed in grouper.feed(entry, LinePlace(number, at, at + len(line)))]
        at += len(line)
    last = grouper.seal() if grouper.is_answered else None
    ends += [last.end.end] if last is not None else []
    return [(end, next((place + 1 for place in places if place >= end), len(data) + 1)) for end in ends]


def _time_of(line):
    try:
        row = json.loads(line)
    except ValueError:
        return 0
    return (parse_time(row.get("timestamp")) or 0) if isinstance(row, dict) else 0
