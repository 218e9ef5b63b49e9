// PodGroups: those of which pods wait, how far each comes and what would help, and one with its pods.

import { call } from "./api.js";
import { byId, el, fill, groupLink, nodeLink, podLink, splitGroup, table } from "./dom.js";
import { number, state } from "./format.js";
import { Poller } from "./live.js";

const every = 15_000; // ms; each group is a question that is tried on a copy of the cluster
const most = 8; // groups that are asked about
const mostPods = 200;
const mostWaiting = 1000; // pods that wait whose groups are shown

const names = (...all) => all.map(encodeURIComponent).join("/");
const nameOf = (pod) => `${pod.namespace}/${pod.podGroup}`;

// explained returns what is known of the group of a pod; of one that may only be listed, or of which there is more to say than of its group, what is said of the pod.
async function explained(pod, signal) {
  try {
    const { group, summary } = await call(`v1/namespaces/${names(pod.namespace)}/pods/${names(pod.name)}:explain?candidates=1&misses=1`, { signal });
    return group ?? { said: summary };
  } catch (err) {
    if (![403, 404].includes(err.status)) throw err;
    return { said: pod.message };
  }
}

// waiting are the groups of which pods wait, with how many do.
const waiting = new Poller({
  async ask(signal) {
    const { pods, nextPageToken } = await call(`v1/pods?pendingOnly=true&pageSize=${mostWaiting}`, { signal });
    const groups = new Map();
    for (const pod of pods.filter((p) => p.podGroup)) {
      const of = groups.get(nameOf(pod)) ?? { pod, pods: 0 };
      groups.set(nameOf(pod), { ...of, pods: of.pods + 1 });
    }
    const all = [...groups].map(([name, of]) => ({ name, ...of }));
    let slow = false; // one has taken too long to explain: others may as well, and what is known is not to wait for that
    for (const of of all.slice(0, most)) {
      const said = { said: of.pod.message };
      of.group = slow ? said : await explained(of.pod, signal).catch((err) => {
        if (!err.status || [401, 429, 503].includes(err.status)) throw err; // it is not about this group: asked about the others, it would be the same
        slow = err.status === 504;
        return said;
      });
    }
    return { all, first: nextPageToken && pods.length };
  },
  every,
  problem: byId("groups-problem"),
  show({ all, first }) {
    byId("groups-section").hidden = all.length === 0 && !first;
    fill(byId("groups"), el("ul", { class: "pods" }, all.map(({ name, pods, group }) => el("li", {},
      groupLink(name), el("span", { class: "quiet" }, ` ${number(pods)} ${pods === 1 ? "pod waits" : "pods wait"}`),
      group && el("p", {}, howFar(group)), ...lines(group)))),
    first && el("p", {}, `These are the groups of the first ${number(first)} pods that wait, by name; there are more pods.`));
  },
});

export const groups = { start: () => waiting.start(), stop: () => waiting.stop() };

// howFar says in a few words how far a group comes.
export function howFar(group) {
  const where = group.domain ? `, in ${group.domain}` : "";
  if (group.said !== undefined) return group.said;
  if (group.lacking) return `It is not tried: ${group.lacking}.`;
  if (group.placed > 0 && group.placed >= group.wants) return `${number(group.placed)} of ${number(group.pods)} pods are placed${where}.`;
  if (group.fits) return "It fits, and waits for its turn.";
  return group.wants > 0 ? `${number(group.fit)} of at least ${number(group.wants)} pods fit now${where}.` : `None of its pods fits${where}.`;
}

// lines are what is missing, and what would help.
const lines = (group) => [
  group?.missing && el("p", {}, `The next of its pods: ${group.missing}`),
  group?.changes?.length > 0 && el("p", {}, `It would fit with ${group.changes.join(", or ")}.`),
];

// groupFacts is what is said of its group where a pod is explained.
export const groupFacts = (pod, group) => [
  el("h3", {}, "Its PodGroup"), el("p", {}, groupLink(`${pod.namespace}/${group.name}`), ` ${howFar(group)}`), ...lines(group),
];

// groupOutcome asks about a PodGroup, namespace/name, and returns what there is to show of it.
export async function groupOutcome(name, signal) {
  const [namespace, group] = splitGroup(name);
  const { pods, nextPageToken } = await call(`v1/pods?namespace=${names(namespace)}&podGroup=${names(group)}&pageSize=${mostPods}`, { signal });
  if (pods.length === 0) return [el("p", { class: "cause" }, `No pod is of a PodGroup ${name}.`)];
  const is = await explained(pods.find((pod) => !pod.node) ?? pods[0], signal);
  return [
    el("p", { class: "cause" }, `PodGroup ${name}: ${howFar(is)}`),
    ...(is.text ? is.text.trim().split("\n").map((line) => el("p", {}, line)) : []),
    el("p", {}, el("a", { href: `#/capacity/podgroup/${names(namespace, group)}` }, "How many more like it fit")),
    table("Its pods", ["@pod", "state", "@node"], pods.map((pod) => [podLink(`${pod.namespace}/${pod.name}`), state(pod), pod.node ? nodeLink(pod.node) : "none"])),
    nextPageToken && el("p", {}, `These are the first ${number(mostPods)} by name; there are more.`),
  ];
}
