// Keeping what is shown current: calls that are made again and again, a stream that is resumed, and what to say meanwhile.

import { explainError, session } from "./api.js";
import { byId, say } from "./dom.js";
import { seconds } from "./format.js";

const firstPause = 1000; // ms
const longestPause = 30_000;
const longestRefused = 60_000; // after one that took long

// pauseAfter is how long to wait after so many failures in a row, in ms: twice as long each time, and never quite the same, so that
// many pages do not come back at once.
export function pauseAfter(failures, retryAfter = 0) {
  const pause = Math.min(firstPause * 2 ** (failures - 1), longestPause) * (0.75 + Math.random() / 2);
  return Math.max(pause, retryAfter * 1000);
}

// wait ends after some time, or early when signal does or when there is another token.
export function wait(ms, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      session.removeEventListener("changed", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
    session.addEventListener("changed", end);
  });
}

// connection knows whether the gateway answers, and says so in the banner.
export const connection = {
  heard: 0, // when it last did, ms
  lost: "", // what is wrong; "": nothing
  again: 0, // when it is tried again, ms

  ok() {
    this.heard = Date.now();
    this.lost = "";
    this.tell();
  },

  fail(err, again) {
    this.lost = explainError(err);
    this.again = again;
    this.tell();
  },

  tell() {
    const age = this.heard ? ` What is shown is ${seconds(Date.now() - this.heard)} old.` : "";
    const next = Math.ceil((this.again - Date.now()) / 1000);
    say(byId("banner"), this.lost && `${this.lost}${age} ${next > 0 ? `Trying again in ${next} s.` : "Trying again."}`);
    document.body.classList.toggle("stale", this.lost !== "" && this.heard > 0);
  },
};

setInterval(() => connection.tell(), 1000);

// A Poller asks again and again while it runs: every so many ms, but never more than a tenth of the time that somebody answers, be it to refuse. What goes wrong with its
// own question is said in its element; that nobody answers, or wants a token, is said once, in the banner.
export class Poller {
  #ask;
  #show;
  #every;
  #problem;
  #run = null;

  constructor({ ask, show, every, problem }) {
    this.#ask = ask;
    this.#show = show;
    this.#every = every;
    this.#problem = problem;
  }

  // start begins anew, so that a question that has changed is asked at once.
  start() {
    this.stop();
    this.#run = new AbortController();
    this.#loop(this.#run.signal);
  }

  stop() {
    this.#run?.abort();
    this.#run = null;
  }

  async #loop(signal) {
    for (let failures = 0; !signal.aborted; ) {
      const began = performance.now();
      let pause;
      try {
        const answer = await this.#ask(signal);
        if (signal.aborted) return;
        this.#show(answer);
        connection.ok();
        say(this.#problem, "");
        failures = 0;
        pause = Math.max(this.#every, 10 * (performance.now() - began));
      } catch (err) {
        if (signal.aborted) return;
        pause = pauseAfter(++failures, err.retryAfter);
        if (err.status > 0) pause = Math.max(pause, Math.min(10 * (performance.now() - began), longestRefused));
        report(err, this.#problem, pause);
      }
      await wait(pause, signal);
    }
  }
}

// report says in the right place what went wrong, and that it is tried again after pause ms; 0: it is not.
export function report(err, problem, pause = 0) {
  if (!("status" in err)) throw err; // a mistake of the page: the console shows it
  if (err.status === 0 || err.status === 401) {
    connection.fail(err, Date.now() + pause);
    return;
  }
  connection.ok();
  say(problem, explainError(err) + (pause > 0 ? ` Trying again in ${seconds(pause)}.` : ""));
}
