package command

import "testing"

func TestThreads(t *testing.T) {
	for _, test := range []struct {
		what       string
		now, cores int
		set        bool
		want       int
	}{
		{"a small machine", 2, 2, false, 4},
		{"one core", 1, 1, false, 4},
		{"a large machine", 64, 64, false, 64},
		{"GOMAXPROCS says two", 2, 2, true, 2},
		{"a container that may use two of many cores", 2, 64, false, 2},
	} {
		if got := threads(test.now, test.cores, minThreads, test.set); got != test.want {
			t.Errorf("%s: %d threads, want %d", test.what, got, test.want)
		}
	}
}
