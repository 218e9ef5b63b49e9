package command

import (
	"math"
	"testing"
)

func TestGoKeepsToATenthLessThanTheContainerMayHave(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 966367642, "max\n": 0, "": 0, "-1": 0, "x": 0, "9223372036854775807": 0} {
		if got := memoryLimit(text); got != want {
			t.Errorf("of a limit of %q: %d, want %d", text, got, want)
		}
	}
}

func TestAGatewayCollectsNoGarbageBeforeThereIsSome(t *testing.T) {
	for _, test := range []struct {
		what  string
		limit int64
		set   bool
		want  int64
	}{
		{"no limit", math.MaxInt64, false, 64 << 20},
		{"the manifests' limit", 1 << 30, false, 64 << 20},
		{"a small container", 256 << 20, false, 16 << 20},
		{"GOGC says when", math.MaxInt64, true, 0},
	} {
		if got := floorBytes(test.limit, test.set); got != test.want {
			t.Errorf("%s: %d bytes, want %d", test.what, got, test.want)
		}
	}
}
