// The page: sessions, the turns of a session, the spans of a turn. Records are always inserted as text, never as markup.

const main = document.getElementById("main");
const details = document.getElementById("details");
const where = document.getElementById("where");
const filter = document.getElementById("filter");
const MASK = /(\[redacted:[^\]\s]{1,60}\]|\[withheld: [^\]]{1,60}\])/;
const LONGEST = 200_000; // characters shown before "show all"

let visit = null; // the current load; navigating away aborts it

const EXPORTED = { all: "✓", no: "–" };

function setTitle(text) {
  where.textContent = text;
  document.title = `${text} - turnspan`;
}

// ---- elements

function make(name, options = {}, ...children) {
  const { data = {}, on = {}, ...properties } = options;
  const element = Object.assign(document.createElement(name), properties);
  Object.assign(element.dataset, data);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

function marked(text) {
  return text.split(MASK).map((piece, n) => (n % 2 ? make("mark", {}, piece) : piece));
}

function figures(values) {
  const all = values.length ? values : ["", "", "", ""];
  return all.map((value) => make("span", { className: "figure" }, value));
}

function badges(words) {
  return words.map((word) => make("span", { className: "badge" }, word));
}

// ---- loading

async function* records(path, signal) {
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
async function fill(path, shown, place = main) {
  const signal = visit.signal;
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

function showError(place, text, hint) {
  place.append(make("p", { className: "trouble", role: "alert" }, hint ? `${text} (${hint})` : text));
}

// ---- the sessions

async function showSessions() {
  setTitle("sessions");
  const heads = ["age", "session", "project", "turns", "tokens", "cost", "exported"];
  const body = make("tbody");
  const head = make("tr", {}, ...heads.map((name, n) => make("th", { className: n > 2 ? "number" : "" }, name)));
  const table = make("table", {}, make("thead", {}, head), body);
  main.replaceChildren(table);
  await fill("sessions", (one) => {
    const link = make("a", { href: `#s/${encodeURIComponent(one.session)}` }, ...marked(one.title || one.id));
    const failed = one.errors ? [make("span", { className: "error", title: `${one.errors} errors` }, " ✗")] : [];
    const cells = [one.turns, one.tokens, one.cost, EXPORTED[one.sent] ?? one.sent ?? ""];
    const row = make(
      "tr",
      { data: { text: `${one.title} ${one.directory} ${one.session}`.toLowerCase() } },
      make("td", { className: "faint" }, one.age),
      make("td", { className: "title", title: one.title }, link, ...failed),
      make("td", { title: one.directory }, one.project),
      ...cells.map((text) => make("td", { className: "number" }, text)),
    );
    body.append(row);
    applyFilter([row]);
  });
  if (!body.children.length && !main.querySelector(".trouble, .note")) {
    main.replaceChildren(make("p", { className: "note" }, "No sessions yet. Claude Code writes one when you use it."));
  }
}

// ---- the turns of a session

async function showSession(session, opened) {
  setTitle(session);
  main.replaceChildren();
  let day = "";
  await fill(`session/${encodeURIComponent(session)}`, (one) => {
    if (one.is === "head") {
      const pairs = Object.entries(one.facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...marked(value))]);
      setTitle(one.facts.Title ?? one.session);
      const names = ["", "in", "out", "cost", "time"].map((name) => make("span", {}, name));
      main.append(make("dl", { className: "facts" }, ...pairs), make("div", { className: "columns" }, ...names));
    } else if (one.is === "turn") {
      const began = new Date(one.start_ms).toLocaleDateString(undefined, { dateStyle: "full" });
      if (one.start_ms > 0 && began !== day) main.append(make("div", { className: "day" }, (day = began)));
      const turn = turnRow(session, one);
      main.append(turn);
      applyFilter([turn]);
      if (String(one.at) === opened) {
        open(turn).then(() => turn.scrollIntoView());
      }
    } else if (one.is === "foot") {
      main.append(...one.lines.map((line) => make("p", { className: "sum" }, line)));
    }
  });
}

function turnRow(session, one) {
  const kind = one.is_later ? "kind-agent" : "kind-turn";
  const failed = one.errors ? [make("span", { className: "badge error" }, one.errors === 1 ? "1 error" : `${one.errors} errors`)] : [];
  const hidden = one.masked ? [make("span", { className: "badge" }, `${one.masked} masked`)] : [];
  const what = make(
    "span",
    { className: "what", title: one.gist },
    make("span", { className: `name ${kind}` }, one.name),
    make("span", { className: "faint" }, ` ${one.when}`),
    ...badges(one.badges),
    ...failed,
    ...hidden,
    make("span", { className: "gist" }, ...marked(one.gist)),
  );
  const row = make(
    "button",
    {
      className: "row turn",
      type: "button",
      data: { at: one.at, session, text: `${one.name} ${one.gist}`.toLowerCase() },
      on: { click: () => toggle(row) },
    },
    what,
    ...figures(one.figures),
  );
  row.setAttribute("aria-expanded", "false");
  return row;
}

function toggle(row) {
  if (row.getAttribute("aria-expanded") === "true") {
    row.setAttribute("aria-expanded", "false");
    row.nextElementSibling.remove();
    history.replaceState(null, "", `#s/${row.dataset.session}`);
  } else {
    open(row);
  }
}

async function open(row) {
  row.setAttribute("aria-expanded", "true");
  const { session, at } = row.dataset;
  history.replaceState(null, "", `#s/${session}/${at}`);
  const waterfall = make("div", { className: "waterfall" });
  row.after(waterfall);
  await fill(
    `trace/${encodeURIComponent(session)}?at=${at}`,
    (trace) => waterfall.append(...trace.spans.map((span) => spanRow(span, trace))),
    waterfall,
  );
}

// ---- the spans of a turn

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
  const row = make(
    "button",
    { className: "row span", type: "button", on: { click: () => choose(row, span) } },
    what,
    lane,
    ...figures(span.figures),
  );
  row.setAttribute("aria-pressed", "false");
  return row;
}

function choose(row, span) {
  const isChosen = row.getAttribute("aria-pressed") === "true";
  closeDetails();
  if (isChosen) return;
  row.setAttribute("aria-pressed", "true");
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

function closeDetails() {
  details.hidden = true;
  details.replaceChildren();
  document.body.classList.remove("has-details");
  for (const row of main.querySelectorAll(".span[aria-pressed=true]")) row.setAttribute("aria-pressed", "false");
}

// ---- navigation

function applyFilter(rows = main.querySelectorAll("[data-text]")) {
  const wanted = filter.value.trim().toLowerCase();
  for (const row of rows) {
    row.hidden = !row.dataset.text.includes(wanted);
    if (row.nextElementSibling?.classList.contains("waterfall")) row.nextElementSibling.hidden = row.hidden;
  }
}

function go() {
  visit?.abort();
  visit = new AbortController();
  closeDetails();
  filter.value = "";
  const [kind, session, opened] = location.hash.slice(1).split("/");
  if (kind === "s" && session) showSession(decodeURIComponent(session), opened);
  else showSessions();
}

function step(by) {
  const rows = [...main.querySelectorAll(".row, td a")].filter((row) => row.offsetParent !== null);
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  r: go,
  "/": () => filter.focus(),
  Escape: () => (details.hidden ? (location.hash = "") : closeDetails()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (event.target === filter) {
    if (event.key === "Escape") {
      filter.value = ""; // Chrome clears the box itself; the filter must go with it
      applyFilter();
      filter.blur();
    }
    return;
  }
  event.preventDefault();
  KEYS[event.key]();
});
filter.addEventListener("input", () => applyFilter());
document.getElementById("again").addEventListener("click", go);
window.addEventListener("hashchange", go);
go();
