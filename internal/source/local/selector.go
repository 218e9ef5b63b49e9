package local

import (
	"strings"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// selectorEntry is a service or controller that a view has seen.
type selectorEntry struct {
	modRevision int64
	told        bool
}

// isSelector reports whether the keys of a prefix are of services or controllers.
func isSelector(prefix string) bool {
	switch prefix {
	case serviceKeys, controllerKeys, replicaSetKeys, statefulKeys:
		return true
	}
	return false
}

// setSelector tells a service or controller that was written, unless it has been told as it is, and its end if there is
// nothing to be told of it any more.
func (v *view) setSelector(kv coord.KV) {
	old := v.selectors[kv.Key]
	if old.modRevision == kv.ModRevision {
		return
	}
	prefix, _ := split(kv.Key)
	object, _ := manifest.New(objectKeys[prefix])
	if !v.decode(kv, object.Value()) {
		return
	}
	selector, ok := reduce(object)
	if old.told && !ok {
		v.selectorGone(kv.Key)
	}
	v.selectors[kv.Key] = selectorEntry{modRevision: kv.ModRevision, told: ok}
	if ok {
		v.sink(source.Event{Kind: source.SelectorSet, Selector: selector})
	}
}

func (v *view) selectorGone(key string) {
	old := v.selectors[key]
	delete(v.selectors, key)
	if !old.told {
		return
	}
	prefix, rest := split(key)
	namespace, name, _ := strings.Cut(rest, "/")
	v.sink(source.Event{Kind: source.SelectorGone, Selector: source.Selector{
		Kind: objectKeys[prefix], Namespace: namespace, Name: name,
	}})
}

// reduce reads the selector of a service or controller; false if it is not to be told.
func reduce(o manifest.Object) (source.Selector, bool) {
	switch {
	case o.Service != nil:
		return source.ReduceService(o.Service)
	case o.ReplicationController != nil:
		return source.ReduceReplicationController(o.ReplicationController)
	case o.ReplicaSet != nil:
		return source.ReduceReplicaSet(o.ReplicaSet)
	case o.StatefulSet != nil:
		return source.ReduceStatefulSet(o.StatefulSet)
	}
	return source.Selector{}, false
}
