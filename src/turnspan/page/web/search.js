// Search in the content of all sessions. A hit is a turn, and opens where the words are.

import { fill, main, make, marked, setTitle, untilComplete } from "./dom.js";
import { address, chips, lastPart } from "./filters.js";
import { readdress, showing } from "./place.js";
import { whenText } from "./sessions.js";

const PATH = "/search";
const PAUSE_MS = 180; // after a key, before the search begins
const KINDS = { prompt: "prompt", answer: "answer", thinking: "thinking", tool_input: "tool call", tool_output: "tool result", title: "title" };

let pending = null;
let loading = null;

export async function showSearch(visit) {
  setTitle("search");
  const words = visit.query.get("q") ?? "";
  const parts = main.querySelector(".hits")?.parts ?? skeleton(words);
  if (document.activeElement !== parts.words) parts.words.value = words;
  visit.signal.addEventListener("abort", () => clearTimeout(pending)); // it must not change the next address
  await load(visit, parts);
}

function skeleton(value) {
  const words = make("input", { type: "search", value, placeholder: "Search in prompts, answers, tool calls and results", autocomplete: "off", spellcheck: false });
  words.setAttribute("aria-label", "Search in the content of all sessions");
  const parts = { words, chips: make("div"), count: make("p", { className: "count faint", role: "status" }), list: make("ol"), more: make("div"), notes: make("div") };
  const find = () => {
    clearTimeout(pending);
    readdress(address(PATH, currentQuery(), { q: words.value.trim() || null }), { state: null });
    showing(load({ query: currentQuery(), signal: null }, parts));
  };
  words.addEventListener("input", () => {
    clearTimeout(pending);
    pending = setTimeout(find, PAUSE_MS);
  });
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter") find();
    else if (event.key === "ArrowDown") parts.list.querySelector(".row-link")?.focus();
    else if (event.key === "Escape") words.blur();
    else return;
    event.preventDefault();
  });
  const bar = make("div", { className: "toolbar" }, make("h1", { className: "unseen" }, "Search"), words, parts.chips);
  const help = make("p", { className: "help faint" }, "All words must be in the same text. ", make("code", {}, '"exact phrase"'), ", ", make("code", {}, "begin*"), " and ", make("code", {}, "-without"), " work, too.");
  const hits = make("div", { className: "hits" }, bar, help, parts.count, parts.list, parts.more, parts.notes);
  hits.parts = parts;
  main.replaceChildren(hits);
  words.focus();
  return parts;
}

function currentQuery() {
  return new URLSearchParams(location.hash.split(/\?(.*)/s)[1] ?? "");
}

async function load({ query, signal }, parts, offset = 0) {
  loading?.abort();
  const own = (loading = new AbortController());
  signal?.addEventListener("abort", () => own.abort());
  const words = query.get("q") ?? "";
  const filters = new URLSearchParams(query);
  filters.delete("q");
  parts.chips.replaceChildren(chips(PATH, filters));
  if (!words) {
    parts.notes.replaceChildren();
    parts.count.textContent = "";
    parts.list.replaceChildren();
    parts.more.replaceChildren();
    return;
  }
  query = new URLSearchParams(query);
  query.set("offset", offset);
  await untilComplete(own.signal, async () => {
    const notes = make("div");
    let found = null;
    const isPartial = await fill(`search?${query}`, own.signal, (one) => one.is === "hits" && (found = one), notes);
    if (own.signal.aborted) return false;
    if (found && !(isPartial && (offset || !found.total))) show(found, query, parts, offset);
    parts.notes.replaceChildren(...notes.childNodes);
    return isPartial;
  });
}

function show(one, query, parts, offset) {
  const words = query.get("q");
  parts.count.textContent = one.problem || (one.total ? `${one.total.toLocaleString()} turn${one.total === 1 ? "" : "s"}` : `Nothing found for ${words}`);
  if (!offset) parts.list.replaceChildren();
  const hits = one.hits.map((hit) => {
    const item = hitItem(hit);
    const last = parts.list.lastElementChild;
    if (last?.dataset.session === hit.session) last.querySelector("ol").append(item);
    else parts.list.append(sessionItem(hit, item));
    return item;
  });
  const last = offset + one.hits.length;
  const more = make("button", { type: "button", className: "more", on: { click: () => load({ query: currentQuery(), signal: null }, parts, last) } }, `Show more (${last.toLocaleString()} of ${one.total.toLocaleString()})`);
  parts.more.replaceChildren(...(last < one.total ? [more] : []));
  if (offset) hits[0]?.querySelector("a").focus();
}

// Hits of one session that follow each other are below one heading.
function sessionItem(hit, item) {
  const head = make(
    "h2",
    {},
    make("a", { href: `#/s/${encodeURIComponent(hit.session)}` }, ...marked(hit.title || hit.session.slice(0, 8))),
    make("span", { className: "faint", title: hit.project }, lastPart(hit.project)),
  );
  return make("li", { data: { session: hit.session } }, head, make("ol", {}, item));
}

function hitItem(hit) {
  const when = make("span", { title: hit.start_ms ? new Date(hit.start_ms).toLocaleString() : "" }, hit.start_ms ? whenText(hit.start_ms) : "");
  const others = hit.others ? [make("span", {}, `+${hit.others} in this turn`)] : [];
  const about = make("span", { className: "about faint" }, make("span", { className: `where from-${hit.kind}` }, KINDS[hit.kind] ?? hit.kind), hit.turn === null ? "" : `Turn ${hit.turn}`, when, ...others);
  const context = make("span", { className: "context" }, ...hit.context.map(([text, isMatch]) => (isMatch ? make("mark", { className: "hit" }, text) : text)));
  const place = `#/s/${encodeURIComponent(hit.session)}/t/${hit.trace}${hit.span ? `/${hit.span}` : ""}`;
  return make("li", { data: { trace: hit.trace } }, make("a", { href: place, className: "row-link" }, context, about));
}
