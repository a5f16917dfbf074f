// The overview: what was spent, when and on what. Every name and every bar is a filter for all of it.

import { colour, periodName, stackedBars, valuesTable } from "./chart.js";
import { fill, main, make, marked, setTitle, untilComplete } from "./dom.js";
import { address, carried, chips, choices, hasDates, periods } from "./filters.js";
import { watchSessions } from "./live.js";

const PATH = "/";
const FIRST = 6; // rows of a panel before "show all"
const KINDS = [["input", "Input"], ["output", "Output"], ["cache_read", "Cache read"], ["cache_write_5m", "Cache write 5m"], ["cache_write_1h", "Cache write 1h"]];
const PANELS = {
  project: { title: "Projects", size: "cost_usd", columns: [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Turns", "turns"], ["Cache hits", "cache_hit_rate"]] },
  model: { title: "Models", size: "cost_usd", columns: [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Responses", "generations"], ["Cache hits", "cache_hit_rate"]] },
  tool: { title: "Tools", size: "tools", columns: [["Calls", "tools"], ["Failed", "tools_failed"], ["Denied", "tools_denied"], ["Time", "tools_ms"]] },
  agent: { title: "Agents", size: "cost_usd", columns: [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Runs", "agents"], ["Calls", "tools"]] },
  branch: { title: "Branches", size: "cost_usd", columns: [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Turns", "turns"]] },
};

export async function showOverview(visit) {
  setTitle("overview");
  const { query, signal } = visit;
  if (!main.querySelector(".overview")) main.replaceChildren();
  const load = async () => {
    const notes = make("div");
    let view = null;
    const isPartial = await fill(`overview?${query}`, signal, (one) => one.is === "overview" && (view = one.is_empty ? nothing() : page(one, query)), notes);
    if (signal.aborted) return false;
    const isOpen = main.querySelector(".chart details")?.open;
    const isShown = view && !(isPartial && view.matches(".note"));
    main.replaceChildren(...(isPartial ? [notes] : []), ...(isShown ? [view] : []), ...(isPartial ? [] : [notes]));
    if (isOpen && view?.querySelector("details")) view.querySelector("details").open = true;
    return isPartial;
  };
  await untilComplete(signal, load);
  watchSessions(signal, () => main.contains(document.activeElement) || main.matches(":hover") || untilComplete(signal, load), 5000);
}

function nothing() {
  return make("p", { className: "note" }, "No sessions yet. Claude Code writes one when you use it.");
}

function page(one, query) {
  const current = hasDates(query) ? query.get("days") : one.since ? "30" : "all";
  const bar = make("div", { className: "toolbar" }, make("h1", {}, "Overview"), periods(PATH, query, current), chips(PATH, query));
  const notes = one.notes.map((text) => make("p", { className: "note" }, text));
  const panels = Object.keys(PANELS).map((by) => groupPanel(by, one.groups[by], query));
  panels.splice(3, 0, failingPanel(one.failing, query));
  return make(
    "div",
    { className: "overview" },
    bar,
    cards(one, query),
    chartPanel(one.chart, query),
    make("div", { className: "panels" }, ...panels, sessionsPanel(one.sessions, query), turnsPanel(one.turns)),
    ...notes,
  );
}

// ---- totals

function cards(one, query) {
  const recent = one.cards.map((card) =>
    make(
      "a",
      { className: "card", href: address(PATH, query, { since: card.since, until: null, days: null }), data: { card: card.label, value: card.cost_usd ?? 0 } },
      make("span", { className: "label" }, card.label),
      make("strong", {}, card.text.cost_usd || "–"),
      make("span", { className: "faint" }, `${card.text.tokens || 0} tokens`),
      make("span", { className: "faint" }, plural(card.turns ?? 0, "turn")),
    ),
  );
  return make("section", { className: "cards" }, ...recent, periodCard(one, query));
}

function periodCard(one, query) {
  const total = one.total;
  const failed = total.tools ? `${percent(total.tools_failed / total.tools)} failed` : "";
  const tiles = [
    ["Cost", "cost_usd"],
    ["Tokens", "tokens"],
    ["Sessions", "sessions"],
    ["Turns", "turns"],
    ["Tool calls", "tools", failed],
    ["Cache hits", "cache_hit_rate", "of input"],
    ["Active", "active_ms", "inferred"],
  ].map(([label, name, below]) =>
    make("div", { data: { total: name, value: total[name] ?? "" } }, make("dt", {}, label), make("dd", {}, total.text[name] || "–", ...(below ? [make("small", {}, below)] : []))),
  );
  const link = make("a", { href: `#/sessions?${carried(withDates(query, one))}` }, "Sessions →");
  return make("div", { className: "card wide" }, make("span", { className: "label" }, rangeName(one, query), link), make("dl", {}, ...tiles), kinds(total));
}

// The tokens by kind, as one bar with its values below.
function kinds(total) {
  const shown = KINDS.filter(([name]) => total.usage?.[name]);
  const bar = make("div", { className: "kinds" });
  bar.setAttribute("aria-hidden", "true");
  const list = make("ul", { className: "legend" });
  for (const [name, label] of shown) {
    const value = total.usage[name];
    const piece = make("i", { className: `kind-of-${name}` });
    piece.style.flexGrow = value;
    bar.append(piece);
    list.append(make("li", { data: { kind: name, value } }, make("i", { className: `dot kind-of-${name}` }), `${label} `, make("b", {}, total.text[`usage.${name}`])));
  }
  return make("div", { className: "by-kind" }, bar, list);
}

function rangeName(one, query) {
  if (query.get("days") === "all" || (!one.since && !one.until)) return "All time";
  if (one.since && one.since === one.until) return periodName(one.since, "day");
  if (query.has("since") || query.has("until")) return `${one.since ? periodName(one.since, "day") : "…"} – ${one.until ? periodName(one.until, "day") : "today"}`;
  return `Last ${query.get("days") ?? 30} days`;
}

function withDates(query, one) {
  const next = new URLSearchParams(query);
  if (!hasDates(query) && one.since) next.set("days", "30");
  return next;
}

// ---- the chart

function chartPanel(chart, query) {
  const metric = query.get("metric") === "tokens" ? "tokens" : "cost";
  const head = make(
    "div",
    { className: "panel-head" },
    make("h2", {}, `${metric === "tokens" ? "Tokens" : "Cost"} per ${chart.unit}`),
    choices(PATH, query, "metric", [["cost", "Cost"], ["tokens", "Tokens"]], "Show"),
    choices(PATH, query, "stack", [["model", "By model"], ["project", "By project"]], "Stack"),
  );
  const panel = make("section", { className: "panel chart", data: { unit: chart.unit, metric } }, head);
  if (!chart.keys.length) {
    panel.append(make("p", { className: "note" }, "Nothing in this period."));
    return panel;
  }
  panel.append(stackedBars(chart, metric, (key) => address(PATH, query, datesOf(key, chart.unit))));
  const legend = make("ul", { className: "legend" });
  chart.series.forEach((series, place) => {
    const name = series.key === null ? series.label : make("a", { href: address(PATH, query, { [chart.stack]: series.key }), title: series.title }, series.label);
    const item = make("li", {}, make("i", { className: `dot series-${colour(chart, place)}` }), name);
    item.addEventListener("mouseenter", () => highlight(panel, place));
    item.addEventListener("mouseleave", () => highlight(panel, null));
    legend.append(item);
  });
  const table = make("details", {}, make("summary", {}, "Values as a table"), make("div", { className: "scroll" }, valuesTable(chart)));
  if (metric === "cost" && chart.totals.every(([cost]) => !cost))
    panel.append(make("p", { className: "note" }, "No cost is known for this period: see the tokens."));
  panel.append(legend, table);
  return panel;
}

function highlight(panel, place) {
  for (const piece of panel.querySelectorAll(".stack i")) piece.classList.toggle("dimmed", place !== null && piece.dataset.place !== String(place));
}

// The parameters that select a period of the chart.
function datesOf(key, unit) {
  if (!key) return {};
  const [year, month, day = 1] = key.split("-").map(Number);
  const last = unit === "month" ? new Date(year, month, 0) : new Date(year, month - 1, day + (unit === "week" ? 6 : 0));
  const iso = `${last.getFullYear()}-${String(last.getMonth() + 1).padStart(2, "0")}-${String(last.getDate()).padStart(2, "0")}`;
  return { since: unit === "month" ? `${key}-01` : key, until: iso, days: null };
}

// ---- panels

function groupPanel(by, group, query) {
  const { title, size, columns } = PANELS[by];
  const largest = Math.max(0, ...group.rows.map((row) => row[size] ?? 0));
  const rows = group.rows.map((row) => {
    const chosen = query.has(by) && query.get(by) === row.key;
    const link = make("a", { href: address(PATH, query, { [by]: chosen ? null : row.key }), title: row.title }, row.label);
    if (chosen) link.setAttribute("aria-current", "true");
    return tableRow(link, row, columns, largest > 0 ? (row[size] ?? 0) / largest : 0);
  });
  const more = group.count - group.rows.length;
  return panel(title, by, columns.map(([label]) => label), rows, more > 0 ? `${number(more)} more` : "");
}

function failingPanel(failing, query) {
  const columns = [["Failed", "tools_failed"], ["Calls", "tools"], ["Rate", "tools_failed", (row) => percent(row.tools_failed / row.tools)]];
  const largest = Math.max(0, ...failing.map((row) => row.tools_failed / row.tools));
  const rows = failing.map((row) => {
    const link = make("a", { href: `#/sessions?${carriedWith(query, { tool: row.key, errors: "1" })}`, title: `Sessions in which ${row.title} was called and something failed` }, row.label);
    return tableRow(link, row, columns, row.tools_failed / row.tools / largest, "bad");
  });
  return panel("Failing tools", "failing", columns.map(([label]) => label), rows, "", "No tool call failed.");
}

function sessionsPanel(sessions, query) {
  const columns = [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Turns", "turns"]];
  const largest = Math.max(0, ...sessions.map((row) => row.cost_usd));
  const rows = sessions.map((row) => {
    const link = make("a", { href: `#/s/${encodeURIComponent(row.key)}`, title: row.title }, ...marked(row.label || row.key.slice(0, 8)));
    return tableRow(link, row, columns, row.cost_usd / largest);
  });
  const all = make("a", { href: `#/sessions?${carriedWith(query, { sort: "-cost" })}` }, "All sessions");
  return panel("Most expensive sessions", "sessions", columns.map(([label]) => label), rows, all);
}

function turnsPanel(turns) {
  const columns = [["Cost", "cost_usd"], ["Tokens", "tokens"], ["Responses", "generations"]];
  const largest = Math.max(0, ...turns.map((row) => row.cost_usd));
  const rows = turns.map((row) => {
    const link = make("a", { href: `#/s/${encodeURIComponent(row.session)}/t/${row.trace}`, title: row.label }, ...marked(row.label || `Turn ${row.number ?? "?"}`));
    return tableRow(link, row, columns, row.cost_usd / largest);
  });
  return panel("Most expensive turns", "turns", columns.map(([label]) => label), rows, "");
}

function carriedWith(query, changes) {
  const next = carried(query);
  for (const [name, value] of Object.entries(changes)) next.set(name, value);
  return next;
}

function tableRow(link, row, columns, share, look = "") {
  const bar = make("i", { className: `share ${look}` });
  bar.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  const name = make("th", { scope: "row" }, bar, link);
  const cells = columns.map(([, field, shown]) => {
    const isBad = field === "tools_failed" && !shown && row[field] > 0;
    const text = shown ? shown(row) : row.text[field];
    return make("td", { className: isBad ? "number error" : "number", data: { field, value: row[field] ?? "" } }, text || "–");
  });
  return make("tr", { data: { key: row.key ?? row.trace } }, name, ...cells);
}

function panel(title, name, heads, rows, foot, none = "Nothing in this period.") {
  const id = `panel-${name}`;
  const section = make("section", { className: "panel", data: { panel: name } }, make("h2", { id }, title));
  section.setAttribute("aria-labelledby", id);
  if (!rows.length) {
    section.append(make("p", { className: "note" }, none));
    return section;
  }
  rows.slice(FIRST).forEach((row) => (row.hidden = true));
  const head = make("tr", {}, make("th", { scope: "col" }, make("span", { className: "unseen" }, "Name")), ...heads.map((text) => make("th", { scope: "col", className: "number" }, text)));
  section.append(make("table", { attributes: { "aria-labelledby": id } }, make("thead", {}, head), make("tbody", {}, ...rows)));
  if (rows.length > FIRST) {
    const more = make("button", { type: "button", className: "more" }, `Show all ${rows.length}`);
    more.addEventListener("click", () => {
      const isOpen = more.getAttribute("aria-expanded") === "true";
      rows.slice(FIRST).forEach((row) => (row.hidden = isOpen));
      more.setAttribute("aria-expanded", String(!isOpen));
      more.textContent = isOpen ? `Show all ${rows.length}` : "Show fewer";
    });
    more.setAttribute("aria-expanded", "false");
    section.append(more);
  }
  if (foot) section.append(make("span", { className: "foot faint" }, foot));
  return section;
}

// ---- figures

function number(value) {
  return value === null || value === undefined ? "" : value.toLocaleString();
}

function percent(share) {
  return share > 0 && share < 0.01 ? "<1%" : `${Math.round(100 * share)}%`;
}

function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}
