// The spans of a turn, as rows with bars on a common time axis.

import { badges, figures, make, marked } from "./dom.js";
import { closeDetails, showDetails } from "./span.js";

export function waterfall(trace) {
  return trace.spans.map((span) => spanRow(span, trace));
}

function spanRow(span, trace) {
  const percent = (ms) => `${trace.ms > 0 ? (100 * ms) / trace.ms : 0}%`;
  const bar = make("span", { className: span.is_inferred ? "bar inferred" : "bar" });
  bar.style.left = `min(${percent(span.from_ms)}, calc(100% - 2px))`;
  bar.style.width = percent(span.ms);
  if (span.first_token_ms && span.ms > 0) {
    const waited = make("i", { title: "time to first token" });
    waited.style.width = `${(100 * span.first_token_ms) / span.ms}%`;
    bar.append(waited);
  }
  const what = make(
    "span",
    { className: "what", title: span.gist },
    make("span", { className: `name kind-${span.kind}` }, span.name),
    ...badges(span.badges),
    ...(span.error ? [make("span", { className: "badge error" }, span.error)] : []),
    make("span", { className: "gist" }, ...marked(span.gist)),
  );
  what.style.paddingLeft = `${span.depth * 1.1}rem`;
  const lane = make("span", { className: `lane kind-${span.error ? "error error" : span.kind}` }, bar);
  const row = make("button", { className: "row span", type: "button", on: { click: () => choose(row, span) } }, what, lane, ...figures(span.figures));
  row.setAttribute("aria-pressed", "false");
  return row;
}

function choose(row, span) {
  const isChosen = row.getAttribute("aria-pressed") === "true";
  closeDetails();
  if (isChosen) return;
  row.setAttribute("aria-pressed", "true");
  showDetails(span);
}
