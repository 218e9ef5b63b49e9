package page

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Bounds of the page, however many nodes there are.
const (
	mostElements = 1500      // of the document
	mostMapBytes = 1 << 20   // of an answer of GetMap,
	mostSent     = 256 << 10 // and of what is sent of it
	mostTiles    = 6000      // of the map, and one for each zone
)

// TestTheMapHasEachNodeOnce adds nodes to one Berth: first so many that each is a tile, then so many that several share one.
func TestTheMapHasEachNodeOnce(t *testing.T) {
	if *many <= mostTiles {
		t.Fatalf("-nodes=%d: want more than %d", *many, mostTiles)
	}
	b := start(t, t.TempDir(), "127.0.0.1:0")
	var pods []string
	for i := range 500 {
		pods = append(pods, pod("default", fmt.Sprintf("pod-%03d", i), 0, fmt.Sprintf("cpu: %d", 1+i%16)))
	}
	for i := range 300 { // more than the page lists
		pods = append(pods, pod("default", fmt.Sprintf("huge-%03d", i), 0, "cpu: 20"))
	}
	pods = append(pods, pod("default", "zonal", 0, "cpu: 1", "nodeSelector: {topology.kubernetes.io/zone: zone-2}"))
	added := 0
	for _, size := range []struct{ nodes, perTile int }{{5000, 1}, {*many, (*many + mostTiles - 1) / mostTiles}} {
		var all []string
		for ; added < size.nodes; added++ {
			all = append(all, node(nodeName(added), zoneName(added), 0, added%97 == 0))
		}
		if err := b.apply(append(all, pods...)...); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprintf("%d nodes, %d per tile", size.nodes, size.perTile), func(t *testing.T) {
			useMap(t, b, size.nodes, size.perTile)
		})
	}
}

const zones = 5

func nodeName(i int) string { return fmt.Sprintf("node-%06d", i) }
func zoneName(i int) string { return fmt.Sprintf("zone-%d", i%zones) }

// useMap does with the page what a person does with a large cluster: look, go through the map, open a node, and choose a pod.
func useMap(t *testing.T, b *berth, nodes, perTile int) {
	cordoned := (nodes + 96) / 97
	placed := 501

	// 1. The map has each node once, and each pod.
	p := open(t, b.http, "")
	p.await("the head", fmt.Sprintf(`%s.replaceAll("\n", " ").replaceAll(",", "").includes("nodes %d bound %d ")`, text("facts"), nodes, placed))
	p.await("the map", `performance.getEntriesByName("map-draw").length >= 3`)
	t.Logf("the first map is drawn %.0f ms after the page was asked for", get[float64](p, `performance.getEntriesByName("map-draw")[0].startTime`))
	if tells := strings.Contains(get[string](p, text("legend")), fmt.Sprintf("A tile is up to %d nodes.", perTile)); tells != (perTile > 1) {
		t.Errorf("%d nodes per tile; the legend says %q", perTile, get[string](p, text("legend")))
	}
	seen := p.walk()
	want := sums{nodes: map[string]int{}, pods: placed, cordoned: cordoned}
	for i := range nodes {
		want.nodes[zoneName(i)]++
	}
	if !maps.Equal(seen.nodes, want.nodes) || seen.pods != want.pods || seen.cordoned != want.cordoned {
		t.Errorf("the tiles are of %v nodes, %d pods, %d cordoned; want %v, %d, %d", seen.nodes, seen.pods, seen.cordoned, want.nodes, want.pods, want.cordoned)
	}
	if seen.tiles < nodes/perTile || seen.tiles > min(nodes, mostTiles+zones) {
		t.Errorf("%d tiles for %d nodes, want at most %d", seen.tiles, nodes, mostTiles+zones)
	}
	p.bounded("the cluster")

	// 2. A tile opens its node.
	p.do("focus the map", chromedp.Focus(chromedp.CSS("#map")))
	p.key(kb.Home)
	p.key(kb.PageDown)
	p.await("the next zone", text("map-tip")+`.includes("node-000001 · zone-1")`)
	p.key(kb.Enter)
	p.await("the node", text("node-title")+` === "Node node-000001" && `+text("node-body")+`.includes("Labels")`)

	// 3. A chosen pod fits on the nodes of its zone, but for those that are cordoned.
	p.visit("fits/default/zonal", text("legend")+`.includes("It fits on")`)
	free := 0
	for i := range nodes {
		if zoneName(i) == "zone-2" && i%97 != 0 {
			free++
		}
	}
	full := get[int](p, `Number(/It fits on ([\d,]+) of/.exec(`+text("legend")+`)?.[1].replaceAll(",", ""))`)
	seen = p.walk()
	if full != seen.feasible || full > free || full < free-placed {
		t.Errorf("the pod fits on %d nodes by the legend, on %d by the tiles; %d of its zone are not cordoned, and %d pods are placed", full, seen.feasible, free, placed)
	}

	// 4. Pods that wait are listed up to a bound, and one of them is explained.
	p.visit("pods", text("pending")+`.includes("These are the first 200")`)
	p.bounded("the pods")
	p.click(`#pending a[href="#/pods/default/huge-007"]`)
	p.await("the cause", `document.querySelector("#explanation .cause")?.innerText`)

	// 5. It fits on a phone, and goes on being drawn there.
	p.size(375, 800)
	get[bool](p, `!performance.clearMeasures()`)
	p.visit("", `performance.getEntriesByName("map-draw").length >= 3`)
	p.readable(fmt.Sprintf("%d nodes, 375 px", nodes))
	p.bounded("a phone")
}

// sums are what the tiles of the map say, added up.
type sums struct {
	tiles, pods, cordoned, feasible int
	nodes                           map[string]int // by zone
}

// tip is what the map says of a tile.
var tip = regexp.MustCompile(`^(?:([\d,]+) nodes from )?(\S+) · (zone-\d+) · .* · ([\d,]+) pods(?: · (?:([\d,]+) )?(cordoned))?(?: · the pod (?:fits on ([\d,]+)|(fits)|does not fit))?$`)

// walk goes through all tiles of the map by the arrow key, and adds up what it says of each.
func (p *tab) walk() sums {
	p.t.Helper()
	tips := get[[]string](p, `((map, tip) => {
		const press = (key) => map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
		map.focus();
		const tips = [];
		for (press("Home"); tips.at(-1) !== tip.textContent; press("ArrowRight")) tips.push(tip.textContent);
		return tips;
	})(document.getElementById("map"), document.getElementById("map-tip"))`)
	all := sums{nodes: make(map[string]int)}
	seen := make(map[string]bool)
	for _, text := range tips {
		m := tip.FindStringSubmatch(text)
		if m == nil || seen[m[2]] {
			p.t.Fatalf("the map says %q: not what a tile is, or for the second time", text)
		}
		seen[m[2]] = true
		all.tiles++
		all.nodes[m[3]] += count(m[1], 1)
		all.pods += count(m[4], 0)
		if m[6] != "" {
			all.cordoned += count(m[5], 1)
		}
		if m[8] != "" {
			all.feasible++
		}
		all.feasible += count(m[7], 0)
	}
	return all
}

// count reads a number as the page writes it; none is the given one.
func count(text string, none int) int {
	n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
	if err != nil {
		return none
	}
	return n
}

// bounded fails the test if the document or an answer of GetMap is larger than it may be, and logs what was measured.
func (p *tab) bounded(shown string) {
	p.t.Helper()
	elements := get[int](p, `document.querySelectorAll("*").length`)
	if elements > mostElements {
		p.t.Errorf("%s: %d elements, want at most %d", shown, elements, mostElements)
	}
	maps := get[[]struct {
		Decoded  int     `json:"decodedBodySize"`
		Sent     int     `json:"encodedBodySize"`
		Duration float64 `json:"duration"` // ms
	}](p, `performance.getEntriesByType("resource").filter((e) => new URL(e.name).pathname === "/v1/map" && e.responseStatus === 200).map((e) => e.toJSON())`)
	var fetches []float64
	for _, m := range maps {
		fetches = append(fetches, m.Duration)
		if m.Decoded == 0 || m.Decoded > mostMapBytes || m.Sent > mostSent {
			p.t.Errorf("%s: an answer of GetMap has %d bytes, %d are sent; want some, and at most %d and %d", shown, m.Decoded, m.Sent, mostMapBytes, mostSent)
		}
	}
	draws := get[[]float64](p, `performance.getEntriesByName("map-draw").map((m) => m.duration)`)
	if len(maps) == 0 || len(draws) == 0 {
		p.t.Fatalf("%s: %d maps were fetched and %d drawn, want some", shown, len(maps), len(draws))
	}
	last := maps[len(maps)-1]
	p.t.Logf("%s: %d elements; JS heap %.1f MB; map of %d bytes, %d sent; fetched %d times, median %.0f ms; drawn %d times, median %.1f ms",
		shown, elements, get[float64](p, `performance.memory.usedJSHeapSize / 1e6`), last.Decoded, last.Sent, len(maps), median(fetches), len(draws), median(draws))
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
