package whatif

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/engine"
)

// node returns a node whose cpu is a text.
func nodeOf(cpu string) string {
	return `{"kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":` + cpu + `}}}`
}

func TestVastQuantitiesAreNotComputedWith(t *testing.T) {
	for _, number := range []string{
		`"1e-30000000"`, `1e-30000000`, `"1.e-30000000"`, `"e30000000"`, `"0e-30000000"`, `"1e-30000000","cpu":"1"`, `"1"},"ALLOCATABLE":{"cpu":"1e-30000000"`,
		`"1\u0065-30000000"`, `"1e-3\u0030000000"`, `"1","\u0063pu":"1\u0065-30000000"`,
		`"` + strings.Repeat("9", 1<<19) + `"`,
	} {
		for form, text := range map[string]string{
			"an object": nodeOf(number), "a list": `{"kind":"List","items":[` + nodeOf(number) + `]}`, "YAML": "# YAML\n" + nodeOf(number), "flow": " {kind: List, items: [" + nodeOf(number) + "]}",
		} {
			if events, err := Events([]byte(text)); err == nil && form != "YAML" && form != "flow" { // in YAML some are 0, or a field twice
				t.Errorf("events of %s with %.60s: %v", form, number, events)
			}
			if nodes, err := Nodes(t.Context(), []byte(text), 10); err == nil && form != "YAML" && form != "flow" {
				t.Errorf("nodes of %s with %.60s: %v", form, number, nodes)
			}
			pods := strings.NewReplacer(`"kind":"Node"`, `"apiVersion":"v1","kind":"Pod"`, `"status":{"allocatable":`, `"spec":{"overhead":`, "ALLOCATABLE", "overhead").Replace(text)
			if load, err := ReadWorkload(t.Context(), []byte(pods), 1, 10); err == nil {
				t.Errorf("pods of %s with %.60s: %v", form, number, load)
			}
			jobs := `{"kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{"overhead":{"cpu":` + number + `},"containers":[{"name":"c","image":"i"}]}}}}`
			if _, err := ReadWorkload(t.Context(), []byte(jobs), 1, 10); err == nil && number[0] == '"' && !strings.Contains(number, ":") { // else it is 0, or there twice: then the last counts
				t.Errorf("a job with %.60s", number)
			}
		}
	}
}

// allocates returns how many bytes are allocated meanwhile.
func allocates(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// size is that of the largest request.
const size = 4 << 20

func TestManyValuesAreNotDecoded(t *testing.T) {
	list := func(element string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", (size-1000)/(len(element)+1)), ",") + "]"
	}
	for name, text := range map[string]string{
		"templates of volumes": `{"kind":"StatefulSet","metadata":{"name":"x"},"spec":{"template":{},"volumeClaimTemplates":` + list("0") + `}}`,
		"containers":           `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":` + list("{}") + `}}`,
		"fields":               `{"kind":"ReplicaSet","metadata":{"name":"x","managedFields":` + list("0") + `},"spec":{"template":{}}}`,
		"expressions":          `{"kind":"ReplicaSet","metadata":{"name":"x"},"spec":{"template":{},"selector":{"matchExpressions":` + list("0") + `}}}`,
		"images":               `{"kind":"Node","metadata":{"name":"x"},"status":{"images":` + list("0") + `}}`,
		"items":                `{"kind":"List","items":` + list("0") + `}`,
		"in YAML":              "kind: Node\nmetadata: {name: x}\nspec: {taints: " + list("a") + "}\n",
		"pairs in YAML":        "kind: Node\nmetadata: {name: x}\nspec: {taints: " + list(":") + "}\n",
		"with an alias":        "kind: Node\nmetadata: {name: &x x}\nspec: {podCIDR: *x, taints: " + list("a") + "}\n",
		"lists in lists":       "kind: Node\nmetadata: {name: x}\nspec: " + strings.Repeat("- ", size/2) + "\n",
	} {
		for what, read := range map[string]func() error{
			"Nodes":        func() error { _, err := Nodes(t.Context(), []byte(text), 10_000); return err },
			"ReadWorkload": func() error { _, err := ReadWorkload(t.Context(), []byte(text), 1, 10_000); return err },
		} {
			var err error
			if got := allocates(func() { err = read() }); err == nil || got > 64<<20 {
				t.Errorf("%s of %s: %d MiB for 4: %.200v", what, name, got>>20, err)
			}
		}
	}
}

func TestNodesAreReadUpToALimit(t *testing.T) {
	var text strings.Builder
	for k := range 5 {
		fmt.Fprintf(&text, "kind: Node\nmetadata: {name: n%d}\n---\nkind: Pod\nmetadata: {name: p}\nspec: 7\n---\n", k)
	}
	nodes, err := Nodes(t.Context(), []byte(text.String()), 5)
	if err != nil || len(nodes) != 5 || nodes[4].Name != "n4" {
		t.Errorf("%v, %v", nodes, err)
	}
	if nodes, err := Nodes(t.Context(), []byte(text.String()), 4); err == nil {
		t.Errorf("more than so many: %v", nodes)
	}
}

// One's own file is as large as it is.
func TestOnesOwnFileHasAsManyObjectsAsItHas(t *testing.T) {
	items := strings.TrimSuffix(strings.Repeat(`{"kind":"Namespace","metadata":{"name":"a","labels":{`+strings.Repeat(`"a":"b",`, 999)+`"a":"b"}}},`, 600), ",")
	if _, err := FromObjects([]byte(`{"kind":"List","items":[`+items+`]}`), settings(), engine.EvaluatorConfig{}); err != nil {
		t.Error(err)
	}
}

func TestWhatIsSaidOfPodsIsBounded(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 1000)))
	for name, c := range map[string]struct {
		options PlaceOptions
		long    bool
	}{
		"any": {PlaceOptions{}, false}, "enough": {PlaceOptions{MaxText: 10_000}, false}, "too little": {PlaceOptions{MaxText: 5000, Preempt: true}, true},
		"nothing is said": {PlaceOptions{MaxText: 1, Brief: true}, false},
	} {
		try(t, s, func(w *World) error {
			ids, err := w.Add(Workload{Pods: Copies(aPod("p", 2000), 100)})
			if err != nil {
				return err
			}
			outcomes, err := Place(w, ids, c.options)
			if errors.Is(err, ErrTooLong) != c.long || err != nil && !c.long {
				t.Errorf("%s: %v", name, err)
			}
			for _, o := range outcomes {
				if o.Outcome != Unplaced || (o.Message == "") != c.options.Brief || (o.Verdicts == nil) != c.options.Brief {
					t.Fatalf("%s: %+v", name, o)
				}
			}
			return nil
		})
	}
}

// What a manifest is about is found out without what it stands for.
func TestNamespacesThatMatterAreFoundWithoutThePods(t *testing.T) {
	set := func(kind, namespace, volumes string) string {
		return "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, namespace: " + namespace + "}\nspec: {replicas: 5000, selector: {matchLabels: {app: web}}, " + kind +
			"template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}], volumes: [" + volumes + "]}}}\n"
	}
	input := []byte(set("volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}], ", "templates", "") +
		set("", "none", "") +
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: named}\nspec: {containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}\n" +
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ephemeral}\nspec: {containers: [{name: c, image: i}], volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]}\n" +
		"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c, namespace: brought}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n" +
		"---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: v}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}\n" +
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: member}\nspec: {schedulingGroup: {podGroupName: g}, containers: [{name: c, image: i}]}\n" +
		"---\napiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup\nmetadata: {name: g, namespace: group}\nspec: {schedulingPolicy: {basic: {}}}\n")
	var got Namespaces
	var err error
	if most := allocates(func() { got, err = NamespacesOf(t.Context(), input, 1, 20_000) }); most > 4<<20 {
		t.Errorf("%d bytes are allocated for 10,000 pods that nobody needs yet", most)
	}
	if want := (Namespaces{Claims: []string{"brought", "ephemeral", "named", "templates"}, Groups: []string{"group", "member"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"a: b", "# nothing", "kind: List", "apiVersion: v1\nkind: Pod\nmetadata: {name: UP}\nspec: {}\n", set("replicas: x, ", "n", ""), set("", "a", "") + set("", "b", "") + set("", "c", "")} {
		_, one := ReadWorkload(t.Context(), []byte(bad), 1, 10_000)
		_, two := NamespacesOf(t.Context(), []byte(bad), 1, 10_000)
		if one == nil || two == nil || one.Error() != two.Error() {
			t.Errorf("%.30s: %v, and %v", bad, one, two)
		}
	}
}
