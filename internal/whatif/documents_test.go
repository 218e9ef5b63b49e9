package whatif

import (
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/manifest"
)

// swelling is a document whose aliases stand for 200 MiB.
func swelling(head string) []byte {
	return []byte(head + "x: &a " + strings.Repeat("a", 100<<10) + "\ny: [" + strings.TrimSuffix(strings.Repeat("*a,", 2000), ",") + "]\n")
}

func TestManifestsDoNotSwell(t *testing.T) {
	const want = "aliases stand for more than"
	for _, head := range []string{"", "kind: Pod\n", "null\n---\n", "{}\n---\n", "a: 1\n--- # more\n"} {
		if _, err := Events(swelling(head)); err == nil || head == "" && !strings.Contains(err.Error(), want) {
			t.Errorf("Events behind %q: %v, want %q", head, err, want)
		}
		if _, err := ReadWorkload(swelling(head), 1, 10); err == nil || head == "" && !strings.Contains(err.Error(), want) {
			t.Errorf("ReadWorkload behind %q: %v, want %q", head, err, want)
		}
	}
	for _, head := range []string{"null\n---\n", "null\n---#\n", "kind: Ignored\n---\n"} { // what is one document to one reader is two to another
		if err := eachDocument(swelling(head), manifest.MaxListValues, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("behind %q: %v, want %q", head, err, want)
		}
	}
}

func TestManifestsMayHaveAnchors(t *testing.T) {
	load, err := ReadWorkload([]byte(`apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: a
    image: i
    resources:
      requests: &small {cpu: 1}
      limits: *small
`), 1, 10)
	if err != nil || len(load.Pods) != 1 {
		t.Errorf("%d pods, %v", len(load.Pods), err)
	}
}

func TestDocumentsAreThoseOfKubectl(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "\n": "", "a: 1": `{"a":1}`, "---\na: 1\n---\n---\nb: 2\n": `{"a":1} {"b":2}`, "null": "", "{\"a\":1}{\"b\":2}\n": `{"a":1} {"b":2}`,
		"{\"a\":1}\n---\nb: 2\n": `{"a":1} {"b":2}`, "{a: 1}\n": `{"a":1}`, " {a: 1}\n---\n{\"b\":2}": `{"a":1} {"b":2}`,
		"{\"a\":1}{\"b\":2}\n---\nc: 3\n": `{"a":1} {"b":2} document 3: `, "a: [\n": "document 1: ", "a: 1\n--- b\n": "document 1: ",
	} {
		var got []string
		if err := eachDocument([]byte(text), manifest.MaxListValues, func(raw []byte) error { got = append(got, string(raw)); return nil }); err != nil {
			got = append(got, err.Error())
		}
		if all := strings.Join(got, " "); all != want && !(strings.HasSuffix(want, ": ") && strings.HasPrefix(all, want)) {
			t.Errorf("%q: %s, want %s", text, all, want)
		}
	}
}
