// The view of questions that are tried on a copy of the cluster: what would happen if, how many more of a pod fit, and how two
// configurations differ.

import { call } from "./api.js";
import { changes } from "./changes.js";
import { split } from "./cluster.js";
import { byId, el, fill, markCurrent, say } from "./dom.js";
import { clearViolations, showViolations } from "./fields.js";
import { report } from "./live.js";
import { capacityOutcome, compareOutcome, whatifOutcome } from "./outcomes.js";

const form = byId("whatif-form");
const checked = (id) => byId(id).checked;
const count = (id) => Number(byId(id).value);

// questions are what can be asked, by the name of their route: the request of the form, and what its answer looks like.
const questions = {
  whatif: {
    request: () => ({
      changes: changes(), manifests: byId("manifests").value, times: count("times"),
      pending: checked("pending-too"), noPreemption: checked("no-preemption"), summaryOnly: checked("summary-only"),
    }),
    show: whatifOutcome,
  },
  capacity: {
    request() {
      const [, group, pod] = byId("like").value.trim().match(/^(podgroup\/(?=.*\/))?(.*)$/); // a namespace may be called podgroup
      const [namespace, name] = pod ? split(pod) : ["", ""];
      return { namespace, [group ? "podGroup" : "name"]: name, manifest: byId("manifests").value, changes: changes(), limit: count("limit") };
    },
    show: capacityOutcome,
  },
  compare: {
    request: () => ({
      configuration: byId("one").value, other: byId("two").value,
      manifests: byId("manifests").value, times: count("times"), everything: checked("everything"),
    }),
    show: compareOutcome,
  },
};

const examplePod = `apiVersion: v1
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

const exampleConfiguration = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources:
        - {name: cpu, weight: 1}
        - {name: memory, weight: 1}
`;

let current = "";
let asking = new AbortController();

// question shows what a question asks for. With a pod, namespace/name, or podgroup/namespace/name, how many more of it fit is asked at once.
export function question(name, pod = "") {
  if (name !== current) {
    current = name;
    asking.abort();
    markCurrent("question", name);
    for (const part of form.querySelectorAll("[data-questions]")) part.hidden = !part.dataset.questions.split(" ").includes(name);
    clearViolations(form);
    say(byId("whatif-problem"), "");
    fill(byId("outcome"), el("p", {}, "Nothing has been tried yet."));
  }
  if (!pod) return;
  byId("like").value = pod;
  byId("manifests").value = "";
  ask();
}

async function ask() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const { request, show } = questions[current];
  const body = byId("outcome");
  body.setAttribute("aria-busy", "true");
  clearViolations(form);
  say(byId("whatif-problem"), "");
  fill(body, el("p", {}, "Trying it …"));
  try {
    const answer = await call(`v1/${current}`, { body: request(), signal });
    fill(body, show(answer));
    byId("outcome-title").focus();
  } catch (err) {
    if (signal.aborted) return;
    fill(body);
    const wrong = err.violations ?? [];
    const elsewhere = showViolations(form, wrong);
    if (wrong.length === 0 || elsewhere.length > 0) report(Object.assign(err, { violations: elsewhere }), byId("whatif-problem"));
  } finally {
    if (!signal.aborted) body.removeAttribute("aria-busy");
  }
}

// wireWhatif makes the form of the view work.
export function wireWhatif() {
  byId("example").addEventListener("click", () => { byId("manifests").value = examplePod; });
  byId("example-configuration").addEventListener("click", () => { byId("two").value = exampleConfiguration; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
}
