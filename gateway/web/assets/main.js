// The page: which view is shown, what runs meanwhile, and signing in.
//
// Routes are in the fragment of the address, so that a view can be linked to, and gone back to:
//   #/              the cluster        #/nodes/NAME    one node
//   #/pods          pending pods       #/pods/NS/NAME  why a pod is where it is
//   #/groups/NS/NAME  a PodGroup and its pods
//   #/fits/NS/NAME  the map of where a pod fits
//   #/whatif        what would happen if        #/compare  two configurations
//   #/capacity      how many more of a pod fit  #/capacity/NS/NAME  of this pod, or  #/capacity/podgroup/NS/NAME  of this PodGroup

import { session, signIn } from "./api.js";
import { cluster, colourBy, showNode, status, wireCluster } from "./cluster.js";
import { byId, markCurrent } from "./dom.js";
import { follow } from "./placements.js";
import { explain, explainAgain, explainGroup, forget, pods, wirePods } from "./pods.js";
import { question, wireWhatif } from "./whatif.js";

const idle = { start() {}, stop() {} };
const views = { cluster, pods, whatif: idle };

let view = "";
let current = false; // whether what is shown is kept current
let watching = new AbortController();

// go opens a view by its route.
function go(...path) {
  location.hash = `#/${path.map(encodeURIComponent).join("/")}`;
}

// route shows what the address says. by is whether a person has just asked for it: then the focus goes there.
function route(by) {
  if (location.hash && !location.hash.startsWith("#/")) return; // a place on the page
  const [name = "", ...rest] = location.hash.slice(2).split("/").map(decode);
  switch (name) {
    case "pods":
      show("pods");
      if (rest.length === 2) explain(rest.join("/"));
      else forget();
      focus(by, rest.length === 2 ? byId("explain-title") : null);
      return;
    case "groups":
      show("pods");
      if (rest.length >= 2) explainGroup(rest.join("/"));
      else forget();
      focus(by, byId("explain-title"));
      return;
    case "whatif":
    case "capacity":
    case "compare":
      show("whatif");
      question(name, rest.length >= 2 ? rest.join("/") : "");
      focus(by);
      return;
    case "fits":
      show("cluster");
      showNode("");
      if (rest.length === 2) colourBy("fits", rest.join("/"));
      focus(by);
      return;
    default:
      show("cluster");
      showNode(name === "nodes" ? rest.join("/") : "");
      focus(by, name === "nodes" ? byId("node-title") : null);
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not made by this page
  }
}

function show(name) {
  if (name === view) return;
  views[view]?.stop();
  view = name;
  for (const key of Object.keys(views)) byId(key).hidden = key !== name;
  markCurrent("view", name);
  document.title = `${byId(name).querySelector("h1").textContent} · Berth`;
  if (current) views[name].start();
}

function focus(by, heading) {
  if (by) (heading ?? byId(view).querySelector("h1")).focus();
}

// resume starts what keeps the page current; pause stops it, so that a page that nobody sees asks nothing.
function resume() {
  current = true;
  watching = new AbortController();
  status.start();
  views[view].start();
  follow(watching.signal, explainAgain);
}

function pause() {
  current = false;
  watching.abort();
  status.stop();
  views[view].stop();
}

session.addEventListener("wanted", ({ detail }) => {
  const dialog = byId("sign-in");
  byId("sign-in-why").textContent = `The gateway asks who you are: ${detail}.`;
  if (!dialog.open) dialog.showModal();
});
byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(byId("token").value);
  byId("token").value = "";
  byId("sign-in").close();
  route(false);
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : resume()));
addEventListener("hashchange", () => route(true));

wireCluster(go);
wirePods(go);
wireWhatif();
route(false);
if (!document.hidden) resume();
