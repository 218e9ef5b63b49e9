package berthapp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// world is what a stream has told: kube-scheduler's cache, filled with the nodes that Berth has, and with the pods that it has on them, whether these are bound already or not. What a pod is, the API
// server has told. One goroutine uses it.
type world struct {
	profile *profile
	timeout time.Duration // of an answer
	logger  klog.Logger
	end     context.CancelFunc
	closed  atomic.Bool

	last    int64 // request
	kinds   map[int32]*kind
	nodes   map[int32]*toldNode
	places  map[types.UID]int32 // the node of each pod, as it was told last
	touched map[types.UID]bool  // pods whose place, or what they are, may be another one than the cache has
	moved   map[string]bool     // nodes, by name, that may be others than the cache has
	version int                 // counts changes of the cache
	listed  int                 // counts those of nodes themselves
	newest  int64               // generation of the node in the snapshot that has changed last
	room    []node              // what asked has returned last

	attempts int   // counts PreFilter
	kept     *kept // nil: nothing is

	cache    internalcache.Cache
	snapshot *internalcache.Snapshot
	cached   map[string]*v1.Node // nodes in the cache, by name
	placed   map[types.UID]held  // pods in the cache
	images   *images             // of nodes in the cache
}

// held is a pod in the cache.
type held struct {
	source *v1.Pod // as the API server told it
	pod    *v1.Pod // the same, on the node where it is for Berth
}

// toldNode is a node as it was told.
type toldNode struct {
	name   string
	object *v1.Node
	pods   map[types.UID]bool
	info   fwk.NodeInfo // in the snapshot, which keeps it as long as the node is the same; nil: it has none
	listed int          // world.listed when that was looked up
}

// node is a node that is asked about.
type node struct {
	name string
	info fwk.NodeInfo // nil: the API server has no such node any more, of which Berth will hear
}

// kind is a kind as it was told, and what plugins keep of its pod.
type kind struct {
	schedulerName string
	object        []byte
	pod           *v1.Pod        // nil: object has not been decoded
	state         fwk.CycleState // nil: PreFilter has not run
	version       int            // world.version when it ran
	attempt       int            // world.attempts then
	signature     string         // "": the pod is not signed
	took          bool           // some verdict was kept
	filtered      prefiltered
}

func newWorld(ctx context.Context, p *profile, timeout time.Duration) (*world, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &world{
		profile: p, timeout: timeout, logger: klog.FromContext(ctx), end: cancel, kinds: make(map[int32]*kind), nodes: make(map[int32]*toldNode), places: make(map[types.UID]int32),
		touched: make(map[types.UID]bool), moved: make(map[string]bool), listed: 1,
		cache: internalcache.New(ctx, nil, utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload)), snapshot: internalcache.NewEmptySnapshot(),
		cached: make(map[string]*v1.Node), placed: make(map[types.UID]held), images: newImages(),
	}
	if err := w.cache.UpdateSnapshot(w.logger, w.snapshot); err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

func (w *world) close() {
	w.closed.Store(true)
	w.profile.judged.Store(nil) // what is begun anew begins anew
	w.profile.outdated()
	w.end()
}

// show has plugins see this world, and no other one.
func (w *world) show() { w.profile.shown.Store(w.view()) }

func (w *world) view() *view { return &view{w.snapshot, w.cache, false, &w.closed} }

// fold takes up what a request tells. What is forgotten goes first, so that its ids can be those of others in the same request.
func (w *world) fold(r *pluginv1.JudgeRequest) error {
	if r.GetId() != w.last+1 {
		return pluginproto.Invalid(fmt.Sprintf("%d: want %d", r.GetId(), w.last+1), "id")
	}
	w.last = r.GetId()
	for i, id := range r.GetForgottenNodes() {
		n := w.nodes[id]
		if n == nil {
			return pluginproto.Invalid(fmt.Sprintf("there is no node %d", id), "forgotten_nodes[%d]", i)
		}
		for uid := range n.pods {
			w.leave(id, uid)
		}
		w.moved[n.name] = true
		delete(w.nodes, id)
	}
	for i, id := range r.GetForgottenKinds() {
		if w.kinds[id] == nil {
			return pluginproto.Invalid(fmt.Sprintf("there is no kind %d", id), "forgotten_kinds[%d]", i)
		}
		delete(w.kinds, id)
	}
	for _, told := range r.GetKinds() {
		w.kinds[told.GetId()] = &kind{schedulerName: told.GetSchedulerName(), object: told.GetObject()}
	}
	for i, told := range r.GetNodes() {
		if err := w.setNode(i, told); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) leave(node int32, uid types.UID) {
	w.touched[uid] = true
	if at, ok := w.places[uid]; ok && at == node { // else it has been told elsewhere since
		delete(w.places, uid)
	}
}

func (w *world) setNode(i int, told *pluginv1.Node) error {
	id := told.GetId()
	n := w.nodes[id]
	if n == nil {
		n = &toldNode{pods: make(map[types.UID]bool)}
	}
	switch spec := told.GetSpec(); {
	case spec == nil && n.name == "":
		return pluginproto.Invalid(fmt.Sprintf("node %d is new: want what it is", id), "nodes[%d].spec", i)
	case spec != nil && len(spec.GetObject()) == 0:
		if n.name != spec.GetName() { // else it is what it was, until Berth hears what has become of it
			n.object = nil
		}
		w.rename(n, id, spec.GetName())
	case spec != nil:
		object := new(v1.Node)
		if err := json.Unmarshal(spec.GetObject(), object); err != nil {
			return pluginproto.Invalid(err.Error(), "nodes[%d].spec.object", i)
		}
		n.object = object
		w.rename(n, id, spec.GetName())
	}
	w.nodes[id] = n
	for k, uid := range told.GetRemoved() {
		if !n.pods[types.UID(uid)] {
			return pluginproto.Invalid(fmt.Sprintf("pod %q is not on node %s", uid, n.name), "nodes[%d].removed[%d]", i, k)
		}
		delete(n.pods, types.UID(uid))
		w.leave(id, types.UID(uid))
	}
	for k, pod := range told.GetAdded() {
		uid := types.UID(pod.GetUid())
		if n.pods[uid] {
			return pluginproto.Invalid(fmt.Sprintf("pod %q is on node %s already", uid, n.name), "nodes[%d].added[%d].uid", i, k)
		}
		n.pods[uid], w.places[uid], w.touched[uid] = true, id, true
	}
	return nil
}

// rename has a node be what it is told to be. Its id may have been that of another one.
func (w *world) rename(n *toldNode, id int32, name string) {
	w.moved[name] = true
	if n.name != "" && n.name != name {
		w.moved[n.name] = true
		for uid := range n.pods {
			w.touched[uid] = true
		}
	}
	n.name = name
}

// notYet is why the cache cannot be what was told yet. Any other error of sync is that it is broken.
type notYet struct{ error }

// sync has the cache, and what plugins see, be what was told.
func (w *world) sync(ctx context.Context) error {
	changed, lost := w.profile.pods.take()
	for uid := range changed {
		if _, ok := w.places[uid]; ok {
			w.touched[uid] = true
		}
	}
	if lost {
		for uid := range w.places {
			w.touched[uid] = true
		}
	}
	if len(w.touched) == 0 && len(w.moved) == 0 {
		w.show()
		return nil
	}
	// 1. What pods are that are on a node. The API server may tell later than Berth.
	var here []types.UID
	for uid := range w.touched {
		if _, ok := w.places[uid]; ok {
			here = append(here, uid)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout/2)
	defer cancel()
	pods, err := w.profile.pods.wait(ctx, here)
	if err != nil {
		return notYet{err}
	}
	// Some are what they were, where they were: nothing is done, else plugins were asked anew about their nodes. A pod that the API server tells while it is waited for is said to have changed the next time, too.
	others := 0
	for k, uid := range here {
		if was, ok := w.placed[uid]; ok && was.source == pods[k] && was.pod.Spec.NodeName == w.nodes[w.places[uid]].name {
			delete(w.touched, uid)
			continue
		}
		here[others], pods[others] = uid, pods[k]
		others++
	}
	here, pods = here[:others], pods[:others]
	if len(w.touched) == 0 && len(w.moved) == 0 {
		w.show()
		return nil
	}
	// 2. Pods that have left, moved or changed.
	before := make(map[types.UID]string)
	for uid := range w.touched {
		if was, ok := w.placed[uid]; ok {
			before[uid] = was.pod.Spec.NodeName
			if err := w.cache.RemovePod(w.logger, was.pod); err != nil {
				return err
			}
			delete(w.placed, uid)
		}
	}
	// 3. Nodes.
	byName := make(map[string]*v1.Node, len(w.moved))
	if len(w.moved) > 0 {
		for _, n := range w.nodes {
			if w.moved[n.name] {
				byName[n.name] = n.object
			}
		}
	}
	for name := range w.moved {
		w.images.set(name, byName[name])
		switch was, is := w.cached[name], byName[name]; {
		case was == nil && is != nil:
			w.cache.AddNode(w.logger, is)
			w.cached[name], w.kept = is, nil
		case was != nil && is == nil:
			if err := w.cache.RemoveNode(w.logger, was); err != nil {
				return err
			}
			delete(w.cached, name)
			w.kept = nil
		case was != nil && was != is:
			w.cache.UpdateNode(w.logger, was, is)
			w.cached[name] = is
		}
	}
	// 4. Pods that have come, moved or changed.
	for k, uid := range here {
		name, pod := w.nodes[w.places[uid]].name, pods[k]
		if pod.Spec.NodeName != name {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = name
		}
		if err := w.cache.AddPod(w.logger, pod); err != nil {
			return err
		}
		w.placed[uid] = held{pods[k], pod}
		if before[uid] != name {
			w.comes(uid)
		}
	}
	if len(w.moved) > 0 {
		w.listed++
	}
	clear(w.touched)
	clear(w.moved)
	w.version++
	if err := w.snap(); err != nil {
		return err
	}
	w.show()
	return nil
}

// snap has the snapshot be what the cache is.
func (w *world) snap() error {
	if err := w.cache.UpdateSnapshot(w.logger, w.snapshot); err != nil {
		return err
	}
	nodes, err := w.snapshot.NodeInfos().List()
	if err != nil {
		return err
	}
	before := w.newest
	for _, n := range nodes {
		info := n.(*framework.NodeInfo)
		if w.images.changed || info.Generation > before {
			info.ImageStates = w.images.nodes[info.Node().Name]
		}
		w.newest = max(w.newest, info.Generation)
	}
	w.images.changed = false
	return nil
}

// podOf returns the pod of a kind.
func (k *kind) podOf() (*v1.Pod, error) {
	if k.pod == nil {
		pod := new(v1.Pod)
		if err := json.Unmarshal(k.object, pod); err != nil {
			return nil, fmt.Errorf("decode the pod: %w", err)
		}
		k.pod = pod
	}
	return k.pod, nil
}

// asked returns the nodes that a question names, until it is called again.
func (w *world) asked(ids []int32, i int) ([]node, error) {
	out := slices.Grow(w.room[:0], len(ids))[:len(ids)]
	w.room = out
	for k, id := range ids {
		n := w.nodes[id]
		if n == nil {
			return nil, pluginproto.Invalid(fmt.Sprintf("there is no node %d", id), "questions[%d].nodes[%d]", i, k)
		}
		if n.listed != w.listed {
			n.info, n.listed = nil, w.listed
			if info, err := w.snapshot.Get(n.name); err == nil {
				n.info = info
			}
		}
		out[k] = node{n.name, n.info}
	}
	return out, nil
}
