// What the answers to the questions that are tried on a copy look like.

import { el, nodeLink, podLink, table } from "./dom.js";
import { number, percent, quantity, share, version } from "./format.js";
import { listed, verdictRow } from "./pods.js";

const most = 200; // pods that are listed

const tried = (answer) => el("p", {}, `Tried on a copy of version ${version(answer.version)}.`);
const nodeOrNone = (name) => (name ? nodeLink(name) : "none");
const rest = (all) => all > most && el("p", {}, `These are the first ${number(most)} of ${number(all)}.`);

// whatifOutcome shows a WhatIfResponse.
export function whatifOutcome(answer) {
  const { outcomes, before, after, notes } = answer;
  const victims = outcomes.reduce((sum, o) => sum + o.victims.length, 0);
  return [
    el("p", { class: "cause" }, `${number(answer.placed)} pods would be placed, ${number(answer.unplaced)} not.`,
      victims > 0 && ` ${number(victims)} would be evicted for them.`),
    notes.length > 0 && el("ul", {}, notes.map((note) => el("li", {}, note))),
    ...reasons(outcomes),
    outcomes.length > 0 && table("What would become of each pod, in the order of the attempts", ["@pod", "@node", "remarks"],
      outcomes.slice(0, most).map((o) => [podLink(`${o.namespace}/${o.name}`), nodeOrNone(o.node), remarks(o)])),
    rest(outcomes.length),
    utilization("The cluster", "before", before, "after", after),
    tried(answer),
  ];
}

// reasons counts the pods that would go nowhere by why, if there are several.
function reasons(outcomes) {
  const counts = new Map();
  for (const o of outcomes) {
    if (!o.node) counts.set(o.message || o.skipped, (counts.get(o.message || o.skipped) ?? 0) + 1);
  }
  const rows = [...counts].sort((a, b) => b[1] - a[1]);
  return rows.length === 0 ? [] : [
    table("Why pods would go nowhere", ["why", "#pods"], rows.slice(0, most).map(([why, pods]) => [why, number(pods)])), rest(rows.length),
  ];
}

// remarks are what there is to say of a pod beside its node.
function remarks(o) {
  return [
    o.from && o.from !== o.node && ["It was on ", nodeLink(o.from), ". "],
    o.skipped && `It was not tried: ${o.skipped}. `,
    o.message,
    o.protected.length > 0 && ` Its disruption budgets do not let it go now: ${o.protected.join(", ")}.`,
    o.victims.length > 0 && [" Evicted for it: ", listed(o.victims.map((pod) => podLink(pod))), "."],
  ].flat(2).filter(Boolean);
}

// capacityOutcome shows a GetCapacityResponse.
export function capacityOutcome(answer) {
  const { group } = answer;
  return [
    el("p", { class: "cause" }, `${answer.atLeast ? "At least " : ""}${number(answer.fit)} more${group ? ` of PodGroup ${group.name}` : ""} ${answer.fit === 1 ? "fits" : "fit"}`,
      group && `, with ${number(group.pods)} pods each`, "."),
    group?.domains.length > 0 && table("Where", [group.topology.join("/"), "#fit"], group.domains.map((d) => [d.name, number(d.fit)])),
    answer.atLeast && el("p", {}, "It was not counted further: there may be room for more."),
    answer.message && el("p", {}, `The next one is stopped: ${answer.message}`),
    answer.verdicts.length > 0 && table("What stops the next one", ["plugin", "reason", "#nodes", "such as"], answer.verdicts.map(verdictRow)),
    tried(answer),
  ];
}

// compareOutcome shows a CompareResponse.
export function compareOutcome(answer) {
  const { one, two, moves, moved, same, onlyOne, onlyTwo } = answer;
  return [
    el("p", { class: "cause" }, `${number(same)} pods on the same node, ${number(moved)} on another.`),
    el("p", {}, `Placed by the one only: ${number(onlyOne)}. By the other only: ${number(onlyTwo)}.`),
    utilization("The cluster", "the one", one, "the other", two),
    moves.length > 0 && table("Pods whose place differs, in queue order", ["@pod", "@the one", "@the other"],
      moves.slice(0, most).map((m) => [podLink(`${m.namespace}/${m.name}`), nodeOrNone(m.one), nodeOrNone(m.two)])),
    rest(moved + onlyOne + onlyTwo),
    tried(answer),
  ];
}

// utilization compares two Utilizations: a row for each figure.
function utilization(caption, titleA, a, titleB, b) {
  const names = (list, key) => list.map((item) => item[key]);
  const both = (key, name) => [...new Set([...names(a[key], name), ...names(b[key], name)])].sort();
  const row = (title, figure) => [title, figure(a), figure(b)];
  const ofResource = (name, show) => (u) => {
    const use = u.resources.find((r) => r.name === name);
    return use ? show(use) : "–";
  };
  return table(caption, ["", `#${titleA}`, `#${titleB}`], [
    row("nodes", (u) => number(u.nodes)),
    row("pods placed", (u) => number(u.pods)),
    ...both("zones", "zone").map((zone) =>
      row(`pods in ${zone || "no zone"}`, (u) => number(u.zones.find((z) => z.zone === zone)?.pods ?? 0))),
    ...both("resources", "name").flatMap((name) => [
      row(`${name} asked for`, ofResource(name, (r) => `${share(r.requested, r.allocatable)} of ${quantity(name, r.allocatable)}`)),
      row(`${name} of the fullest node`, ofResource(name, (r) => percent(r.maxPermille))),
      row(`${name} of a node, the mean`, ofResource(name, (r) => percent(r.meanPermille))),
    ]),
  ]);
}
