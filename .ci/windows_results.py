"""Prints what the tests with a Windows Python gave, by file, and writes it into docs/platforms.md.

windows_results.py RESULTS FILE…: the directory of JUnit files, and what was run. The exit code is 1 if a test failed
or a run ended without a result.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

PAGE = Path(__file__).parents[1] / "docs" / "platforms.md"


def counts_of(path: Path) -> dict[str, Counter[str]]:
    """Passed, failed and skipped tests by file."""
    found: dict[str, Counter[str]] = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found.setdefault(str(case.get("classname")).replace(".", "/") + ".py", Counter())[result] += 1
    return found


def main() -> None:
    """Print the table, and write it into the page."""
    results, *files = sys.argv[1:]
    lines = ["| tests | passed | failed | skipped |", "|---|---|---|---|"]
    failed = 0
    for file in files:
        path = Path(results) / f"{file.replace('/', '_')}.xml"
        found = counts_of(path) if path.exists() else {f"{file} (did not end)": Counter(failed=1)}
        for name, counts in sorted(found.items()):
            lines.append(f"| {name} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
            failed += counts["failed"]
    print("\n".join(lines))
    text = PAGE.read_text(encoding="utf-8")
    table = "<!-- windows -->\n" + "\n".join(lines) + "\n<!-- /windows -->"
    PAGE.write_text(
        re.sub(r"<!-- windows -->.*<!-- /windows -->", lambda _: table, text, flags=re.DOTALL), encoding="utf-8"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
