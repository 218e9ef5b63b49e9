package main

import "testing"

func TestGoKeepsToATenthLessThanTheContainerMayHave(t *testing.T) {
	for text, want := range map[string]int64{"1073741824\n": 966367642, "max\n": 0, "": 0, "-1": 0, "x": 0, "9223372036854775807": 0} {
		if got := memoryLimit(text); got != want {
			t.Errorf("of a limit of %q: %d, want %d", text, got, want)
		}
	}
}
