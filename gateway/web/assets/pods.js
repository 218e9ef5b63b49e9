// The view of pods: those that are pending, and why one is where it is.

import { call, code } from "./api.js";
import { byId, capacityLink, el, fill, fitsLink, nodeLink, podLink, say, table } from "./dom.js";
import { number, quantity, resources, seconds, state, version } from "./format.js";
import { split } from "./cluster.js";
import { groupFacts, groupOutcome, groups } from "./groups.js";
import { Poller, report } from "./live.js";

const every = 3000; // ms
const most = 200; // pending pods that are listed

const pending = new Poller({
  ask: (signal) => call(`v1/pods?pendingOnly=true&pageSize=${most}`, { signal }),
  every,
  problem: byId("pending-problem"),
  show({ pods, nextPageToken }) {
    fill(byId("pending"),
      pods.length === 0
        ? el("p", {}, "None: every pod is placed.")
        : el("ul", { class: "pods" }, pods.map((p) => el("li", {},
          podLink(`${p.namespace}/${p.name}`), el("span", { class: "quiet" },
            ` ${state(p)}, priority ${number(p.priority)}, ${p.attempts === 1 ? "1 attempt" : `${number(p.attempts)} attempts`}`),
          p.message && el("p", {}, p.message)))),
      nextPageToken && el("p", {}, `These are the first ${number(most)} by name; there are more.`));
  },
});

export const pods = {
  start() {
    pending.start();
    groups.start();
  },
  stop() {
    pending.stop();
    groups.stop();
  },
};

let shown = ""; // the pod that is explained, namespace/name
let asking = new AbortController();

// explain shows why a pod is where it is.
export function explain(pod) {
  byId("find-pod-name").value = pod;
  const [namespace, name] = split(pod).map(encodeURIComponent);
  return show(pod, async (signal) => {
    const path = `v1/namespaces/${namespace}/pods/${name}`;
    const answer = await call(`${path}:explain`, { signal }).catch((err) => {
      if (err.code !== code.unimplemented) throw err;
      return call(path, { signal }); // what the queue knows, at least
    });
    return answer.summary === undefined ? onlyPod(answer) : explanation(answer);
  });
}

// explainGroup shows a PodGroup, namespace/name, and its pods.
export function explainGroup(group) {
  byId("find-pod-name").value = "";
  return show(`podgroup ${group}`, (signal) => groupOutcome(group, signal));
}

// show shows what is asked for, under a name.
async function show(name, ask) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const body = byId("explanation");
  if (name !== shown) fill(body);
  shown = name;
  body.setAttribute("aria-busy", "true");
  try {
    fill(body, await ask(signal));
    say(byId("explain-problem"), "");
  } catch (err) {
    if (signal.aborted) return;
    report(err, byId("explain-problem"));
  } finally {
    if (!signal.aborted) body.removeAttribute("aria-busy");
  }
}

// explainAgain does so if this pod is the one that is shown, for something has happened to it.
export function explainAgain(pod) {
  if (pod === shown && !byId("pods").hidden) explain(pod);
}

// forget shows no pod.
export function forget() {
  asking.abort();
  shown = "";
  fill(byId("explanation"));
  say(byId("explain-problem"), "");
}

function explanation(answer) {
  const { pod, nodes, feasible } = answer;
  const rejected = answer.rejected.reduce((sum, v) => sum + v.nodes, 0);
  const part = (title, list, show) => (list.length > 0 ? [el("h3", {}, title), show(list)] : []);
  return [
    el("p", { class: "cause" }, answer.summary),
    facts(answer),
    ...(answer.notAsked.length > 0 ? [el("p", {}, `Plugins of others are not asked here: ${answer.notAsked.join(", ")}. What follows is so without them.`)] : []),
    el("p", {}, fitsLink(`${pod.namespace}/${pod.name}`, "Show on the map where it fits"), " · ",
      capacityLink(`${pod.namespace}/${pod.name}`, "How many more like it fit")),
    ...(answer.group ? groupFacts(pod, answer.group) : []),
    ...part("What is in the way", answer.rejected, (verdicts) =>
      table("Rejected, each node once, by the first plugin that does", ["plugin", "reason", "#nodes", "such as"], verdicts.map(verdictRow),
        ["in all", `of ${number(nodes)}, ${number(feasible)} being feasible`, number(rejected), ""])),
    ...part("Claims", answer.claims, (claims) =>
      table("Its claims, and on how many nodes nothing is in their way", ["claim", "#nodes", "what is in the way on others"],
        claims.map((c) => [[el("strong", {}, c.name), ` ${c.text}`], c.nodes < 0 ? "–" : number(c.nodes), el("ul", {}, c.obstacles.map(claimObstacle))]))),
    ...part("What would help", answer.suggestions, (all) => el("ol", { class: "suggestions" }, all.map(suggestion))),
    ...part("Nearest misses", answer.misses, (misses) =>
      table("The nodes that fail the least, with everything in the way", ["@node", "what is in the way"],
        misses.map((m) => [nodeLink(m.node), el("ul", {}, m.obstacles.map(obstacle))]))),
    ...part("Candidates", answer.candidates, candidates),
  ];
}

// onlyPod is what there is to say while the gateway explains nothing.
function onlyPod(answer) {
  return [
    el("p", { class: "cause" }, answer.pod.message || (answer.pod.node ? "It is placed." : "No attempt has been made yet.")),
    facts(answer),
    answer.pod.verdicts.length > 0 && table("The last attempt", ["plugin", "reason", "#nodes", "such as"], answer.pod.verdicts.map(verdictRow)),
  ];
}

function facts(answer) {
  const { pod } = answer;
  const same = answer.classPods;
  const since = pod.since ? ` for ${seconds(Date.now() - Date.parse(pod.since))}` : "";
  const rows = [
    ["state", `${state(pod)}${since}${pod.preempting ? ", preempting" : ""}${pod.victim ? ", being evicted" : ""}`],
    ["node", pod.node ? nodeLink(pod.node) : "none"],
    pod.nominatedNode && ["nominated to", nodeLink(pod.nominatedNode)],
    ["asks for", resources(pod.requests)],
    ["priority", number(pod.priority)],
    ["attempts", number(pod.attempts)],
    pod.shard >= 0 && ["shard", `${pod.shard}${pod.state === "POD_STATE_ACTIVE" ? `, with ${number(pod.position)} pods ahead` : ""}`],
    pod.gates.length > 0 && ["gates", pod.gates.join(", ")],
    answer.summary !== undefined && ["profile", answer.profile || "none has its scheduler name"],
    answer.summary !== undefined && ["could run it now", `${number(answer.feasible)} of ${number(answer.nodes)} nodes`],
    same && ["of its class", `${number(same.pending)} pending, ${number(same.assumed + same.bound)} placed`],
    ["version", version(answer.version)],
  ];
  return el("dl", { class: "facts" },
    rows.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// verdictRow is a row of a table of verdicts.
export const verdictRow = (v) => [
  v.plugin, v.reason + (v.unresolvable ? " (removing pods would not help)" : ""), number(v.nodes), listed(v.examples.map(nodeLink)),
];

// listed puts commas between elements.
export const listed = (nodes) => nodes.flatMap((node, i) => (i === 0 ? [node] : [", ", node]));

const obstacle = (o) =>
  el("li", {}, o.detail || o.reason, el("span", { class: "quiet" }, ` (${o.plugin}${o.shortfall ? `: ${lack(o.shortfall)}` : ""})`));

const claimObstacle = (o) =>
  el("li", {}, o.detail || o.reason, el("span", { class: "quiet" }, ` (${o.plugin}, on ${number(o.nodes)} nodes: `), listed(o.examples.map(nodeLink)), el("span", { class: "quiet" }, ")"));

const lack = (s) => `${quantity(s.resource, Number(s.wanted) - Number(s.free))} ${s.resource} short`;

function suggestion(s) {
  return el("li", {},
    el("strong", {}, s.text),
    s.node && [" It would go to ", nodeLink(s.node), "."],
    s.victims.length > 0 && [" These pods would have to go: ", listed(s.victims.map((pod) => podLink(pod))), "."]);
}

function candidates(all) {
  const plugins = [...new Set(all.flatMap((c) => c.scores.map((s) => s.plugin)))];
  const title = "The best nodes, best first; of each plugin: score × weight (raw)";
  return table(title, ["@node", "#total", ...plugins.map((plugin) => `#${plugin}`)], all.map((c) => [
    [nodeLink(c.node), c.chosen && " (here)"],
    number(c.total),
    ...plugins.map((plugin) => {
      const s = c.scores.find((score) => score.plugin === plugin);
      return s ? `${number(s.normalized)} × ${number(s.weight)} (${number(s.raw)})` : "–";
    }),
  ]));
}

// wirePods makes the form of the view work. go opens another view.
export function wirePods(go) {
  byId("find-pod").addEventListener("submit", (event) => {
    event.preventDefault();
    const pod = split(byId("find-pod-name").value);
    if (pod.join("/") === shown) explain(shown);
    else go("pods", ...pod);
  });
}
