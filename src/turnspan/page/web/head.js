// The head of a session: its title, totals and facts, and what can be done with it.

import { copyButton, make, marked } from "./dom.js";
import { briefly } from "./times.js";

const LONGEST = 160; // characters of a prompt that is the title

export class SessionHead {
  constructor(path) {
    this.path = path;
    this.name = ""; // the title, or the first prompt
    this.element = make("div", { className: "session-head" });
  }

  show({ session, facts }) {
    const { Title, ...others } = facts;
    this.name = Title ?? "";
    this.title = make("h1", {}, ...marked(Title || "Session without a title"));
    this.totals = make("p", { className: "totals" });
    const about = Object.entries(others).map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", { title: value }, ...marked(value))),
    );
    this.element.replaceChildren(
      make("div", { className: "lead" }, this.title, this.totals, make("dl", { className: "session-facts" }, ...about)),
      make(
        "div",
        { className: "actions" },
        copyButton(`claude --resume ${session}`, "Copy resume command", "Copy"),
        copyButton(session, session.slice(0, 8), "Copy the session id"),
        this.exportLink("html", "Export HTML"),
        this.exportLink("md", "Markdown"),
      ),
    );
  }

  exportLink(form, label) {
    const title = "Save this session as one file, secrets masked";
    return make("a", { href: `export/${this.path}.${form}`, download: "", title }, label);
  }

  // Show the totals; return the lines that belong below the turns.
  sum({ lines, title }, turns) {
    const isUsed = lines[1]?.includes(" tokens in");
    const active = turns.reduce((sum, turn) => sum + (turn.active_ms ?? 0), 0);
    const used = isUsed ? lines[1].split(" · ") : [];
    const cost = used.pop();
    const words = [...lines[0].split(" · "), ...(active ? [`~${briefly(active)} active`] : []), ...used];
    this.totals.replaceChildren(
      ...(cost ? [make("strong", {}, cost)] : []),
      ...words.map((text) => make("span", { className: / errors?$/.test(text) ? "error" : "" }, text)),
    );
    this.name = title || turns.find((turn) => turn.gist)?.gist.slice(0, LONGEST) || this.name;
    if (this.name) this.title.replaceChildren(...marked(this.name));
    return lines.slice(isUsed ? 2 : 1);
  }
}
