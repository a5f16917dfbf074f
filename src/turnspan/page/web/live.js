// Live updates: polling that stops while the tab is hidden, and a watch on all sessions.

const EVERY_MS = 1000;
const offline = document.getElementById("offline");

// Call `look` about every second until the signal is aborted: one call at a time, none while the tab is hidden. If it
// fails (the viewer was stopped), the next call is later each time, half a minute at most.
export function watch(signal, look, everyMs = EVERY_MS) {
  let timer = null;
  let failures = 0;
  let isLooking = false;
  const plan = () => {
    clearTimeout(timer);
    if (signal.aborted || document.hidden || isLooking) return;
    timer = setTimeout(run, Math.min(everyMs * 2 ** failures, 30_000));
  };
  const run = async () => {
    isLooking = true;
    try {
      await look();
      failures = 0;
    } catch {
      failures += 1;
    }
    isLooking = false;
    if (signal.aborted) return;
    offline.hidden = failures < 2;
    plan();
  };
  document.addEventListener("visibilitychange", plan, { signal });
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    offline.hidden = true;
  });
  plan();
}

// Call `changed` when any session was written to. The server only looks at sizes and times of files.
export function watchSessions(signal, changed, everyMs = 2 * EVERY_MS) {
  let stamp = null;
  watch(
    signal,
    async () => {
      const response = await fetch("pulse", { signal });
      const now = (await response.json()).stamp;
      if (stamp !== null && now !== stamp) await changed();
      stamp = now;
    },
    everyMs,
  );
}
