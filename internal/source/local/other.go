package local

import (
	"strings"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// otherEntry is an object that a view has seen, of a kind that is told as source.Reductions has it.
type otherEntry struct {
	modRevision int64
	told        bool
}

// isOther reports whether the keys of a prefix are of objects of such a kind.
func isOther(prefix string) bool {
	_, ok := source.Reductions[objectKeys[prefix]]
	return ok
}

// setOther tells an object that was written, unless it has been told as it is, and its end if there is nothing to be told of it
// any more.
func (v *view) setOther(kv coord.KV) {
	old := v.others[kv.Key]
	if old.modRevision == kv.ModRevision {
		return
	}
	prefix, _ := split(kv.Key)
	object, _ := manifest.New(objectKeys[prefix])
	if !v.decode(kv, object.Value()) {
		return
	}
	tell := source.Reductions[objectKeys[prefix]].Reduce(object.Value())
	if old.told && tell == nil {
		v.otherGone(kv.Key)
	}
	v.others[kv.Key] = otherEntry{modRevision: kv.ModRevision, told: tell != nil}
	if tell != nil {
		v.sink(tell())
	}
}

func (v *view) otherGone(key string) {
	old := v.others[key]
	delete(v.others, key)
	if !old.told {
		return
	}
	prefix, rest := split(key)
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok {
		namespace, name = "", rest
	}
	v.sink(source.Reductions[objectKeys[prefix]].Gone(namespace, name))
}
