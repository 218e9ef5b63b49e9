// Placements as they are made: a stream that is resumed where it broke off.

import { code, watchPlacements } from "./api.js";
import { byId, el, nodeLink, podLink, say } from "./dom.js";
import { clock } from "./format.js";
import { pauseAfter, report, wait } from "./live.js";

const kept = 40; // placements that are shown
const list = byId("placements");

let from = null; // the version to resume after; null: from now on
let waiting = []; // rows that come with the next frame, newest last
let paused = false;

// follow shows placements until signal aborts, and calls placed with each pod, namespace/name. It resumes where it was, unless the
// gateway does not remember so far back.
export async function follow(signal, placed) {
  for (let failures = 0; !signal.aborted; ) {
    try {
      for await (const message of watchPlacements(from, signal)) {
        failures = 0;
        say(byId("placements-state"), "live");
        say(byId("placements-problem"), "");
        from = message.version ?? from;
        if (!message.pod) continue;
        show(message);
        placed(message.pod);
      }
    } catch (err) {
      if (signal.aborted) return;
      say(byId("placements-state"), "interrupted");
      if (err.code === code.outOfRange && from) {
        from = null;
        add(el("li", { class: "gap" }, "Some placements may be missing here."));
        continue;
      }
      const pause = pauseAfter(++failures, err.retryAfter);
      report(err, byId("placements-problem"), pause);
      await wait(pause, signal);
    }
  }
}

function show({ pod, node, placed }) {
  add(el("li", { class: placed ? null : "undone" },
    el("time", {}, clock(new Date())), " ", podLink(pod), placed ? " on " : " taken back from ", nodeLink(node)));
}

// add puts a row before the others with the next frame, so that thousands a second cost one drawing.
function add(row) {
  if (paused) return;
  if (waiting.length === 0) requestAnimationFrame(flush);
  waiting.push(row);
  if (waiting.length > 2 * kept) waiting = waiting.slice(-kept);
}

function flush() {
  list.prepend(...waiting.slice(-kept).reverse());
  waiting = [];
  while (list.children.length > kept) list.lastChild.remove();
}

byId("placements-pause").addEventListener("click", (event) => {
  paused = !paused;
  event.target.setAttribute("aria-pressed", paused);
});
