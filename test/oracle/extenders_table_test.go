package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/internal/extender"
)

// extenderCall is a call of kube-scheduler's client of extenders in one of its own tests.
type extenderCall struct {
	Point      string
	Managed    []string
	Pod        *v1.Pod
	Interested bool
	Nodes      map[string][]*v1.Pod
	Victims    map[string]*extenderv1.Victims
	Meta       map[string]*extenderv1.MetaVictims
}

// extenderTests are the tests that are run, each with what it calls, which is wrapped: a method, or a function, as it is declared, and what stands in its place.
var extenderTests = []struct{ name, receiver, calls, wrapper string }{
	{"TestIsInterested", "(h *HTTPExtender) ", "IsInterested", `(pod *v1.Pod) bool {
	out := h.unrecordedIsInterested(pod)
	berthTell(map[string]any{"Point": "IsInterested", "Managed": sets.List(h.managedResources), "Pod": pod, "Interested": out})
	return out
}`},
	{"TestConvertToMetaVictims", "", "convertToMetaVictims", `(victims map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := unrecordedconvertToMetaVictims(victims)
	berthTell(map[string]any{"Point": "convertToMetaVictims", "Victims": victims, "Meta": out})
	return out
}`},
	{"TestConvertToVictims", "(h *HTTPExtender) ", "convertToVictims", `(meta map[string]*extenderv1.MetaVictims, infos fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	out, err := h.unrecordedconvertToVictims(meta, infos)
	all, _ := infos.List()
	nodes := make(map[string][]*v1.Pod)
	for _, n := range all {
		nodes[n.Node().Name] = []*v1.Pod{}
		for _, p := range n.GetPods() {
			nodes[n.Node().Name] = append(nodes[n.Node().Name], p.GetPod())
		}
	}
	berthTell(map[string]any{"Point": "convertToVictims", "Victims": out, "Meta": meta, "Nodes": nodes})
	return out, err
}`},
}

// extenderTell is what the wrappers tell with.
const extenderTell = `
func berthTell(call map[string]any) {
	out, err := os.OpenFile(os.Getenv("BERTH_CALLS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer out.Close()
	if err := json.NewEncoder(out).Encode(call); err != nil {
		panic(err)
	}
}
`

// extenderCalls runs the tests of kube-scheduler's client of extenders, as they are in the module, and returns the calls that they have made.
func extenderCalls(t *testing.T) (out []extenderCall) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	tmp := t.TempDir()
	module, err := run(ctx, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(module), "pkg/scheduler/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := make(map[string]string)
	for _, file := range files {
		name := filepath.Base(file)
		here, err := filepath.Abs(filepath.Join("upstream", "scheduler", name))
		if err != nil {
			t.Fatal(err)
		}
		if elsewhere[here] = file; name != "extender.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range extenderTests {
			head := "func " + test.receiver
			if bytes.Count(text, []byte(head+test.calls+"(")) != 1 {
				t.Fatalf("extender.go has no %s to wrap", test.calls)
			}
			text = bytes.Replace(text, []byte(head+test.calls+"("), []byte(head+"unrecorded"+test.calls+"("), 1)
			text = append(text, "\n"+head+test.calls+test.wrapper+"\n"...)
		}
		text = append(bytes.Replace(text, []byte("import (\n"), []byte("import (\n\t\"os\"\n"), 1), extenderTell...)
		elsewhere[here] = filepath.Join(tmp, "extender.go.txt")
		if err := os.WriteFile(elsewhere[here], text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := buildOverlaid(ctx, tmp, elsewhere, "./upstream/scheduler"); err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(extenderTests))
	for i, test := range extenderTests {
		names[i] = test.name
	}
	calls := filepath.Join(tmp, "calls")
	if _, err := run(ctx, tmp, []string{"BERTH_CALLS=" + calls}, filepath.Join(tmp, "scheduler.test"), "-test.run=^("+strings.Join(names, "|")+")$"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	for b := range bytes.Lines(text) {
		var c extenderCall
		if err := json.Unmarshal(b, &c); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		out = append(out, c)
	}
	return out
}

// TestUpstreamsTablesOfExtendersAreAnsweredTheSame: whom pods interest, and what becomes of victims on the way there and back. How often each is called
// is how many cases there are; the flow around extenders, of which upstream's other test has cases with extenders in its own process, is
// compared in extenders_test.go.
func TestUpstreamsTablesOfExtendersAreAnsweredTheSame(t *testing.T) {
	server, urls, _ := startExtenderServers(t)
	set := func(managed ...string) *extender.Set {
		cfg := configv1.Extender{URLPrefix: urls[0] + "/0", PreemptVerb: "preempt", NodeCacheCapable: true}
		for _, name := range managed {
			cfg.ManagedResources = append(cfg.ManagedResources, configv1.ExtenderManagedResource{Name: name})
		}
		return newExtenderSet(t, &extenderCase{extenders: []configv1.Extender{cfg}})
	}
	met := make(map[string]int)
	for i, c := range extenderCalls(t) {
		met[c.Point]++
		t.Run(fmt.Sprintf("%s %d", c.Point, i), func(t *testing.T) {
			switch c.Point {
			case "IsInterested":
				if got := set(c.Managed...).Interest(extender.ResourceNames(c.Pod)) != 0; got != c.Interested {
					t.Errorf("a pod with %v interests an extender of %v: %v", slices.Collect(extender.ResourceNames(c.Pod)), c.Managed, got)
				}
			case "convertToMetaVictims":
				server.of = &extenderCase{served: []served{{}}}
				if _, err := set().Preempt(t.Context(), extender.NewPod(&v1.Pod{}), c.Victims, nil); err != nil {
					t.Fatal(err)
				}
				var got extenderv1.ExtenderPreemptionArgs
				if err := json.Unmarshal([]byte(server.take()[0].Body), &got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.Meta, got.NodeNameToMetaVictims); diff != "" {
					t.Errorf("sent (-want +got):\n%s", diff)
				}
			case "convertToVictims":
				server.of = &extenderCase{served: []served{{preempt: behaviour{Meta: c.Meta}}}}
				got, err := set().Preempt(t.Context(), extender.NewPod(&v1.Pod{}), c.Victims, func(node string) (pods []*v1.Pod, known, _ bool) {
					pods, known = c.Nodes[node]
					return pods, known, false
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.Victims, got); diff != "" {
					t.Errorf("victims (-want +got):\n%s", diff)
				}
				server.take()
			}
		})
	}
	if diff := cmp.Diff(map[string]int{"IsInterested": 5, "convertToMetaVictims": 1, "convertToVictims": 1}, met); diff != "" {
		t.Errorf("cases (-there were +there are):\n%s", diff)
	}
}
