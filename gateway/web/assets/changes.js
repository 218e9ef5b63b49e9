// The list of changes of a what-if: one row for each, with the inputs of its kind.

import { byId, el } from "./dom.js";

const plain = { required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
const yaml = (label) => el("textarea", { "aria-label": label, placeholder: label, rows: "8", required: true, autocapitalize: "off", spellcheck: "false" });

// inputs are made by the name of what they hold.
const inputs = {
  node: () => el("input", { "aria-label": "Node", placeholder: "node", ...plain }),
  count: () => el("input", { "aria-label": "How many", type: "number", min: "1", max: "10000", value: "1", required: true, inputmode: "numeric" }),
  key: () => el("input", { "aria-label": "Label", placeholder: "label", ...plain }),
  value: () => el("input", { "aria-label": "Value", placeholder: "value", ...plain, required: false }),
  manifests: () => yaml("Node manifests, as YAML or JSON"),
  configuration: () => yaml("KubeSchedulerConfiguration, as YAML"),
};

// kinds are the changes that there are: what each asks for, and the Change it makes of that.
const kinds = {
  add: { title: "add nodes like", asks: ["node", "count"], make: ({ node, count }) => ({ addNodes: { like: node, count: Number(count) } }) },
  addNew: { title: "add these nodes", asks: ["manifests", "count"], make: ({ manifests, count }) => ({ addNodes: { manifests, count: Number(count) } }) },
  remove: { title: "remove node", asks: ["node"], make: ({ node }) => ({ removeNode: node }) },
  drain: { title: "drain node", asks: ["node"], make: ({ node }) => ({ drain: node }) },
  cordon: { title: "cordon node", asks: ["node"], make: ({ node }) => ({ cordon: node }) },
  uncordon: { title: "uncordon node", asks: ["node"], make: ({ node }) => ({ uncordon: node }) },
  label: { title: "label node", asks: ["node", "key", "value"], make: (labelNode) => ({ labelNode }) },
  unlabel: { title: "remove label of node", asks: ["node", "key"], make: (labelNode) => ({ labelNode: { ...labelNode, remove: true } }) },
  configure: { title: "schedule by configuration", asks: ["configuration"], make: (change) => change },
};

const list = byId("changes");

function addChange() {
  const kind = el("select", { "aria-label": "Change" }, Object.entries(kinds).map(([key, { title }]) => el("option", { value: key }, title)));
  const asked = el("span", { class: "row" });
  const remove = el("button", { type: "button", "aria-label": "Remove this change" }, "×");
  const row = el("li", { class: "row" }, kind, asked, remove);
  // What has been written stays where the other kind asks for the same.
  const ask = () => {
    const written = valuesOf(row);
    asked.replaceChildren(...kinds[kind.value].asks.map((name) => {
      const input = inputs[name]();
      input.name = name;
      if (written[name]) input.value = written[name];
      return input;
    }));
  };
  ask();
  kind.addEventListener("change", ask);
  remove.addEventListener("click", () => {
    row.remove();
    number();
    byId("add-change").focus();
  });
  list.append(row);
  number();
  asked.firstChild.focus();
}

// number gives each row the name of its field in a request.
function number() {
  [...list.children].forEach((row, i) => { row.dataset.field = `changes[${i}]`; });
}

const valuesOf = (row) => Object.fromEntries([...row.querySelectorAll("[name]")].map((input) => [input.name, input.value.trim()]));

// changes returns the list as the API takes it.
export const changes = () => [...list.children].map((row) => kinds[row.querySelector("select").value].make(valuesOf(row)));

byId("add-change").addEventListener("click", addChange);
