// Times and durations as text.

import { make } from "./dom.js";

const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" };

// 14:03:07.123, in the time zone of the browser
export function clock(ms) {
  return new Date(ms).toLocaleTimeString(undefined, CLOCK);
}

export function day(ms) {
  return new Date(ms).toLocaleDateString(undefined, { dateStyle: "full" });
}

// To the millisecond: 1 h 02 min 03.456 s
export function exactly(ms) {
  const seconds = (Math.round(ms % 60_000) / 1000).toFixed(3);
  const minutes = Math.floor(ms / 60_000);
  if (minutes === 0) return `${seconds} s`;
  const rest = `${String(minutes % 60).padStart(minutes < 60 ? 1 : 2, "0")} min ${seconds.padStart(6, "0")} s`;
  return minutes < 60 ? rest : `${Math.floor(minutes / 60)} h ${rest}`;
}

// In a few characters: 340ms, 2.5s, 3m, 1h30m
export function briefly(ms) {
  if (ms < 1000) return `${Number(ms.toFixed(ms < 10 ? 1 : 0))}ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(ms < 10_000 ? 2 : 1))}s`;
  const minutes = Math.floor(ms / 60_000);
  const seconds = Math.round((ms % 60_000) / 1000);
  if (minutes < 60) return seconds ? `${minutes}m${String(seconds).padStart(2, "0")}s` : `${minutes}m`;
  return minutes % 60 ? `${Math.floor(minutes / 60)}h${String(minutes % 60).padStart(2, "0")}m` : `${minutes / 60}h`;
}

// How long something waited for the user; it is inferred.
export function waitedBadge(ms, who) {
  const title = `Inferred: the time that ${who} waited for you`;
  return make("span", { className: "badge waited", title }, `~${briefly(ms)} waited`);
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];

// Round times between two, at most `most` of them.
export function ticks(from, to, most) {
  const least = (to - from) / most;
  if (!(least > 0)) return [];
  let step = STEPS_S.map((s) => s * 1000).find((s) => s >= least) ?? Math.ceil(least / 86_400_000) * 86_400_000;
  if (least < 1000) {
    const power = 10 ** Math.floor(Math.log10(least));
    step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= least * 0.999);
  }
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to; n += 1) found.push(n * step);
  return found;
}
