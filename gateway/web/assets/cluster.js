// The view of the cluster: the map, one node, the queue, and the members.

import { call } from "./api.js";
import { byId, el, fill, podLink, say, table } from "./dom.js";
import { number, percent, perSecond, quantity, seconds, share, version } from "./format.js";
import { Poller, report } from "./live.js";
import { ClusterMap } from "./map.js";

const every = 2000; // ms
const slow = 5000; // ms since the binder was heard from; it is heard from every second

// --- The state of Berth, for the head of the page and the members.

export const status = new Poller({
  ask: (signal) => call("v1/status", { signal }),
  every,
  problem: byId("members-problem"),
  show(answer) {
    const age = Number(answer.ageMillis);
    const fact = (name, value, bad) => el("div", { class: bad ? "bad" : null }, el("dt", {}, name), el("dd", {}, value));
    fill(byId("facts"),
      fact("nodes", number(answer.nodes)),
      fact("bound", number(answer.pods.bound)),
      fact("assumed", number(answer.pods.assumed)),
      fact("pending", number(answer.pods.pending)),
      fact("leader", answer.leader || "none", !answer.leader),
      fact("epoch", answer.version?.epoch ?? "none yet", !answer.version),
      fact("version", version(answer.version)),
      fact("age", seconds(age), age > slow),
      fact("source", answer.source || "not known yet"));
    const shardsOf = (id) => answer.shards.filter((s) => s.owner === id).map((s) => s.shard).join(", ");
    fill(byId("members"), table("Roles, and how many changes their copies of the cluster are behind",
      ["role", "@id", "ready", "#lag", "shards", "nodes", "@address"], answer.members.map((m) => [m.role, m.id, m.ready ? "yes" : `no: ${m.notReadyBecause}`, lagOf(m), shardsOf(m.id), rangeOf(m), m.address])));
  },
});

const lagOf = (member) => (Number(member.lag) < 0 ? "not known" : number(member.lag));

// The nodes, by index, that a worker is asked about.
const rangeOf = ({ range }) => (range ? `${number(range.first)}–${number(range.end - 1)}` : "");

// --- The queue.

export const queue = new Poller({
  ask: (signal) => call("v1/queue", { signal }),
  every,
  problem: byId("queue-problem"),
  show(answer) {
    fill(byId("rates"), table("Rates", ["pods", "#in 10 s", "#in 60 s"], [
      ["arrived", perSecond(answer.arrived10s, 10), perSecond(answer.arrived60s, 60)],
      ["placed", perSecond(answer.placed10s, 10), perSecond(answer.placed60s, 60)],
    ]));
    fill(byId("priorities"), table("By priority", ["priority", "#not placed", "worked at by shards"],
      answer.priorities.length > 0
        ? answer.priorities.map((b) => [number(b.priority), number(b.pending), b.shards.join(", ") || "none now"])
        : [["–", "0", "none"]]));
    const depths = ["inFlight", "active", "backoff", "unschedulable", "gated"];
    fill(byId("shards"), table("By shard", ["shard", "#at priority", "#in flight", "#active", "#backoff", "#unschedulable", "#gated"],
      answer.shards.map((s) => [
        s.owner ? number(s.shard) : `${s.shard}, nobody's`, s.priority_floor == null ? "–" : number(s.priority_floor),
        ...depths.map((state) => (s.depth ? number(s.depth[state]) : "?")),
      ])));
  },
});

// --- The map.

let openNode; // is called with the name of a node
const drawn = new ClusterMap({
  canvas: byId("map"), cursor: byId("map-cursor"), tip: byId("map-tip"), legend: byId("legend"),
  open: (name) => openNode(name),
});
const measure = { of: "cpu", pod: "" };

export const map = new Poller({
  ask(signal) {
    if (measure.of !== "fits") return call("v1/map", { signal });
    const [namespace, name] = split(measure.pod);
    return call(`v1/map?${new URLSearchParams({ namespace, pod: name })}`, { signal });
  },
  every,
  problem: byId("map-problem"),
  show: (answer) => drawn.show(answer, measure.of),
});

// split takes a pod's namespace and name apart.
export function split(pod) {
  const at = pod.indexOf("/");
  return at < 0 ? ["default", pod.trim()] : [pod.slice(0, at).trim() || "default", pod.slice(at + 1).trim()];
}

// colourBy makes the map show another measure; pod is needed for "fits" only.
export function colourBy(of, pod = measure.pod) {
  const fits = of === "fits";
  byId("measure-of").value = of;
  byId("measure-pod").hidden = byId("measure-show").hidden = !fits;
  byId("measure-pod-name").value = pod;
  if (fits && !pod) {
    byId("measure-pod-name").focus();
    return;
  }
  say(byId("map-problem"), "");
  Object.assign(measure, { of, pod });
  map.start();
}

// --- One node.

let node = "";

const nodePoller = new Poller({
  ask: (signal) => call(`v1/nodes/${encodeURIComponent(node)}`, { signal }),
  every,
  problem: byId("node-problem"),
  show({ node: n }) {
    const requested = new Map(n.requested.map((r) => [r.name, r.value]));
    fill(byId("node-body"),
      el("p", {}, n.unschedulable ? "Cordoned. " : "Schedulable. ", `${number(n.podCount)} pods.`,
        n.taints.length > 0 && ` Taints: ${n.taints.join(", ")}.`),
      table("Resources", ["resource", "#asked for", "#allocatable", "#share"], n.allocatable.map((r) => {
        const asked = requested.get(r.name) ?? (r.name === "pods" ? n.podCount : 0);
        return [r.name, quantity(r.name, asked), quantity(r.name, r.value), share(asked, r.value)];
      })),
      el("h3", {}, "Pods"),
      n.pods.length > 0 ? el("ul", { class: "names" }, n.pods.map((pod) => el("li", {}, podLink(pod)))) : el("p", {}, "None."),
      el("h3", {}, "Labels"),
      el("ul", { class: "names" }, Object.keys(n.labels).sort().map((key) => el("li", {}, `${key}=${n.labels[key]}`))));
  },
});

// showNode shows one node beside the map; "" shows none.
export function showNode(name) {
  if (name !== node) fill(byId("node-body"));
  node = name;
  byId("node").hidden = name === "";
  byId("node-title").textContent = `Node ${name}`;
  say(byId("node-problem"), "");
  if (name) nodePoller.start();
  else nodePoller.stop();
}

// pollers are those of this view; status goes on in all.
const pollers = [queue, map];

export const cluster = {
  start() {
    pollers.forEach((p) => p.start());
    if (node) nodePoller.start();
  },
  stop() {
    [...pollers, nodePoller].forEach((p) => p.stop());
  },
};

// wireCluster makes the forms of the view work. go opens another view.
export function wireCluster(go) {
  openNode = (name) => go("nodes", name);
  byId("measure-of").addEventListener("change", (event) => colourBy(event.target.value));
  byId("measure").addEventListener("submit", (event) => {
    event.preventDefault();
    const pod = byId("measure-pod-name").value.trim();
    if (pod) go("fits", ...split(pod));
  });
  byId("find-node").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = byId("find-node-name").value.trim();
    if (name) go("nodes", name);
  });
}
