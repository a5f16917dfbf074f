"""Coverage-guided fuzzing of the code that reads transcripts.

    python -m tests.fuzz                        both targets, one minute each
    python -m tests.fuzz --seconds 3600 path    one target, for an hour
    python -m tests.fuzz --shrink CRASH path    print the smallest input with the same crash

`lines` feeds arbitrary bytes to the line decoder; `path` covers everything from the files of a project to an encoded
request. Interesting inputs are kept, and the next run starts with them. A crash ends a run: shrink it and save it in
`fixtures/crashes` under a descriptive name; a test then replays it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from .running import TARGETS, fuzz, is_available
from .shrinking import shrunk


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))  # \b: keep the lines as they are
@click.argument("targets", nargs=-1, type=click.Choice(TARGETS))
@click.option("--seconds", default=60, show_default=True, help="Duration for each target.")
@click.option("--keep", type=click.Path(path_type=Path), help="Directory for inputs (default: in the user's cache).")
@click.option("--shrink", type=click.Path(path_type=Path, exists=True), help="Shrink this crash of the target.")
def main(targets: tuple[str, ...], seconds: int, keep: Path | None, shrink: Path | None) -> None:
    """Fuzz, and print the results."""
    if shrink is not None:
        sys.stdout.buffer.write(shrunk(targets[0] if targets else "path", shrink.read_bytes()))
        return
    keep = keep or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnspan-fuzz"
    if not is_available():
        click.echo("atheris is not installed: pip install atheris (wheels are available for Linux on x86-64)", err=True)
        sys.exit(2)
    done = [fuzz(target, seconds, keep.resolve()) for target in targets or TARGETS]
    for fuzzed in done:
        click.echo(fuzzed.report())
        if fuzzed.crash or not fuzzed.executions:
            click.echo(fuzzed.log.read_text(errors="replace")[-3000:])
    sys.exit(any(fuzzed.crash or not fuzzed.executions for fuzzed in done))


if __name__ == "__main__":
    main()
