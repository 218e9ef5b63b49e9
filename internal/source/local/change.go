package local

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-scheduler/berth/internal/manifest"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// podChange returns what of a stored pod would change and must not, the first field of it.
func podChange(o manifest.Object, stored, applied *v1.Pod) ([]manifest.Violation, error) {
	violation := func(field, description string) []manifest.Violation {
		return []manifest.Violation{{Document: o.Document, Object: o.String(), Field: field, Description: description}}
	}
	old := stored.Spec.DeepCopy()
	for _, gate := range applied.Spec.SchedulingGates {
		if !slices.Contains(old.SchedulingGates, gate) {
			return violation("spec.schedulingGates", fmt.Sprintf("gate %q cannot be added to a pod that exists", gate.Name)), nil
		}
	}
	for _, t := range old.Tolerations {
		if !slices.ContainsFunc(applied.Spec.Tolerations, func(x v1.Toleration) bool { return equality.Semantic.DeepEqual(x, t) }) {
			return violation("spec.tolerations", fmt.Sprintf("the toleration of %q cannot be taken from a pod that exists", cmp.Or(t.Key, "everything"))), nil
		}
	}
	old.SchedulingGates, old.Tolerations = applied.Spec.SchedulingGates, applied.Spec.Tolerations
	if equality.Semantic.DeepEqual(old, &applied.Spec) {
		return nil, nil
	}
	before, err := tree(old)
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", o, err)
	}
	after, err := tree(&applied.Spec)
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", o, err)
	}
	field := difference("spec", before, after)
	return violation(field, "it differs from the stored pod's and cannot be changed; delete the pod and apply it again"), nil
}

// tree returns a value as JSON sees it.
func tree(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	return out, json.Unmarshal(data, &out)
}

// difference returns the path of the first value that is not the same in both trees.
func difference(path string, a, b any) string {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return path
		}
		keys := maps.Clone(a)
		maps.Copy(keys, b)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !reflect.DeepEqual(a[key], b[key]) {
				return difference(path+"."+key, a[key], b[key])
			}
		}
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return path
		}
		for i := range a {
			if !reflect.DeepEqual(a[i], b[i]) {
				return difference(fmt.Sprintf("%s[%d]", path, i), a[i], b[i])
			}
		}
	}
	return path
}
