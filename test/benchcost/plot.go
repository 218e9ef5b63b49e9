package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// plot is some lines over one pair of axes, both of which begin at 0, but for a logarithmic x.
type plot struct {
	title, x, y string
	logarithmic bool // x
	lines       []line
}

type line struct {
	name   string
	points []point
}

type point struct{ x, y float64 }

// The drawing, in pixels, and its colours, which can be read on white and on black.
const (
	width, height            = 760, 420
	left, right, top, bottom = 70, 20, 60, 60
	ink, grid                = "#808890", "#80889040"
)

var colours = []string{"#2f81f7", "#e0700d", "#2da44e", "#bf3989"}

// svg draws the plot.
func (p *plot) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `, width, height, width, height)
	fmt.Fprintf(&b, `font-family="sans-serif" font-size="12" fill="%s" stroke-width="1">`+"\n", ink)
	write := func(x, y float64, anchor, more, text string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, html.EscapeString(text))
	}
	stroke := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	xs, ys := p.axes()
	// 1. The axes, with their units.
	write(left, 22, "start", ` font-size="15"`, p.title)
	for _, t := range ys.ticks {
		at := ys.at(t)
		stroke(left, at, width-right, at, grid)
		write(left-8, at+4, "end", "", label(t))
	}
	for _, t := range xs.ticks {
		at := xs.at(t)
		stroke(at, top, at, height-bottom, grid)
		write(at, height-bottom+18, "middle", "", label(t))
	}
	stroke(left, height-bottom, width-right, height-bottom, ink)
	stroke(left, top, left, height-bottom, ink)
	unit := p.x
	if p.logarithmic {
		unit += " (logarithmic)"
	}
	write((left+width-right)/2, height-bottom+42, "middle", "", unit)
	write(20, (top+height-bottom)/2, "middle", fmt.Sprintf(` transform="rotate(-90 20 %d)"`, (top+height-bottom)/2), p.y)
	// 2. The lines, and which is which.
	legend := float64(left)
	for k, l := range p.lines {
		colour := colours[k%len(colours)]
		var points []string
		for _, at := range l.points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", xs.at(at.x), ys.at(at.y)))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colour)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="42" x2="%.1f" y2="42" stroke="%s" stroke-width="3"/>`+"\n", legend, legend+24, colour)
		write(legend+30, 46, "start", "", l.name)
		legend += 60 + 7*float64(len(l.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps values to pixels.
type axis struct {
	ticks []float64
	at    func(float64) float64
}

// axes returns axes that hold all points.
func (p *plot) axes() (x, y axis) {
	least, mostX, mostY := math.Inf(1), 0.0, 0.0
	for _, l := range p.lines {
		for _, at := range l.points {
			least, mostX, mostY = min(least, at.x), max(mostX, at.x), max(mostY, at.y)
		}
	}
	y.ticks = ticks(mostY)
	y.at = between(0, y.ticks[len(y.ticks)-1], height-bottom, top)
	if !p.logarithmic || mostX == 0 {
		x.ticks = ticks(mostX)
		x.at = between(0, x.ticks[len(x.ticks)-1], left, width-right)
		return x, y
	}
	first, last := math.Floor(math.Log10(least)), math.Ceil(math.Log10(mostX))
	last = max(last, first+1)
	for e := first; e <= last; e++ {
		x.ticks = append(x.ticks, math.Pow(10, e))
	}
	linear := between(first, last, left, width-right)
	x.at = func(v float64) float64 { return linear(math.Log10(v)) }
	return x, y
}

// between maps [from, to] to [a, b].
func between(from, to, a, b float64) func(float64) float64 {
	return func(v float64) float64 { return a + (v-from)/(to-from)*(b-a) }
}

// ticks returns about five round numbers from 0 to at least most.
func ticks(most float64) []float64 {
	if most <= 0 {
		return []float64{0, 1}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, round := range []float64{1, 2, 5, 10} {
		if step*round*5 >= most {
			step *= round
			break
		}
	}
	out := []float64{0}
	for k := 1.0; out[len(out)-1] < most; k++ {
		out = append(out, k*step)
	}
	return out
}

// label writes a number short: 20K, 1M.
func label(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + "M"
	case v >= 1000:
		return strconv.FormatFloat(v/1000, 'g', 3, 64) + "K"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// table prints the lines beside each other, about as many rows as told; the lines have points at the same places, but for
// the last.
func (p *plot) table(w io.Writer, rows int) {
	fmt.Fprintf(w, "\n%s, in %s\n%12s", p.title, p.y, p.x)
	longest := &p.lines[0]
	for k := range p.lines {
		fmt.Fprintf(w, "  %16s", p.lines[k].name)
		if len(p.lines[k].points) > len(longest.points) {
			longest = &p.lines[k]
		}
	}
	fmt.Fprintln(w)
	n := len(longest.points)
	for row := range min(rows, n) {
		i := row * (n - 1) / max(min(rows, n)-1, 1)
		fmt.Fprintf(w, "%12.0f", longest.points[i].x)
		for _, l := range p.lines {
			if i < len(l.points) {
				fmt.Fprintf(w, "  %16.2f", l.points[i].y)
			} else {
				fmt.Fprintf(w, "  %16s", "-")
			}
		}
		fmt.Fprintln(w)
	}
}
