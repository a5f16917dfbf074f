// A turn as a row: its name, what happened in it, its prompt and its figures.

import { badges, figures, make, marked } from "./dom.js";
import { waitedBadge } from "./times.js";

// What is not known of a turn before it was read: the index has only its name, its prompt and its place.
export const OUTLINED = {
  is: "turn",
  is_outline: true,
  badges: [],
  figures: ["", "", "", "…"],
  errors: 0,
  masked: 0,
  waited_ms: 0,
  cost_usd: null,
  context: [],
  compactions: [],
};

// Turns in the order of the page: what background agents did is below the turn that launched them.
export function inOrder(turns) {
  const groups = new Map();
  for (const turn of turns) groups.set(turn.trace, [...(groups.get(turn.trace) ?? []), turn]);
  let previous = null;
  for (const [first] of groups.values()) [first.after, previous] = [previous, first];
  return [...groups.values()].flat();
}

// What the filter looks at.
export function textOf({ name, gist, badges }) {
  return `${name} ${gist} ${badges.join(" ")}`.toLowerCase();
}

export function turnRow(turn, { isChat, isOpen, toggle }) {
  const failed = turn.errors
    ? [make("span", { className: "badge error" }, turn.errors === 1 ? "1 error" : `${turn.errors} errors`)]
    : [];
  const masked = turn.masked ? [make("span", { className: "badge masked" }, `${turn.masked} masked`)] : [];
  const running = turn.is_open
    ? [
        make(
          "span",
          { className: "badge running", title: "This turn has not ended: it is not exported yet" },
          "running, not exported yet",
        ),
      ]
    : [];
  const waited = turn.waited_ms >= 1000 ? [waitedBadge(turn.waited_ms, "tools")] : [];
  const what = make(
    "span",
    { className: "what", title: turn.gist },
    make("span", { className: `name kind-${turn.is_later ? "agent" : "turn"}` }, turn.name),
    make("span", { className: "faint when" }, turn.when),
    ...running,
    ...badges(turn.badges),
    ...failed,
    ...waited,
    ...masked,
    ...(isChat ? [] : [make("span", { className: "gist" }, ...marked(turn.gist))]),
  );
  const row = make(
    "button",
    {
      className: "row turn row-grid",
      type: "button",
      data: { at: turn.at, trace: turn.trace },
      on: { click: toggle },
    },
    what,
    ...figures(turn.figures),
  );
  if (isChat) row.title = "Open the trace of this turn";
  else row.setAttribute("aria-expanded", String(isOpen));
  if (typeof turn.active_ms === "number")
    row.lastChild.title = `active ~${(turn.active_ms / 1000).toFixed(1)} s (inferred), without waiting for you`;
  return row;
}
