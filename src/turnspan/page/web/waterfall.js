// The spans of a turn: a tree of rows with bars on a common time axis.
//
// The turn itself is the row of the axis: it is listed above the waterfall already. Rows can be collapsed, the time axis
// can be zoomed to a span, and the columns can be resized.

import { badges, figures, make, marked, remember, remembered } from "./dom.js";
import { briefly, clock, exactly, ticks, waitedBadge } from "./times.js";

const hint = document.getElementById("hint");
const NARROWEST = 15; // percent of the width
const WIDEST = 75;

function setNames(percent) {
  const width = Math.min(Math.max(percent, NARROWEST), WIDEST);
  document.documentElement.style.setProperty("--names", `${width}%`);
  remember("names", width);
  return width;
}
setNames(Number(remembered("names", "46")) || 46);

export class Waterfall {
  constructor({ choose }) {
    this.chooseSpan = choose;
    this.collapsed = new Set();
    this.marked = null;
    this.rows = new Map(); // by span id
    this.window = null; // the part of the time axis that is shown
    this.element = make("div", { className: "waterfall" }, make("p", { className: "note loading" }, "…"));
    this.element.addEventListener("pointerover", (event) => this.hover(event));
    this.element.addEventListener("pointerleave", () => (hint.hidden = true));
    this.element.addEventListener("focusin", (event) => this.reach(event.target));
    new ResizeObserver(() => this.scale && this.drawTicks()).observe(this.element); // the panel takes some of its width
  }

  show(trace) {
    this.trace = trace;
    this.spans = trace.spans;
    const parents = [];
    for (const span of this.spans) {
      parents.length = span.depth;
      span.parent = parents.at(-1) ?? null;
      parents[span.depth] = span;
    }
    this.root = this.spans[0]?.kind === "turn" ? this.spans[0] : null;
    this.window ??= { from: 0, to: trace.ms };
    if (!this.zoomed) this.window = { from: 0, to: trace.ms };
    const focused = document.activeElement?.dataset?.span;
    this.rows.clear();
    const rows = this.spans.filter((span) => span !== this.root).map((span) => this.row(span));
    this.axis = make("div", { className: "axis row-grid" });
    const tree = make("div", { className: "rows", role: "tree", attributes: { "aria-label": "Spans" } }, ...rows);
    this.element.replaceChildren(this.axis, tree);
    this.fold();
    this.layout();
    this.mark(this.marked);
    if (rows[0]) this.reach(this.rows.get(this.marked) ?? rows[0]);
    if (focused) this.rows.get(focused)?.focus({ preventScroll: true });
  }

  // The tab key stops at one row: the last one that had the focus.
  reach(row) {
    if (row.role !== "treeitem") return;
    if (this.reached) this.reached.tabIndex = -1;
    this.reached = row;
    row.tabIndex = 0;
  }

  // ---- the axis

  drawTicks() {
    const { from, to } = this.window;
    const most = Math.max(2, Math.floor((this.element.clientWidth || 900) / 220));
    const made = ticks(from, to, most).map((at) => {
      const tick = make("span", { className: "axis-tick" }, briefly(at));
      tick.style.left = `${(100 * (at - from)) / (to - from)}%`;
      return tick;
    });
    this.scale.replaceChildren(...made);
    const isCut = (tick) => tick.offsetLeft + tick.offsetWidth > this.scale.clientWidth;
    for (const tick of made.filter(isCut)) tick.remove();
  }

  drawAxis() {
    this.scale = make("div", { className: "lane scale" });
    const parents = this.spans.filter((span) => span.is_parent && span !== this.root);
    const left = make("span", { className: "what" });
    if (this.root) {
      const row = make(
        "button",
        {
          type: "button",
          className: "row span root",
          data: { span: this.root.id },
          on: { click: () => this.chooseSpan(this.root.id) },
        },
        "Prompt and answer",
      );
      row.setAttribute("aria-pressed", String(this.marked === this.root.id));
      this.rows.set(this.root.id, row);
      left.append(row);
    }
    if (parents.length) {
      const isAnyOpen = parents.some((span) => !this.collapsed.has(span.id));
      left.append(
        make(
          "button",
          { type: "button", className: "small", on: { click: () => this.foldAll(isAnyOpen) } },
          isAnyOpen ? "Collapse all" : "Expand all",
        ),
      );
    }
    if (this.zoomed) {
      left.append(
        make(
          "button",
          {
            type: "button",
            className: "small zoomed",
            title: "Show all of the turn (Z)",
            on: { click: () => this.zoom(null) },
          },
          "Zoom out",
        ),
      );
    }
    this.axis.replaceChildren(left, this.scale, this.splitter());
    this.drawTicks();
  }

  splitter() {
    const now = () => parseFloat(document.documentElement.style.getPropertyValue("--names"));
    const handle = make("div", {
      className: "splitter",
      role: "separator",
      tabIndex: 0,
      title: "Drag to resize the columns",
      attributes: {
        "aria-orientation": "vertical",
        "aria-label": "Width of the names",
        "aria-valuenow": now(),
        "aria-valuemin": NARROWEST,
        "aria-valuemax": WIDEST,
      },
      on: {
        pointerdown: (event) => handle.setPointerCapture(event.pointerId),
        pointermove: (event) => {
          if (!handle.hasPointerCapture(event.pointerId)) return;
          const box = this.axis.getBoundingClientRect();
          handle.setAttribute("aria-valuenow", setNames((100 * (event.clientX - box.left)) / box.width));
        },
        keydown: (event) => {
          const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
          if (!by) return;
          event.preventDefault();
          event.stopPropagation();
          handle.setAttribute("aria-valuenow", setNames(now() + by));
        },
      },
    });
    return handle;
  }

  // ---- rows

  row(span) {
    const bar = make("span", {
      className: `bar${span.is_inferred ? " inferred" : ""}${span.ms < 0.01 ? " moment" : ""}`,
    });
    const part = (className, from, ms) => {
      const piece = make("i", { className });
      piece.style.left = `${(100 * from) / span.ms}%`;
      piece.style.width = `${(100 * ms) / span.ms}%`;
      bar.append(piece);
    };
    if (span.first_token_ms && span.ms > 0) part("first", 0, span.first_token_ms);
    if (span.waited_ms && span.ms > 0) part("waited", 0, span.waited_ms);
    const twisty = make("span", {
      className: "twisty",
      attributes: { "aria-hidden": "true" },
      on: { click: (event) => this.turnOver(event, span) },
    });
    const waited = span.waited_ms ? [waitedBadge(span.waited_ms, "it")] : [];
    const what = make(
      "span",
      { className: "what" },
      twisty,
      make("i", { className: `sign kind-${span.kind}` }),
      make("span", { className: `name kind-${span.kind}` }, span.name),
      ...(span.error ? [make("span", { className: "badge error" }, span.error)] : []),
      ...badges(span.badges),
      ...waited,
      make("span", { className: "gist" }, ...marked(span.gist)),
    );
    const lane = make("span", { className: `lane kind-${span.kind}${span.error ? " failed" : ""}` }, bar);
    const row = make(
      "div",
      {
        className: `row span row-grid${span.is_critical ? " critical" : ""}`,
        role: "treeitem",
        tabIndex: -1,
        data: { span: span.id },
        attributes: { "aria-level": span.depth || 1, "aria-selected": "false", "aria-label": this.labelOf(span) },
        on: {
          click: () => this.chooseSpan(span.id),
          dblclick: () => this.zoom(span),
          keydown: (event) => {
            if (event.key !== "Enter" && event.key !== " ") return;
            event.preventDefault();
            this.chooseSpan(span.id);
          },
        },
      },
      what,
      lane,
      ...figures(span.figures),
    );
    row.style.setProperty("--depth", Math.max(span.depth - (this.root ? 1 : 0), 0));
    this.rows.set(span.id, row);
    return row;
  }

  labelOf(span) {
    const figure = (name, n) => (span.figures[n] ? `${name} ${span.figures[n]}` : "");
    const parts = [
      span.name,
      span.error,
      ...span.badges,
      span.gist,
      figure("cost", 2),
      figure("time", 3),
      span.is_critical ? "on the critical path" : "",
    ];
    return parts.filter(Boolean).join(", ");
  }

  layout() {
    this.drawAxis();
    const { from, to } = this.window;
    const length = to - from;
    for (const span of this.spans) {
      const bar = this.rows.get(span.id)?.querySelector(".bar");
      if (!bar) continue;
      const start = length > 0 ? (100 * (span.from_ms - from)) / length : 0;
      const wide = length > 0 ? (100 * span.ms) / length : 0;
      bar.hidden = start > 100 || start + wide < 0;
      bar.style.left = `min(${start}%, calc(100% - 2px))`;
      bar.style.width = `${wide}%`;
    }
  }

  // ---- collapse and expand

  turnOver(event, span) {
    event?.stopPropagation();
    if (!span.is_parent) return;
    if (!this.collapsed.delete(span.id)) this.collapsed.add(span.id);
    this.fold();
    this.drawAxis();
  }

  foldAll(isCollapsed) {
    this.collapsed = new Set(
      isCollapsed ? this.spans.filter((span) => span.is_parent && span !== this.root).map((span) => span.id) : [],
    );
    this.fold();
    this.drawAxis();
  }

  fold() {
    let below = Infinity; // rows deeper than this are below a collapsed one
    for (const span of this.spans) {
      const row = this.rows.get(span.id);
      if (span === this.root || !row) continue;
      if (span.depth <= below) below = Infinity;
      row.hidden = span.depth > below;
      if (span.is_parent) {
        const isOpen = !this.collapsed.has(span.id);
        row.setAttribute("aria-expanded", String(isOpen));
        if (!isOpen && below === Infinity) below = span.depth;
      }
    }
  }

  // ---- zoom

  get zoomed() {
    return this.trace && this.window && (this.window.from > 0 || this.window.to < this.trace.ms);
  }

  zoom(span) {
    if (span) {
      const margin = Math.max(span.ms * 0.02, 0.5);
      this.window = {
        from: Math.max(span.from_ms - margin, 0),
        to: Math.min(span.from_ms + span.ms + margin, this.trace.ms),
      };
    } else {
      this.window = { from: 0, to: this.trace.ms };
    }
    this.layout();
  }

  zoomTo(id) {
    const span = this.spans?.find((one) => one.id === id);
    if (span) this.zoom(span === this.root ? null : span);
  }

  // ---- keys and hover

  key(name) {
    const span = this.spans?.find((one) => one.id === document.activeElement.dataset.span);
    if (!span) return false;
    if (name === "z") this.zoom(span);
    else if (name === "Z") this.zoom(null);
    else if (name === "ArrowRight" && span.is_parent && this.collapsed.has(span.id)) this.turnOver(null, span);
    else if (name === "ArrowLeft" && span.is_parent && !this.collapsed.has(span.id) && span !== this.root)
      this.turnOver(null, span);
    else if (name === "ArrowLeft" && span.parent) this.rows.get(span.parent.id)?.focus();
    else if (name === "Home") this.rows.get(this.spans[0].id)?.focus();
    else if (name === "End") this.rows.get(this.spans.at(-1).id)?.focus();
    else return false;
    return true;
  }

  hover(event) {
    const id = event.target.closest(".span")?.dataset.span;
    const lane = event.target.closest(".lane");
    const span = id && lane && this.spans?.find((one) => one.id === id);
    hint.hidden = !span;
    if (!span) return;
    hint.replaceChildren(
      ...this.timesOf(span).map(([name, value]) => make("div", {}, make("b", {}, name), " ", value)),
    );
    const box = lane.getBoundingClientRect();
    hint.style.top = `${box.bottom + 6 + hint.offsetHeight > innerHeight ? box.top - 6 - hint.offsetHeight : box.bottom + 6}px`;
    hint.style.left = `${Math.min(Math.max(event.clientX - 60, 8), innerWidth - hint.offsetWidth - 8)}px`;
  }

  timesOf(span) {
    const start = this.trace.start_ms + span.from_ms;
    const known = [
      ["start", `${clock(start)} (+${exactly(span.from_ms)})${span.is_inferred ? ", inferred" : ""}`],
      ["end", clock(start + span.ms)],
      ["duration", exactly(span.ms)],
    ];
    if (span.first_token_ms) known.push(["first token", `after ${exactly(span.first_token_ms)}`]);
    if (span.waited_ms) known.push(["waited for you", `~${exactly(span.waited_ms)}, inferred`]);
    if (span.is_critical) known.push(["critical path", "decided when the turn ended"]);
    return known;
  }

  // Mark a span as chosen; null marks none.
  mark(id) {
    this.marked = id;
    for (const [other, row] of this.rows) {
      row.setAttribute(row.role === "treeitem" ? "aria-selected" : "aria-pressed", String(other === id));
    }
    let span = this.spans?.find((one) => one.id === id);
    for (span = span?.parent; span; span = span.parent) if (this.collapsed.delete(span.id)) this.fold();
  }
}
