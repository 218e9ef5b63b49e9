package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestProgramDrawsAndPrintsBothPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plots")
	cfg, err := parse(strings.Fields("--seed 7 --nodes 200,100 --fill 10 --cycles 1 --repetitions 1 --out " + dir))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(cfg, &out); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"nodes.svg": {"nodes (logarithmic)", "µs per decision", "plain", "hard zone spread", "100", "1K"},
		"pods.svg":  {"pods placed", "µs per decision", "plain", "hard zone spread", "10 nodes"},
	} {
		texts, lines := read(t, filepath.Join(dir, name))
		for _, text := range want {
			if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, text) }) {
				t.Errorf("%s does not say %q, but %q", name, text, texts)
			}
		}
		if len(lines) != 2 {
			t.Errorf("%s has %d lines, want 2", name, len(lines))
		}
		for _, points := range lines {
			if name == "nodes.svg" && len(points) != 2 || len(points) < 2 {
				t.Errorf("%s has a line with the points %q", name, points)
			}
		}
	}
	for _, want := range []string{"seed 7", "against the number of nodes", "against the pods placed, 10 nodes", "\n         200 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}

// read returns the texts of an SVG file and the points of its lines.
func read(t *testing.T, file string) (texts []string, lines [][]string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(b)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts, lines
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		switch token := token.(type) {
		case xml.CharData:
			texts = append(texts, string(token))
		case xml.StartElement:
			for _, a := range token.Attr {
				if a.Name.Local == "points" {
					lines = append(lines, strings.Fields(a.Value))
				}
			}
		}
	}
}

func TestArgumentsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, args := range []string{"--nodes 10,x", "--nodes 0", "--fill 0", "--cycles -1", "--repetitions 0"} {
		name, _, _ := strings.Cut(args, " ")
		if _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names %s", args, err, name)
		}
	}
}

func TestAWorldIsFilledToItsLastPlace(t *testing.T) {
	const nodes = 20
	for _, load := range []workload{plain, interleave, hardSpread, zoneAffinity, hostAntiAffinity} {
		w, err := newWorld(load, nodes, 1)
		if err != nil {
			t.Fatal(err)
		}
		for placed := 1; placed > 0; {
			if _, placed, err = w.decide(1); err != nil {
				t.Fatal(err)
			}
		}
		want := nodes * 110
		switch load.name {
		case zoneAffinity.name:
			want = nodes / zones * 110
		case hostAntiAffinity.name:
			want = nodes
		}
		if len(w.bound) != want || w.st.Count(cluster.Bound) != want {
			t.Errorf("%s: %d pods placed and %d bound, want %d", load.name, len(w.bound), w.st.Count(cluster.Bound), want)
		}
		if err := w.empty(); err != nil || w.st.Count(cluster.Bound) != 0 {
			t.Errorf("%s: %d pods are left: %v", load.name, w.st.Count(cluster.Bound), err)
		}
	}
}

func TestPointsLieWithinTheAxes(t *testing.T) {
	for _, p := range []plot{
		{lines: []line{{"a", []point{{0, 0.2}, {300, 7}}}}},
		{lines: []line{{"a", []point{{550_000, 33}}}}},
		{logarithmic: true, lines: []line{{"a", []point{{1000, 3}, {1e6, 4.2}}}, {"b", []point{{70, 10}}}}},
		{logarithmic: true, lines: []line{{"a", []point{{1000, 3}}}}},
	} {
		xs, ys := p.axes()
		for _, l := range p.lines {
			for _, at := range l.points {
				x, y := xs.at(at.x), ys.at(at.y)
				if math.IsNaN(x+y) || x < left || x > width-right || y < top || y > height-bottom {
					t.Errorf("%v is drawn at (%v, %v), outside", at, x, y)
				}
			}
		}
		if n := len(ys.ticks); n < 2 || n > 7 || len(xs.ticks) < 2 || len(xs.ticks) > 9 {
			t.Errorf("ticks at %v and %v, want 2 to 7", xs.ticks, ys.ticks)
		}
	}
}
