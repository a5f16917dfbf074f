"""The main session of the demo: a CSV loader that breaks at quoted fields, from the report to the commit."""

from __future__ import annotations

from datetime import timedelta

from tests.demo.writer import NEWEST, Session, numbered

ROOT = "/home/dev/csvload"
LOADER = '''"""Loads rows from delimited text files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator


@dataclass(frozen=True)
class Row:
    """One record, with the number of the line it began on."""

    line: int
    fields: tuple[str, ...]


def load(path: Path, delimiter: str = ",") -> Iterator[Row]:
    """Yield the rows of a file."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield Row(number, tuple(line.rstrip("\\n").split(delimiter)))


def header(path: Path, delimiter: str = ",") -> tuple[str, ...]:
    """Return the names of the columns."""
    return next(load(path, delimiter)).fields
'''
OLD_BODY = """    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield Row(number, tuple(line.rstrip("\\n").split(delimiter)))"""
NEW_BODY = """    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        for fields in reader:
            if fields:
                yield Row(reader.line_num, tuple(fields))"""
FIXED_BODY = """    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        began = 1
        for fields in reader:
            if fields:
                yield Row(began, tuple(fields))
            began = reader.line_num + 1"""
TESTS = '''"""Quoted fields: delimiters, quotes and line breaks inside a value."""

from pathlib import Path

import pytest

from csvload.loader import load

CASES = {
    "a,b\\n": [("a", "b")],
    '"a,b",c\\n': [("a,b", "c")],
    '"say ""hi""",c\\n': [('say "hi"', "c")],
    '"two\\nlines",c\\n"x",y\\n': [("two\\nlines", "c"), ("x", "y")],
}


@pytest.mark.parametrize("text", CASES)
def test_quoted_fields(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text, encoding="utf-8")
    assert [row.fields for row in load(file)] == CASES[text]


def test_line_numbers_are_those_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('"two\\nlines",c\\nx,y\\n', encoding="utf-8")
    assert [row.line for row in load(file)] == [1, 3]
'''
FAILED = """Exit code 1
\x1b[32m....\x1b[0m\x1b[31mF\x1b[0m\x1b[32m.......\x1b[0m                                                             [100%]
=================================== FAILURES ===================================
\x1b[31m\x1b[1m________________ test_line_numbers_are_those_of_the_first_line _________________\x1b[0m

    def test_line_numbers_are_those_of_the_first_line(tmp_path: Path) -> None:
        file = tmp_path / "rows.csv"
        file.write_text('"two\\nlines",c\\nx,y\\n', encoding="utf-8")
>       assert [row.line for row in load(file)] == [1, 3]
\x1b[1m\x1b[31mE       assert [2, 3] == [1, 3]\x1b[0m
\x1b[1m\x1b[31mE         At index 0 diff: 2 != 1\x1b[0m

\x1b[1m\x1b[31mtests/test_quoting.py\x1b[0m:28: AssertionError
=========================== short test summary info ============================
\x1b[31mFAILED\x1b[0m tests/test_quoting.py::\x1b[1mtest_line_numbers_are_those_of_the_first_line\x1b[0m
\x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m11 passed\x1b[0m in 0.21s"""
PASSED = "\x1b[32m............\x1b[0m                                                             [100%]\n\x1b[32m\x1b[1m12 passed\x1b[0m in 0.19s"
PLAN = ("Reproduce the failure", "Read files with the csv module", "Add tests for quoted fields", "Run the test suite")


def todos(done, doing=True):
    """Return the list of tasks after some of them are done."""
    states = ["completed"] * done + (["in_progress"] if doing else []) + ["pending"] * len(PLAN)
    return {
        "todos": [
            {"content": text, "status": state, "activeForm": text} for text, state in zip(PLAN, states, strict=False)
        ]
    }


UPDATED = "Todos have been modified successfully. Ensure that you continue to use the todo list to track your progress."


def story():
    """Return the session."""
    s = Session(
        ROOT, model="claude-opus-5-5", branch="main", ends=NEWEST - timedelta(hours=2),
        title="Loader breaks at quoted fields",
    )  # fmt: skip
    s.fresh += 11_600  # the project's instructions
    s.weight = 110
    _find_out(s)
    _fix(s)
    _look_around(s)
    _measure(s)
    _push(s)
    _commit(s)
    return s.moved(NEWEST)


def _find_out(s):
    s.prompt(
        "The nightly import of orders.csv fails since yesterday, the traceback is in the screenshot.\n"
        "Find out why. Don't change anything yet.",
        image=5_400,
    )
    (listing, read) = s.respond(
        "I'll look at the loader and at the file that fails.",
        ("Bash", {"command": "git log --oneline -5 && ls -R src tests data | head -40", "description": "Show recent commits and the layout"}),
        ("Read", {"file_path": f"{ROOT}/src/csvload/loader.py"}),
        thinking="The screenshot shows a ValueError about the number of columns. Either the file changed or the parser "
        "does. First the code that splits a line, then the lines that fail.",
    )  # fmt: skip
    s.result(listing, "9f31c02 Import: one transaction per file\n41be7d8 Loader: yield rows instead of a list\nc0a7715 CLI: --delimiter\n"
             "src:\ncsvload\n\nsrc/csvload:\n__init__.py\ncli.py\nimporter.py\nloader.py\n\ntests:\ntest_importer.py\ntest_loader.py\n\ndata:\norders.csv", after=0.3)  # fmt: skip
    s.result(read, numbered(LOADER), after=0.02)
    s.use(
        "Grep", {"pattern": '"[^"]*,[^"]*"', "path": "data/orders.csv", "output_mode": "content", "-n": True},
        'data/orders.csv:1204:1204,2026-01-14,"Meyer, Sons & Co",149.00\ndata/orders.csv:1377:1377,2026-01-14,"Bolt, M6",3.20',
        say="A line is split at every delimiter. Are there quoted fields in the data?",
    )  # fmt: skip
    s.use(
        "Bash", {"command": "python -m csvload import data/orders.csv --dry-run; env | grep ^CSVLOAD", "description": "Reproduce the failure without writing"},
        'Exit code 1\nTraceback (most recent call last):\n  File "src/csvload/importer.py", line 41, in check\n'
        '    raise ValueError(f"line {row.line}: {len(row.fields)} columns, expected {self.width}")\n'
        "ValueError: line 1204: 5 columns, expected 4\nCSVLOAD_DATABASE_URL=postgresql://importer:Yq7-tR2w-kP9z@db.internal:5432/orders",
        after=1.9, is_error=True,
    )  # fmt: skip
    s.answer(
        "## Why the import fails\n\n`load` splits each line at **every** comma, also inside quotes. Until yesterday no value contained one.\n\n"
        "| line | value | columns found | expected |\n|---:|---|---:|---:|\n"
        '| 1204 | `"Meyer, Sons & Co"` | 5 | 4 |\n| 1377 | `"Bolt, M6"` | 5 | 4 |\n\n'
        "What else the current code gets wrong:\n\n"
        '1. doubled quotes (`"say ""hi"""`) stay doubled\n2. a line break inside quotes ends the row\n'
        "3. a byte order mark becomes part of the first column's name\n\n"
        "The standard library's [`csv`](https://docs.python.org/3/library/csv.html) handles all of these:\n\n"
        "```python\nreader = csv.reader(file, delimiter=delimiter, strict=True)\n```\n\n"
        "> Nothing was changed. Shall I replace the splitting by `csv.reader` and add tests?"
    )


def _fix(s):
    s.prompt("Yes, with tests please. Keep the line numbers right, the error messages depend on them.", after=95)
    s.use("TodoWrite", todos(1), UPDATED, after=0.02)
    calls = s.respond(
        ("Edit", {"file_path": f"{ROOT}/src/csvload/loader.py", "old_string": "from __future__ import annotations\n\nfrom dataclasses",
                  "new_string": "from __future__ import annotations\n\nimport csv\nfrom dataclasses"}),
        ("Edit", {"file_path": f"{ROOT}/src/csvload/loader.py", "old_string": OLD_BODY, "new_string": NEW_BODY}),
    )  # fmt: skip
    for call in calls:
        s.result(call, f"The file {ROOT}/src/csvload/loader.py has been updated successfully.", after=0.05)
    s.use(
        "Write", {"file_path": f"{ROOT}/tests/test_quoting.py", "content": TESTS},
        f"File created successfully at: {ROOT}/tests/test_quoting.py",
    )  # fmt: skip
    s.use("Bash", {"command": "python -m pytest -q", "description": "Run the tests"}, FAILED, after=2.6, is_error=True)
    s.use(
        "Edit", {"file_path": f"{ROOT}/src/csvload/loader.py", "old_string": NEW_BODY, "new_string": FIXED_BODY},
        f"The file {ROOT}/src/csvload/loader.py has been updated successfully.",
        say="`reader.line_num` is the *last* line of a record. The row has to remember where it began.",
        thinking="line_num counts physical lines read so far, so after a multi-line record it is the last one. Keep the "
        "number of the next line in a variable and update it after each record, also after empty ones.",
    )  # fmt: skip
    s.use("Bash", {"command": "python -m pytest -q", "description": "Run the tests"}, PASSED, after=2.4)
    s.use("TodoWrite", todos(4, doing=False), UPDATED, after=0.02)
    s.answer(
        "Fixed. All 12 tests pass, and the dry run of `orders.csv` reads 1,650 rows.\n\n"
        '- `load` uses `csv.reader`, with `newline=""` so that line breaks inside quotes survive, and `utf-8-sig` for the byte order mark\n'
        "- a row has the number of its **first** line; my first version used the last one, which a test found\n"
        "- `strict=True`: an unfinished quote is an error instead of a row that swallows the rest of the file\n\n"
        "- [x] loader\n- [x] tests\n- [ ] changelog"
    )


def _look_around(s):
    s.prompt("Check if anything else splits lines by hand, and what the docs promise about quoting.", after=210)
    explore = {
        "description": "Find hand-written splitting", "subagent_type": "Explore",
        "prompt": "Find every place in src/ and scripts/ that splits lines of delimited text without the csv module. Report file, line and whether quoted fields can occur there.",
    }  # fmt: skip
    docs = {
        "description": "Read docs about quoting", "subagent_type": "general-purpose",
        "prompt": "Read docs/ and README.md of this project. What do they promise about quoting, encodings and line numbers? Quote the sentences, and say which are wrong now.",
    }  # fmt: skip
    one, two = s.respond("Two independent questions: I'll ask two agents.", ("Agent", explore), ("Agent", docs))
    began = s.now
    report = (
        "Two places split by hand:\n\n| file | line | risk |\n|---|---:|---|\n| `scripts/merge.py` | 18 | **real**: merges customer exports, which are quoted |\n"
        "| `src/csvload/cli.py` | 52 | none: splits `--columns a,b` |\n"
    )
    first = s.agent(one, explore, [
        ("Grep", {"pattern": r"\.split\(", "path": ".", "glob": "*.py", "output_mode": "content", "-n": True},
         'scripts/merge.py:18:        fields = line.split(",")\nsrc/csvload/cli.py:52:    return tuple(value.split(","))', 0.3),
        ("Read", {"file_path": f"{ROOT}/scripts/merge.py", "offset": 10, "limit": 14},
         numbered('def merge(paths: list[Path], target: Path) -> int:\n    """Append files; return the number of rows."""\n    rows = 0\n    with target.open("a") as out:\n        for path in paths:\n            for line in path.open():\n                rows += 1\n                # keep the first four columns\n                fields = line.split(",")\n                out.write(",".join(fields[:4]) + "\\n")\n    return rows\n', 10), 0.1),
        ("Bash", {"command": "git log -3 --format='%h %ad %s' --date=short -- scripts/merge.py", "description": "Is it in use?"},
         "77d01aa 2025-12-02 Merge: keep four columns\n5b2e9c4 2025-09-20 Add scripts/merge.py", 0.2),
    ], report, model="claude-haiku-5-5", start=began)  # fmt: skip
    second_report = (
        '`docs/format.md` promises:\n\n- *"Fields may be quoted with double quotes."* Wrong before, **right now**.\n'
        '- *"Files are UTF-8."* Right; a byte order mark is now accepted, which is not mentioned.\n- Nothing about line numbers.\n'
    )
    second = s.agent(two, docs, [
        ("Glob", {"pattern": "**/*.md"}, f"{ROOT}/README.md\n{ROOT}/docs/format.md\n{ROOT}/docs/cli.md", 0.1),
        ("Read", {"file_path": f"{ROOT}/docs/format.md"},
         numbered("# Format\n\nFiles are UTF-8. The first line has the names of the columns.\n\nFields may be quoted with double quotes.\nThe delimiter is a comma unless `--delimiter` says otherwise."), 0.1),
        ("WebFetch", {"url": "https://www.rfc-editor.org/rfc/rfc4180", "prompt": "What does RFC 4180 say about quotes and line breaks in fields?"},
         "RFC 4180, section 2:\n\n5. Each field may or may not be enclosed in double quotes.\n6. Fields containing **line breaks (CRLF), double quotes, and commas** should be enclosed in double-quotes.\n7. A double quote inside a field is escaped by another one.", 3.1),
        ("Read", {"file_path": f"{ROOT}/README.md"}, numbered("# csvload\n\nLoads delimited text into PostgreSQL.\n\n    csvload import orders.csv"), 0.1),
    ], second_report, start=began)  # fmt: skip
    s.reported(one, *first, report)
    s.reported(two, *second, second_report)
    s.retry(1, 620)
    s.retry(2, 1_280)
    s.answer(
        "One more bug, and the docs are right again:\n\n"
        "- **`scripts/merge.py:18`** splits customer exports by hand. Same bug; it cuts quoted names in half without an error.\n"
        "- `src/csvload/cli.py:52` splits an option, not data. Fine.\n"
        "- `docs/format.md` already promises quoted fields, as RFC 4180 describes them. It should mention the byte order mark."
    )


BENCHMARK = "import timeit\nfrom pathlib import Path\nfrom csvload.loader import load\n\nfile = Path('/tmp/big.csv')\nfile.write_text('1,2026-01-14,\"Bolt, M6\",3.20\\n' * 500_000)\nprint(timeit.timeit(lambda: sum(1 for _ in load(file)), number=3) / 3)\n"


def _measure(s):
    s.prompt(
        "Fix merge.py the same way. And is the loader slower now? The big files have half a million rows.", after=160
    )
    s.use(
        "MultiEdit", {"file_path": f"{ROOT}/scripts/merge.py", "edits": [
            {"old_string": "from pathlib import Path", "new_string": "import csv\nfrom pathlib import Path"},
            {"old_string": '    with target.open("a") as out:\n        for path in paths:\n            for line in path.open():\n                rows += 1\n                # keep the first four columns\n                fields = line.split(",")\n                out.write(",".join(fields[:4]) + "\\n")',
             "new_string": '    with target.open("a", newline="") as out:\n        writer = csv.writer(out, lineterminator="\\n")\n        for path in paths:\n            with path.open(newline="") as file:\n                for fields in csv.reader(file, strict=True):\n                    rows += 1\n                    writer.writerow(fields[:4])'},
        ]}, f"Applied 2 edits to {ROOT}/scripts/merge.py",
    )  # fmt: skip
    s.compact(
        "Summary:\n1. **Request**: the import of `orders.csv` failed because `load` split quoted fields.\n2. **Done**: `loader.py` uses "
        "`csv.reader`; `tests/test_quoting.py`; `scripts/merge.py` fixed.\n3. **Open**: is the loader slower for half a million rows?"
    )
    s.use(
        "Write", {"file_path": "/tmp/bench.py", "content": BENCHMARK}, "File created successfully at: /tmp/bench.py",
        say="Measured on half a million rows, before and after.",
    )  # fmt: skip
    now, before = s.respond(
        ("Bash", {"command": "python /tmp/bench.py", "description": "Time the new loader"}),
        (
            "Bash",
            {"command": "git stash -q && python /tmp/bench.py; git stash pop -q", "description": "Time the old loader"},
        ),
    )
    s.result(now, "0.61", after=6.8)
    s.result(before, "0.74", after=7.4)
    s.answer(
        "`scripts/merge.py` is fixed. And the loader is **faster** now: `csv` is written in C.\n\n"
        "| loader | 500,000 rows | rows per second |\n|---|---:|---:|\n| before (`split`) | 0.74 s | 676,000 |\n| now (`csv.reader`) | 0.61 s | 820,000 |\n"
    )


def _push(s):
    s.prompt("Good. Commit everything and push it.", after=130)
    s.use(
        "Bash", {"command": "git add -A && git commit -qm 'Loader: read quoted fields' && git log --oneline -1", "description": "Commit all changes"},
        "e40b7f9 Loader: read quoted fields", after=0.4,
    )  # fmt: skip
    (call,) = s.respond(("Bash", {"command": "git push origin main", "description": "Push to main"}))
    s.refuse(call, after=17)


def _commit(s):
    s.prompt("Not to main! Make a branch of it and leave main where it was. Don't push.", after=11)
    s.use(
        "Bash", {"command": "git switch -qc quoted-fields && git branch -f main origin/main && git log --oneline --all -3", "description": "Move the commit to a branch"},
        "e40b7f9 (HEAD -> quoted-fields) Loader: read quoted fields\n9f31c02 (origin/main, main) Import: one transaction per file\n41be7d8 Loader: yield rows instead of a list", after=0.3,
    )  # fmt: skip
    s.use(
        "mcp__tracker__comment", {"issue": 418, "state": "in review", "labels": ["bug", "import"], "text": "Fixed on branch quoted-fields, not pushed yet."},
        '{"ok": true, "issue": 418, "comment": {"id": 90211, "url": "https://tracker.example.com/418#90211"}}', after=0.6,
    )  # fmt: skip
    s.answer(
        "Done: the commit is on `quoted-fields`, `main` is where `origin/main` is, and nothing was pushed. I noted the branch in issue 418."
    )
