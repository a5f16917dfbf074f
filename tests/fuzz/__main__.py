"""Coverage-guided fuzzing of what reads transcripts.

    python -m tests.fuzz                        both targets, a minute each
    python -m tests.fuzz --seconds 3600 path    one of them, for an hour
    python -m tests.fuzz --shrink CRASH path    the same crash with as few rows and fields as can be

`lines` is the line decoder on any bytes; `path` the whole way from the files of a project to what a backend would send.
What was interesting is kept, and the next run goes on from there. A crash ends a run: make it small, and put it into
`fixtures/crashes` with a name that says what it is; a plain test replays it from then on.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from .running import TARGETS, fuzz, is_available
from .shrinking import shrunk


@click.command(help=__doc__)
@click.argument("targets", nargs=-1, type=click.Choice(TARGETS))
@click.option("--seconds", default=60, show_default=True, help="How long, each.")
@click.option("--keep", type=click.Path(path_type=Path), help="Where inputs are kept, instead of the user's cache.")
@click.option("--shrink", type=click.Path(path_type=Path, exists=True), help="Make this crash of the target small.")
def main(targets: tuple[str, ...], seconds: int, keep: Path | None, shrink: Path | None) -> None:
    """Fuzz, and say what was found."""
    if shrink is not None:
        sys.stdout.buffer.write(shrunk(targets[0] if targets else "path", shrink.read_bytes()))
        return
    keep = keep or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnspan-fuzz"
    if not is_available():
        click.echo("atheris is not installed: pip install atheris (there are wheels for Linux on x86-64)", err=True)
        sys.exit(2)
    done = [fuzz(target, seconds, keep.resolve()) for target in targets or TARGETS]
    for fuzzed in done:
        click.echo(fuzzed.report())
        if fuzzed.crash or not fuzzed.executions:
            click.echo(fuzzed.log.read_text(errors="replace")[-3000:])
    sys.exit(any(fuzzed.crash or not fuzzed.executions for fuzzed in done))


if __name__ == "__main__":
    main()
