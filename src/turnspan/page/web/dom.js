// Elements, records and the parts of the page that every view uses. Text is inserted as text, never as markup: the one
// exception is `rendered`, for the sections of content that the server made.

export const main = document.getElementById("main");
export const details = document.getElementById("details");
export const filter = document.getElementById("filter");
const where = document.getElementById("where");
const PAUSE_MS = 300; // between looks at an index that is being built
const MASK = /(\[redacted:[^\]\s]{1,60}\]|\[withheld: [^\]]{1,60}\])/;
// The content security policy lets only this policy make markup of a string.
const policy = window.trustedTypes?.createPolicy("sections", { createHTML: (html) => html });

// Say where the user is: in the title, and in the header as links. setTitle("Fix the parser", ["Sessions", "#/sessions"])
export function setTitle(text, ...above) {
  document.title = [text, ...above.map(([name]) => name), "turnspan"].join(" - ");
  const links = above.flatMap(([name, href]) => [
    make("a", { href }, name),
    make("span", { className: "faint" }, " / "),
  ]);
  main.setAttribute("aria-label", text);
  where.replaceChildren(...links, make("span", { className: "here", title: text }, text));
}

// ---- elements

// make("a", { href, className, data: { … }, on: { click }, attributes: { "aria-label": "…" } }, ...children)
export function make(name, options = {}, ...children) {
  const { data = {}, on = {}, attributes = {}, ...properties } = options;
  const element = Object.assign(document.createElement(name), properties);
  Object.assign(element.dataset, data);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

const SVG = document.querySelector("svg").namespaceURI;

// draw("rect", { x: 1, width: 2, class: "bar" }, ...children): the same for SVG, whose properties are attributes.
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

// The text as nodes, with its masked parts marked.
export function marked(text) {
  return text.split(MASK).map((piece, n) => (n % 2 ? make("mark", {}, piece) : piece));
}

// Markup that the server made of content, as nodes. For nothing else.
export function rendered(html) {
  const template = document.createElement("template");
  template.innerHTML = policy ? policy.createHTML(html) : html;
  return template.content;
}

const FIGURES = ["in", "out", "cost", "time"];

export function figures(values) {
  const all = values.length ? values : ["", "", "", ""];
  return all.map((value, n) => make("span", { className: `figure ${FIGURES[n]}` }, value));
}

export function badges(words) {
  return words.map((word) => make("span", { className: `badge ${word.split(" ").at(-1)}` }, word));
}

// `text` can be a function, for what is long.
export function copyButton(text, label, name = "Copy") {
  const isLong = typeof text === "function";
  const button = make("button", { type: "button", className: "copy", title: isLong ? name : `${name}: ${text}` }, label);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(isLong ? text() : text);
      button.classList.add("copied");
    } catch {
      button.classList.add("failed");
    }
    setTimeout(() => button.classList.remove("copied", "failed"), 1500);
  });
  return button;
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

// Pass each record to `shown`; errors and notes are displayed in place. Return whether the index is still being built.
export async function fill(path, signal, shown, place = main) {
  let isPartial = false;
  try {
    for await (const record of records(path, signal)) {
      if (record.is === "reading") {
        isPartial = true;
        place.append(readingNote(record));
      } else if (record.is === "error") showError(place, record.text, record.hint);
      else if (record.is === "note") place.append(make("p", { className: "note" }, record.text));
      else shown(record);
    }
  } catch (error) {
    if (!signal.aborted) showError(place, `cannot load: ${error.message}`, "is `turnspan view` still running?");
  }
  return isPartial;
}

function readingNote({ done, of }) {
  const far = of ? ` (${done.toLocaleString()} of ${of.toLocaleString()})` : "";
  return make("p", { className: "note reading", role: "status" }, `Reading sessions${far}… Figures are not complete yet.`);
}

// Repeat `load`, which returns whether what it shows is partial, until it is complete.
export async function untilComplete(signal, load) {
  while ((await load()) && !signal?.aborted) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
}

export function showError(place, text, hint) {
  place.append(make("p", { className: "trouble", role: "alert" }, hint ? `${text} (${hint})` : text));
}

// ---- the filter

// Show the rows whose data-text has the words of the filter.
export function applyFilter(rows = main.querySelectorAll("[data-text]")) {
  const wanted = filter.value.trim().toLowerCase();
  for (const row of rows) row.hidden = !row.dataset.text.includes(wanted);
}

// ---- settings of this browser

export function remembered(name, otherwise) {
  try {
    return localStorage.getItem(name) ?? otherwise;
  } catch {
    return otherwise; // storage is switched off
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // It holds for this page only.
  }
}
