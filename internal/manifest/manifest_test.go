package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const node = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {zone: a}}
status: {capacity: {cpu: 4, memory: 16Gi}}
`

// pod returns a pod's manifest with more lines in its spec.
func pod(name, spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec:\n  containers: [{name: main, image: app}]\n" + spec
}

// container returns a pod's manifest with a container of these fields.
func container(fields string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: main, " + fields + "}]\n"
}

func affinity(term string) string {
	return pod("p", "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["+term+"]}}}")
}

func names(objects []Object) string {
	var out []string
	for _, o := range objects {
		out = append(out, fmt.Sprintf("%d %s", o.Document, o))
	}
	return strings.Join(out, ", ")
}

func TestDocumentsAndListsAreRead(t *testing.T) {
	for _, test := range []struct{ name, input, want string }{
		{"one document", node, "1 Node n1"},
		{"several documents", "# first\n---\n" + node + "---\n\n---   # a comment\n" + pod("p", "") + "\n...\n---\n" + pod("q", ""), "1 Node n1, 2 Pod default/p, 3 Pod default/q"},
		{"lines that end as on Windows", strings.ReplaceAll(node+"---\n"+pod("p", ""), "\n", "\r\n"), "1 Node n1, 2 Pod default/p"},
		{"a byte order mark", "\ufeff" + node, "1 Node n1"},
		{"a document on the separator's line", "--- {apiVersion: v1, kind: Namespace, metadata: {name: x}}", "1 Namespace x"},
		{"JSON", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}} {"apiVersion":"v1","kind":"Namespace","metadata":{"name":"y"}}`, "1 Namespace x, 2 Namespace y"},
		{"a List", `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":""},"items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}},{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"x"},"spec":{"containers":[{"name":"a"}]}}]}`, "1 Namespace x, 1 Pod x/p"},
		{"a separator within text", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n  annotations:\n    text: |\n      ---\n      ---\n", "1 Namespace x"},
		{"YAML in braces", "{apiVersion: v1, kind: Namespace, metadata: {name: x}}", "1 Namespace x"},
		{"the same name in different namespaces", pod("p", "") + "---\n" + strings.Replace(pod("p", ""), "name: p", "name: p, namespace: other", 1), "1 Pod default/p, 2 Pod other/p"},
	} {
		objects, err := Parse([]byte(test.input))
		if err != nil || names(objects) != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, names(objects), err, test.want)
		}
	}
}

func TestBadInputIsRefusedWithItsPlace(t *testing.T) {
	tooLong := strings.Repeat("x", 300)
	for _, test := range []struct {
		name, input string
		want        []string // Violation strings, or their beginnings
	}{
		{"nothing", "", []string{"the input contains no object"}},
		{"comments only", "# nothing\n---\n# here\n", []string{"the input contains no object"}},
		{"an empty list", `{"apiVersion":"v1","kind":"List","items":[]}`, []string{"the input contains no object"}},
		{"not YAML", "a: [1", []string{"document 1: not valid YAML: line 1: did not find expected ',' or ']'"}},
		{"not JSON", `{"apiVersion": "v1",, }`, []string{"document 1: not valid YAML"}},
		{"bytes", "\x00\x01\x02", []string{"document 1: not valid YAML: control characters are not allowed"}},
		{"text", "hello", []string{"document 1: want a mapping with apiVersion, kind and metadata"}},
		{"a list of objects", "- " + `{"kind":"Node"}`, []string{"document 1: want a mapping"}},
		{"a kind that is not text", "apiVersion: v1\nkind: 7\nmetadata: {name: x}", []string{`document 1, kind: want text (put it in quotes), not the number 7`}},
		{"another kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: x}", []string{
			`document 1, Deployment x/d, kind: "Deployment" is not supported, want Node, Pod, Namespace, Service, ReplicationController, ReplicaSet, StatefulSet, PodDisruptionBudget, PersistentVolume, PersistentVolumeClaim, StorageClass, CSINode, CSIDriver, CSIStorageCapacity, VolumeAttachment, PodGroup or List`}},
		{"a kind of another version", "apiVersion: apps/v1beta1\nkind: StatefulSet\nmetadata: {name: s}", []string{`document 1, StatefulSet s, apiVersion: "apps/v1beta1" is not supported, want "apps/v1"`}},
		{"a kind without its group", "apiVersion: v1\nkind: ReplicaSet\nmetadata: {name: s}", []string{`document 1, ReplicaSet s, apiVersion: "v1" is not supported, want "apps/v1"`}},
		{"the second document", node + "---\n" + pod("p", "  nodename: x\n"), []string{"document 2, Pod p, spec.nodename: unknown field"}},
		{"unknown fields", pod("p", "  foo: 1\n  tolerations: [{key: k, operator: Exists, vlaue: v}]\n"), []string{
			"document 1, Pod p, spec.foo: unknown field", "document 1, Pod p, spec.tolerations[0].vlaue: unknown field"}},
		{"a field in other letters", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nStatus: {}", []string{"document 1, Node n1, Status: unknown field"}},
		{"a key twice in YAML", node + "metadata: {name: n2}\n", []string{`document 1: not valid YAML: line 6: key "metadata" already set in map`}},
		{"a key twice in JSON", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x","labels":{"a":"1","a":"2"}}}`, []string{`document 1, Namespace x, metadata.labels.a: duplicate field`}},
		{"wrong types", pod("p", "  priority: high\n  hostNetwork: \"yes\"\n  nodeSelector: [a]\n  tolerations: {}\n  schedulingGates: [5]\n"), []string{
			"document 1, Pod p, spec.hostNetwork: want true or false, not the text \"yes\"",
			"document 1, Pod p, spec.nodeSelector: want a mapping, not a list",
			"document 1, Pod p, spec.priority: want a whole number of 32 bits, not the text \"high\"",
			"document 1, Pod p, spec.schedulingGates[0]: want a mapping, not the number 5",
			"document 1, Pod p, spec.tolerations: want a list, not a mapping"}},
		{"a label that is not text", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {on: true}}", []string{`document 1, Namespace x, metadata.labels[`}},
		{"a priority beyond 32 bits", pod("p", "  priority: 3000000000\n"), []string{"document 1, Pod p, spec.priority: want a whole number of 32 bits, not the number 3000000000"}},
		{"a quantity that is none", container(`resources: {requests: {cpu: 1, memory: lots}}`), []string{
			`document 1, Pod p, spec.containers[0].resources.requests[memory]: "lots": quantities must match`}},
		{"a quantity with a vast exponent", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"capacity":{"cpu":1e-999999999}}}`, []string{
			"document 1, Node x, status.capacity[cpu]: 1e-999999999: the exponent is out of range"}},
		{"a quoted quantity with a vast exponent", container(`resources: {requests: {memory: "1e-999999999"}}`), []string{
			"document 1, Pod p, spec.containers[0].resources.requests[memory]: 1e-999999999: the exponent is out of range"}},
		{"a negative quantity", container(`resources: {requests: {cpu: -1}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must not be negative`}},
		{"quantities that overflow", container(`resources: {requests: {cpu: 10P, memory: 20Ei}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[cpu]: Invalid value: "10P": too large`,
			`document 1, Pod default/p, spec.containers[0].resources.requests[memory]: Invalid value: "9223372036854775807": too large`}},
		{"a sum that overflows", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: a, resources: {requests: {memory: 7Ei}}}, {name: b, resources: {requests: {memory: 7Ei}}}]", []string{
			`document 1, Pod default/p, spec.containers.(sum of requests)[memory]: Invalid value: "14Ei": too large`}},
		{"a fraction of a device", container(`resources: {requests: {nvidia.com/gpu: 500m}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "500m": must be a whole number`}},
		{"a request above the limit", container(`resources: {requests: {cpu: 2}, limits: {cpu: 1}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[cpu]: Invalid value: "2": must not be more than the limit of 1`}},
		{"a device overcommitted", container(`resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "1": must be equal to the limit of 2`}},
		{"a resource nobody knows", container(`resources: {requests: {gpu: 1}}`), []string{
			`document 1, Pod default/p, spec.containers[0].resources.requests[gpu]: Invalid value: "gpu": must be cpu, memory`}},
		{"no container", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}", []string{"document 1, Pod default/p, spec.containers: Required value: at least one container"}},
		{"containers of one name", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}, {name: a}]}", []string{`document 1, Pod default/p, spec.containers[1].name: Duplicate value: "a"`}},
		{"no name", "apiVersion: v1\nkind: Namespace\nmetadata: {generateName: x-}", []string{"document 1, Namespace, metadata.name: Required value: generateName is not supported"}},
		{"a name that cannot be", "apiVersion: v1\nkind: Namespace\nmetadata: {name: A_b}", []string{`document 1, Namespace A_b, metadata.name: Invalid value: "A_b": a lowercase RFC 1123 label`}},
		{"a name that is too long", pod(tooLong, ""), []string{"document 1, Pod default/" + tooLong + ", metadata.name: Invalid value"}},
		{"a label that cannot be", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {a b: c, k: d e}}", []string{
			"document 1, Namespace x, metadata.labels[a b]: Invalid value: \"a b\"", "document 1, Namespace x, metadata.labels[k]: Invalid value: \"d e\""}},
		{"a selector operator", affinity(`{matchExpressions: [{key: zone, operator: Near, values: [a]}]}`), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Near"`}},
		{"In without values", affinity(`{matchExpressions: [{key: zone, operator: In}]}`), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: at least one value for In`}},
		{"Exists with values", affinity(`{matchExpressions: [{key: zone, operator: Exists, values: [a]}]}`), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Forbidden: there can be none for Exists`}},
		{"Gt with text", affinity(`{matchExpressions: [{key: zone, operator: Gt, values: [a]}]}`), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: "a": must be a whole number for Gt`}},
		{"a field that cannot be selected", affinity(`{matchFields: [{key: metadata.uid, operator: In, values: [a]}]}`), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key: Unsupported value: "metadata.uid"`}},
		{"no term", affinity(``), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: at least one term`}},
		{"a weight", pod("p", "  affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 101, preference: {matchExpressions: [{key: a, operator: Exists}]}}]}}"), []string{
			`document 1, Pod default/p, spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be from 1 to 100`}},
		{"a pod affinity selector", pod("p", "  affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: Like}]}}]}}"), []string{
			`document 1, Pod default/p, spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].operator: Invalid value: "Like": not a valid selector operator`}},
		{"a spread constraint", pod("p", "  topologySpreadConstraints: [{topologyKey: zone, maxSkew: 0, whenUnsatisfiable: Maybe}]"), []string{
			`document 1, Pod default/p, spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0`,
			`document 1, Pod default/p, spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Maybe"`}},
		{"a node selector", pod("p", "  nodeSelector: {zone: a b}"), []string{`document 1, Pod default/p, spec.nodeSelector[zone]: Invalid value: "a b"`}},
		{"tolerations", pod("p", "  tolerations: [{key: k, operator: Like}, {operator: Equal}, {key: k, operator: Exists, value: v}, {key: k, effect: Never}]"), []string{
			`document 1, Pod default/p, spec.tolerations[0].operator: Unsupported value: "Like"`,
			`document 1, Pod default/p, spec.tolerations[1].operator: Invalid value: "Equal": must be Exists if there is no key`,
			`document 1, Pod default/p, spec.tolerations[2].value: Invalid value: "v": must be empty if the operator is Exists`,
			`document 1, Pod default/p, spec.tolerations[3].effect: Unsupported value: "Never"`}},
		{"host ports", container(`ports: [{containerPort: 80, hostPort: 70000}, {containerPort: 80, hostPort: -1}, {containerPort: 0}, {containerPort: 1, hostPort: 5}, {containerPort: 2, hostPort: 5}, {containerPort: 1, protocol: HTTP, hostIP: here}]`), []string{
			`document 1, Pod default/p, spec.containers[0].ports[0].hostPort: Invalid value: 70000`,
			`document 1, Pod default/p, spec.containers[0].ports[1].hostPort: Invalid value: -1`,
			`document 1, Pod default/p, spec.containers[0].ports[2].containerPort: Invalid value: 0`,
			`document 1, Pod default/p, spec.containers[0].ports[4].hostPort: Duplicate value: "/TCP/5"`,
			`document 1, Pod default/p, spec.containers[0].ports[5].protocol: Unsupported value: "HTTP"`,
			`document 1, Pod default/p, spec.containers[0].ports[5].hostIP: Invalid value: "here"`}},
		{"gates", pod("p", "  nodeName: n1\n  schedulingGates: [{name: a}, {name: a}]"), []string{
			`document 1, Pod default/p, spec.nodeName: Forbidden: a pod with scheduling gates cannot be on a node`,
			`document 1, Pod default/p, spec.schedulingGates[1].name: Duplicate value: "a"`}},
		{"a priority class", pod("p", "  priorityClassName: high"), []string{`document 1, Pod default/p, spec.priorityClassName: Invalid value: "high"`}},
		{"taints", node + "spec: {taints: [{key: k, effect: Never}, {key: k}, {key: a b, effect: NoSchedule}, {key: k, effect: NoSchedule}, {key: k, value: x, effect: NoSchedule}]}", []string{
			`document 1, Node n1, spec.taints[0].effect: Unsupported value: "Never"`,
			`document 1, Node n1, spec.taints[1].effect: Required value`,
			`document 1, Node n1, spec.taints[2].key: Invalid value: "a b"`,
			`document 1, Node n1, spec.taints[4]: Duplicate value: "k:NoSchedule"`}},
		{"a node of no size", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}", []string{`document 1, Node n1, status.allocatable: Required value: what pods can use of the node`}},
		{"a node of negative size", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: -1, memory: 1Gi}}", []string{`document 1, Node n1, status.allocatable[cpu]: Invalid value: "-1": must not be negative`}},
		{"an object twice", pod("p", "") + "---\n" + node + "---\n" + pod("p", ""), []string{`document 3, Pod default/p, metadata.name: it is defined twice: in document 1 and in document 3`}},
		{"an object twice in a list", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}},{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}}]}`, []string{
			`document 1, Namespace x, items[1].metadata.name: it is defined twice: in document 1, items[0] and in document 1, items[1]`}},
		{"an item of a list", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"}}, 5, {"apiVersion":"v1","kind":"List"}]}`, []string{
			`document 1, Node x, items[0].status.allocatable: Required value`,
			`document 1, items[1]: want a mapping`,
			`document 1, List, items[2].kind: "List" is not supported`}},
		{"a list with more than items", `{"apiVersion":"v1","kind":"List","item":[]}`, []string{`document 1, List, item: unknown field`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects, err := Parse([]byte(test.input))
			invalid, ok := errors.AsType[*Error](err)
			if !ok || objects != nil {
				t.Fatalf("Parse: %v, %v; want an *Error and no objects", names(objects), err)
			}
			var got []string
			for i, v := range invalid.Violations {
				s := v.String()
				if i < len(test.want) && strings.HasPrefix(s, test.want[i]) {
					s = test.want[i]
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// What is too large is refused before it is decoded: what is decoded costs allocations by the label.
func TestTooMuchIsNotDecoded(t *testing.T) {
	var labels strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&labels, "    label-%d: \"0123456789\"\n", i)
	}
	large := "apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  labels:\n" + labels.String()
	if len(large) < 10<<20 {
		t.Fatalf("only %d bytes", len(large))
	}
	text := strings.Repeat("x", MaxObjectBytes)
	for name, input := range map[string]string{
		"10 MB of labels":          large,
		"a large object of a list": "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: x, annotations: {a: " + text + "}}}\n",
		"a large object in JSON":   `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x","annotations":{"a":"` + text + `"}}}`,
		"an input beyond all":      strings.Repeat(" ", MaxInputBytes+1),
	} {
		var err error
		allocated := testing.AllocsPerRun(1, func() { _, err = Parse([]byte(input)) })
		if err == nil || !strings.Contains(err.Error(), "bytes, at most") || len(err.Error()) > 1000 {
			t.Errorf("%s: %.200v", name, err)
		}
		if allocated > 5000 {
			t.Errorf("%s: %v allocations", name, allocated)
		}
	}
	// A list may be larger than an object may.
	var items strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&items, ",\n"+`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x-%d","annotations":{"a":"%s"}}}`, i, strings.Repeat("y", 500))
	}
	objects, err := Parse([]byte(`{"apiVersion":"v1","kind":"List","items":[` + items.String()[2:] + `]}`))
	if err != nil || len(objects) != 3000 {
		t.Errorf("a large list: %d objects, %.200v", len(objects), err)
	}
}

func TestAnErrorListsTheFirstViolations(t *testing.T) {
	var input strings.Builder
	for i := range 60 {
		fmt.Fprintf(&input, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: X%d}\n", i)
	}
	_, err := Parse([]byte(input.String()))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 22 || lines[0] != "invalid manifests, 60 errors:" || lines[21] != "  and 40 more" || !strings.HasPrefix(lines[1], "  document 1, Namespace X0, metadata.name: ") {
		t.Errorf("%d lines: %q, %q … %q", len(lines), lines[0], lines[1], lines[len(lines)-1])
	}
	for range 100 {
		input.WriteString("---\n5\n")
	}
	_, err = Parse([]byte(input.String()))
	if invalid, ok := errors.AsType[*Error](err); !ok || len(invalid.Violations) != maxViolations {
		t.Errorf("%v; want %d violations", err, maxViolations)
	}
}

func TestDefaultsAreTheAPIServers(t *testing.T) {
	objects, err := Parse([]byte(node + "---\n" + `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  containers:
  - {name: a, ports: [{containerPort: 80}], resources: {limits: {cpu: 2, nvidia.com/gpu: 1}, requests: {cpu: 500m}}}
  - {name: b, resources: {limits: {memory: 1Gi}}}
status: {phase: Running, conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: a, ready: true, restartCount: 0, image: "", imageID: ""}]}
---
apiVersion: v1
kind: Pod
metadata: {name: q}
spec:
  resources: {limits: {cpu: 4, memory: 2Gi}}
  containers: [{name: a, resources: {requests: {cpu: 1}}}]
status: {phase: Succeeded, message: done}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {capacity: {cpu: 8, pods: 30}, allocatable: {cpu: 7}}
`))
	if err != nil {
		t.Fatal(err)
	}
	quantities := func(pairs ...string) v1.ResourceList {
		list := v1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return list
	}
	check := func(what string, want, got any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("allocatable taken from capacity", quantities("cpu", "4", "memory", "16Gi", "pods", "110"), objects[0].Node.Status.Allocatable)
	check("capacity", quantities("cpu", "4", "memory", "16Gi"), objects[0].Node.Status.Capacity)
	check("allocatable without pods", quantities("cpu", "7", "pods", "110"), objects[3].Node.Status.Allocatable)
	p := objects[1].Pod
	check("namespace and scheduler", "default default-scheduler", p.Namespace+" "+p.Spec.SchedulerName)
	check("requests of a", quantities("cpu", "500m", "nvidia.com/gpu", "1"), p.Spec.Containers[0].Resources.Requests)
	check("requests of b", quantities("memory", "1Gi"), p.Spec.Containers[1].Resources.Requests)
	check("port", v1.ContainerPort{ContainerPort: 80, HostPort: 80, Protocol: "TCP"}, p.Spec.Containers[0].Ports[0])
	check("priority", int32(2000001000), *p.Spec.Priority)
	check("status of a pod that runs", v1.PodStatus{}, p.Status)
	check("status of a pod that has ended", v1.PodStatus{Phase: v1.PodSucceeded}, objects[2].Pod.Status)
	check("pod-level requests", quantities("cpu", "1", "memory", "2Gi"), objects[2].Pod.Spec.Resources.Requests)
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add([]byte(node))
	f.Add([]byte(pod("p", "  tolerations: [{key: k}]")))
	f.Add([]byte("--- {apiVersion: v1}\n--- !!binary x\n- &a [*a]"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[null,{}]}`))
	f.Add([]byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"cpu":"1.e-30000000","cpu":"e30000000"}}}`))
	for _, number := range hiddenNumbers {
		f.Add([]byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"},"status":{"allocatable":{"\u0063pu":"` + number + `"}}}`))
		f.Add([]byte(container(`resources: {requests: {cpu: "` + number + `"}}`)))
	}
	f.Add([]byte(container(`resources: {requests: {cpu: "1\x65\U0000002d3\u0030000000"}}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := Parse(data)
		if (err == nil) != (len(objects) > 0) {
			t.Errorf("%d objects and error %v", len(objects), err)
		}
	})
}

func TestAliasesStandForSoMuchAtMost(t *testing.T) {
	_, err := Parse([]byte("a: 1\n---\nx: &a " + strings.Repeat("a", 100<<10) + "\ny: [" + strings.TrimSuffix(strings.Repeat("*a,", 2000), ",") + "]\n"))
	found, ok := errors.AsType[*Error](err)
	if !ok || !slices.ContainsFunc(found.Violations, func(v Violation) bool {
		return v.Document == 2 && strings.Contains(v.Description, "aliases stand for more than 4194304 bytes")
	}) {
		t.Errorf("%v", err)
	}
	if objects, err := Parse([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: &l {x: z1}, annotations: *l}\n")); err != nil || objects[0].Namespace.Annotations["x"] != "z1" {
		t.Errorf("a manifest with an anchor: %v", err)
	}
}
