package aliases

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
)

// many returns so many aliases of a, in a list.
func many(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("*a,", n), ",") + "]\n" }

// laughs returns anchors each of which is ten aliases of the one before.
func laughs(n int) string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for k := range n {
		alias := fmt.Sprintf("*a%d,", k)
		text += fmt.Sprintf("a%d: &a%d [%s]\n", k+1, k+1, strings.TrimSuffix(strings.Repeat(alias, 10), ","))
	}
	return text
}

// inUTF16 is another way to write YAML that readers know.
func inUTF16(text string) string {
	out := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(text)) {
		out = append(out, byte(u), byte(u>>8))
	}
	return string(out)
}

func TestAliasesMayStandForSoMuch(t *testing.T) {
	long := strings.Repeat("a", 100<<10)
	for name, c := range map[string]struct{ text, want string }{
		"none":                    {"a: 1\n", ""},
		"characters that are not": {"args: [\"a && b\", \"*.go\", x & y * z]\n", ""},
		"what people use":         {"x: &a {cpu: 1, memory: 1Gi}\nlimits: *a\nrequests: {<<: *a, cpu: 2}\n", ""},
		"a few of a long one":     {"x: &a " + long + "\ny: " + many(40), ""},
		"many of a long one":      {"x: &a " + long + "\ny: " + many(41), "line 2: aliases stand for more than 4194304 bytes"},
		"many of a short one":     {"x: &a 1\ny: " + many(200_000), "aliases stand for more than"},
		"many of many":            {"x: &a [" + strings.Repeat("1,", 1000) + "]\ny: " + many(200), "aliases stand for more than"},
		"keys":                    {"x: &a " + long + "\ny: {" + strings.Repeat("*a : 1,", 41) + "}\n", "aliases stand for more than"},
		"merged":                  {"x: &a {k: " + long + "}\ny: {<<: " + strings.TrimSpace(many(41)) + "}\n", "aliases stand for more than"},
		"aliases of aliases":      {laughs(5), "aliases stand for more than"},
		"and more of them":        {laughs(60), "aliases stand for more than"},
		"fewer of them":           {laughs(2), ""},
		"itself":                  {"x: &a [*a]\n", "line 1: the alias *a stands for itself"},
		"itself, further down":    {"x: &a {y: {z: [1, *a]}}\n", "stands for itself"},
		"an anchor used again":    {"x: &a [1]\ny: *a\nz: &a [2]\nw: [*a, *a]\n", ""},
		"no anchor":               {"# &\nx: *b\n", "unknown anchor"},
		"a document behind":       {"x: 1\n---\nx: &a " + long + "\ny: " + many(41), "aliases stand for more than"},
		"what cannot be read":     {"x: &a [\ny: *a\n", "yaml: "},
		"in UTF-16":               {inUTF16("x: &a " + long + "\ny: " + many(41)), "aliases stand for more than"},
	} {
		err := Check([]byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}
