package oracle

import (
	"encoding/json"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// fail notes the cluster for tally.explain, and says how the schedulers differ about the pod.
func (w *world) fail(pod *v1.Pod, format string, args ...any) {
	w.n.failed, w.n.why = w.scene(pod), fmt.Sprintf("pod %s: %s", pod.Name, fmt.Sprintf(format, args...))
	w.Fatalf("%s", w.n.why)
}

// explain prints the cluster of a test that has failed, as small as it can be made, and forgets it.
func (n *tally) explain(t *testing.T) {
	failed := n.failed
	if failed == nil {
		return
	}
	n.failed = nil
	sum.differences = append(sum.differences, fmt.Sprintf("%s: %s", t.Name(), n.why))
	if failed.difference() == "" {
		t.Logf("the difference shows only after what happened before; afterwards the cluster was\n%s", failed)
		return
	}
	failed.minimize()
	t.Logf("the smallest cluster found\n%s%s", failed, failed.difference())
}

// printDifferences prints again what differed, and how to repeat the cases: scenes are long, and whoever has but the end of the output is to
// see what failed.
func (n *tally) printDifferences() {
	for _, d := range n.differences {
		const most = 2000 // bytes
		if len(d) > most {
			d = d[:most] + "…"
		}
		fmt.Println(d)
	}
	for _, command := range n.repeats {
		fmt.Printf("the same case: %s\n", command)
	}
}

// noise is what the API server fills in and scheduling does not read.
var noise = map[string]bool{
	"terminationMessagePath": true, "terminationMessagePolicy": true, "imagePullPolicy": true, "dnsPolicy": true,
	"enableServiceLinks": true, "restartPolicy": true, "securityContext": true, "terminationGracePeriodSeconds": true,
	"nodeInfo": true, "daemonEndpoints": true, "uid": true,
}

// printed returns an object as YAML, without noise. That init containers restart is none.
func printed(object any) (string, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return "", err
	}
	out, err := yaml.Marshal(quiet(tree, false))
	return string(out), err
}

func quiet(tree any, initContainers bool) any {
	switch tree := tree.(type) {
	case map[string]any:
		for key, value := range tree {
			empty, isMap := value.(map[string]any)
			switch {
			case value == nil, noise[key] && !(initContainers && key == "restartPolicy"), key == "status" && isMap && len(empty) == 0:
				delete(tree, key)
			default:
				tree[key] = quiet(value, key == "initContainers")
			}
		}
	case []any:
		for i := range tree {
			tree[i] = quiet(tree[i], initContainers)
		}
	}
	return tree
}
