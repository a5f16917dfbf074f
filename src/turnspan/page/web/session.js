// A session: what is known about it, its context window and cost, and its turns as a conversation or as traces.

import { chatTurn } from "./chat.js";
import { fill, filter, main, make, records, setTitle, showError } from "./dom.js";
import { SessionHead } from "./head.js";
import { LazyList } from "./lazy.js";
import { watch } from "./live.js";
import { goBack, readdress } from "./place.js";
import { chosenSpan, closeDetails, onClose, showSpan } from "./span.js";
import { strip } from "./strip.js";
import { day } from "./times.js";
import { OUTLINED, inOrder, textOf, turnRow } from "./turn.js";
import { Waterfall } from "./waterfall.js";

const VIEWS = { chat: "Chat", trace: "Trace" };
const ROW_PX = 33;
const CHAT_PX = 320;

export function showSession(visit) {
  return new SessionView(visit).load();
}

class SessionView {
  constructor(visit) {
    this.visit = visit;
    this.signal = visit.signal;
    [this.session] = visit.words;
    this.path = encodeURIComponent(this.session);
    this.view = visit.query.get("view") in VIEWS ? visit.query.get("view") : "trace";
    this.turns = []; // records, in order
    this.shown = []; // those that the filter lets through
    this.entries = new Map(); // the elements of turns, by place
    this.waterfalls = new Map(); // the opened ones, by place
    this.end = null; // how to ask for what is new
    this.wanted = ""; // the text of the filter
    this.named = null;
    this.lacking = new Set(); // places of turns on the screen without figures
    visit.move = (words, query) => this.move(words, query);
    visit.filter = (text) => this.applyFilter(text);
    visit.keys = { c: () => this.setView("chat"), t: () => this.setView("trace"), ...this.keys() };
    onClose(() => this.say(this.openedTurn()));
  }

  keys() {
    const at = () => [...this.waterfalls.values()].find((one) => one.element.contains(document.activeElement));
    const pass = (name) => (event) => at()?.key(name, event) ?? false;
    return Object.fromEntries(["ArrowLeft", "ArrowRight", "z", "Z", "Home", "End"].map((name) => [name, pass(name)]));
  }

  // ---- the frame

  async load() {
    this.head = new SessionHead(this.path);
    this.retitle();
    this.strip = make("div", { className: "strip-place" });
    this.list = make("div", { className: `turns ${this.view}`, role: "list", attributes: { "aria-label": "Turns" } });
    this.foot = make("div", { className: "session-foot" });
    this.empty = make("p", { className: "note", hidden: true });
    main.replaceChildren(this.head.element, this.strip, this.bar(), this.list, this.empty, this.foot);
    this.makeList();
    const [, trace, span] = this.visit.words;
    let revealed = null;
    await fill(
      `session/${this.path}`,
      this.signal,
      (one) => {
        this.take(one);
        if (!trace || revealed || !["outline", "turn"].includes(one.is)) return;
        const turn = one.is === "turn" ? this.turns[one.at] : this.turns.find((other) => other.trace === trace);
        if (turn?.trace === trace) revealed = this.reveal(turn, span);
      },
      this.foot,
    );
    if (this.signal.aborted) return;
    this.dropOutline();
    this.drawStrip();
    this.barRow.hidden = !this.turns.length;
    if (trace && !revealed) showError(this.foot, "this session does not have that turn", "it may be in another session");
    if (this.end) watch(this.signal, () => this.look());
    await revealed;
  }

  bar() {
    this.tabs = Object.entries(VIEWS).map(([name, label]) =>
      make(
        "button",
        {
          type: "button",
          className: "tab",
          data: { view: name },
          title: `${label} view (${name[0]})`,
          on: { click: () => this.setView(name) },
        },
        label,
      ),
    );
    const legend = make(
      "span",
      { className: "kinds-legend", attributes: { "aria-hidden": "true" } },
      ...[
        ["generation", "response"],
        ["tool", "tool"],
        ["agent", "agent"],
        ["event", "event"],
      ].map(([kind, name]) => make("span", { className: `kind-${kind}` }, make("i", { className: "sign" }), name)),
      make("span", { className: "critical" }, make("i", { className: "line" }), "critical path"),
    );
    const names = ["in", "out", "cost", "time"].map((name) => make("span", { className: `figure ${name}` }, name));
    this.barRow = make(
      "div",
      { className: "bar-row row-grid" },
      make("div", { className: "tabs", role: "group", attributes: { "aria-label": "View" } }, ...this.tabs, legend),
      ...names,
    );
    this.markTabs();
    return this.barRow;
  }

  markTabs() {
    this.barRow?.classList.toggle("chat", this.view === "chat");
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.view === this.view));
  }

  makeList() {
    const isChat = this.view === "chat";
    this.list.className = `turns ${this.view}`;
    this.lazy = new LazyList(this.list, {
      size: isChat ? 6 : 60,
      height: isChat ? CHAT_PX : ROW_PX,
      build: (turn) => this.entry(turn),
      signal: this.signal,
    });
  }

  setView(view) {
    if (view === this.view) return;
    const at = this.turnOnScreen();
    this.view = view;
    this.markTabs();
    this.entries.clear();
    this.waterfalls.clear();
    closeDetails(true);
    this.list.replaceChildren();
    this.makeList();
    this.lazy.set(this.shown);
    this.rename();
    if (at && at !== this.shown[0]) this.scrollTo(at);
  }

  turnOnScreen() {
    const entry = [...this.list.querySelectorAll(".entry")].find((one) => one.getBoundingClientRect().bottom > 120);
    return entry && this.turns[Number(entry.dataset.at)];
  }

  // ---- records

  take(one) {
    if (one.is === "head") this.head.show(one);
    else if (one.is === "outline") this.outline(one.turns);
    else if (one.is === "turn") this.add(one);
    else if (one.is === "foot") this.showFoot(one);
    else if (one.is === "end") this.end = one;
  }

  showFoot(foot) {
    this.foot.replaceChildren(
      ...[...this.foot.children].filter((one) => !one.matches(".sum")),
      ...this.head.sum(foot, this.turns).map((line) => make("p", { className: "sum" }, line)),
    );
    this.retitle();
  }

  add(one) {
    one.text = textOf(one);
    const known = this.turns[one.at];
    if (known?.trace === one.trace) {
      this.complete(known, one);
      return;
    }
    if (known) this.dropFrom(one.at); // the outline was of another file
    this.barRow.hidden = false;
    this.turns[one.at] = one;
    if (!one.text.includes(this.wanted)) return;
    this.shown.push(one);
    this.lazy.push([one]);
  }

  // The turns of a long session as the index has them: figures follow, those on the screen first.
  outline(rows) {
    this.turns = rows.map(([trace, name, gist, start_ms, when], at) => {
      const turn = { ...OUTLINED, at, trace, name, gist, start_ms, when };
      return { ...turn, text: textOf(turn) };
    });
    this.strip.classList.add("awaited");
    this.applyFilter(this.wanted);
  }

  complete(turn, record) {
    const isNews = turn.is_outline;
    Object.assign(turn, { is_outline: false }, record);
    const row = isNews && this.entries.get(turn.at)?.querySelector(".row.turn");
    if (!row) return;
    const isFocused = row === document.activeElement;
    const next = this.row(turn);
    row.replaceWith(next);
    if (isFocused) next.focus({ preventScroll: true });
  }

  // Read the figures of turns that were built together.
  lacks(turn) {
    if (!this.lacking.size) setTimeout(() => this.fetchRows());
    this.lacking.add(turn.at);
  }

  async fetchRows() {
    const places = [...this.lacking].sort((a, b) => a - b);
    this.lacking.clear();
    const runs = [];
    for (const at of places) {
      if (runs.at(-1)?.at(-1) === at - 1) runs.at(-1).push(at);
      else runs.push([at]);
    }
    for (const run of runs) {
      if (!run.some((at) => this.turns[at]?.is_outline)) continue;
      try {
        const path = `turns/${this.path}?from=${run[0]}&to=${run.at(-1)}`;
        for await (const one of records(path, this.signal)) if (one.is === "turn") this.add(one);
      } catch {
        return; // they come with all others
      }
    }
  }

  // Forget the turns from one on.
  dropFrom(at) {
    this.turns.length = at;
    for (const places of [this.entries, this.waterfalls])
      for (const other of [...places.keys()]) if (other >= at) places.delete(other);
    this.applyFilter(this.wanted);
  }

  // All turns were read: what is still an outline is not in the file.
  dropOutline() {
    const first = this.turns.findIndex((one) => one.is_outline);
    if (first >= 0) this.dropFrom(first);
    else if (this.wanted || this.turns.some((one) => one.is_later)) this.applyFilter(this.wanted); // badges are part of the text
  }

  applyFilter(text) {
    this.wanted = text;
    this.shown = inOrder(this.turns).filter((one) => one.text.includes(text));
    this.lazy.set(this.shown);
    this.empty.hidden = this.shown.length > 0 || !text;
    const search = make("a", { href: `#/search?q=${encodeURIComponent(text)}` }, "Search the content of all sessions →");
    this.empty.replaceChildren("No prompt contains these words. ", search);
  }

  drawStrip() {
    this.strip.classList.remove("awaited");
    this.strip.replaceChildren(...strip(inOrder(this.turns), (turn) => this.goTo(turn)));
  }

  // ---- live

  async look() {
    if (!this.end) {
      await this.reload();
      if (!this.end) throw new Error("the session cannot be read");
      return;
    }
    const { since, trace, stamp } = this.end;
    const found = [];
    const path = `session/${this.path}?since=${since}&trace=${trace}&stamp=${stamp}`;
    for await (const record of records(path, this.signal)) found.push(record);
    if (!found.length || this.signal.aborted) return;
    if (found.some((one) => one.is === "again" || one.is === "error")) {
      this.end = null;
      await this.look();
      return;
    }
    const isAtEnd = innerHeight + scrollY > document.documentElement.scrollHeight - 100;
    const before = this.turns.slice(since);
    this.turns.length = since;
    this.shown = this.shown.filter((one) => one.at < since);
    this.lazy.drop((one) => one.at >= since);
    for (const one of found) this.refresh(one, before);
    this.dropOutline();
    this.drawStrip();
    if (isAtEnd) scrollTo(0, document.documentElement.scrollHeight);
  }

  // Take a record; a turn that was shown before keeps what the user opened in it.
  refresh(one, before) {
    if (one.is === "turn") {
      const earlier = before.find((turn) => turn.at === one.at && turn.trace === one.trace);
      const waterfall = earlier && this.waterfalls.get(one.at);
      const entry = earlier && this.entries.get(one.at);
      this.entries.delete(one.at);
      this.waterfalls.delete(one.at);
      if (waterfall) this.entries.set(one.at, this.entry(one, waterfall));
      else if (entry && this.view === "chat") this.entries.set(one.at, this.entry(one, null, entry));
      this.add(one);
      if (waterfall) this.fetchTrace(one, waterfall);
    } else {
      this.take(one);
    }
  }

  async reload() {
    this.turns = [];
    this.shown = [];
    this.entries.clear();
    this.waterfalls.clear();
    this.end = null;
    this.foot.replaceChildren();
    this.lazy.set([]);
    await fill(`session/${this.path}`, this.signal, (one) => this.take(one), this.foot);
    if (this.signal.aborted) return;
    this.dropOutline();
    this.drawStrip();
  }

  // ---- turns

  entry(turn, waterfall = null, earlier = null) {
    if (this.entries.has(turn.at)) return this.entries.get(turn.at);
    if (turn.is_outline) this.lacks(turn);
    const entry = make("div", { className: "entry", role: "listitem", data: { at: turn.at } });
    const began = turn.start_ms > 0 ? day(turn.start_ms) : "";
    const previous = turn.after ?? this.turns[turn.at - 1];
    if (began && !turn.is_later && began !== (previous && day(previous.start_ms))) entry.append(make("div", { className: "day" }, began));
    if (this.view === "chat") {
      entry.append(
        chatTurn(turn, {
          path: this.path,
          signal: this.signal,
          row: this.row(turn),
          earlier: earlier?.querySelector(".talk"),
          open: (span) => this.choose(turn, span),
        }),
      );
    } else {
      entry.append(this.row(turn));
      if (waterfall) this.place(entry, turn, waterfall);
    }
    this.entries.set(turn.at, entry);
    return entry;
  }

  row(turn) {
    return turnRow(turn, {
      isChat: this.view === "chat",
      isOpen: this.waterfalls.has(turn.at),
      toggle: () => this.toggle(turn),
    });
  }

  toggle(turn) {
    if (this.view === "chat") {
      this.setView("trace");
      this.goTo(turn);
    } else if (this.waterfalls.has(turn.at)) {
      if (chosenSpan()?.at === turn.at) closeDetails(true);
      this.waterfalls.get(turn.at).element.remove();
      this.waterfalls.delete(turn.at);
      this.entries.get(turn.at).querySelector(".turn").setAttribute("aria-expanded", "false");
      this.rename();
    } else {
      this.open(turn);
    }
  }

  async open(turn) {
    const waterfall = new Waterfall({ choose: (span) => this.choose(turn, span) });
    this.waterfalls.set(turn.at, waterfall);
    this.place(this.entry(turn), turn, waterfall);
    this.say(turn);
    await this.fetchTrace(turn, waterfall);
  }

  place(entry, turn, waterfall) {
    this.waterfalls.set(turn.at, waterfall);
    entry.querySelector(".turn").setAttribute("aria-expanded", "true");
    entry.append(waterfall.element);
  }

  fetchTrace(turn, waterfall) {
    return fill(
      `trace/${this.path}?at=${turn.at}&trace=${turn.trace}`,
      this.signal,
      (trace) => waterfall.show(trace),
      waterfall.element,
    );
  }

  // ---- places: a turn, a span

  // Open a turn that a URL names, and go there.
  async reveal(turn, span) {
    if (this.wanted) {
      filter.value = "";
      this.applyFilter("");
    }
    this.lazy.show(turn);
    if (this.view === "trace" && !this.waterfalls.has(turn.at)) await this.open(turn);
    if (this.signal.aborted) return;
    this.scrollTo(turn);
    if (span) await this.choose(turn, span, { isNew: false });
  }

  goTo(turn) {
    return this.reveal(turn, null);
  }

  scrollTo(turn) {
    this.lazy.show(turn);
    this.entries.get(turn.at)?.querySelector(".row")?.scrollIntoView();
  }

  // `isNew`: a place of its own for the back button; not if the URL named the span already.
  choose(turn, span, { isNew = true } = {}) {
    if (chosenSpan()?.id === span) {
      closeDetails();
      return null;
    }
    const isFirst = !chosenSpan();
    const waterfall = this.waterfalls.get(turn.at);
    for (const one of this.waterfalls.values()) one.mark(one === waterfall ? span : null);
    const shown = showSpan({
      path: this.path,
      at: turn.at,
      trace: turn.trace,
      id: span,
      signal: this.signal,
      waterfall,
    });
    const placed = shown.then(() => waterfall?.rows.get(span)?.scrollIntoView({ block: "nearest" }));
    const address = this.address(turn, span);
    if (isNew && isFirst && location.hash !== address)
      readdress(address, { state: { isDetails: true, scroll: history.state?.scroll }, isNew: true });
    else readdress(address);
    this.retitle(turn);
    return placed;
  }

  openedTurn() {
    this.unmark();
    return this.turns.find((one) => location.hash.includes(`/t/${one.trace}`)) ?? null;
  }

  unmark() {
    for (const one of this.waterfalls.values()) one.mark(null);
  }

  // Name only the session in the URL and the title.
  rename() {
    readdress(this.address(), { state: { scroll: history.state?.scroll } });
    this.retitle(null);
  }

  retitle(turn = this.named) {
    this.named = turn; // the turn in the title
    setTitle(this.head.name || this.session, ["Sessions", "#/sessions"]);
    if (turn) document.title = `${turn.name} - ${document.title}`;
  }

  // Name a turn in the URL and the title.
  say(turn) {
    const address = this.address(turn);
    if (history.state?.isDetails) goBack();
    else if (location.hash !== address) readdress(address);
    this.retitle(turn);
  }

  address(turn = null, span = null) {
    const query = this.view === "trace" ? "" : `?view=${this.view}`;
    return `#/s/${this.path}${turn ? `/t/${turn.trace}` : ""}${turn && span ? `/${span}` : ""}${query}`;
  }

  // Another place of this session: by a link, or back and forward.
  move([session, trace, span], query) {
    if (session !== this.session) return null;
    const view = query.get("view") in VIEWS ? query.get("view") : "trace";
    if (view !== this.view) this.setView(view);
    if (!span) {
      closeDetails(true);
      this.unmark();
    }
    const turn = trace && this.turns.find((one) => one?.trace === trace);
    let moved = null;
    if (turn && !this.waterfalls.has(turn.at)) moved = this.reveal(turn, span);
    else if (turn && span && chosenSpan()?.id !== span) moved = this.choose(turn, span);
    return Promise.resolve(moved);
  }
}
