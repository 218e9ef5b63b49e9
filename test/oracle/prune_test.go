package oracle

import (
	"encoding/json"
	"reflect"
	"slices"
)

// prune takes out of an object, field by field, what what holds does not need, and reports whether there was anything. O is a
// pointer, or an interface that has one.
func prune[O any](object *O, holds func() bool) (changed bool) {
	tree, ok := treeOf(*object)
	if !ok {
		return false
	}
	try := func() bool {
		text, err := json.Marshal(tree)
		if err != nil {
			return false
		}
		before, pruned := *object, reflect.New(reflect.TypeOf(*object).Elem()).Interface()
		if json.Unmarshal(text, pruned) != nil {
			return false
		}
		if *object = pruned.(O); holds() {
			return true
		}
		*object = before
		return false
	}
	return pruneTree(tree, try)
}

func treeOf(object any) (tree any, ok bool) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, false
	}
	return tree, json.Unmarshal(text, &tree) == nil
}

// kept are the fields without which the API server would refuse an object.
var kept = []string{
	"metadata", "spec", "name", "namespace", "uid", "schedulerName", "nodeName", "containers",
	"key", "operator", "values", "effect", "topologyKey", "maxSkew", "whenUnsatisfiable", "weight",
	"claimName", "driver", "volumeHandle", "volumeID", "pdName", "iqn", "monitors", "attacher", "source", "provisioner", "storageClassName",
}

// pruneTree takes keys and elements out of a tree, as far as try allows.
func pruneTree(tree any, try func() bool) (changed bool) {
	switch tree := tree.(type) {
	case map[string]any:
		for _, key := range sortedKeys(tree) {
			value := tree[key]
			if !slices.Contains(kept, key) {
				if delete(tree, key); try() {
					changed = true
					continue
				}
			}
			tree[key] = value
			if list, ok := value.([]any); ok {
				for i := len(list) - 1; i >= 0; i-- {
					tree[key] = slices.Delete(slices.Clone(list), i, i+1)
					if try() {
						list, changed = tree[key].([]any), true
					}
				}
				tree[key] = list
				value = list
			}
			changed = pruneTree(value, try) || changed
		}
	case []any:
		for _, element := range tree {
			changed = pruneTree(element, try) || changed
		}
	}
	return changed
}
