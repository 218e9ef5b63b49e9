// Making elements. Texts become text nodes, so that nothing that comes from the cluster is ever read as markup.

export const byId = (id) => document.getElementById(id);

// given leaves out children that are null, undefined, false or empty, so that a child may be written as a condition.
const given = (children) => children.flat().filter((child) => child != null && child !== false && child !== "");

// el makes an element. An attribute that is true is set without a value, one that is false, null or undefined is left out.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...given(children));
  return element;
}

// fill makes the children of an element these. Those that are equal stay, and a link that had the focus has it again, so that
// what is drawn anew every second can be read and used.
export function fill(element, ...children) {
  const wanted = given(children);
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  wanted.forEach((child, i) => {
    const present = element.childNodes[i];
    if (!present) element.append(child);
    else if (!(child instanceof Node) || !present.isEqualNode(child)) present.replaceWith(child);
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
  if (focused?.hash && !focused.isConnected) {
    [...element.querySelectorAll("a")].find((link) => link.hash === focused.hash)?.focus();
  }
}

// table makes a table that scrolls by itself where it is too wide. columns are titles: one that begins with # has numbers, one with @
// names that are not to be broken. A row is a list of texts, nodes, or lists of them; the first heads it.
export function table(caption, columns, rows, foot) {
  const classes = columns.map((title) => ({ "#": "number", "@": "name" })[title[0]]);
  const line = (row) => el("tr", {}, row.map((content, i) =>
    el(i === 0 ? "th" : "td", { class: classes[i], scope: i === 0 && "row" }, content)));
  return el("div", {},
    el("p", { class: "caption", "aria-hidden": "true" }, caption),
    el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      el("table", { "aria-label": caption },
        el("thead", {}, el("tr", {}, columns.map((title, i) => el("th", { class: classes[i], scope: "col" }, title.replace(/^[#@]/, ""))))),
        el("tbody", {}, rows.map(line)),
        foot && el("tfoot", {}, line(foot)))));
}

// link is a link to another view of the page; see the routes in main.js.
const link = (text, ...path) => el("a", { href: `#/${path.map(encodeURIComponent).join("/")}` }, text);

export const nodeLink = (name) => link(name, "nodes", name);

// podLink links to the explanation of a pod, namespace/name.
export const podLink = (pod, text = pod) => link(text, "pods", ...pod.split("/"));

// splitGroup takes a PodGroup's namespace and name apart; one of Coscheduling has a slash in its name.
export function splitGroup(group) {
  const [namespace, ...name] = group.split("/");
  return [namespace, name.join("/")];
}

// groupLink links to a PodGroup, namespace/name.
export const groupLink = (group) => link(group, "groups", ...splitGroup(group));

// fitsLink links to the map of where a pod fits.
export const fitsLink = (pod, text) => link(text, "fits", ...pod.split("/"));

// capacityLink links to how many more of a pod fit.
export const capacityLink = (pod, text) => link(text, "capacity", ...pod.split("/"));

// say shows a text in an element that is hidden while there is none.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

// markCurrent marks the links of the page that lead to what is shown: those whose data-<key> is this name.
export function markCurrent(key, name) {
  for (const link of document.querySelectorAll(`nav [data-${key}]`)) {
    if (link.dataset[key] === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}
