// A turn as a conversation: the prompt, the answers, and between them tools and agents, folded.

import { badges, fill, make, marked } from "./dom.js";
import { imagesOf, sectionOf } from "./span.js";

const AT_ONCE = 4;
let running = 0;
const waiting = [];

// Load a few turns at a time: those that are scrolled past quickly wait.
async function queued(job) {
  if (running >= AT_ONCE) await new Promise((resolve) => waiting.push(resolve));
  running += 1;
  try {
    await job();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

// `earlier` is the element of the same turn before it grew: it is shown until the new one is loaded.
export function chatTurn(turn, { path, signal, row, earlier, open }) {
  const body = make(
    "div",
    { className: "talk-body" },
    ...(earlier
      ? earlier.querySelector(".talk-body").childNodes
      : [make("p", { className: "prompt loading" }, ...marked(turn.gist))]),
  );
  const talk = make("article", { className: "talk", attributes: { "aria-label": turn.name } }, row, body);
  const where = `${path}?at=${turn.at}&trace=${turn.trace}`;
  queued(() => {
    if (signal.aborted) return undefined;
    return fill(
      `chat/${where}`,
      signal,
      ({ blocks, images }) => {
        const opened = new Set([...body.querySelectorAll("details[open][data-span]")].map((one) => one.dataset.span));
        const context = { where, signal, open, opened, images };
        body.replaceChildren(...blocks.map((block) => blockOf(block, context)));
      },
      body,
    );
  });
  return talk;
}

function blockOf(block, context) {
  if (block.is === "event") return eventOf(block, context);
  if (block.is === "tool" || block.is === "agent") return callOf(block, context);
  const all = async () => {
    await fill(
      `span/${context.where}&span=${block.id}&full=1`,
      context.signal,
      (span) =>
        said.replaceChildren(
          ...sections(block, span.sections),
          ...imagesOf(span.images, `${context.where}&span=${block.id}`),
        ),
      said,
    );
  };
  const said = make("div", { className: `${block.is}${block.error ? " failed" : ""}`, data: { span: block.id } });
  said.append(...sections(block, block.sections, all));
  said.append(...imagesOf(context.images[block.id] ?? [], `${context.where}&span=${block.id}`));
  return said;
}

// In a conversation the words need no label; what is folded keeps it.
function sections(block, all, more) {
  return all.map((one) => {
    const element = sectionOf(one, more);
    if (!one.is_folded && ["markdown", "text"].includes(one.kind)) element.firstChild.classList.add("unseen");
    return element;
  });
}

function eventOf(block, { open }) {
  const text = [block.name, block.gist].filter(Boolean).join(": ");
  return make(
    "button",
    {
      type: "button",
      className: `event ${block.name.replaceAll(" ", "-")}`,
      title: "Details",
      on: { click: () => open(block.id) },
    },
    ...marked(text),
  );
}

function callOf(block, context) {
  const time = block.figures[3] ?? "";
  const cost = block.figures[2] ?? "";
  const summary = make(
    "summary",
    {},
    make("i", { className: `sign kind-${block.kind}` }),
    make("span", { className: `name kind-${block.kind}` }, block.name),
    ...(block.error ? [make("span", { className: "badge error" }, block.error)] : []),
    ...badges(block.badges),
    make("span", { className: "gist" }, ...marked(block.gist)),
    make("span", { className: "faint figure" }, [cost, time].filter(Boolean).join(" · ")),
  );
  const inside = make("div", { className: "call-body" });
  const folded = make(
    "details",
    { className: `call is-${block.is}${block.error ? " failed" : ""}`, data: { span: block.id } },
    summary,
    inside,
  );
  let isLoaded = false;
  folded.addEventListener("toggle", () => {
    if (!folded.open || isLoaded) return;
    isLoaded = true;
    const said = make("div", { className: "said" });
    inside.append(
      said,
      ...block.blocks.map((one) => blockOf(one, context)),
      make(
        "button",
        { type: "button", className: "small", on: { click: () => context.open(block.id) } },
        "Figures and ids",
      ),
    );
    const load = (full) =>
      fill(
        `span/${context.where}&span=${block.id}${full}`,
        context.signal,
        (span) =>
          said.replaceChildren(
            ...span.sections.map((one) => sectionOf(one, () => load("&full=1"))),
            ...imagesOf(span.images, `${context.where}&span=${block.id}`),
          ),
        said,
      );
    load("");
  });
  if (context.opened.has(block.id)) folded.open = true;
  return folded;
}
