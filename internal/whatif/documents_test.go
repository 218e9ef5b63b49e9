package whatif

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
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
		if _, err := ReadWorkload(t.Context(), swelling(head), 1, 10); err == nil || head == "" && !strings.Contains(err.Error(), want) {
			t.Errorf("ReadWorkload behind %q: %v, want %q", head, err, want)
		}
	}
	for _, head := range []string{"null\n---\n", "null\n---#\n", "kind: Ignored\n---\n"} { // what is one document to one reader is two to another
		if err := eachDocument(t.Context(), swelling(head), asked, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("behind %q: %v, want %q", head, err, want)
		}
	}
}

func TestManifestsMayHaveAnchors(t *testing.T) {
	load, err := ReadWorkload(t.Context(), []byte(`apiVersion: v1
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
		if err := eachDocument(t.Context(), []byte(text), asked, func(raw []byte) error { got = append(got, string(raw)); return nil }); err != nil {
			got = append(got, err.Error())
		}
		if all := strings.Join(got, " "); all != want && !(strings.HasSuffix(want, ": ") && strings.HasPrefix(all, want)) {
			t.Errorf("%q: %s, want %s", text, all, want)
		}
	}
}

func TestDocumentsAreCountedTheEmptyOnesToo(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"
	for name, empty := range map[string]string{"null": "---\n~\n", "a comment": "---\n#\n", "JSON": "null "} {
		input := func(n int) []byte {
			if name == "JSON" { // what begins with null is YAML
				return []byte(strings.Repeat(`{"kind":"Pod"}`, n))
			}
			return []byte(pod + strings.Repeat(empty, n))
		}
		visited := 0
		visit := func([]byte) error { visited++; return nil }
		if err := eachDocument(t.Context(), input(99), extent{values: 100, documents: 100}, visit); err != nil || visited == 0 {
			t.Errorf("%s: %d are visited of as many as there may be: %v", name, visited, err)
		}
		if err := eachDocument(t.Context(), input(101), extent{values: 100, documents: 100}, visit); !errors.Is(err, ErrTooMuch) || !strings.HasPrefix(fmt.Sprint(err), "document 101: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := []byte(pod + strings.Repeat("---\n~\n", asked.documents))
	for what, read := range map[string]func() error{
		"Nodes":        func() error { _, err := Nodes(t.Context(), many, 10); return err },
		"ReadWorkload": func() error { _, err := ReadWorkload(t.Context(), many, 1, 10); return err },
	} {
		if err := read(); !errors.Is(err, ErrTooMuch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := FromObjects(many, settings(), engine.EvaluatorConfig{}); err != nil {
		t.Errorf("one's own file: %v", err)
	}
}

func TestNoDocumentIsReadForWhomNobodyWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	visited := 0
	err := eachDocument(ctx, []byte(strings.Repeat("---\na: 1\n", 100)), asked, func([]byte) error {
		if visited++; visited == 3 {
			cancel()
		}
		return nil
	})
	if visited != 3 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d documents: %v", visited, err)
	}
}
