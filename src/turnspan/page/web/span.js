// The details of a span, in a panel beside the page: what was said, then figures, ids and links.

import { badges, copyButton, details, fill, make, marked, remember, remembered, rendered } from "./dom.js";

let chosen = null; // { path, at, trace, id, signal, waterfall }
let opener = null; // what had the focus when the panel was opened
let closed = () => {};
const NARROWEST = 20; // percent of the window
const WIDEST = 75;

export function chosenSpan() {
  return chosen;
}

// `act` is called when the user closes the panel.
export function onClose(act) {
  closed = act;
}

export async function showSpan(wanted) {
  chosen = wanted;
  if (!details.contains(document.activeElement)) opener = document.activeElement;
  const { path, at, trace, id, signal } = wanted;
  const place = make("div", { className: "details-body" });
  await fill(
    `span/${path}?at=${at}&trace=${trace}&span=${id}`,
    signal,
    (span) => showRecord(span, place, wanted),
    place,
  );
  if (chosen !== wanted || signal.aborted) return;
  details.hidden = false;
  document.body.classList.add("has-details");
  details.replaceChildren(sizer(), closeButton(), place);
  details.scrollTop = 0;
}

export function closeDetails(isMoved = false) {
  if (!chosen) return;
  const row = chosen.waterfall?.rows.get(chosen.id);
  const isInside = details.contains(document.activeElement);
  chosen = null;
  details.hidden = true;
  if (isInside) [row, opener].find((one) => one?.isConnected)?.focus({ preventScroll: true });
  details.replaceChildren();
  document.body.classList.remove("has-details");
  if (!isMoved) closed();
}

function closeButton() {
  return make(
    "button",
    {
      className: "close",
      type: "button",
      title: "Close (Esc)",
      attributes: { "aria-label": "Close" },
      on: { click: () => closeDetails() },
    },
    "×",
  );
}

function showRecord(span, place, { path, at, trace, id, signal, waterfall }) {
  const zoom = waterfall
    ? [
        make(
          "button",
          {
            type: "button",
            className: "small",
            title: "Zoom the time axis to this span (z)",
            on: { click: () => waterfall.zoomTo(id) },
          },
          "Zoom",
        ),
      ]
    : [];
  const said = make("div", { className: "said" });
  const all = async () => {
    await fill(
      `span/${path}?at=${at}&trace=${trace}&span=${id}&full=1`,
      signal,
      (full) => said.replaceChildren(...full.sections.map((one) => sectionOf(one))),
      said,
    );
  };
  said.append(...span.sections.map((one) => sectionOf(one, all)));
  const pictures = imagesOf(span.images, `${path}?at=${at}&trace=${trace}&span=${id}`);
  details.setAttribute("aria-label", `Details of ${span.name}`);
  place.replaceChildren(
    make(
      "div",
      { className: "span-title" },
      make("i", { className: `sign kind-${span.kind}` }),
      make("h2", { className: `kind-${span.kind}` }, span.name),
      ...(span.error ? [make("span", { className: "badge error" }, span.error)] : []),
      ...badges(span.badges),
      ...zoom,
    ),
    quickly(span),
    said,
    ...pictures,
    make("h3", {}, "Figures"),
    make(
      "table",
      { className: "figures", attributes: { "aria-label": "Figures" } },
      make(
        "tbody",
        {},
        ...span.figures.map(([name, value, remark]) =>
          make(
            "tr",
            {},
            make("th", { scope: "row" }, name),
            ...(value.length > 14
              ? [make("td", { colSpan: 2 }, value, make("span", { className: "faint" }, remark && ` ${remark}`))]
              : [make("td", { className: "number" }, value), make("td", { className: "faint" }, remark)]),
          ),
        ),
      ),
    ),
    make("h3", {}, "Identity"),
    make(
      "dl",
      { className: "ids" },
      ...span.ids.flatMap(([name, value]) => [
        make("dt", {}, name),
        make("dd", {}, make("code", {}, value), copyButton(value, "Copy", `Copy the ${name} id`)),
      ]),
      ...resume(span),
    ),
    ...links(span),
    ...facts(span),
  );
}

// The figures that people look for first.
function quickly(span) {
  const wanted = new Set(["input", "cache read", "output", "cost", "duration"]);
  const shown = span.figures.filter(([name]) => wanted.has(name));
  return make(
    "p",
    { className: "quick" },
    ...shown.map(([name, value, remark]) =>
      make(
        "span",
        { title: remark },
        make("span", { className: "faint" }, name),
        " ",
        make("b", {}, remark.startsWith("inferred") ? `~${value}` : value),
      ),
    ),
  );
}

function resume(span) {
  const session = span.ids.find(([name]) => name === "session")?.[1];
  const command = `claude --resume ${session}`;
  return session
    ? [
        make("dt", {}, "resume"),
        make("dd", {}, make("code", {}, command), copyButton(command, "Copy", "Copy the command")),
      ]
    : [];
}

function links(span) {
  if (!span.links.length) return [];
  const items = span.links.map(([name, href]) =>
    make("a", { href, target: "_blank", rel: "noreferrer noopener" }, `Open in ${name} ↗`),
  );
  return [make("p", { className: "links" }, ...items)];
}

function facts(span) {
  if (!span.facts.length) return [];
  const pairs = span.facts.flatMap(([name, value]) => [
    make("dt", {}, name.replaceAll("_", " ")),
    make("dd", {}, ...marked(value)),
  ]);
  return [
    make(
      "details",
      { className: "more-facts" },
      make("summary", {}, "More facts"),
      make("dl", { className: "facts" }, ...pairs),
    ),
  ];
}

// A section of content; `all` loads the complete text of one that was cut.
export function sectionOf(section, all) {
  const name = make(section.is_folded ? "summary" : "h3", {}, section.label);
  const body = make("div", { className: `section-body ${section.kind}` }, rendered(section.html));
  if (section.kind !== "image") body.append(copyButton(() => textIn(body), "Copy", `Copy: ${section.label}`));
  if (section.is_cut && all) {
    body.append(
      make(
        "button",
        { type: "button", className: "small", on: { click: all } },
        `Show all ${section.size.toLocaleString("en")} characters`,
      ),
    );
  }
  return make(section.is_folded ? "details" : "section", { className: `content is-${section.kind}` }, name, body);
}

// Images, where the user allows them; the server has checked what they are.
export function imagesOf(images, where) {
  return images.flatMap(([mime, size], number) => {
    if (!mime.startsWith("image")) return [];
    const href = `image/${where}&number=${number}`;
    const alt = `${mime}, ${size.toLocaleString("en")} bytes`;
    const image = make("img", { src: href, alt, loading: "lazy" });
    const link = make("a", { href, className: "picture", target: "_blank", rel: "noreferrer noopener", title: alt }, image);
    image.addEventListener("error", () => link.replaceWith(make("p", { className: "note" }, `cannot be shown: ${alt}`)));
    return [link];
  });
}

// The text of a section, as it is shown.
function textIn(body) {
  const copy = body.cloneNode(true);
  for (const button of copy.querySelectorAll("button")) button.remove();
  copy.className = "unseen";
  body.append(copy); // only what is on the page has line breaks
  const text = copy.innerText.trim();
  copy.remove();
  return text;
}

// ---- the width of the panel

function sizer() {
  const set = (percent) => handle.setAttribute("aria-valuenow", setWidth(percent));
  const handle = make("div", {
    className: "sizer",
    role: "separator",
    tabIndex: 0,
    title: "Drag to resize the panel",
    attributes: {
      "aria-orientation": "vertical",
      "aria-label": "Width of the panel in percent",
      "aria-valuemin": NARROWEST,
      "aria-valuemax": WIDEST,
      "aria-valuenow": remembered("panel", "42"),
    },
    on: {
      pointerdown: (event) => handle.setPointerCapture(event.pointerId),
      pointermove: (event) =>
        handle.hasPointerCapture(event.pointerId) && set((100 * (innerWidth - event.clientX)) / innerWidth),
      keydown: (event) => {
        const by = { ArrowLeft: 2, ArrowRight: -2 }[event.key];
        if (!by) return;
        event.preventDefault();
        event.stopPropagation();
        set(Number(remembered("panel", "42")) + by);
      },
    },
  });
  return handle;
}

function setWidth(percent) {
  const width = Math.round(Math.min(Math.max(percent, NARROWEST), WIDEST));
  document.documentElement.style.setProperty("--panel", `${width}vw`);
  remember("panel", width);
  return width;
}
setWidth(Number(remembered("panel", "42")) || 42);
