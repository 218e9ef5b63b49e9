// The view that asks what would happen if.

import { call } from "./api.js";
import { byId, el, fill, nodeLink, podLink, say, table } from "./dom.js";
import { number, percent, quantity, share, version } from "./format.js";
import { report } from "./live.js";

const most = 200; // outcomes that are listed

// kinds are the changes that the form offers, with how they are asked for.
const kinds = {
  add: { title: "add nodes like", change: (node, count) => ({ addNodes: { like: node, count } }) },
  remove: { title: "remove node", change: (node) => ({ removeNode: node }) },
  cordon: { title: "cordon node", change: (node) => ({ cordon: node }) },
  uncordon: { title: "uncordon node", change: (node) => ({ uncordon: node }) },
  drain: { title: "drain node", change: (node) => ({ drain: node }) },
};

const example = `apiVersion: v1
kind: Pod
metadata:
  name: example
spec:
  containers:
  - name: main
    image: example
    resources:
      requests:
        cpu: "2"
        memory: 4Gi
`;

function addChange() {
  const kind = el("select", { "aria-label": "Change" },
    Object.entries(kinds).map(([key, { title }]) => el("option", { value: key }, title)));
  const node = el("input", {
    "aria-label": "Node", placeholder: "node", required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
  });
  const count = el("input", { "aria-label": "How many", type: "number", min: "1", max: "10000", value: "1", inputmode: "numeric" });
  const remove = el("button", { type: "button", "aria-label": "Remove this change" }, "×");
  const row = el("li", { class: "row" }, kind, node, count, remove);
  kind.addEventListener("change", () => { count.hidden = kind.value !== "add"; });
  remove.addEventListener("click", () => {
    row.remove();
    byId("add-change").focus();
  });
  byId("changes").append(row);
  node.focus();
}

function changes() {
  return [...byId("changes").children].map((row) => {
    const [kind, node, count] = row.querySelectorAll("select, input");
    return kinds[kind.value].change(node.value.trim(), Number(count.value));
  });
}

async function ask() {
  const body = byId("outcome");
  body.setAttribute("aria-busy", "true");
  say(byId("whatif-problem"), "");
  fill(body, el("p", {}, "Trying it …"));
  try {
    const answer = await call("v1/whatif", {
      body: {
        changes: changes(),
        manifests: byId("manifests").value,
        times: Number(byId("times").value),
        pending: byId("pending-too").checked,
        noPreemption: byId("no-preemption").checked,
      },
    });
    fill(body, outcome(answer));
    byId("outcome-title").focus();
  } catch (err) {
    fill(body);
    report(err, byId("whatif-problem"));
  } finally {
    body.removeAttribute("aria-busy");
  }
}

function outcome(answer) {
  const { outcomes, before, after } = answer;
  return [
    el("p", { class: "cause" }, `${number(answer.placed)} pods would be placed, ${number(answer.unplaced)} not.`),
    outcomes.length > 0 && table("What would become of each pod, in the order of the attempts", ["@pod", "@node", "remarks"],
      outcomes.slice(0, most).map((o) => [podLink(`${o.namespace}/${o.name}`), o.node ? nodeLink(o.node) : "none", remarks(o)])),
    outcomes.length > most && el("p", {}, `These are the first ${number(most)} of ${number(outcomes.length)}.`),
    before && after && table("The cluster", ["", "#before", "#after"], [
      ["nodes", number(before.nodes), number(after.nodes)],
      ["pods placed", number(before.pods), number(after.pods)],
      ...after.zones.map((z) => [`pods in ${z.zone || "no zone"}`, pods(before, z.zone), pods(after, z.zone)]),
      ...after.resources.flatMap(({ name }) => [
        [`${name} asked for`, use(before, name), use(after, name)],
        [`${name} of the fullest node`, fullest(before, name), fullest(after, name)],
      ]),
    ]),
    el("p", {}, `Tried on a copy of version ${version(answer.version)}.`),
  ];
}

// remarks are what there is to say of a pod beside its node.
function remarks(o) {
  return [
    o.from && ["It was on ", nodeLink(o.from), ". "],
    o.message,
    o.victims.length > 0 && ["Evicted for it: ", o.victims.flatMap((pod, i) => [i > 0 && ", ", podLink(pod)]), "."],
  ].flat(2);
}

const resource = (utilization, name) => utilization.resources.find((r) => r.name === name);

function use(utilization, name) {
  const r = resource(utilization, name);
  return r ? `${share(r.requested, r.allocatable)} of ${quantity(name, r.allocatable)}` : "–";
}

function fullest(utilization, name) {
  const r = resource(utilization, name);
  return r ? percent(r.maxPermille) : "–";
}

const pods = (utilization, zone) => number(utilization.zones.find((z) => z.zone === zone)?.pods ?? 0);

// wireWhatif makes the form of the view work.
export function wireWhatif() {
  byId("add-change").addEventListener("click", addChange);
  byId("example").addEventListener("click", () => { byId("manifests").value = example; });
  byId("whatif-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
}
