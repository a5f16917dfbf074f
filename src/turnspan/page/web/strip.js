// The strip above the turns: the context window after each response, where it was compacted, and the cost of each turn.

import { draw, make } from "./dom.js";

const MOST = 900; // columns: a screen does not have more than it can show
const CONTEXT = 64; // heights, in units of the drawing
const GAP = 6;
const COST = 30;

export function strip(turns, go) {
  const slots = slotsOf(turns);
  if (!slots.length) return [];
  const peak = slots.reduce((most, slot) => Math.max(most, slot.context), 1);
  const dearest = turns.reduce((most, turn) => Math.max(most, turn.cost_usd ?? 0), 0);
  const width = Math.max(slots.length, 12); // a few responses are not stretched over the screen
  const height = CONTEXT + GAP + COST;
  const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  chart.append(draw("path", { class: "context-area", d: areaOf(slots, peak) }));
  chart.append(...costBars(slots, turns, dearest, height));
  for (const [n, slot] of slots.entries()) {
    if (slot.compactions)
      chart.append(
        draw("line", { class: "compaction", x1: n, x2: n, y1: 0, y2: CONTEXT, "vector-effect": "non-scaling-stroke" }),
      );
  }
  const cursor = draw("rect", { class: "cursor", x: 0, y: 0, width: 1, height, visibility: "hidden" });
  chart.append(cursor);

  const readout = make("p", { className: "readout" }, summary(turns, slots, peak));
  let at = -1;
  const point = (n) => {
    at = Math.min(Math.max(n, 0), slots.length - 1);
    const slot = slots[at];
    const from = slots.findIndex((one) => one.turn === slot.turn);
    const to = slots.findLastIndex((one) => one.turn === slot.turn);
    cursor.setAttribute("x", from);
    cursor.setAttribute("width", to - from + 1);
    cursor.setAttribute("visibility", "visible");
    readout.textContent = textOf(slot);
    figure.setAttribute("aria-valuenow", slot.turn.at);
    figure.setAttribute("aria-valuetext", readout.textContent);
  };
  const rest = () => {
    at = -1;
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = summary(turns, slots, peak);
  };
  const under = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left) / box.width) * width);
  };
  const near = (by) => {
    const turn = at < 0 ? (by > 0 ? -1 : turns.length) : slots[at].turn.at;
    const next = slots.findIndex((slot) => slot.turn.at === turn + by);
    if (next >= 0) point(next);
  };
  const figure = make(
    "div",
    {
      className: "strip",
      role: "slider",
      tabIndex: 0,
      attributes: {
        "aria-label": "Context window and cost by turn",
        "aria-valuemin": 0,
        "aria-valuemax": turns.length - 1,
        "aria-valuenow": 0,
        "aria-valuetext": readout.textContent,
      },
      on: {
        pointermove: (event) => point(under(event)),
        pointerleave: rest,
        blur: rest,
        click: (event) => go(slots[Math.min(under(event), slots.length - 1)].turn),
        keydown: (event) => {
          const act = {
            ArrowLeft: () => near(-1),
            ArrowRight: () => near(1),
            Enter: () => at >= 0 && go(slots[at].turn),
          }[event.key];
          if (!act) return;
          event.preventDefault();
          event.stopPropagation();
          act();
        },
      },
    },
    chart,
    make("span", { className: "scale top" }, `${short(peak)} context`),
    make("span", { className: "scale bottom" }, dearest ? `${usd(dearest)} cost` : "no cost known"),
  );
  return [figure, readout];
}

// One slot for each response, or several of them; a turn without responses has one, too.
function slotsOf(turns) {
  const all = turns.flatMap((turn) => {
    const sizes = turn.context.length ? turn.context : [0];
    return sizes.map((context, n) => ({
      turn,
      context,
      number: n + 1,
      count: turn.context.length,
      compactions: turn.compactions.filter((place) => place === n || (n === sizes.length - 1 && place > n)).length,
    }));
  });
  if (all.length <= MOST) return all;
  const merged = [];
  for (const [n, slot] of all.entries()) {
    const place = Math.floor((n * MOST) / all.length);
    const one = (merged[place] ??= { ...slot, compactions: 0 });
    one.compactions += slot.compactions;
    if (slot.context > one.context) Object.assign(one, { ...slot, compactions: one.compactions });
  }
  return merged;
}

function areaOf(slots, peak) {
  const y = (slot) => (CONTEXT * (1 - slot.context / peak)).toFixed(2);
  const steps = slots.map((slot, n) => `V${y(slot)}H${n + 1}`);
  return `M0 ${CONTEXT}${steps.join("")}V${CONTEXT}Z`;
}

function costBars(slots, turns, dearest, height) {
  if (!dearest) return [];
  const columns = new Map();
  for (const [n, slot] of slots.entries()) {
    const column = columns.get(slot.turn.at) ?? { from: n, to: n };
    columns.set(slot.turn.at, { ...column, to: n });
  }
  return [...columns].map(([at, { from, to }]) => {
    const tall = (COST * (turns[at].cost_usd ?? 0)) / dearest;
    const wide = to - from + 1;
    return draw("rect", { class: "cost", x: from + wide * 0.06, y: height - tall, width: wide * 0.88, height: tall });
  });
}

function textOf({ turn, context, number, count, compactions }) {
  const parts = [turn.name];
  if (count) parts.push(`response ${number} of ${count}`, `${context.toLocaleString("en")} tokens of context`);
  if (compactions) parts.push("compacted");
  if (turn.cost_usd !== null) parts.push(`${turn.figures[2] || usd(turn.cost_usd)} for the turn`);
  return parts.join(" · ");
}

function summary(turns, slots, peak) {
  const compactions = turns.reduce((sum, turn) => sum + turn.compactions.length, 0);
  const words = compactions === 1 ? "1 compaction" : `${compactions} compactions`;
  return `Context window: at most ${peak.toLocaleString("en")} tokens${compactions ? `, ${words}` : ""}`;
}

function short(tokens) {
  return tokens >= 1e6
    ? `${(tokens / 1e6).toFixed(1)}M`
    : tokens >= 1000
      ? `${Math.round(tokens / 1000)}k`
      : String(tokens);
}

function usd(amount) {
  return amount >= 1 ? `$${amount.toFixed(2)}` : `$${amount.toFixed(4)}`;
}
