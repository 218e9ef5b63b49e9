package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
)

// retryDelay is the pause before manifests are listed again after an error.
const retryDelay = 500 * time.Millisecond

// Watch lists everything at one revision, tells it, and follows the changes from there. Where changes have been
// compacted away it lists again and tells the difference.
func (s *Source) Watch(ctx context.Context, sink func(source.Event)) error {
	s.mu.Lock()
	s.known, s.waiting, s.told = map[string]*knownPod{}, errUnread, 0
	s.mu.Unlock()
	v := newView(s, sink)
	synced := false
	for {
		revision, err := v.list(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.waitFor(fmt.Errorf("%w: %w", errUnread, err))
			s.cfg.Log.Warn("manifests not listed, still trying", "err", err)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(retryDelay):
			}
			continue
		}
		if !synced {
			synced = true
			sink(source.Event{Kind: source.Synced})
		}
		s.waitFor(nil)
		s.saw(revision)
		for u := range s.etcd.Watch(ctx, root, revision+1) {
			if u.Err != nil {
				if !errors.Is(u.Err, coord.ErrCompacted) {
					s.cfg.Log.Warn("manifests are listed again", "why", u.Err)
				}
				break
			}
			v.update(u.Events)
			s.saw(u.Revision)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// The channel also closes when etcd's client is closed under us; do not spin then.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryDelay):
		}
	}
}

func (s *Source) waitFor(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = err
}

// view is what one Watch has told.
type view struct {
	source *Source
	sink   func(source.Event)

	pods       map[string]*knownPod  // by key
	byUID      map[string]*knownPod  // the same by uid: Source.known
	placements map[string]string     // node by pod uid, of pods that have not been told
	nominated  map[string]string     // node by pod uid, "" for none: what binders have said
	nodes      map[string]nodeEntry  // by name
	namespaces map[string]int64      // mod revision by name
	others     map[string]otherEntry // by key
}

func newView(s *Source, sink func(source.Event)) *view {
	return &view{
		source: s, sink: sink,
		pods: map[string]*knownPod{}, byUID: s.known, placements: map[string]string{}, nominated: map[string]string{},
		nodes: map[string]nodeEntry{}, namespaces: map[string]int64{}, others: map[string]otherEntry{},
	}
}

type nodeEntry struct {
	name        string // as the sink keeps it: to be shared by all that is on the node
	modRevision int64
}

// listOrder are the prefixes in the order in which they are listed. Pods come last: whoever is told one that is placed knows
// its node, and where it is placed or nominated is known here.
var listOrder = slices.Concat(
	[]string{conditionKeys, placementKeys, namespaceKeys, nodeKeys},
	slices.DeleteFunc(slices.Sorted(maps.Keys(objectKeys)), func(prefix string) bool { return !isOther(prefix) }),
	[]string{podKeys},
)

// list tells the difference between the view and all the keys there are, at one revision, which it returns. It tells objects as
// it reads them, and so keeps no list. After an error, what has been told is as it was at the revision that was read, or an
// earlier one, and the next list tells the rest.
func (v *view) list(ctx context.Context) (revision int64, err error) {
	clear(v.placements)
	clear(v.nominated)
	for uid := range v.byUID {
		v.place(uid, "")
	}
	for _, prefix := range listOrder {
		gone := v.told(prefix)
		revision, err = v.source.etcd.Scan(ctx, prefix, revision, func(kv coord.KV) {
			switch prefix {
			case placementKeys:
				v.place(kv.Key[len(prefix):], v.placedOn(kv))
			case conditionKeys:
				v.setNominated(kv.Key[len(prefix):], kv)
			default:
				delete(gone, kv.Key)
				v.set(kv)
			}
		})
		if err != nil {
			return 0, err
		}
		for key := range gone {
			v.gone(key)
		}
	}
	for _, pod := range v.pods {
		v.retell(pod)
	}
	return revision, nil
}

// told returns the keys of the objects of a prefix that have been told.
func (v *view) told(prefix string) map[string]bool {
	keys := map[string]bool{}
	switch {
	case prefix == podKeys:
		for key := range v.pods {
			keys[key] = true
		}
	case prefix == nodeKeys:
		for name := range v.nodes {
			keys[nodeKeys+name] = true
		}
	case prefix == namespaceKeys:
		for name := range v.namespaces {
			keys[namespaceKeys+name] = true
		}
	case isOther(prefix):
		for key := range v.others {
			if strings.HasPrefix(key, prefix) {
				keys[key] = true
			}
		}
	}
	return keys
}

// update tells the events of a watch, which come in the order in which a transaction wrote them: Delete removes a pod
// before its placement, so that the pod is not told without its node on its way out.
func (v *view) update(events []coord.Event) {
	for _, e := range events {
		prefix, rest := split(e.KV.Key)
		switch {
		case prefix == placementKeys:
			if e.Deleted {
				v.place(rest, "")
			} else {
				v.place(rest, v.placedOn(e.KV))
			}
			v.retell(v.byUID[rest])
		case prefix == conditionKeys:
			if e.Deleted {
				delete(v.nominated, rest)
			} else {
				v.setNominated(rest, e.KV)
			}
			v.retell(v.byUID[rest])
		case e.Deleted:
			v.gone(e.KV.Key)
		default:
			v.set(e.KV)
		}
	}
}

// set tells an object that was written, unless it has been told as it is.
func (v *view) set(kv coord.KV) {
	prefix, name := split(kv.Key)
	switch prefix {
	case namespaceKeys:
		if v.namespaces[name] == kv.ModRevision {
			return
		}
		var namespace v1.Namespace
		if !v.decode(kv, &namespace) {
			return
		}
		v.namespaces[name] = kv.ModRevision
		e := source.Event{Kind: source.NamespaceSet}
		e.Namespace, e.Labels = source.ReduceNamespace(&namespace)
		v.sink(e)
	case nodeKeys:
		if v.nodes[name].modRevision == kv.ModRevision {
			return
		}
		var node v1.Node
		if !v.decode(kv, &node) {
			return
		}
		if node.Name == name {
			name = node.Name // which the sink keeps too
		}
		v.nodes[name] = nodeEntry{name, kv.ModRevision}
		v.sink(source.Event{Kind: source.NodeSet, Node: source.ReduceNode(&node)})
	case podKeys:
		if old := v.pods[kv.Key]; old != nil && old.modRevision == kv.ModRevision {
			return
		}
		var pod v1.Pod
		if !v.decode(kv, &pod) {
			return
		}
		if old := v.pods[kv.Key]; old != nil && (old.uid != string(pod.UID) || source.Terminal(&pod)) {
			v.podGone(kv.Key)
		}
		if !source.Terminal(&pod) {
			v.setPod(kv, &pod)
		}
	default:
		if isOther(prefix) {
			v.setOther(kv)
		}
	}
}

// setPod tells a pod that is new or was updated.
func (v *view) setPod(kv coord.KV, pod *v1.Pod) {
	reduced := source.ReducePod(pod)
	if name, ok := strings.CutPrefix(kv.Key, podKey(reduced.Namespace, "")); ok && name == reduced.Name {
		reduced.Name = name // one text for whoever keeps both
	}
	v.source.mu.Lock()
	known := v.byUID[reduced.UID]
	if known == nil {
		known = &knownPod{key: kv.Key, uid: reduced.UID, placed: v.shared(v.placements[reduced.UID])}
		delete(v.placements, reduced.UID)
		v.pods[known.key], v.byUID[known.uid] = known, known
	}
	known.createRevision, known.modRevision = kv.CreateRevision, kv.ModRevision
	known.manifest.node, known.manifest.nominated = pod.Spec.NodeName, pod.Status.NominatedNodeName
	known.told.node, known.told.nominated = v.nodeOf(known)
	v.source.mu.Unlock()
	reduced.NodeName, reduced.Nominated = known.told.node, known.told.nominated
	v.sink(source.Event{Kind: source.PodSet, Pod: reduced})
}

// place takes in the placement of a pod, "" for none.
func (v *view) place(uid, node string) {
	known := v.byUID[uid]
	switch {
	case known != nil:
		v.source.mu.Lock()
		known.placed = v.shared(node)
		v.source.mu.Unlock()
	case node == "":
		delete(v.placements, uid)
	default:
		v.placements[uid] = node
	}
}

// shared returns the name of a node, which many pods keep, as the text that is kept anyway.
func (v *view) shared(node string) string { return cmp.Or(v.nodes[node].name, node) }

// retell tells where a pod is, unless it is nil, if it has been told on another node or nominated to another.
func (v *view) retell(known *knownPod) {
	if known == nil {
		return
	}
	node, nominated := v.nodeOf(known)
	if node == known.told.node && nominated == known.told.nominated {
		return
	}
	v.source.mu.Lock()
	known.told.node, known.told.nominated = node, nominated
	v.source.mu.Unlock()
	moved := source.Event{Kind: source.PodMoved, Pod: source.Pod{Pod: known.name()}}
	moved.Pod.NodeName, moved.Pod.Nominated = node, nominated
	v.sink(moved)
}

// name returns what a pod is called, and nothing else of it.
func (p *knownPod) name() cluster.Pod {
	_, rest := split(p.key)
	namespace, name, _ := strings.Cut(rest, "/")
	return cluster.Pod{UID: p.uid, Namespace: namespace, Name: name}
}

// nodeOf returns the node that a pod is on, or is nominated to: never both, as the API server has it once a pod is bound.
func (v *view) nodeOf(known *knownPod) (node, nominated string) {
	if node = cmp.Or(known.manifest.node, known.placed); node != "" {
		return node, ""
	}
	if said, ok := v.nominated[known.uid]; ok {
		return "", said
	}
	return "", known.manifest.nominated
}

// gone tells the end of an object that was deleted, if it has been told.
func (v *view) gone(key string) {
	switch prefix, name := split(key); {
	case prefix == podKeys:
		v.podGone(key)
	case prefix == nodeKeys:
		v.nodeGone(name)
	case prefix == namespaceKeys:
		v.namespaceGone(name)
	case isOther(prefix):
		v.otherGone(key)
	}
}

func (v *view) podGone(key string) {
	known := v.pods[key]
	if known == nil {
		return
	}
	v.source.mu.Lock()
	delete(v.pods, key)
	delete(v.byUID, known.uid)
	v.source.mu.Unlock()
	v.place(known.uid, known.placed) // it may be told again before its placement is gone
	v.sink(source.Event{Kind: source.PodGone, Pod: source.Pod{Pod: known.name()}})
}

func (v *view) nodeGone(name string) {
	if _, ok := v.nodes[name]; !ok {
		return
	}
	delete(v.nodes, name)
	gone := source.Event{Kind: source.NodeGone}
	gone.Node.Name = name
	v.sink(gone)
}

func (v *view) namespaceGone(name string) {
	if _, ok := v.namespaces[name]; !ok {
		return
	}
	delete(v.namespaces, name)
	v.sink(source.Event{Kind: source.NamespaceGone, Namespace: name})
}

// setNominated takes in what a condition says about the nomination of its pod.
func (v *view) setNominated(uid string, kv coord.KV) {
	var c condition
	if v.decode(kv, &c) && c.Nominated != nil {
		v.nominated[uid] = *c.Nominated
	}
}

// decode reports false, and says so in the log, when a value is not what Store writes.
func (v *view) decode(kv coord.KV, into any) bool {
	if err := manifest.UnmarshalStored(kv.Value, into); err != nil {
		v.source.cfg.Log.Error("stored object skipped: it cannot be decoded", "key", kv.Key, "err", err)
		return false
	}
	return true
}

// placedOn returns the node of a placement.
func (v *view) placedOn(kv coord.KV) string {
	var p struct{ Node string } // and no more of it: this is what is read most often
	v.decode(kv, &p)
	return p.Node
}
