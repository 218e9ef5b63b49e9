// The map: a canvas with a tile for each node, or for several of one zone, in rows under the zone's name.

import { el, fill } from "./dom.js";
import { number, percent } from "./format.js";

const steps = 8; // of the colour scale; see --step-0 … in style.css
const largest = 26; // px of a tile
const smallest = 4;
const label = 20; // px of a zone's name
const gap = 8; // px between zones

// measures are what a tile can be coloured by: a share in thousandths, -1 if the tile has none.
const measures = {
  cpu: { share: (tile) => tile.cpuPermille, low: "0 % asked for", high: "all of it", none: "" },
  memory: { share: (tile) => tile.memoryPermille, low: "0 % asked for", high: "all of it", none: "" },
  devices: { share: (tile) => tile.devicePermille, low: "0 % asked for", high: "all of them", none: "no devices" },
  fits: { share: (tile) => (tile.feasible * 1000) / tile.nodes, low: "the pod does not fit", high: "it fits", none: "" },
};

// stepOf is the step of the scale for a share; -1 if there is none.
const stepOf = (permille) => (permille < 0 ? -1 : Math.min(Math.floor((permille * steps) / 1000), steps - 1));

// layout says where the tiles of zones are in a width: their size, and for each zone its top, its columns and the index of
// its first tile. Tiles are as large as they can be for all to be at most so high, but not smaller than can be seen.
export function layout(zones, width, height) {
  for (let size = largest; ; size--) {
    const columns = Math.max(1, Math.floor(width / size));
    let top = 0;
    let first = 0;
    const placed = zones.map((zone) => {
      const block = { top: top + label, columns, first, count: zone.tiles.length, name: zone.name, nodes: zone.nodes };
      top += label + Math.ceil(block.count / columns) * size + gap;
      first += block.count;
      return block;
    });
    if (top <= height || size === smallest) return { size, blocks: placed, width, height: top, count: first };
  }
}

// tileAt returns the index of the tile at a point, -1 if there is none.
export function tileAt({ size, blocks }, x, y) {
  const block = blocks.findLast((b) => y >= b.top);
  const column = Math.floor(x / size);
  if (!block || column < 0 || column >= block.columns) return -1;
  const i = Math.floor((y - block.top) / size) * block.columns + column;
  return i < block.count ? block.first + i : -1;
}

// placeOf returns the left upper corner of a tile.
export function placeOf({ size, blocks }, index) {
  const block = blocks.findLast((b) => index >= b.first);
  const i = index - block.first;
  return { x: (i % block.columns) * size, y: block.top + Math.floor(i / block.columns) * size };
}

// moved returns the index of the tile that a key leads to from another; undefined if it is no key of the map.
export function moved({ blocks, count }, index, key) {
  const zone = blocks.findLastIndex((b) => index >= b.first);
  if (zone < 0) return undefined;
  const block = blocks[zone];
  const zoneAt = (n) => blocks[Math.min(Math.max(n, 0), blocks.length - 1)].first;
  const clamp = (i) => Math.min(Math.max(i, 0), count - 1);
  switch (key) {
    case "ArrowLeft": return clamp(index - 1);
    case "ArrowRight": return clamp(index + 1);
    case "ArrowUp": return clamp(index - Math.min(block.columns, index - block.first + 1));
    case "ArrowDown": return clamp(Math.min(index + block.columns, block.first + block.count));
    case "PageUp": return zoneAt(index > block.first ? zone : zone - 1);
    case "PageDown": return zoneAt(zone + 1);
    case "Home": return 0;
    case "End": return count - 1;
    default: return undefined;
  }
}

// A ClusterMap draws into a canvas and calls open with the name of a node that is clicked, or entered by key.
export class ClusterMap {
  #canvas;
  #cursor;
  #tip;
  #legend;
  #open;
  #zones = [];
  #tiles = []; // of all zones
  #layout = layout([], 1, 1);
  #measure = "cpu";
  #at = -1; // the tile that the tip is about

  constructor({ canvas, cursor, tip, legend, open }) {
    this.#canvas = canvas;
    this.#cursor = cursor;
    this.#tip = tip;
    this.#open = open;
    this.#legend = legend;
    const tile = (event) => tileAt(this.#layout, event.offsetX, event.offsetY);
    canvas.addEventListener("pointermove", (event) => this.#point(tile(event)));
    canvas.addEventListener("click", (event) => {
      this.#point(tile(event));
      this.#enter();
    });
    canvas.addEventListener("focus", () => this.#point(Math.max(this.#at, 0)));
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") this.#enter();
      else {
        const to = moved(this.#layout, this.#at, event.key);
        if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
        this.#point(to);
        this.#cursor.scrollIntoView({ block: "nearest" });
      }
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // show draws a map as GetMap returns it, coloured by a measure.
  show(map, measure) {
    this.#zones = map.zones;
    this.#tiles = map.zones.flatMap((zone) => zone.tiles);
    this.#measure = measure;
    this.draw();
    this.#explain(map);
  }

  draw() {
    const canvas = this.#canvas;
    const width = canvas.parentElement.clientWidth;
    if (width === 0) return; // not shown
    performance.mark("map-draw-begin");
    const at = (this.#layout = layout(this.#zones, width, Math.max(320, innerHeight * 0.6)));
    const scale = devicePixelRatio;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(Math.max(at.height, 1) * scale);
    canvas.style.height = `${Math.max(at.height, 1)}px`;
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    const context = canvas.getContext("2d", { alpha: false });
    context.scale(scale, scale);
    context.fillStyle = colour("--panel");
    context.fillRect(0, 0, width, at.height);

    // 1. The zones' names.
    context.fillStyle = colour("--text");
    context.font = `13px ${style.fontFamily}`;
    context.textBaseline = "bottom";
    for (const block of at.blocks) {
      context.fillText(`${block.name || "no zone"} (${number(block.nodes)})`, 0, block.top - 3, width);
    }

    // 2. The tiles, colour by colour.
    const byStep = Array.from({ length: steps + 1 }, () => []); // the last: tiles that have nothing to measure
    const hatched = [];
    const { share } = measures[this.#measure];
    for (const block of at.blocks) {
      for (let i = 0; i < block.count; i++) {
        const tile = this.#tiles[block.first + i];
        const x = (i % block.columns) * at.size;
        const y = block.top + Math.floor(i / block.columns) * at.size;
        byStep.at(stepOf(share(tile))).push(x, y);
        if (tile.unschedulable > 0) hatched.push(x, y);
      }
    }
    const side = at.size - (at.size > 5 ? 2 : 1);
    const rim = side > 8 ? 2 : 1;
    const fillAll = (places, name, inset) => {
      context.fillStyle = colour(name);
      const inner = side - 2 * inset;
      for (let i = 0; i < places.length; i += 2) context.fillRect(places[i] + inset, places[i + 1] + inset, inner, inner);
    };
    const empty = byStep.pop();
    byStep.forEach((places, step) => fillAll(places, `--step-${step}`, 0));
    fillAll(empty, "--none", 0);
    fillAll(empty, "--panel", rim);

    // 3. Hatching over what is cordoned, light on dark, so that it is seen on every colour.
    const lines = new Path2D();
    for (let i = 0; i < hatched.length; i += 2) {
      const [x, y] = [hatched[i], hatched[i + 1]];
      for (let d = side / 2; d < side * 2; d += Math.max(side / 2, 3)) {
        lines.moveTo(x + Math.max(0, d - side), y + Math.min(d, side));
        lines.lineTo(x + Math.min(d, side), y + Math.max(0, d - side));
      }
    }
    for (const [name, line] of [["--hatch-under", 3], ["--hatch", 1.25]]) {
      context.strokeStyle = colour(name);
      context.lineWidth = Math.min(line, side / 3);
      context.stroke(lines);
    }
    performance.measure("map-draw", "map-draw-begin");
    performance.clearMarks("map-draw-begin");
    this.#point(Math.min(this.#at, at.count - 1));
  }

  // #point moves the cursor to a tile and says what it is; -1: leaves it where it is.
  #point(index) {
    if (index < 0 || index >= this.#tiles.length) {
      this.#cursor.hidden = this.#at < 0 || this.#at >= this.#tiles.length;
      return;
    }
    this.#at = index;
    const { x, y } = placeOf(this.#layout, index);
    const side = `${this.#layout.size}px`;
    Object.assign(this.#cursor.style, { transform: `translate(${x}px, ${y}px)`, width: side, height: side });
    this.#cursor.hidden = false;
    const text = describe(this.#tiles[index], this.#layout.blocks.findLast((b) => index >= b.first).name, this.#measure);
    if (this.#tip.textContent !== text) this.#tip.textContent = text;
  }

  #enter() {
    if (this.#tiles[this.#at]) this.#open(this.#tiles[this.#at].node);
  }

  #explain(map) {
    const { low, high, none } = measures[this.#measure];
    const swatch = (name) => el("span", { class: `swatch ${name}` });
    fill(this.#legend,
      el("li", { class: "scale" }, low, Array.from({ length: steps }, (_, i) => swatch(`step-${i}`)), high),
      none && el("li", {}, swatch("none"), none),
      el("li", {}, swatch("hatched"), "cordoned"),
      this.#measure === "fits" && el("li", {}, `It fits on ${number(map.feasible)} of ${number(map.nodes)} nodes.`),
      map.nodesPerTile > 1 && el("li", {}, `A tile is up to ${number(map.nodesPerTile)} nodes.`));
  }
}

// describe says in one line what a tile is.
function describe(tile, zone, measure) {
  const several = tile.nodes > 1;
  return [
    several ? `${number(tile.nodes)} nodes from ${tile.node}` : tile.node,
    zone || "no zone",
    `CPU ${percent(tile.cpuPermille)}`,
    `memory ${percent(tile.memoryPermille)}`,
    tile.devicePermille >= 0 && `devices ${percent(tile.devicePermille)}`,
    `${number(tile.pods)} pods`,
    tile.unschedulable > 0 && (several ? `${number(tile.unschedulable)} cordoned` : "cordoned"),
    measure === "fits" && (several ? `the pod fits on ${number(tile.feasible)}` : tile.feasible ? "the pod fits" : "the pod does not fit"),
  ].filter(Boolean).join(" · ");
}
