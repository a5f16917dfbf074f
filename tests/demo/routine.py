"""Everyday sessions of the four weeks before: look, read, change, test, sometimes twice."""

from __future__ import annotations

import random
from datetime import timedelta

from tests.demo.writer import NEWEST, Session, numbered

OPUS, SONNET, HAIKU = "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"
SHOP, INFRA, DOCS, LOAD = "/home/dev/shop-web", "/home/dev/infra", "/home/dev/handbook", "/home/dev/csvload"
CHECKS = {
    SHOP: ("npm test -- --run", "Tests  144 passed (144)", "Exit code 1\n FAIL  %s\nTests  1 failed | 143 passed (144)", 24.0),
    INFRA: ("terraform validate && tflint", "Success! The configuration is valid.", "Exit code 1\n%s: Error: Unsupported argument", 7.0),
    DOCS: ("npx markdownlint '**/*.md'", "", "Exit code 1\n%s:14 MD040/fenced-code-language", 3.0),
    LOAD: ("python -m pytest -q", "............ [100%]\n12 passed in 0.20s", "Exit code 1\nFAILED %s - AssertionError", 2.0),
}  # fmt: skip

# days ago, project, branch, model, title, prompt, file, old, new, answer
SESSIONS = (
    (0.34, INFRA, "main", OPUS, "Cheaper log storage", "Logs cost 400 dollars a month. Move what is older than a week to cold storage.", "modules/logs/main.tf", '  storage_class = "STANDARD"', '  transition {\n    days          = 7\n    storage_class = "GLACIER_IR"\n  }', "Logs move to `GLACIER_IR` after seven days: about 70 dollars a month."),
    (0.62, DOCS, "main", SONNET, "Onboarding checklist", "Turn the onboarding page into a checklist.", "onboarding/first-day/setup.md", "First, get a laptop.", "- [ ] Laptop\n- [ ] Accounts\n- [ ] First commit", "It is a checklist of twelve items now, in the order of the first day."),
    (1.4, SHOP, "checkout-focus", OPUS, "Checkout by keyboard", "Go through the checkout by keyboard only, in the tests too.", "src/checkout/steps.test.tsx", "await user.click(next);", 'await user.tab();\nawait user.keyboard("{Enter}");', "All steps work by keyboard. One trap was left: the address list kept the focus, which is fixed."),
    (1.7, LOAD, "main", SONNET, "Type hints for the importer", "Add type hints to importer.py.", "src/csvload/importer.py", "def check(self, row):", "def check(self, row: Row) -> None:", "`importer.py` is typed; mypy passes in strict mode."),
    (2.3, SHOP, "main", OPUS, "Flaky cart test", "The cart test fails about once in ten runs. Find out why.", "src/cart/cart.test.tsx", "await sleep(50);", 'await screen.findByText("2 items");', "It waited 50 ms for a request. It now waits for the text itself: 200 runs, no failure."),
    (2.7, INFRA, "alerts", HAIKU, "Names of alerts", "Rename the alerts to our convention.", "alerts/node.yml", "alert: HostDown", "alert: node_down", "Renamed 14 alerts and their routes."),
    (3.4, LOAD, "main", OPUS, "Report of an import", "Print a summary after an import: rows, duration, rejected lines.", "src/csvload/cli.py", "    importer.run(rows)", "    report = importer.run(rows)\n    print(report)", "The summary has rows, seconds and the first ten rejected lines."),
    (6.1, SHOP, "dark-mode", OPUS, "Charts in dark mode", "The charts are unreadable in dark mode.", "src/stats/Chart.tsx", 'stroke="#333"', 'stroke="var(--ink)"', "The charts use tokens now; contrast is 7:1 or better in both modes."),
    (6.8, SHOP, "search-api", SONNET, "Highlight matches", "Mark the words that matched in search results.", "src/search/Result.tsx", "<p>{text}</p>", "<p><Marked text={text} words={words} /></p>", "Matches are marked, also for words with accents."),
    (7.3, INFRA, "main", OPUS, "Backups are tested", "Test restoring a backup every week, automatically.", "jobs/restore.yml", "schedule: null", 'schedule: "0 4 * * 1"', "Every Monday the newest backup is restored into a scratch database and counted. A failure pages us."),
    (8.2, LOAD, "main", SONNET, "Release 0.4", "Prepare release 0.4.", "CHANGELOG.md", "## Unreleased", "## 0.4.0", "Version, changelog and tag are ready; nothing is published."),
    (9.2, SHOP, "search-api", OPUS, "Search suggests corrections", "Suggest a correction when a search finds nothing.", "server/search.ts", "return [];", "return suggest(query);", "A search without a result now suggests up to three words by trigram similarity."),
    (9.9, DOCS, "main", HAIKU, "Spelling", "Fix spelling in operations/.", "operations/runbooks.md", "recieve", "receive", "Nine words in four files."),
    (10.2, SHOP, "main", SONNET, "Images in modern formats", "Serve AVIF where the browser can show it.", "src/ui/Image.tsx", "<img src={url} />", "<picture>…</picture>", "Pages are 41 % lighter; old browsers get JPEG."),
    (13.3, INFRA, "main", OPUS, "Network policy", "Only the API may talk to the database.", "modules/db/network.tf", 'cidr_blocks = ["10.0.0.0/8"]', "security_groups = [aws_security_group.api.id]", "Only the API's security group can connect. The migration job needed an exception, which is listed in the README."),
    (13.9, LOAD, "main", OPUS, "Rejected lines in a file", "Write rejected lines to a file instead of stopping.", "src/csvload/importer.py", "            raise", "            self.rejected.write(row)", "Rejected lines go to `orders.rejected.csv` with the reason as last column."),
    (14.6, SHOP, "main", OPUS, "Login with a passkey", "Add login with a passkey next to the password.", "server/auth.ts", 'router.post("/login", password);', 'router.post("/login", password);\nrouter.post("/login/passkey", passkey);', "Passkeys work for registration and login; the password stays as a fallback."),
    (15.3, SHOP, "main", SONNET, "Passkeys: error messages", "Say what went wrong when a passkey is refused.", "src/login/Passkey.tsx", "catch {", "catch (error) {", "Four cases have their own message; everything else says how to use the password."),
    (16.2, DOCS, "main", SONNET, "Page about passkeys", "Explain passkeys to customers, in simple words.", "help/passkeys.md", "TODO", "A passkey replaces your password.", "The page has three short sections and two pictures to be made."),
    (16.8, INFRA, "main", OPUS, "Upgrade the cluster", "Plan the upgrade of the cluster to the next version.", "cluster/version.tf", 'version = "1.33"', 'version = "1.34"', "Two APIs we use are removed in 1.34; both are replaced. The plan is in `cluster/UPGRADE.md`."),
    (20.1, SHOP, "main", OPUS, "Shipping costs", "Compute shipping by weight and country, from the table in docs/shipping.md.", "server/shipping.ts", "return 490;", "return rate(country, weight);", "Rates come from the table, with a test for each border of a weight class."),
    (21.4, LOAD, "main", SONNET, "Progress bar", "Show progress for large files.", "src/csvload/cli.py", "for row in rows:", "for row in progress(rows):", "A bar on a terminal, nothing in a pipe."),
    (22.2, SHOP, "main", OPUS, "Orders as CSV", "Let the office download orders as CSV.", "server/export.ts", "export {};", "export async function orders(from: Date): Promise<Stream> {}", "Streams 200,000 orders in 4 s with constant memory."),
    (23.1, INFRA, "main", SONNET, "Costs by team", "Tag all resources with their team.", "modules/tags/main.tf", "tags = {}", "tags = { team = var.team }", "All but 6 resources are tagged; those need a replacement, listed in the pull request."),
)  # fmt: skip


def routine():
    """Yield the sessions."""
    dice = random.Random(7)
    for days, project, branch, model, title, prompt, file, old, new, answer in SESSIONS:
        ends = NEWEST - timedelta(days=days)
        session = Session(project, model=model, branch=branch, ends=ends - timedelta(hours=2), title=title)
        session.weight = dice.choice((40, 90, 160))
        session.fresh += dice.randrange(8_000, 30_000)
        session.prompt(prompt)
        _change(session, f"{project}/{file}", (old, new), dice)
        session.answer(answer)
        for follow_up, reply in dice.sample(FOLLOW_UPS, dice.randrange(0, 3)):
            session.prompt(follow_up, after=dice.randrange(20, 400))
            if dice.random() < 0.6:
                _check(session, file, dice)
            session.answer(reply)
        yield session.moved(ends)


FOLLOW_UPS = (
    ("Run the checks once more, please.", "Still green."),
    ("Could this break anything for existing users?", "I see no case: names and formats stay the same, and the tests of the public API pass unchanged."),
    ("Shorten the commit message.", "Done."),
    ("Why did you choose this way?", "It is the smallest change, and the next one stays possible. The alternative would touch eleven files."),
)  # fmt: skip


def _change(session, file, edit, dice):
    old, new = edit
    word = old.strip().split("(")[0].split(" ")[0].strip("<#-")[:24] or "TODO"
    session.use(
        "Grep",
        {"pattern": word, "output_mode": "content", "-n": True},
        f"{file}:{dice.randrange(9, 90)}:{old.splitlines()[0]}",
    )
    first = dice.randrange(8, 60)
    session.use(
        "Read", {"file_path": file, "offset": first, "limit": 40}, numbered(old, first), say="Let me look at it."
    )
    session.use(
        "Edit",
        {"file_path": file, "old_string": old, "new_string": new},
        f"The file {file} has been updated successfully.",
    )
    _check(session, file, dice)


def _check(session, file, dice):
    command, passed, failed, seconds = CHECKS[session.project]
    given = {"command": command, "description": "Run the checks"}
    if dice.random() < 0.25:
        session.use("Bash", given, failed % file.rpartition("/")[2], after=seconds, is_error=True)
        session.use("Read", {"file_path": file}, numbered("…"), say="A check fails; that needs one more change.")
    session.use("Bash", given, passed, after=seconds * dice.uniform(0.8, 1.3))
