"""`python -m tests.digest [FILE]`: digests of the traces and requests of every fixture and recording, one session a line.

Each line has the digest of a session's traces, and of the requests for each type of destination in every capture mode.
Run it before and after a change that must not affect what is exported, and compare:

    python -m tests.digest before.txt; …; python -m tests.digest after.txt; diff before.txt after.txt
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import msgspec

from turnspan.delivery.destinations import targets_of
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import sessions_in
from turnspan.trace.model import Trace

ROOT = Path(__file__).resolve().parents[1]
TREES = (ROOT / "fixtures", ROOT.parent / "shared" / "corpus")
DESTINATIONS = {
    "otlp": 'type = "otlp"\nendpoint = "http://127.0.0.1:1"',
    "langfuse": 'type = "langfuse"\nbase_url = "http://127.0.0.1:1"\npublic_key = "pk-1"\nsecret_key = "sk-123456"',
    "local": 'type = "local"\ndirectory = "/nonexistent"',
}
CAPTURES = ("full", "redacted", "metadata")


def settings(home):
    """Write a configuration with every destination in every capture mode, and return its targets."""
    (home / "turnspan").mkdir(mode=0o700)
    text = 'user_id = "ada"\ntags = ["digest"]\n' + "".join(
        f'[destinations.{name}-{capture}]\n{options}\ncapture = "{capture}"\n'
        for name, options in DESTINATIONS.items()
        for capture in CAPTURES
    )
    path = home / "turnspan" / "config.toml"
    path.write_text(text)
    path.chmod(0o600)
    return targets_of(load_config({"CLAUDE_CONFIG_DIR": str(home), "HOME": str(home)}))


def session_digests(session, targets):
    """Return (name, digest) pairs: the traces, then the requests of each destination, one for each piece."""
    traces = hashlib.sha256()
    requests = {target.destination.name: hashlib.sha256() for target in targets}
    for piece in Reader.for_people().read(session, Progress(), Ending(is_over=True)).pieces():
        # Without `blocks`, which only masking reads: they repeat what the spans hold.
        fields = [name for name in Trace.__struct_fields__ if name != "blocks"]
        traces.update(msgspec.json.encode([{name: getattr(trace, name) for name in fields} for trace in piece.traces]))
        traces.update(msgspec.json.encode(piece.progress))
        for target in targets:
            masked = [found.trace for trace in piece.traces if (found := target.mask(trace)) is not None]
            requests[target.destination.name].update(target.backend.encode(masked))
    return [("traces", traces), *requests.items()]


def lines():
    """Yield a line for each session of every tree that exists."""
    with tempfile.TemporaryDirectory() as directory:
        targets = settings(Path(directory))
        for tree in TREES:
            for project in sorted(path for path in tree.rglob("projects/*") if path.is_dir()):
                for session in sorted(sessions_in(project), key=lambda found: found.path):
                    found = session_digests(session, targets)
                    digests = " ".join(f"{name}={digest.hexdigest()[:16]}" for name, digest in found)
                    yield f"{session.path.relative_to(tree.parent)} {digests}"


def main():
    """Write the digests, and the digest of them all."""
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    found = list(lines())
    total = hashlib.sha256("\n".join(found).encode()).hexdigest()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join([*found, ""]))
    print(f"{len(found)} sessions: {total}")  # noqa: T201  the result


if __name__ == "__main__":
    main()
