package manifest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// vastNumbers are quantities that an API server takes minutes to compute with, if they come to be computed with.
var vastNumbers = []string{
	"1e-30000000", "1.e-30000000", "1E-30000000", "-.5e-30000000", "+1e-00030000000", "1e+30000000", "e30000000", "0e-30000000", " 1e-30000000 ",
	"1e99999999999999999999", strings.Repeat("9", MaxObjectBytes/2), "0." + strings.Repeat("0", MaxObjectBytes/2) + "1",
}

func TestVastQuantitiesAreNotComputedWith(t *testing.T) {
	for _, number := range vastNumbers {
		for form, text := range map[string]string{
			"text":               `"` + number + `"`,
			"a plain scalar":     number,
			"before another":     `"` + number + `", "cpu": "1"`,
			"behind another":     `"1", "cpu": "` + number + `"`,
			"with an escape":     `"\u0031` + number + `"`,
			"in another's place": `"1"}, "allocatable": {"cpu": "` + number + `"`,
		} {
			for _, input := range []string{
				`{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":` + text + `}}}`,
				`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":` + text + `}}}]}`,
			} {
				objects, err := Parse([]byte(input))
				if err == nil && form != "a plain scalar" { // which is 0 in YAML, and may be no number in JSON
					t.Errorf("%.20q as %s: %v", number, form, names(objects))
				}
			}
		}
	}
	for form, input := range map[string]string{
		"escaped": container(`resources: {requests: {cpu: "1\x65\u002d30000000"}}`),
		"quoted":  container(`resources: {requests: {cpu: '1.e-30000000'}}`),
		"folded":  "apiVersion: v1\nkind: Node\nmetadata: {name: x}\nstatus:\n  allocatable:\n    cpu: >-\n      1.e-30000000\n",
		"tagged":  container(`resources: {requests: {cpu: !!binary MS5lLTMwMDAwMDAw}}`),
		"alias":   "apiVersion: v1\nkind: Node\nmetadata: {name: x, labels: {a: &a \"1.e-30000000\"}}\nstatus: {allocatable: {cpu: *a}}\n",
		"a limit": pod("p", "  volumes: [{name: v, emptyDir: {sizeLimit: \"1.e-30000000\"}}]\n"),
	} {
		if objects, err := Parse([]byte(input)); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%s: %v, %v", form, names(objects), err)
		}
	}
}

// hiddenNumbers are such as escapes of JSON hide.
var hiddenNumbers = []string{`1\u0065-30000000`, `1\u0045-30000000`, `1e-3\u0030000000`, `1e\u002d30000000`, `\u0031\u002e\u0065\u002d\u0033\u0030000000`}

func TestVastQuantitiesThatAreHiddenByEscapesAreNotComputedWith(t *testing.T) {
	for _, number := range hiddenNumbers {
		input := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":"` + number + `"}}}`
		if objects, err := Parse([]byte(input)); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("%s: %v, %v", number, names(objects), err)
		}
		if err := UnmarshalStored([]byte(input), new(v1.Node)); err == nil {
			t.Errorf("%s is read from the store", number)
		}
	}
}

func TestWhatIsWrongWithAnObjectIsFoundWithoutItsVastQuantities(t *testing.T) {
	raw := []byte(`{"spec":{"overhead":{"cpu":"1\u0065-9999","memory":"1e-9\u0039999"},"volumes":[{"emptyDir":{"sizeLimit":"1e-9999"}}],"containers":7}}`)
	if wrong := mismatches(raw, new(v1.Pod)); len(wrong) != 4 || strings.Count(fmt.Sprint(wrong), "out of range") != 3 {
		t.Errorf("%v", wrong)
	}
}

// Each type that decodes itself is one whose text is read in one pass, but for quantities, which are judged before.
func TestOnlyQuantitiesTakeLongToDecode(t *testing.T) {
	quick := map[reflect.Type]bool{
		reflect.TypeFor[metav1.Time](): true, reflect.TypeFor[metav1.MicroTime](): true, reflect.TypeFor[metav1.FieldsV1](): true,
		reflect.TypeFor[intstr.IntOrString](): true, quantityType: true,
	}
	seen := make(map[reflect.Type]bool)
	var visit func(reflect.Type)
	visit = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		if pointer := reflect.PointerTo(of); pointer.Implements(unmarshaler) || pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			if !quick[of] {
				t.Errorf("%v decodes itself: bound what that takes", of)
			}
			return
		}
		switch of.Kind() {
		case reflect.Map:
			visit(of.Key())
			visit(of.Elem())
		case reflect.Pointer, reflect.Slice:
			visit(of.Elem())
		case reflect.Struct:
			for _, field := range fieldTypes(of) {
				visit(field)
			}
		case reflect.Array, reflect.Interface: // which nothing looks into
			t.Errorf("%v is not looked into", of)
		}
	}
	for _, k := range kinds {
		visit(reflect.TypeOf(k.zero().Value()))
	}
	if !seen[quantityType] || len(seen) < 100 {
		t.Errorf("%d types", len(seen))
	}
}

func TestWhatOnlyLooksLikeAVastQuantityIsTaken(t *testing.T) {
	objects, err := Parse([]byte(pod("p", "  nodeSelector: {commit: 12345e6789, serial: \"1e99999\"}\n") + "---\n" +
		"apiVersion: v1\nkind: Node\nmetadata: {name: nn, annotations: {digits: \"" + strings.Repeat("9", 1000) + "\"}}\nstatus: {allocatable: {cpu: 1e3, memory: 1E, pods: 0012e1}}\n"))
	if err != nil || len(objects) != 2 {
		t.Errorf("%v, %v", names(objects), err)
	}
}

// FuzzQuantity: what is let through is computed with at once. A text for which it is not hangs.
func FuzzQuantity(f *testing.F) {
	for _, number := range vastNumbers {
		f.Add(number)
	}
	f.Add("1e999")
	f.Add("12.5Mi")
	f.Fuzz(func(t *testing.T, text string) {
		if costly(text, toUnmarshal) {
			return
		}
		q, err := resource.ParseQuantity(strings.TrimSpace(text))
		if err != nil {
			return
		}
		q.Cmp(maxQuantity)
		q.RoundUp(resource.Milli)
		q.Add(maxCPU)
		_, _, _ = q.Value(), q.MilliValue(), q.String()
	})
}

// allocates returns how many bytes are allocated meanwhile.
func allocates(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// many is a JSON list, and a YAML one, that is as long as what is around it leaves room for.
func many(element string, size int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(element+",", size/(len(element)+1)), ",") + "]"
}

func TestManyValuesAreNotDecoded(t *testing.T) {
	const size = MaxObjectBytes - 1000
	for name, input := range map[string]string{
		"templates of volumes": `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"x"},"spec":{"volumeClaimTemplates":` + many("0", size) + `}}`,
		"containers":           `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":` + many("{}", size) + `}}`,
		"in YAML":              "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: " + many("a", size) + "}\n",
		"pairs in YAML":        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: " + many(":", size) + "}\n",
		"lists in a line":      "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n" + strings.Repeat("- - - - - - - - - - - - - - - -\n", size/32),
		"with an alias":        "apiVersion: v1\nkind: Pod\nmetadata: {name: &x x}\nspec: {nodeName: *x, containers: " + many("a", size) + "}\n",
	} {
		var err error
		if got := allocates(func() { _, err = Parse([]byte(input)) }); err == nil || got > 24<<20 {
			t.Errorf("%s: %d MiB for %d KiB: %.200v", name, got>>20, len(input)>>10, err)
		}
	}
}

func TestAnObjectMayHaveManyValues(t *testing.T) {
	node := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"x","annotations":{"a":"` + strings.Repeat(",", 100_000) + `"}},"status":{"allocatable":{"cpu":1},"images":` +
		many(`{"names":["a@b","c:d"],"sizeBytes":1}`, 117_000) + `}}`
	if _, err := Parse([]byte(node)); err != nil {
		t.Error(err)
	}
	var got v1.Node
	if err := Unmarshal([]byte(node), &got); err != nil || len(got.Status.Images) < 2990 {
		t.Errorf("%d images, %v", len(got.Status.Images), err)
	}
}

func TestWhatIsParsedIsUnmarshalled(t *testing.T) {
	number := "1" + strings.Repeat("2", 89) + "000000000e997"
	objects, err := Parse([]byte(pod("p", "  volumes: [{name: v, emptyDir: {sizeLimit: \""+number+"\"}}]\n")))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(objects[0].Pod)
	if err != nil {
		t.Fatal(err)
	}
	var again v1.Pod
	if err := Unmarshal(raw, &again); err != nil {
		t.Error(err)
	}
}

func TestStoredObjectsAreDecodedWithCareToo(t *testing.T) {
	for _, text := range []string{
		`{"ſTATUS":{"Allocatable":{"cpu":"1e-30000000"}}}`, // fields are found in any case
		`{"status":{"allocatable":{"cpu":"1e30000000","cpu":"1"}}}`,
		`{"status":{"images":` + many("0", 200_000) + `}}`,
	} {
		var node v1.Node
		if err := Unmarshal([]byte(text), &node); err == nil {
			t.Errorf("%.60s: taken", text)
		}
	}
}

func TestWhatIsStoredIsDecodedHoweverManyValuesItHas(t *testing.T) {
	raw := `{"kind":"Pod","spec":{"nodeName":"n","containers":[{"name":"c","args":` + many(`""`, MaxObjectBytes-100) + `}]}}`
	var pod v1.Pod
	if err := UnmarshalStored([]byte(raw), &pod); err != nil || len(pod.Spec.Containers[0].Args) < 300_000 {
		t.Errorf("%d arguments: %v", len(pod.Spec.Containers), err)
	}
	if err := Unmarshal([]byte(raw), &pod); err == nil {
		t.Error("what people send has as many")
	}
}

// TestAnswersAreDecodedWithCareToo: an answer has as many values as its server likes, and fields that are called as Go has them.
func TestAnswersAreDecodedWithCareToo(t *testing.T) {
	var answer struct {
		Nodes *v1.NodeList
		Names []string
	}
	for _, key := range []string{"Nodes", "nodes"} {
		raw := `{"` + key + `":{"items":[{},{"status":{"capacity":{"cpu":"1e-999999999"}}}]}}`
		if err := UnmarshalAnswer([]byte(raw), &answer); err == nil || !strings.Contains(err.Error(), ".items[1].status.capacity[cpu]: 1e-999999999") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	const many = 1_000_000
	raw := `{"Names":["a"` + strings.Repeat(`,"a"`, many) + `]}`
	if err := UnmarshalAnswer([]byte(raw), &answer); err != nil || len(answer.Names) != many+1 {
		t.Errorf("%d names, %v", len(answer.Names), err)
	}
}
