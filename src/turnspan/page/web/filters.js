// Filters that live in the URL: the overview and the list of sessions share them. A filter is a parameter of the hash
// with the name of a property; an empty one selects what has no such property.

import { make } from "./dom.js";

const CHIPS = {
  project: "project", branch: "branch", model: "model", tool: "tool", agent: "agent",
  since: "from", until: "to", errors: "with errors", agents: "with agents", q: "title has",
};
const EMPTY = { branch: "(no branch)", agent: "(main)" };
const PERIODS = [["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["365", "1 year"], ["all", "All"]];
const DATES = ["days", "since", "until"];

// The address of a view with some parameters changed; null removes one. Another filter begins at the first page.
export function address(path, query, changes = {}) {
  const next = new URLSearchParams(query);
  next.delete("page");
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

// The same filters for another view: what belongs to one view only is dropped.
export function carried(query) {
  const next = new URLSearchParams();
  for (const name of [...Object.keys(CHIPS), "days"]) if (query.has(name) && name !== "q") next.set(name, query.get(name));
  return next;
}

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;

// A name for people, without control characters and marks of direction; the filter has the name as it is.
export function shown(name) {
  return name.replace(UNSEEN, "");
}

export function lastPart(path) {
  return shown(path.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) || path);
}

// The filters in force, each with a link that removes it.
export function chips(path, query) {
  const names = Object.keys(CHIPS).filter((name) => query.has(name));
  const items = names.map((name) => {
    const value = query.get(name);
    const isFlag = name === "errors" || name === "agents";
    const text = isFlag ? "" : name === "project" ? lastPart(value) || "(unknown)" : shown(value) || EMPTY[name] || "(unknown)";
    const remove = make("a", { href: address(path, query, { [name]: null }), className: "remove" }, "×");
    remove.setAttribute("aria-label", `Remove the filter ${CHIPS[name]} ${text}`);
    return make("li", { className: "chip", title: shown(value), data: { name, value } }, make("span", { className: "faint" }, CHIPS[name]), " ", text, remove);
  });
  if (names.length > 1) {
    const none = Object.fromEntries(names.map((name) => [name, null]));
    items.push(make("li", {}, make("a", { href: address(path, query, none) }, "Clear all")));
  }
  const list = make("ul", { className: "chips" }, ...items);
  list.setAttribute("aria-label", "Filters");
  return list;
}

// Links for the last 7, 30, 90… days.
export function periods(path, query, current) {
  const links = PERIODS.map(([days, label]) => {
    const link = make("a", { href: address(path, query, { days, since: null, until: null }) }, label);
    if (days === current) link.setAttribute("aria-current", "true");
    return link;
  });
  const nav = make("nav", { className: "choices" }, ...links);
  nav.setAttribute("aria-label", "Period");
  return nav;
}

export function hasDates(query) {
  return DATES.some((name) => query.has(name));
}

// A choice between some values of a parameter; the first is the default.
export function choices(path, query, name, options, label) {
  const value = query.get(name) ?? options[0][0];
  const links = options.map(([key, text], n) => {
    const link = make("a", { href: address(path, query, { [name]: n ? key : null }) }, text);
    if (key === value) link.setAttribute("aria-current", "true");
    return link;
  });
  const nav = make("nav", { className: "choices" }, ...links);
  nav.setAttribute("aria-label", label);
  return nav;
}
