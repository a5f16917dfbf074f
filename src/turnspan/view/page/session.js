// A session: its turns, each of which opens as a waterfall.

import { applyFilter, badges, figures, fill, main, make, marked, setTitle } from "./dom.js";
import { waterfall } from "./waterfall.js";

export async function showSession(visit) {
  const [session, trace] = visit.words;
  setTitle(session);
  main.replaceChildren();
  let day = "";
  let isOpened = false;
  await fill(`session/${encodeURIComponent(session)}`, visit.signal, (one) => {
    if (one.is === "head") {
      const pairs = Object.entries(one.facts).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...marked(value))]);
      setTitle(one.facts.Title ?? one.session);
      const names = ["", "in", "out", "cost", "time"].map((name) => make("span", {}, name));
      main.append(make("dl", { className: "facts" }, ...pairs), make("div", { className: "columns" }, ...names));
    } else if (one.is === "turn") {
      const began = new Date(one.start_ms).toLocaleDateString(undefined, { dateStyle: "full" });
      if (one.start_ms > 0 && began !== day) main.append(make("div", { className: "day" }, (day = began)));
      const turn = turnRow(session, one, visit.signal);
      main.append(turn);
      applyFilter([turn]);
      if (one.trace === trace && !isOpened) {
        isOpened = true;
        open(turn, visit.signal).then(() => turn.scrollIntoView());
      }
    } else if (one.is === "foot") {
      main.append(...one.lines.map((line) => make("p", { className: "sum" }, line)));
    }
  });
}

function turnRow(session, one, signal) {
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
      data: { at: one.at, session, trace: one.trace, text: `${one.name} ${one.gist}`.toLowerCase() },
      on: { click: () => toggle(row, signal) },
    },
    what,
    ...figures(one.figures),
  );
  row.setAttribute("aria-expanded", "false");
  return row;
}

function toggle(row, signal) {
  if (row.getAttribute("aria-expanded") === "true") {
    row.setAttribute("aria-expanded", "false");
    row.nextElementSibling.remove();
    history.replaceState(null, "", `#/s/${encodeURIComponent(row.dataset.session)}`);
  } else {
    open(row, signal);
  }
}

async function open(row, signal) {
  row.setAttribute("aria-expanded", "true");
  const { session, at, trace } = row.dataset;
  history.replaceState(null, "", `#/s/${encodeURIComponent(session)}/t/${trace}`);
  const place = make("div", { className: "waterfall" });
  row.after(place);
  await fill(`trace/${encodeURIComponent(session)}?at=${at}`, signal, (record) => place.append(...waterfall(record)), place);
}
