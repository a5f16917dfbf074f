// Elements, records and the parts of the page that every view uses. Text is always inserted as text, never as markup.

export const main = document.getElementById("main");
export const details = document.getElementById("details");
export const filter = document.getElementById("filter");
const where = document.getElementById("where");
const MASK = /(\[redacted:[^\]\s]{1,60}\]|\[withheld: [^\]]{1,60}\])/;

export function setTitle(text) {
  where.textContent = text;
  document.title = `${text} - turnspan`;
}

// ---- elements

// make("a", { href, className, data: { … }, on: { click }, role: "…" }, ...children)
export function make(name, options = {}, ...children) {
  const { data = {}, on = {}, ...properties } = options;
  const element = Object.assign(document.createElement(name), properties);
  Object.assign(element.dataset, data);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

// The text as nodes, with its masked parts marked.
export function marked(text) {
  return text.split(MASK).map((piece, n) => (n % 2 ? make("mark", {}, piece) : piece));
}

export function figures(values) {
  const all = values.length ? values : ["", "", "", ""];
  return all.map((value) => make("span", { className: "figure" }, value));
}

export function badges(words) {
  return words.map((word) => make("span", { className: "badge" }, word));
}

// ---- records

export async function* records(path, signal) {
  const response = await fetch(path, { signal });
  if (!response.ok) throw new Error(`HTTP ${response.status} ${response.statusText}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
    if (done) return;
  }
}

// Pass each record to `shown`; errors and notes are displayed in place.
export async function fill(path, signal, shown, place = main) {
  try {
    for await (const record of records(path, signal)) {
      if (record.is === "error") showError(place, record.text, record.hint);
      else if (record.is === "note") place.append(make("p", { className: "note" }, record.text));
      else shown(record);
    }
  } catch (error) {
    if (!signal.aborted) showError(place, `cannot load: ${error.message}`, "is `turnspan view` still running?");
  }
}

export function showError(place, text, hint) {
  place.append(make("p", { className: "trouble", role: "alert" }, hint ? `${text} (${hint})` : text));
}

// ---- the filter

// Show the rows whose data-text has the words of the filter.
export function applyFilter(rows = main.querySelectorAll("[data-text]")) {
  const wanted = filter.value.trim().toLowerCase();
  for (const row of rows) {
    row.hidden = !row.dataset.text.includes(wanted);
    if (row.nextElementSibling?.classList.contains("waterfall")) row.nextElementSibling.hidden = row.hidden;
  }
}
