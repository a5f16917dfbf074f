// The details of a span, in a panel beside the page.

import { details, main, make, marked } from "./dom.js";

const LONGEST = 200_000; // characters shown before "show all"

export function showDetails(span) {
  const close = make("button", { className: "close", type: "button", title: "Close (Esc)", on: { click: closeDetails } }, "×");
  const pairs = Object.entries(span.facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...marked(value))]);
  const sections = span.sections.flatMap(([label, text]) => [make("h3", {}, label), textOf(text)]);
  details.replaceChildren(
    close,
    make("h2", { className: `kind-${span.kind}` }, span.name),
    make("dl", { className: "facts" }, ...pairs),
    ...sections,
  );
  details.hidden = false;
  details.scrollTop = 0;
  document.body.classList.add("has-details");
}

export function closeDetails() {
  details.hidden = true;
  details.replaceChildren();
  document.body.classList.remove("has-details");
  for (const row of main.querySelectorAll(".span[aria-pressed=true]")) row.setAttribute("aria-pressed", "false");
}

function textOf(text) {
  const shown = indented(text);
  const block = make("pre", {}, ...marked(shown.slice(0, LONGEST)));
  if (shown.length > LONGEST) {
    const more = make("button", { type: "button" }, `show all ${shown.length.toLocaleString()} characters`);
    more.addEventListener("click", () => block.replaceChildren(...marked(shown)));
    block.append("… ", more);
  }
  return block;
}

function indented(text) {
  if (!/^[{[]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
