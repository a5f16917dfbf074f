"""Smaller sessions of the two weeks before: other projects, other models."""

from __future__ import annotations

from datetime import timedelta

from tests.demo.writer import NEWEST, Session, numbered

OPUS, SONNET, HAIKU = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"
SHOP, INFRA, DOCS, LOAD = "/home/dev/shop-web", "/home/dev/infra", "/home/dev/handbook", "/home/dev/csvload"
BUTTON = 'export function Button({ kind = "primary", ...rest }: Props) {\n  return <button className={`btn btn-${kind}`} {...rest} />;\n}\n'

# (days ago, hour, project, branch, model, title, turns); a turn is (prompt, calls, answer), a call (tool, arguments, result, seconds, is_error)
SESSIONS = (
    (0.21, SHOP, "checkout-focus", SONNET, "Focus ring is missing in checkout", (
        ("The focus ring of buttons disappeared in the checkout. Keyboard users cannot see where they are.", (
            ("Grep", {"pattern": "outline: *none", "path": "src", "output_mode": "content", "-n": True}, "src/styles/reset.css:14:  outline: none;\nsrc/checkout/steps.css:31:  outline: none;", 0.2, False),
            ("Read", {"file_path": f"{SHOP}/src/checkout/steps.css", "offset": 26, "limit": 9}, numbered(".step button {\n  border: 0;\n  background: none;\n  /* looks odd on hover */\n  outline: none;\n}\n", 27), 0.1, False),
            ("Edit", {"file_path": f"{SHOP}/src/checkout/steps.css", "old_string": "  /* looks odd on hover */\n  outline: none;\n", "new_string": ""}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "npm test -- --run checkout", "description": "Run the checkout tests"}, " ✓ src/checkout/steps.test.tsx (9 tests) 412ms\n\n Test Files  1 passed (1)\n      Tests  9 passed (9)", 8.3, False),
        ), "Removed `outline: none` from `.step button`. `:focus-visible` of the design system applies again, so the ring shows for the keyboard only."),
    )),
    (0.9, LOAD, "main", OPUS, "Import in one transaction", (
        ("Make the import atomic: a file is imported completely or not at all.", (
            ("Read", {"file_path": f"{LOAD}/src/csvload/importer.py", "limit": 60}, numbered("class Importer:\n    def run(self, rows):\n        for row in rows:\n            self.check(row)\n            self.cursor.execute(INSERT, row.fields)\n            self.connection.commit()\n"), 0.1, False),
            ("Edit", {"file_path": f"{LOAD}/src/csvload/importer.py", "old_string": "        for row in rows:\n            self.check(row)\n            self.cursor.execute(INSERT, row.fields)\n            self.connection.commit()\n", "new_string": "        with self.connection.transaction():\n            for row in rows:\n                self.check(row)\n                self.cursor.execute(INSERT, row.fields)\n"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "python -m pytest -q tests/test_importer.py", "description": "Run the tests"}, "........                                                                 [100%]\n8 passed in 1.72s", 3.4, False),
        ), "Each file is now one transaction. An error rolls it back, and the next file is tried."),
        ("How long does a commit per file take for half a million rows?", (
            ("Bash", {"command": "time python -m csvload import data/big.csv", "description": "Time a large import", "timeout": 300000}, "500000 rows\n\nreal\t0m41.310s\nuser\t0m22.874s", 41.6, False),
        ), "41 s, against 6 min 20 s with a commit per row."),
    )),
    (1.15, INFRA, "main", SONNET, "Plan wants to replace the database", (
        ("terraform plan wants to replace the database. Why?", (
            ("Bash", {"command": "terraform plan -no-color | head -40", "description": "Show the plan"}, '  # aws_db_instance.orders must be replaced\n-/+ resource "aws_db_instance" "orders" {\n      ~ storage_encrypted = false -> true # forces replacement\n    }\n\nPlan: 1 to add, 0 to change, 1 to destroy.', 14.2, False),
            ("Grep", {"pattern": "storage_encrypted", "path": ".", "output_mode": "content", "-n": True}, 'modules/db/main.tf:22:  storage_encrypted = true\nmodules/db/variables.tf:9:variable "storage_encrypted" {', 0.1, False),
            ("Bash", {"command": "git log -3 --oneline -- modules/db", "description": "Recent changes"}, "2ac91f0 db module: encrypt by default\n90b1cd2 db module: tags", 0.1, False),
        ), "Commit `2ac91f0` turned on encryption by default. AWS cannot encrypt an existing instance in place, so Terraform **replaces** it. Two ways:\n\n1. set `storage_encrypted = false` for `orders`\n2. restore an encrypted copy of a snapshot and import it\n\nDo not apply this plan: it deletes the data."),
    )),
    (2.05, DOCS, "main", HAIKU, "Fix broken links", (
        ("Check all links in the handbook and fix the broken ones.", (
            ("Bash", {"command": "npx linkinator . --recurse --silent", "description": "Check links"}, "Exit code 1\n[404] /onboarding/setup\n[404] /tools/vpn#mac\nERROR: Detected 2 broken links.", 19.0, True),
            ("Glob", {"pattern": "**/setup*.md"}, f"{DOCS}/onboarding/first-day/setup.md", 0.1, False),
            ("Edit", {"file_path": f"{DOCS}/index.md", "old_string": "(/onboarding/setup)", "new_string": "(/onboarding/first-day/setup)"}, "The file has been updated successfully.", 0.1, False),
            ("Edit", {"file_path": f"{DOCS}/tools/index.md", "old_string": "vpn#mac", "new_string": "vpn#macos"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "npx linkinator . --recurse --silent", "description": "Check links"}, "Successfully scanned 214 links.", 18.2, False),
        ), "Two links were broken, both are fixed; 214 links checked."),
    )),
    (3.1, SHOP, "dark-mode", OPUS, "Dark mode for the shop", (
        ("Add a dark mode that follows the system setting. Start with the tokens.", (
            ("Read", {"file_path": f"{SHOP}/src/styles/tokens.css"}, numbered(":root {\n  --ink: #1b1f24;\n  --paper: #ffffff;\n  --line: #d8dee4;\n  --brand: #0b5cad;\n}\n"), 0.1, False),
            ("Edit", {"file_path": f"{SHOP}/src/styles/tokens.css", "old_string": "  --brand: #0b5cad;\n}\n", "new_string": "  --brand: #0b5cad;\n}\n\n@media (prefers-color-scheme: dark) {\n  :root {\n    --ink: #dfe3e8;\n    --paper: #14171c;\n    --line: #2e343d;\n    --brand: #6cb2f5;\n  }\n}\n"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "grep -rnE '#[0-9a-f]{3,6}' src --include=*.css | grep -v tokens.css | wc -l", "description": "Count colours outside the tokens"}, "37", 0.2, False),
        ), "The tokens have a dark palette (contrast 11.9:1 for text). 37 colours elsewhere are still fixed; shall I replace them?"),
        ("Yes, replace them by tokens.", (
            ("Bash", {"command": "node scripts/tokenise.mjs src", "description": "Replace fixed colours"}, "29 replaced, 8 without a matching token:\nsrc/checkout/card.css: #f7b600 #eb001b\nsrc/home/hero.css: #102a43 #243b53 #334e68 #486581 #627d98 #829ab1", 1.2, False),
            ("Bash", {"command": "npm test -- --run", "description": "Run all tests"}, "Exit code 1\n FAIL  src/home/hero.test.tsx > hero > matches the snapshot\nTests  1 failed | 143 passed (144)", 31.0, True),
            ("Bash", {"command": "npm test -- --run -u src/home", "description": "Update the snapshot"}, "Snapshots  1 updated\nTests  4 passed (4)", 6.1, False),
        ), "29 of 37 are tokens now. The rest are brand colours of card schemes and the hero's gradient, which stay."),
    )),
    (4.0, INFRA, "alerts", SONNET, "Alert for a full disk", (
        ("Add an alert when a disk will be full within four hours.", (
            ("Read", {"file_path": f"{INFRA}/alerts/node.yml"}, numbered("groups:\n  - name: node\n    rules:\n      - alert: HostDown\n        expr: up == 0\n        for: 5m\n"), 0.1, False),
            ("Edit", {"file_path": f"{INFRA}/alerts/node.yml", "old_string": "        for: 5m\n", "new_string": "        for: 5m\n      - alert: DiskFullSoon\n        expr: predict_linear(node_filesystem_avail_bytes[2h], 4 * 3600) < 0\n        for: 15m\n"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "promtool check rules alerts/node.yml", "description": "Check the rules"}, "Checking alerts/node.yml\n  SUCCESS: 2 rules found", 0.4, False),
        ), "Added `DiskFullSoon`: a linear prediction over two hours, firing after 15 minutes."),
    )),
    (5.2, SHOP, "main", HAIKU, "Explain the build script", (
        ("What does scripts/build.mjs do after bundling?", (
            ("Read", {"file_path": f"{SHOP}/scripts/build.mjs", "offset": 40, "limit": 5}, numbered("await hashAssets(out);\nawait writeManifest(out);\nif (process.env.CI) await upload(out, process.env.BUCKET);\n", 41), 0.1, False),
        ), "It adds content hashes to file names, writes `manifest.json`, and in CI uploads everything to `$BUCKET`."),
    )),
    (6.3, LOAD, "main", OPUS, "Rows as an iterator", (
        ("load() keeps all rows in memory. Make it an iterator, without changing callers more than needed.", (
            ("Grep", {"pattern": r"load\(", "path": "src", "output_mode": "content", "-n": True}, "src/csvload/importer.py:19:        rows = load(path)\nsrc/csvload/cli.py:33:    print(len(load(path)))", 0.2, False),
            ("Edit", {"file_path": f"{LOAD}/src/csvload/cli.py", "old_string": "    print(len(load(path)))", "new_string": "    print(sum(1 for _ in load(path)))"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "python -m mypy src", "description": "Check types"}, 'Exit code 1\nsrc/csvload/importer.py:22: error: Value of type "Iterator[Row]" is not indexable  [index]\nFound 1 error in 1 file (checked 4 source files)', 5.0, True),
            ("Edit", {"file_path": f"{LOAD}/src/csvload/importer.py", "old_string": "        width = len(rows[0].fields)", "new_string": "        width = len(header(path))"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "python -m mypy src && python -m pytest -q", "description": "Types and tests"}, "Success: no issues found in 4 source files\n.......                                                                  [100%]\n7 passed in 0.18s", 6.2, False),
        ), "`load` yields rows now. `importer` reads the width from the header instead of `rows[0]`, which mypy found."),
    )),
    (7.1, DOCS, "main", SONNET, "Page about incident reviews", (
        ("Write a page about how we do incident reviews, from the notes in drafts/incidents.txt.", (
            ("Read", {"file_path": f"{DOCS}/drafts/incidents.txt"}, numbered("- no blame\n- within 5 days\n- timeline first, causes second\n- every action has an owner and a date"), 0.1, False),
            ("Write", {"file_path": f"{DOCS}/operations/incident-reviews.md", "content": "# Incident reviews\n\nWithin five days of an incident we meet and write down what happened.\n\n1. The timeline first, from logs and messages.\n2. Then causes. We look for conditions, not for people.\n3. Every action has an owner and a date.\n"}, "File created successfully.", 0.1, False),
        ), "The page is `operations/incident-reviews.md`. It has no link from the index yet."),
        ("Link it from the index, too.", (
            ("Edit", {"file_path": f"{DOCS}/index.md", "old_string": "- [Runbooks](/operations/runbooks)\n", "new_string": "- [Runbooks](/operations/runbooks)\n- [Incident reviews](/operations/incident-reviews)\n"}, "The file has been updated successfully.", 0.1, False),
        ), "Linked, below Runbooks."),
    )),
    (8.4, SHOP, "search-api", OPUS, "Search is slow on the second page", (
        ("Search takes three seconds on the second page. The first is fast.", (
            ("Grep", {"pattern": "OFFSET", "path": "server", "output_mode": "content", "-n": True}, "server/search.ts:58:  ORDER BY score DESC, id LIMIT $2 OFFSET $3", 0.2, False),
            ("mcp__postgres__query", {"sql": "EXPLAIN ANALYZE SELECT id FROM product WHERE tsv @@ to_tsquery('bolt') ORDER BY score DESC, id LIMIT 20 OFFSET 20"}, '[{"QUERY PLAN": "Limit (actual time=2874.1..2874.2 rows=20)"}, {"QUERY PLAN": "  -> Sort (actual time=2874.0..2874.1 rows=40)"}, {"QUERY PLAN": "       Sort Method: external merge  Disk: 48312kB"}]', 3.3, False),
            ("Edit", {"file_path": f"{SHOP}/server/search.ts", "old_string": "  ORDER BY score DESC, id LIMIT $2 OFFSET $3", "new_string": "  AND (score, id) < ($3, $4)\n  ORDER BY score DESC, id DESC LIMIT $2"}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "npm run test:api -- search", "description": "Run API tests"}, "Tests  17 passed (17)", 12.4, False),
        ), "The first page came from a cache; every other one sorts all matches on disk. It now continues after the last row (keyset pagination): **2.9 s → 40 ms**."),
    )),
    (9.6, INFRA, "main", HAIKU, "Which buckets are public?", (
        ("Which S3 buckets are public?", (
            ("Bash", {"command": "scripts/buckets.sh --public", "description": "List public buckets"}, "shop-assets\tpublic-read\n", 6.0, False),
        ), "Only `shop-assets`, which serves the shop's images."),
    )),
    (11.2, LOAD, "delimiter", SONNET, "Option --delimiter", (
        ("Add --delimiter to the command line. Tab as \\t.", (
            ("Edit", {"file_path": f"{LOAD}/src/csvload/cli.py", "old_string": '    parser.add_argument("path", type=Path)\n', "new_string": '    parser.add_argument("path", type=Path)\n    parser.add_argument("--delimiter", type=delimiter, default=",")\n'}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "python -m pytest -q", "description": "Run the tests"}, ".....                                                                    [100%]\n5 passed in 0.11s", 1.9, False),
        ), "`--delimiter` takes one character, or `\\t`."),
    )),
    (12.8, SHOP, "main", SONNET, "Component for buttons", (
        ("Make one Button component of the five we have.", (
            ("Grep", {"pattern": "<button", "path": "src", "output_mode": "files_with_matches"}, "Found 5 files\nsrc/cart/AddButton.tsx\nsrc/cart/RemoveButton.tsx\nsrc/checkout/Pay.tsx\nsrc/home/Hero.tsx\nsrc/search/More.tsx", 0.2, False),
            ("Write", {"file_path": f"{SHOP}/src/ui/Button.tsx", "content": BUTTON}, "File created successfully.", 0.1, False),
            ("Bash", {"command": "npx tsc --noEmit", "description": "Check types"}, "Exit code 2\nsrc/checkout/Pay.tsx(12,22): error TS2322: Type '\"danger\"' is not assignable to type 'Kind'.", 9.0, True),
            ("Edit", {"file_path": f"{SHOP}/src/ui/Button.tsx", "old_string": '"primary" | "plain"', "new_string": '"primary" | "plain" | "danger"'}, "The file has been updated successfully.", 0.1, False),
            ("Bash", {"command": "npx tsc --noEmit && npm test -- --run", "description": "Types and tests"}, "Tests  139 passed (139)", 33.0, False),
        ), "All five use `ui/Button` now, with three kinds: primary, plain, danger."),
    )),
)  # fmt: skip


def others():
    """Yield the sessions."""
    for days, project, branch, model, title, turns in SESSIONS:
        ends = NEWEST - timedelta(days=days)
        session = Session(project, model=model, branch=branch, ends=ends - timedelta(hours=1), title=title)
        session.weight = 90
        for number, (prompt, calls, answer) in enumerate(turns):
            session.fresh += 9_000 if not number else 2_500  # files that the client added
            session.prompt(prompt, after=75 if number else 0)
            for tool, arguments, result, seconds, is_error in calls:
                session.use(tool, arguments, result, after=seconds, is_error=is_error)
            session.answer(answer)
        yield session.moved(ends)
