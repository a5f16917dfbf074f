// Which address is on the page. `main.dataset.shown` is the hash whose view is complete; it is missing while one is
// being loaded, and `aria-busy` says so to screen readers.

import { main } from "./dom.js";

let loads = 0;
let current = ""; // the hash of the view that is on the page, complete or not

// Wait for what an address shows. If another one is loaded meanwhile, that one decides.
export async function showing(work) {
  const own = ++loads;
  begin();
  try {
    await work;
  } finally {
    if (own === loads) finish();
  }
}

// Change the address of what is on the page; `isNew`: with an entry of its own for the back button.
export function readdress(address, { state = history.state, isNew = false } = {}) {
  if (isNew) history.pushState(state, "", address);
  else history.replaceState(state, "", address);
  current = location.hash;
  if (main.dataset.shown !== undefined) main.dataset.shown = current;
}

// Go back one entry of the history: the page is busy until the browser did it.
export function goBack() {
  loads += 1;
  begin();
  history.back();
}

function begin() {
  current = location.hash;
  delete main.dataset.shown;
  main.setAttribute("aria-busy", "true");
}

function finish() {
  main.dataset.shown = current;
  main.setAttribute("aria-busy", "false");
}
