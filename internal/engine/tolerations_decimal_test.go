package engine

import "testing"

func TestDecimalsAreThoseOfKubernetes(t *testing.T) {
	for text, want := range map[string]struct {
		n  int64
		ok bool
	}{
		"0": {0, true}, "7": {7, true}, "-3": {-3, true}, "1234567890123": {1234567890123, true}, "9223372036854775807": {1<<63 - 1, true},
		"": {}, "-": {}, "-0": {}, "05": {}, "-05": {}, "+5": {}, "5.0": {}, "5 ": {}, "five": {}, "--5": {}, "9223372036854775808": {}, "٣": {},
	} {
		if n, ok := decimal(text); n != want.n && want.ok || ok != want.ok {
			t.Errorf("%q: %d, %t, want %d, %t", text, n, ok, want.n, want.ok)
		}
	}
}
