// Stacked bars by day, week or month. Every bar is a link with all of its values in its label; a table has them, too.

import { make } from "./dom.js";

const DAY = { weekday: "short", day: "numeric", month: "short" };
const DENSE = 45; // bars without lines between their parts
const GAP = 56; // pixels that a label of the axis needs

// A period as people write it: "Mon 3 Nov", "week of 3 Nov", "Nov 2026".
export function periodName(key, unit) {
  if (!key) return "unknown date";
  const [year, month, day = 1] = key.split("-").map(Number);
  const date = new Date(year, month - 1, day);
  if (unit === "month") return date.toLocaleDateString(undefined, { month: "long", year: "numeric" });
  const isOld = year !== new Date().getFullYear();
  const text = date.toLocaleDateString(undefined, isOld ? { ...DAY, year: "numeric" } : DAY);
  return unit === "week" ? `Week of ${text}` : text;
}

function tickName(key, unit) {
  if (!key) return "?";
  const [year, month, day = 1] = key.split("-").map(Number);
  const date = new Date(year, month - 1, day);
  return date.toLocaleDateString(undefined, unit === "month" ? { month: "short", year: "2-digit" } : { day: "numeric", month: "short" });
}

// The round number that is at least as large, and how many lines divide it well.
export function scale(largest) {
  if (!(largest > 0)) return [1, 2];
  const power = 10 ** Math.floor(Math.log10(largest));
  const [step, lines] = [[1, 2], [1.5, 3], [2, 4], [3, 3], [4, 4], [5, 5], [6, 3], [8, 4], [10, 4]].find(([step]) => step * power >= largest * 0.9999);
  return [step * power, lines];
}

function axisText(value, metric) {
  if (metric === "tokens") {
    const [size, unit] = [[1e9, "B"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([size]) => value >= size) ?? [1, ""];
    return `${Number((value / size).toFixed(2))}${unit}`;
  }
  return `$${Number(value.toPrecision(3)).toLocaleString()}`;
}

// `chart` is the record of the overview; `metric` is cost or tokens; `target` gives the address of a period.
export function stackedBars(chart, metric, target) {
  const at = metric === "tokens" ? 2 : 0;
  const [top, lines] = scale(Math.max(0, ...chart.totals.map((values) => values[at] ?? 0)));
  const grid = make("div", { className: "lines" });
  grid.setAttribute("aria-hidden", "true");
  for (let n = 0; n <= lines; n++) {
    const line = make("span", {}, make("b", {}, n ? axisText((top * n) / lines, metric) : ""));
    line.style.bottom = `${(100 * n) / lines}%`;
    grid.append(line);
  }
  const tip = make("div", { className: "tip", hidden: true, role: "tooltip" });
  const bars = make("ol", { className: "bars" });
  chart.keys.forEach((key, n) => bars.append(bar(chart, n, { at, top, metric, target, tip })));
  const plot = make("div", { className: chart.keys.length > DENSE ? "plot dense" : "plot" }, grid, bars, tip);
  const hide = () => (tip.hidden = true);
  bars.addEventListener("mouseleave", hide);
  bars.addEventListener("focusout", hide);
  new ResizeObserver(() => {
    const every = Math.max(1, Math.ceil((GAP * chart.keys.length) / Math.max(bars.clientWidth, 1)));
    [...bars.children].forEach((item, n) => item.classList.toggle("labelled", (chart.keys.length - 1 - n) % every === 0));
  }).observe(bars);
  return plot;
}

function bar(chart, n, { at, top, metric, target, tip }) {
  const key = chart.keys[n];
  const total = chart.totals[n];
  const parts = chart.series
    .map((series, place) => ({ place, label: series.label, value: series.values[n][at] ?? 0, text: series.values[n][at + 1] }))
    .filter((part) => part.value > 0);
  const stack = make("span", { className: "stack" });
  for (const { place, value } of parts) {
    const piece = make("i", { className: `series-${colour(chart, place)}`, data: { place, value } });
    piece.style.height = `${(100 * value) / top}%`;
    stack.append(piece);
  }
  const name = periodName(key, chart.unit);
  const said = [total[at + 1] ?? "nothing", ...parts.map((part) => `${part.label} ${part.text}`)];
  const link = make("a", { href: target(key), data: { key, value: total[at] ?? 0 } }, stack, make("span", { className: "tick" }, tickName(key, chart.unit)));
  link.setAttribute("aria-label", `${name}: ${said.join(", ")}`);
  const show = () => showTip(tip, link, name, total[at + 1] ?? "–", parts, chart, metric);
  link.addEventListener("mouseenter", show);
  link.addEventListener("focus", show);
  return make("li", {}, link);
}

export function colour(chart, place) {
  return chart.series[place].key === null ? "other" : place;
}

function showTip(tip, link, name, total, parts, chart) {
  const rows = [...parts].sort((one, other) => other.value - one.value).map((part) =>
    make("div", {}, make("i", { className: `dot series-${colour(chart, part.place)}` }), make("span", {}, part.label), make("b", {}, part.text)),
  );
  tip.replaceChildren(make("div", { className: "head" }, make("span", {}, name), make("b", {}, total)), ...rows);
  tip.hidden = false;
  const plot = tip.parentElement.getBoundingClientRect();
  const box = link.getBoundingClientRect();
  const middle = box.left + box.width / 2 - plot.left;
  const left = middle + tip.offsetWidth + 16 < plot.width ? middle + 12 : middle - tip.offsetWidth - 12;
  tip.style.left = `${Math.min(Math.max(left, 0), Math.max(plot.width - tip.offsetWidth, 0))}px`;
}

// The same values as a table.
export function valuesTable(chart) {
  const head = make("tr", {}, make("th", { scope: "col" }, chart.unit), ...["Cost", "Tokens"].map((text) => make("th", { scope: "col", className: "number" }, text)),
    ...chart.series.map((series) => make("th", { scope: "col", className: "number", title: series.title }, series.label)));
  const rows = chart.keys.map((key, n) => {
    const total = chart.totals[n];
    const cells = [[total[0], total[1]], [total[2], total[3]], ...chart.series.map((series) => [series.values[n][0], series.values[n][1]])];
    return make("tr", { data: { key } }, make("th", { scope: "row" }, key || "unknown date"),
      ...cells.map(([value, text]) => make("td", { className: "number", data: { value: value ?? 0 } }, text ?? "–")));
  });
  return make("table", { className: "values", attributes: { "aria-label": "Values" } }, make("thead", {}, head), make("tbody", {}, ...rows));
}
