// Routes and keyboard.
//
// A view is a function of a visit: { signal, words, query }. `signal` is aborted when the user goes elsewhere, `words`
// are the decoded groups of the route, `query` is the URLSearchParams after "?". It fills `main` and sets the title.

import { applyFilter, details, filter, main } from "./dom.js";
import { showSession } from "./session.js";
import { showSessions } from "./sessions.js";
import { closeDetails } from "./span.js";

const ROUTES = [
  [/^\/s\/([^/]+)(?:\/t\/([0-9a-f]+)(?:\/([0-9a-f]+))?)?$/, showSession],
  [/^\/sessions$/, showSessions],
  [/^\/$/, showSessions],
];

let visit = null; // aborted when the user goes elsewhere

function go() {
  visit?.abort();
  visit = new AbortController();
  closeDetails();
  filter.value = "";
  const [path, query] = location.hash.slice(1).split(/\?(.*)/s);
  for (const [pattern, show] of ROUTES) {
    const found = pattern.exec(path || "/");
    if (!found) continue;
    const words = found.slice(1).map((word) => word && decodeURIComponent(word));
    show({ signal: visit.signal, words, query: new URLSearchParams(query) });
    return;
  }
  location.hash = "#/";
}

// ---- keyboard

function step(by) {
  const rows = [...main.querySelectorAll(".row, td a")].filter((row) => row.offsetParent !== null);
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  r: go,
  "/": () => filter.focus(),
  Escape: () => (details.hidden ? (location.hash = "#/") : closeDetails()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.target === filter && event.key === "Escape") {
      filter.value = ""; // Chrome clears the box itself; the filter must go with it
      applyFilter();
      filter.blur();
    }
    return;
  }
  event.preventDefault();
  KEYS[event.key]();
});
filter.addEventListener("input", () => applyFilter());
document.getElementById("again").addEventListener("click", go);
window.addEventListener("hashchange", go);
go();
