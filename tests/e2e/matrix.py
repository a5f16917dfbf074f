"""The version matrix: runs every story with every client version and writes the table of `docs/compatibility.md`.

    python -m tests.e2e.matrix                       run all versions and update docs/compatibility.md
    python -m tests.e2e.matrix 2.0.76 2.1.325        run these versions; keep the last results of the others
    python -m tests.e2e.matrix --resume              continue an interrupted run; repeat stories that failed
    python -m tests.e2e.matrix 2.0.76 --only tools --table -

Rules:

- Each result is stored next to the clients, with a digest of the sources that were tested. The table is generated from
  all stored results. It replaces the text between two marker lines of the page.
- A dash means that the client version does not support the story. A failed story is repeated once, alone: on a machine
  that stalls for a second, typed input can get lost. The page says how many stories needed a second try.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from .client import NEWEST, Unavailable, cache_dir, install, version_tuple
from .play import Outcome, play_all
from .scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = (
    "1.0.84", "1.0.100", "1.0.128", "2.0.0", "2.0.36", "2.0.76", "2.1.1", "2.1.29", "2.1.45", "2.1.63", "2.1.80", "2.1.98",
    "2.1.128", "2.1.152", "2.1.172", "2.1.207", "2.1.250", "2.1.292", "2.1.310", NEWEST,
)  # fmt: skip
TABLE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
HEAD = "# Compatibility\n\nClaude Code versions that were run end to end, each through the stories of `tests/e2e`.\n\n"

EXCUSED = {
    "usage the client wrote wrongly": "responses have an output count that the client recorded wrongly: exported unchanged",
    "unrecorded": "responses are in no transcript (the client was killed or interrupted first)",
    "prompts the client never wrote down": "prompts are in no transcript: their turns have an answer and no prompt",
    "responses that the client filed with another agent": (
        "answers are in the file of the prompt-suggestion subagent: exported as part of that subagent"
    ),
}


def cell(outcome: Outcome | None) -> str:
    """Return the text of one cell."""
    if outcome is None:
        return "not run"
    if outcome.failure:
        return "failed"
    return "✓" if not outcome.problems else ", ".join(f"{k} {len(v)}" for k, v in outcome.problems.items())


class Kept(msgspec.Struct, frozen=True):
    """A stored outcome."""

    outcome: Outcome
    tries: int
    sources: str  # a digest of the sources that were tested


def sources() -> str:
    """Return a digest of turnspan's sources."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[2] / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def results_dir() -> Path:
    """Return the directory of stored outcomes."""
    return cache_dir() / "outcomes"


def keep_outcome(kept: Kept) -> None:
    """Store an outcome."""
    place = results_dir() / kept.outcome.version
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{kept.outcome.scenario}.json").write_bytes(msgspec.json.encode(kept))


def kept_outcomes() -> list[Kept]:
    """Return the stored outcomes of existing stories, oldest client first."""
    found = [msgspec.json.decode(path.read_bytes(), type=Kept) for path in results_dir().glob("*/*.json")]
    fitting = [k for k in found if k.outcome.scenario in SCENARIOS and _fits(k.outcome.scenario, k.outcome.version)]
    return sorted(fitting, key=lambda k: version_tuple(k.outcome.version))


def _fits(name: str, version: str) -> bool:
    return SCENARIOS[name].fits(version)


def table(kept: list[Kept], unavailable: dict[str, str]) -> str:
    """Return the table as Markdown."""
    outcomes = [k.outcome for k in kept]
    versions = list(dict.fromkeys(o.version for o in outcomes))
    by_place = {(o.scenario, o.version): o for o in outcomes}
    names = [n for n in SCENARIOS if any(o.scenario == n for o in outcomes)]
    lines = ["| story | " + " | ".join(versions) + " |", "|---|" + "---|" * len(versions)]
    lines += [
        f"| {n.replace('_', ' ')} | "
        + " | ".join(cell(by_place.get((n, v))) if _fits(n, v) else "-" for v in versions)
        + " |"
        for n in names
    ]
    sums: Counter[str] = Counter()
    for outcome in outcomes:
        sums.update(outcome.figures)
    right = sum(o.is_right for o in outcomes)
    compared = ", ".join(
        f"{sums[k]} {k}" for k in ("generations", "tools", "subagent responses", "turns", "spans", "costs compared")
    )
    lines += ["", f"{right} of {len(outcomes)} runs without any difference; compared: {compared}."]
    later = sum(k.tries > 1 for k in kept)
    lines += [f"{later} of them passed on the second try: a busy machine, or an error that has since been fixed."]
    lines += [f"Revisions of turnspan's sources that were tested: {', '.join(sorted({k.sources for k in kept}))}."]
    lines += [f"{sums[key]} {what}." for key, what in EXCUSED.items() if sums[key]]
    lines += [f"\n{version}: {why}" for version, why in unavailable.items()]
    return "\n".join(lines) + "\n"


def merged(page: str, text: str) -> str:
    """Return a page with the table between its markers, or at its end."""
    if BEGIN in page and END in page:
        before, rest = page.split(BEGIN, 1)
        return f"{before}{BEGIN}\n{text}{END}{rest.split(END, 1)[1]}"
    return f"{page or HEAD}{BEGIN}\n{text}{END}\n"


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))  # \b: keep the lines as they are
@click.argument("versions", nargs=-1)
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="Run only this story (repeatable).")
@click.option("--table", "target", default=str(TABLE), help="The page to write, or - for standard output.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the runs in this directory.")
@click.option("--resume", is_flag=True, help="Run only stories that have not passed yet.")
def main(versions: tuple[str, ...], only: tuple[str, ...], target: str, keep: Path | None, *, resume: bool) -> None:
    """Run the matrix."""
    unavailable: dict[str, str] = {}
    root = keep or Path(tempfile.mkdtemp(prefix="turnspan-matrix-"))
    for version in versions or VERSIONS:
        try:
            install(version)
        except Unavailable as reason:
            unavailable[version] = str(reason)
            continue
        before = {k.outcome.scenario: k for k in kept_outcomes() if k.outcome.version == version} if resume else {}
        names = [n for n in only or SCENARIOS if n not in before or not before[n].outcome.is_right]
        for played in _play(version, names, root / version):
            earlier = before.get(played.outcome.scenario)
            kept = msgspec.structs.replace(played, tries=played.tries + (earlier.tries if earlier else 0))
            keep_outcome(kept)
            click.echo(f"{version} {kept.outcome.scenario}, try {kept.tries}: {cell(kept.outcome)}", err=True)
            if not kept.outcome.is_right:
                click.echo(kept.outcome.report(), err=True)
    all_kept = kept_outcomes()
    text = table(all_kept, unavailable)
    if target == "-":
        click.echo(text)
    else:
        page = Path(target)
        page.parent.mkdir(exist_ok=True)
        page.write_text(merged(page.read_text() if page.exists() else "", text))
    raise SystemExit(0 if all_kept and all(k.outcome.is_right for k in all_kept) else 1)


def _play(version: str, names: list[str], root: Path) -> Iterator[Kept]:
    """Play stories in parallel, then those that failed once more, one at a time."""
    state = sources()
    wrong = []
    for outcome in play_all(version, root, names) if names else ():
        wrong += [outcome.scenario] * (not outcome.is_right)
        yield Kept(outcome, 1, state)
    for name in wrong:
        shutil.rmtree(root / f"{name}.first", ignore_errors=True)
        shutil.move(root / name, root / f"{name}.first")
        yield from (Kept(outcome, 2, sources()) for outcome in play_all(version, root, [name]))


if __name__ == "__main__":
    main()
