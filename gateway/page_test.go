package gateway

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPageIsTheStartOfTheSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOf(rapid.IntRange(0, 100)).Draw(t, "all")
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		page := smallest[int]{limit: limit, compare: cmp.Compare[int]}
		for _, x := range all {
			page.offer(x)
		}
		slices.Sort(all)
		if want, got := all[:min(limit, len(all))], page.sorted(); !slices.Equal(want, got) {
			t.Fatalf("the %d smallest are %v, got %v", limit, want, got)
		}
	})
}

func TestPageTokenOnlyFitsItsOwnList(t *testing.T) {
	token := pageToken("pods a", "ns", "name", "uid")
	key, violations := readPageToken(token, "pods a")
	if !slices.Equal(key, []string{"ns", "name", "uid"}) || violations != nil {
		t.Fatalf("readPageToken: %v, %v", key, violations)
	}
	for _, bad := range []string{"x", "AAAA", "AAAAAAAAAAAAAAAA", "%%%", token + "A", token[:len(token)-2], token[1:]} {
		if _, violations := readPageToken(bad, "pods a"); len(violations) != 1 || violations[0].Field != "page_token" {
			t.Errorf("readPageToken(%q): %v, want a violation of page_token", bad, violations)
		}
	}
	if _, violations := readPageToken(token, "pods b"); len(violations) != 1 {
		t.Error("a token fits a list with other filters")
	}
}
