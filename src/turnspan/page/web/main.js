// Routes, history and keyboard.
//
// A view is a function of a visit: { signal, words, query }. `signal` is aborted when the user goes elsewhere, `words`
// are the decoded groups of the route, `query` is the URLSearchParams after "?". It fills `main` and sets the title.
// It may set on the visit: `move(words, query)`, which goes to another place of the same view and returns a promise, or
// null if it cannot; `filter(text)`, instead of hiding rows by their data-text; `keys`, which come before those below.

import { applyFilter, details, filter, main } from "./dom.js";
import { showOverview } from "./overview.js";
import { showing } from "./place.js";
import { showSearch } from "./search.js";
import { showSession } from "./session.js";
import { showSessions } from "./sessions.js";
import { chosenSpan, closeDetails } from "./span.js";

const ROUTES = [
  [/^\/s\/([^/]+)(?:\/t\/([0-9a-f]+)(?:\/([0-9a-f]+))?)?$/, showSession],
  [/^\/sessions$/, showSessions],
  [/^\/search$/, showSearch],
  [/^\/$/, showOverview],
];

let visit = null; // the current one
let isRestoring = null; // aborted when the user scrolls

function routeOf(hash) {
  const [path, query] = hash.slice(1).split(/\?(.*)/s);
  for (const [pattern, show] of ROUTES) {
    const found = pattern.exec(path || "/");
    if (!found) continue;
    const words = found.slice(1).map((word) => word && decodeURIComponent(word));
    return { show, words, query: new URLSearchParams(query) };
  }
  return null;
}

function go() {
  const route = routeOf(location.hash);
  if (!route) {
    location.replace("#/");
    return;
  }
  const moved = visit?.show === route.show ? visit.move?.(route.words, route.query) : null;
  if (moved) showing(moved);
  else load(route);
}

function load(route) {
  const isOther = visit && visit.show !== route.show;
  visit?.abort();
  closeDetails(true);
  filter.value = "";
  document.body.dataset.view = route.show.name;
  for (const link of document.querySelectorAll(".places a")) {
    if (link.dataset.view === route.show.name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const aborter = new AbortController();
  visit = { ...route, signal: aborter.signal, abort: () => aborter.abort() };
  if (isOther) main.focus({ preventScroll: true }); // what had the focus is no longer there
  showing(route.show(visit));
  restoreScroll();
}

function reload() {
  keepScroll();
  load(routeOf(location.hash) ?? routeOf("#/"));
}

// ---- scroll position: kept for every entry of the history, also over a reload of the page

history.scrollRestoration = "manual";

function keepScroll() {
  history.replaceState({ ...history.state, scroll: Math.round(scrollY) }, "");
}

// Scroll to where the user was, as soon as the page has become long enough, unless the user scrolls.
function restoreScroll() {
  isRestoring?.abort();
  const wanted = history.state?.scroll ?? 0;
  scrollTo(0, 0);
  if (!wanted) return;
  isRestoring = new AbortController();
  const { signal } = isRestoring;
  for (const event of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    window.addEventListener(event, () => isRestoring.abort(), { signal, passive: true });
  }
  const observer = new ResizeObserver(() => {
    if (document.documentElement.scrollHeight - innerHeight < wanted) return;
    scrollTo(0, wanted);
    if (main.getAttribute("aria-busy") === "false") isRestoring.abort();
  });
  observer.observe(main);
  visit.signal.addEventListener("abort", () => isRestoring.abort());
  signal.addEventListener("abort", () => observer.disconnect());
}

let scrolled = null;
window.addEventListener("scroll", () => {
  clearTimeout(scrolled);
  scrolled = setTimeout(keepScroll, 150);
}, { passive: true });

// ---- keyboard

function step(by) {
  const rows = [...main.querySelectorAll(".row, .row-link, td a, th[scope=row] a")].filter((row) => row.offsetParent !== null);
  const at = rows.indexOf(document.activeElement);
  const first = rows.findIndex((row) => row.getBoundingClientRect().bottom > 80);
  const row = rows[at < 0 ? Math.max(first, 0) : Math.min(Math.max(at + by, 0), rows.length - 1)];
  row?.focus({ preventScroll: true });
  row?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  r: reload,
  d: () => chosenSpan() && details.focus(),
  "/": () => (main.querySelector("input[type=search]") ?? filter).focus(),
  Escape: () => {
    if (chosenSpan()) closeDetails();
    else if (filter.value) clearFilter();
    else if (routeOf(location.hash)?.words[0] !== undefined) location.hash = "#/sessions";
  },
};

function applied() {
  if (visit?.filter) visit.filter(filter.value.trim().toLowerCase());
  else applyFilter();
}

function clearFilter() {
  filter.value = ""; // Chrome empties the box itself on Esc; the filter must follow
  applied();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.target === filter && event.key === "Escape") {
      clearFilter();
      filter.blur();
    } else if (event.target === filter && event.key === "ArrowDown") {
      event.preventDefault();
      filter.blur();
      step(1);
    }
    return;
  }
  const act = visit?.keys?.[event.key] ?? KEYS[event.key];
  if (!act || act(event) === false) return;
  event.preventDefault();
});
filter.addEventListener("input", applied);
document.getElementById("again").addEventListener("click", reload);
document.getElementById("skip").addEventListener("click", () => main.focus());
window.addEventListener("hashchange", go);
go();
