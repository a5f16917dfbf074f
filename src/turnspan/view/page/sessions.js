// The list of sessions.

import { applyFilter, fill, main, make, marked, setTitle } from "./dom.js";

const EXPORTED = { all: "✓", no: "–" };

export async function showSessions(visit) {
  setTitle("sessions");
  const heads = ["age", "session", "project", "turns", "tokens", "cost", "exported"];
  const body = make("tbody");
  const head = make("tr", {}, ...heads.map((name, n) => make("th", { className: n > 2 ? "number" : "" }, name)));
  main.replaceChildren(make("table", {}, make("thead", {}, head), body));
  await fill("sessions", visit.signal, (one) => {
    const link = make("a", { href: `#/s/${encodeURIComponent(one.session)}` }, ...marked(one.title || one.id));
    const failed = one.errors ? [make("span", { className: "error", title: `${one.errors} errors` }, " ✗")] : [];
    const cells = [one.turns, one.tokens, one.cost, EXPORTED[one.sent] ?? one.sent ?? ""];
    const row = make(
      "tr",
      { data: { text: `${one.title} ${one.directory} ${one.session}`.toLowerCase() } },
      make("td", { className: "faint" }, one.age),
      make("td", { className: "title", title: one.title }, link, ...failed),
      make("td", { title: one.directory }, one.project),
      ...cells.map((text) => make("td", { className: "number" }, text)),
    );
    body.append(row);
    applyFilter([row]);
  });
  if (visit.signal.aborted) return;
  if (!body.children.length && !main.querySelector(".trouble, .note")) {
    main.replaceChildren(make("p", { className: "note" }, "No sessions yet. Claude Code writes one when you use it."));
  }
}
