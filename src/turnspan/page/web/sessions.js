// The list of sessions: a page of it at a time, filtered and sorted by the server. The address has everything.

import { fill, main, make, marked, setTitle, untilComplete } from "./dom.js";
import { address, chips, lastPart, shown } from "./filters.js";
import { watchSessions } from "./live.js";
import { readdress, showing } from "./place.js";

const PATH = "/sessions";
const PAUSE_MS = 120; // after a key, before the list is loaded again
const COLUMNS = [
  ["last", "Last activity", "when"],
  ["title", "Session", "title"],
  ["project", "Project", "place"],
  ["branch", "Branch", "place"],
  ["turns", "Turns", "number"],
  ["tokens", "Tokens", "number"],
  ["cost", "Cost", "number"],
  ["errors", "Errors", "number"],
  ["sent", "Sent", "number"],
];
const ASCENDING = new Set(["title", "project", "branch"]); // sorted from A to Z first
const SENT = { all: ["✓", "everything was sent"], no: ["–", "nothing was sent yet"], off: ["off", "this session is not exported"], "?": ["?", "unknown"] };
const FACETS = [["project", "Project"], ["model", "Model"], ["branch", "Branch"], ["tool", "Tool"], ["agent", "Agent"]];
const EMPTY = { branch: "(no branch)", agent: "(main)" };

let pending = null; // the timer of a key
let loading = null; // aborted when the list is loaded again

export async function showSessions(visit) {
  setTitle("sessions");
  const parts = main.querySelector(".list")?.parts ?? skeleton();
  if (document.activeElement !== parts.words) parts.words.value = visit.query.get("q") ?? "";
  visit.signal.addEventListener("abort", () => clearTimeout(pending)); // it must not change the next address
  await load(visit, parts);
  if (parts.menu.open) await loadMenu(parts.menu);
  watchSessions(visit.signal, () => load({ query: currentQuery(), signal: visit.signal }, parts));
}

function skeleton() {
  const parts = {
    words: make("input", { type: "search", placeholder: "Title, project or id", autocomplete: "off", spellcheck: false }),
    chips: make("div"),
    menu: make("details", { className: "menu" }),
    count: make("p", { className: "count faint", role: "status" }),
    place: make("div"),
    pager: make("nav", { className: "pager" }),
    notes: make("div"),
  };
  parts.words.setAttribute("aria-label", "Title, project or id");
  parts.words.addEventListener("input", () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      const query = currentQuery();
      readdress(address(PATH, query, { q: parts.words.value.trim() || null }), { state: null });
      showing(load({ query: currentQuery(), signal: null }, parts));
    }, PAUSE_MS);
  });
  parts.words.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (parts.words.value) {
      parts.words.value = "";
      parts.words.dispatchEvent(new Event("input"));
    } else {
      parts.words.blur();
    }
    event.preventDefault();
  });
  document.addEventListener("click", (event) => parts.menu.contains(event.target) || (parts.menu.open = false));
  parts.pager.setAttribute("aria-label", "Pages");
  parts.menu.append(make("summary", {}, "Filter"), make("div", { className: "fields" }));
  parts.menu.addEventListener("toggle", () => parts.menu.open && loadMenu(parts.menu));
  parts.menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    parts.menu.open = false;
    parts.menu.querySelector("summary").focus();
    event.stopPropagation();
  });
  const bar = make("div", { className: "toolbar" }, make("h1", {}, "Sessions"), parts.words, parts.menu, parts.chips);
  const list = make("div", { className: "list" }, bar, parts.count, parts.place, parts.pager, parts.notes);
  list.parts = parts;
  main.replaceChildren(list);
  return parts;
}

function currentQuery() {
  return new URLSearchParams(location.hash.split(/\?(.*)/s)[1] ?? "");
}

async function load({ query, signal }, parts) {
  loading?.abort();
  const own = (loading = new AbortController());
  signal?.addEventListener("abort", () => own.abort());
  await untilComplete(own.signal, async () => {
    const notes = make("div");
    let found = null;
    const isPartial = await fill(`sessions?${query}`, own.signal, (one) => one.is === "sessions" && (found = one), notes);
    if (own.signal.aborted) return false;
    if (found?.total || !isPartial) found && show(found, query, parts);
    parts.notes.replaceChildren(...notes.childNodes);
    return isPartial;
  });
}

function show(one, query, parts) {
  parts.chips.replaceChildren(chips(PATH, query));
  if (!one.total) {
    const isFiltered = [...query.keys()].some((name) => name !== "sort" && name !== "page");
    parts.count.textContent = isFiltered ? "No session matches these filters." : "No sessions yet. Claude Code writes one when you use it.";
    parts.place.replaceChildren();
    parts.pager.replaceChildren();
    return;
  }
  const range = one.total > one.rows.length ? `${one.from.toLocaleString()}–${one.to.toLocaleString()} of ` : "";
  parts.count.textContent = `${range}${one.total.toLocaleString()} session${one.total === 1 ? "" : "s"}`;
  const focused = parts.place.contains(document.activeElement) && document.activeElement.closest("tr")?.dataset.session;
  parts.place.replaceChildren(table(one, query));
  if (focused) parts.place.querySelector(`tr[data-session="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  parts.pager.replaceChildren(...pager(one, query));
}

// ---- the table

function table(one, query) {
  const heads = COLUMNS.map(([name, label, look]) => {
    const isSorted = one.sort.replace("-", "") === name;
    const isDown = isSorted && one.sort.startsWith("-");
    const next = isSorted ? (isDown ? name : `-${name}`) : ASCENDING.has(name) ? name : `-${name}`;
    const link = make("a", { href: address(PATH, query, { sort: next === "-last" ? null : next }) }, label, make("span", { className: "arrow" }, isSorted ? (isDown ? " ↓" : " ↑") : ""));
    const head = make("th", { scope: "col", className: `${look} at-${name}` }, link);
    if (isSorted) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    return head;
  });
  const rows = one.rows.map((row) => sessionRow(row, query));
  return make("table", { className: "sessions", attributes: { "aria-label": "Sessions" } }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

function sessionRow(row, query) {
  const link = make("a", { href: `#/s/${encodeURIComponent(row.session)}` }, ...marked(row.title || row.session.slice(0, 8)));
  const [sent, meaning] = SENT[row.sent] ?? [row.sent, `${row.sent} turns were sent`];
  const cell = (name, look, options, ...children) => make("td", { className: `${look} at-${name}`, ...options }, ...children);
  return make(
    "tr",
    { data: { session: row.session } },
    cell("last", "when faint", { title: row.last_ms ? new Date(row.last_ms).toLocaleString() : "" }, row.last_ms ? whenText(row.last_ms) : ""),
    cell("title", "title", { title: row.title }, link),
    cell("project", "place", { title: shown(row.directory) }, filterButton("project", row.directory, row.project, query)),
    cell("branch", "place", { title: row.branch }, row.branch ? filterButton("branch", row.branch, row.branch, query) : ""),
    cell("turns", "number", { data: { value: row.turns } }, row.text.turns, unit(row.turns, "turn")),
    cell("tokens", "number", { data: { value: row.tokens } }, row.text.tokens, unit(row.tokens, "token")),
    cell("cost", "number", { data: { value: row.cost_usd } }, row.text.cost_usd),
    cell("errors", row.errors ? "number error" : "number faint", { data: { value: row.errors } }, row.errors ? row.text.errors : "–", unit(row.errors, "error")),
    cell("sent", row.sent === "all" ? "number good" : "number faint", { title: meaning }, sent),
  );
}

// Shown where the columns have no heads.
function unit(count, word) {
  return make("span", { className: "unit" }, ` ${word}${count === 1 ? "" : "s"}`);
}

// Not a link: the keys j and k move between the sessions, which are.
function filterButton(name, value, text, query) {
  const go = () => (location.hash = address(PATH, query, { [name]: value }));
  return make("button", { type: "button", className: "plain", title: `Only ${shown(value)}`, on: { click: go } }, text);
}

export function whenText(ms) {
  const at = new Date(ms);
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(ms).setHours(0, 0, 0, 0)) / 86_400_000);
  const time = at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  if (days === 0) return `Today ${time}`;
  if (days === 1) return `Yesterday ${time}`;
  const isOld = at.getFullYear() !== new Date().getFullYear();
  return `${at.toLocaleDateString(undefined, { day: "numeric", month: "short", ...(isOld ? { year: "numeric" } : { weekday: "short" }) })} ${time}`;
}

// ---- filters and pages

// What can be chosen is loaded when the menu is opened: counting it takes longer than the list.
async function loadMenu(details) {
  const fields = details.querySelector(".fields");
  await fill("facets", new AbortController().signal, (one) => one.is === "facets" && menu(fields, one, currentQuery()), fields);
}

function menu(fields, facets, query) {
  const focused = fields.contains(document.activeElement) ? document.activeElement.name : "project";
  const set = (changes) => (location.hash = address(PATH, currentQuery(), changes));
  const selects = FACETS.map(([name, label]) => {
    const options = facets[name].map(({ key, sessions }) => {
      const text = name === "project" ? lastPart(key) || "(unknown)" : shown(key) || EMPTY[name] || "(unknown)";
      return make("option", { value: `=${key}`, title: shown(key), selected: query.get(name) === key }, `${text} (${sessions.toLocaleString()})`);
    });
    const select = make("select", { name, on: { change: () => set({ [name]: select.value ? select.value.slice(1) : null }) } }, make("option", { value: "" }, "any"), ...options);
    return make("label", {}, label, select);
  });
  const dates = [["since", "From"], ["until", "To"]].map(([name, label]) => {
    const input = make("input", { type: "date", name, value: query.get(name) ?? "", on: { change: () => set({ [name]: input.value || null, days: null }) } });
    return make("label", {}, label, input);
  });
  const flags = [["errors", "With errors"], ["agents", "With agents"]].map(([name, label]) => {
    const input = make("input", { type: "checkbox", name, checked: query.has(name), on: { change: () => set({ [name]: input.checked ? "1" : null }) } });
    return make("label", { className: "flag" }, input, label);
  });
  fields.replaceChildren(...selects, make("div", { className: "flags" }, ...flags), ...dates);
  fields.querySelector(`[name="${focused}"]`).focus();
}

function pager(one, query) {
  if (one.pages < 2) return [];
  const to = (page, text, isOn) => {
    if (!isOn) return make("span", { className: "faint" }, text);
    const next = address(PATH, query);
    return make("a", { href: page === 1 ? next : `${next}${next.includes("?") ? "&" : "?"}page=${page}`, rel: text.includes("Next") ? "next" : "prev" }, text);
  };
  return [
    to(1, "« First", one.page > 1),
    to(one.page - 1, "‹ Previous", one.page > 1),
    make("span", {}, `Page ${one.page.toLocaleString()} of ${one.pages.toLocaleString()}`),
    to(one.page + 1, "Next ›", one.page < one.pages),
    to(one.pages, "Last »", one.page < one.pages),
  ];
}
