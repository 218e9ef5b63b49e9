package page

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// With -update it writes them; else it says where one is missing. They are not compared: what they show is never twice the same.
func TestThePicturesOfTheDocsAreThere(t *testing.T) {
	members := `document.querySelectorAll("#members tbody tr").length === 8`
	explained := `document.querySelector("#explanation .cause") && ` + text("pending") + `.includes("ml/huge-1")`
	pictures := []struct {
		name, route, scheme string
		width, height       int64
		ready               string
		use                 func(p *tab) // what to do then; nil: nothing
	}{
		{"page-cluster", "", "light", 1280, 1000, members, func(p *tab) {
			p.await("the stream", text("placements-state")+` === "live"`)
			var more []string
			for i := range 8 {
				more = append(more, pod("live", fmt.Sprintf("job-%d", i), 0, "cpu: 1, memory: 1Gi"))
			}
			if err := shared.apply(more...); err != nil {
				p.t.Fatal(err)
			}
			p.await("placements", `document.querySelectorAll("#placements li").length >= 8`)
		}},
		{"page-fits", "#/fits/ml/train-07", "dark", 1280, 800, text("legend") + `.includes("It fits on")`, nil},
		{"page-pod", "#/pods/ml/huge-0", "light", 1280, 960, explained, nil},
		{"page-whatif", "#/whatif", "light", 1280, 900, `true`, func(p *tab) {
			p.click("#example")
			p.write("#times", "3")
			p.click("#add-change")
			p.write("#changes input", "node-a-003")
			p.click("#whatif .primary")
			p.await("the outcome", `document.querySelector("#outcome .cause")`)
		}},
		{"page-capacity", "#/capacity/shop/web-000", "light", 1280, 800, `document.querySelector("#outcome .cause")`, nil},
		{"page-compare", "#/compare", "light", 1280, 900, `true`, func(p *tab) {
			p.click("#example-configuration")
			p.click("#everything")
			p.click("#whatif .primary")
			p.await("the outcome", `document.querySelector("#outcome .cause")`)
		}},
		{"page-cluster-phone", "", "light", 375, 812, members, nil},
		{"page-pod-phone", "#/pods/ml/huge-0", "dark", 375, 812, explained, nil},
	}
	for _, picture := range pictures {
		file := filepath.Join("..", "..", "docs", "images", picture.name+".png")
		if !*update {
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%v: run this test with -update", err)
			}
			continue
		}
		t.Run(picture.name, func(t *testing.T) {
			p := open(t, shared.http, picture.route)
			p.scheme(picture.scheme)
			p.size(picture.width, picture.height)
			p.await(picture.name, picture.ready)
			if picture.use != nil {
				picture.use(p)
			}
			shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			small, err := fewColours(shot)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, small, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// fewColours makes a PNG smaller: of its colours it keeps the 128 that are most frequent, and the nearest of them for the others.
func fewColours(picture []byte) ([]byte, error) {
	from, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	frequency, bounds := make(map[color.Color]int), from.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			frequency[from.At(x, y)]++
		}
	}
	kept := slices.SortedFunc(maps.Keys(frequency), func(a, b color.Color) int { return cmp.Compare(frequency[b], frequency[a]) })
	to := image.NewPaletted(bounds, kept[:min(len(kept), 128)])
	nearest := make(map[color.Color]uint8)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := from.At(x, y)
			index, known := nearest[c]
			if !known {
				index = uint8(to.Palette.Index(c))
				nearest[c] = index
			}
			to.SetColorIndex(x, y, index)
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}
