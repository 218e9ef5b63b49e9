package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzPageToken: a token gives the key that it was made of and belongs to one list, whoever made it.
func FuzzPageToken(f *testing.F) {
	f.Add(pageToken("nodes", "node-0"), "nodes")
	f.Add(pageToken("pods", "default", "web", "uid"), "pods")
	f.Add("garbage", "nodes")
	f.Fuzz(func(t *testing.T, token, scope string) {
		key, violations := readPageToken(token, scope)
		if (len(key) > 0) == (token == "" || len(violations) > 0) {
			t.Fatalf("%q gives %q and %v", token, key, violations)
		}
		if len(key) == 0 {
			return
		}
		back, _ := readPageToken(pageToken(scope, key...), scope)
		if diff := cmp.Diff(key, back); diff != "" {
			t.Errorf("(-read +made and read again):\n%s", diff)
		}
		if _, wrong := readPageToken(token, scope+"x"); len(wrong) == 0 {
			t.Errorf("%q is a token of two lists", token)
		}
	})
}
