"""The version matrix: every client version through every story, and the table of `docs/compatibility.md`.

    python -m tests.e2e.matrix                       all versions, the table goes to docs/compatibility.md
    python -m tests.e2e.matrix 2.0.76 2.1.325 --only tools --only agents --table -

The table stands between two marker lines; what people wrote around them stays. A story that a client cannot play is a
dash.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from .client import NEWEST, Unavailable, install
from .play import Outcome, play_all
from .scenarios import SCENARIOS

VERSIONS = (
    "1.0.128", "2.0.0", "2.0.36", "2.0.76", "2.1.1", "2.1.29", "2.1.45", "2.1.63", "2.1.80", "2.1.98", "2.1.128",
    "2.1.152", "2.1.172", "2.1.207", "2.1.250", "2.1.292", "2.1.310", NEWEST,
)  # fmt: skip
TABLE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
HEAD = "# Compatibility\n\nClaude Code versions that were run end to end, each through the stories of `tests/e2e`.\n\n"


def cell(outcome: Outcome | None) -> str:
    """Show one outcome."""
    if outcome is None:
        return "-"
    if outcome.failure:
        return "not played"
    return "✓" if not outcome.problems else ", ".join(f"{k} {len(v)}" for k, v in outcome.problems.items())


def table(outcomes: list[Outcome], unavailable: dict[str, str], seconds: float) -> str:
    """Write the table."""
    versions = list(dict.fromkeys(o.version for o in outcomes))
    by_place = {(o.scenario, o.version): o for o in outcomes}
    names = [n for n in SCENARIOS if any(o.scenario == n for o in outcomes)]
    lines = ["| story | " + " | ".join(versions) + " |", "|---|" + "---|" * len(versions)]
    lines += [
        f"| {n.replace('_', ' ')} | " + " | ".join(cell(by_place.get((n, v))) for v in versions) + " |" for n in names
    ]
    sums: Counter[str] = Counter()
    for outcome in outcomes:
        sums.update(outcome.figures)
    right = sum(o.is_right for o in outcomes)
    told = ", ".join(
        f"{sums[k]} {k}" for k in ("generations", "tools", "subagent responses", "turns", "spans", "costs compared")
    )
    lines += ["", f"{right} of {len(outcomes)} runs without any difference; compared: {told}."]
    lines += [f"The whole took {seconds / 60:.0f} minutes."]
    if wrongly := sums["usage the client wrote wrongly"]:
        lines += [
            f"{wrongly} responses have an output count that the client wrote down wrongly: exported as it stands."
        ]
    lines += [f"\n{version}: {why}" for version, why in unavailable.items()]
    return "\n".join(lines) + "\n"


def merged(page: str, text: str) -> str:
    """Put the table between the page's markers, or at its end."""
    if BEGIN in page and END in page:
        before, rest = page.split(BEGIN, 1)
        return f"{before}{BEGIN}\n{text}{END}{rest.split(END, 1)[1]}"
    return f"{page or HEAD}{BEGIN}\n{text}{END}\n"


@click.command(help=__doc__)
@click.argument("versions", nargs=-1)
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="Play only this story (repeatable).")
@click.option("--table", "target", default=str(TABLE), help="The page to write, or - for standard output.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the runs in this directory.")
def main(versions: tuple[str, ...], only: tuple[str, ...], target: str, keep: Path | None) -> None:
    """Run the matrix."""
    began = time.monotonic()
    outcomes: list[Outcome] = []
    unavailable: dict[str, str] = {}
    root = keep or Path(tempfile.mkdtemp(prefix="turnspan-matrix-"))
    for version in versions or VERSIONS:
        try:
            install(version)
        except Unavailable as reason:
            unavailable[version] = str(reason)
            continue
        for outcome in play_all(version, root / version, list(only) or None):
            outcomes.append(outcome)
            click.echo(f"{version} {outcome.scenario}: {cell(outcome)}", err=True)
            if not outcome.is_right:
                click.echo(outcome.report(), err=True)
    text = table(outcomes, unavailable, time.monotonic() - began)
    if target == "-":
        click.echo(text)
    else:
        page = Path(target)
        page.parent.mkdir(exist_ok=True)
        page.write_text(merged(page.read_text() if page.exists() else "", text))
    raise SystemExit(0 if outcomes and all(o.is_right for o in outcomes) else 1)


if __name__ == "__main__":
    main()
