package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// teller passes the events of all resources to the sink, one at a time.
type teller struct {
	mu   sync.Mutex
	sink func(source.Event)
	left int // how many resources have not been told for the first time

	neededLeft int       // how many of those without which nothing is placed
	needed     time.Time // when the last of these was told
}

// neededSince returns since when all is told without which nothing is placed; the zero time: it is not.
func (t *teller) neededSince() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.needed
}

func (t *teller) tell(e source.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sink(e)
}

// listed counts a resource that has been told for the first time.
func (t *teller) listed(needed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if needed {
		if t.neededLeft--; t.neededLeft == 0 {
			t.needed = time.Now()
		}
	}
	if t.left--; t.left == 0 {
		t.sink(source.Event{Kind: source.Synced})
	}
}

// seen is what is kept of an object.
type seen struct {
	uid       types.UID
	version   string // resource version
	newest    string // one that is known otherwise and has not been told yet, "" for none
	told      bool
	scheduler string
	status    *podStatus
	object    cluster.Object // if the mirror keeps objects
	node      *v1.Node       // in full, if it keeps nodes
	pod       *v1.Pod        // likewise
	beyond    uint64         // hash of what only extenders read of a node
	group     *groupStatus   // of a PodGroup
}

// mirror is the store that a reflector keeps like its resource. It tells what changes.
type mirror struct {
	teller   *teller
	kind     kind
	replaced func()         // called after all that there is was told
	keeps    bool           // what objects are told as
	changes  *atomic.Uint64 // counts what is put; nil: nobody counts

	resource string
	needed   bool // without it nothing is placed
	rare     bool // resource.rare

	// Of the goroutine that follows the resource: whether it has been told for the first time, what says that it cannot be read, nil if it can, since when it has been refused, and whether the watch
	// begins with all that there is: then it is what replaces.
	listed  bool
	lacking *cluster.Unserved
	refused time.Time
	streams bool

	// objects changes as the reflector says, which works from one goroutine at a time, and as status is written, from many.
	// What it points to never changes.
	mu      sync.Mutex
	objects map[types.NamespacedName]*seen
	telling types.NamespacedName // of the object that is being told as it is in objects, if one is
	waits   map[types.NamespacedName][]awaited
}

// awaited is for an object to have been told of a version, or a later one.
type awaited struct {
	version string
	over    chan struct{} // closed then
}

var _ cache.TransformingStore = (*mirror)(nil)

func newMirror(t *teller, k kind, replaced func()) *mirror {
	return &mirror{teller: t, kind: k, replaced: replaced, objects: map[types.NamespacedName]*seen{}}
}

// Transformer reduces objects as soon as they are decoded, also those of a list that is still arriving.
func (m *mirror) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return m.record(obj) }
}

func (m *mirror) record(obj any) (*record, error) {
	if r, ok := obj.(*record); ok {
		return r, nil
	}
	if r := m.kind.reduce(obj); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("keep object: unexpected type %T", obj)
}

// Add tells an object that is new, or has changed.
func (m *mirror) Add(obj any) error {
	r, err := m.record(obj)
	if err != nil {
		return err
	}
	name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
	old := m.get(name)
	if old != nil && old.uid == r.UID && old.version == r.ResourceVersion {
		return nil
	}
	newest := ""
	if old != nil && old.uid == r.UID && later(old.newest, r.ResourceVersion) {
		newest = old.newest
	}
	if old != nil && old.told && (old.uid != r.UID || r.set == nil) {
		m.forget(name)
	}
	is := &seen{uid: r.UID, version: r.ResourceVersion, newest: newest, told: r.set != nil, scheduler: r.scheduler, status: r.status, node: r.node, pod: r.pod, beyond: r.beyond, group: r.group}
	if newest != "" && old.group != nil { // it has been written to since
		is.group = old.group
	}
	if old != nil && old.uid == r.UID && old.status != nil && r.status != nil {
		switch {
		case newest != "": // it has been written to since
			is.status = old.status
		case old.status.unsure:
			status := *r.status
			status.unsure, is.status = true, &status
		}
	}
	if m.keeps {
		is.object = r.object()
	}
	m.put(name, is)
	if r.set != nil {
		e := r.set()
		e.Touched = old != nil && old.uid == r.UID && old.beyond != r.beyond
		m.teller.tell(e)
	}
	m.hasTold()
	return nil
}

// Update tells an object that has changed.
func (m *mirror) Update(obj any) error { return m.Add(obj) }

// Delete tells an object that is gone.
func (m *mirror) Delete(obj any) error {
	r, err := m.record(obj)
	if err != nil {
		return err
	}
	m.forget(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	return nil
}

// Replace tells the difference between what was told and all there is.
func (m *mirror) Replace(objs []any, _ string) error {
	records := make([]*record, 0, len(objs))
	there := make(map[types.NamespacedName]bool, len(objs))
	for _, obj := range objs {
		r, err := m.record(obj)
		if err != nil {
			return err
		}
		records = append(records, r)
		there[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = true
	}
	for _, name := range m.missing(there) {
		m.forget(name)
	}
	for _, r := range records {
		if err := m.Add(r); err != nil {
			return err
		}
	}
	if !m.listed {
		m.listed = true
		m.teller.listed(m.needed)
	}
	m.replaced()
	return nil
}

// unserved tells that the resource cannot be read, and counts it as told. What was told of it stays as it was.
func (m *mirror) unserved(u cluster.Unserved) {
	if m.lacking == nil || *m.lacking != u {
		m.lacking = &u
		m.teller.tell(source.Event{Kind: source.ObjectSet, Object: &u})
	}
	if !m.listed {
		m.listed = true
		m.teller.listed(m.needed)
	}
}

// served tells that it can be read again, if it could not be: behind all that there is of it, and when it is watched.
func (m *mirror) served() {
	m.refused = time.Time{}
	if m.lacking != nil {
		m.teller.tell(source.Event{Kind: source.ObjectGone, Key: m.lacking.Key()})
		m.lacking = nil
	}
}

// Resync does nothing: nothing is kept that could be told again.
func (m *mirror) Resync() error { return nil }

func (m *mirror) forget(name types.NamespacedName) {
	old := m.get(name)
	m.put(name, nil)
	if old != nil && old.told {
		m.teller.tell(m.kind.gone(name, old.uid))
	}
	m.hasTold()
}

// hasTold ends what put has begun, and the waits for it.
func (m *mirror) hasTold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := m.telling
	m.telling = types.NamespacedName{}
	waits := m.waits[name]
	if len(waits) == 0 {
		return
	}
	left := slices.DeleteFunc(waits, func(w awaited) bool {
		over := m.has(name, w)
		if over {
			close(w.over)
		}
		return over
	})
	if m.waits[name] = left; len(left) == 0 {
		delete(m.waits, name)
	}
}

// has reports whether an object has been told as somebody waits for, or is gone. The caller holds the lock.
func (m *mirror) has(name types.NamespacedName, w awaited) bool {
	s := m.objects[name]
	return name != m.telling && (s == nil || !later(w.version, s.version))
}

// await waits until an object that has been told once has been told of a version, or of a later one, or that it is gone. An error is ctx's.
func (m *mirror) await(ctx context.Context, name types.NamespacedName, version string) error {
	w := awaited{version, make(chan struct{})}
	m.mu.Lock()
	if m.has(name, w) {
		m.mu.Unlock()
		return nil
	}
	if m.waits == nil {
		m.waits = make(map[types.NamespacedName][]awaited)
	}
	m.waits[name] = append(m.waits[name], w)
	m.mu.Unlock()
	select {
	case <-w.over:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits[name] = slices.DeleteFunc(m.waits[name], func(other awaited) bool { return other.over == w.over })
	if len(m.waits[name]) == 0 {
		delete(m.waits, name)
	}
	return fmt.Errorf("wait until %s is told as it was written: %w", name, context.Cause(ctx))
}

// missing returns the names of objects that are not there any more.
func (m *mirror) missing(there map[types.NamespacedName]bool) []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []types.NamespacedName
	for name := range m.objects {
		if !there[name] {
			names = append(names, name)
		}
	}
	return names
}

func (m *mirror) get(name types.NamespacedName) *seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// put keeps what is told of an object from now on, nil for nothing; hasTold says that it has been.
func (m *mirror) put(name types.NamespacedName, s *seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.telling = name
	if s == nil {
		delete(m.objects, name)
	} else {
		m.objects[name] = s
	}
	if m.changes != nil { // behind what has changed: who reads the count first sees at least that
		m.changes.Add(1)
	}
}

// schedulerOf returns the scheduler name of a pod, "" if there is no such pod.
func (m *mirror) schedulerOf(name types.NamespacedName, uid types.UID) string {
	if s := m.get(name); s != nil && s.uid == uid {
		return s.scheduler
	}
	return ""
}

// waiting returns the status of a pod that has no node, nil if there is no such pod.
func (m *mirror) waiting(name types.NamespacedName, uid types.UID) *podStatus {
	if s := m.get(name); s != nil && s.uid == uid {
		return s.status
	}
	return nil
}

// later reports whether a resource version is later than another. One that is not a number, or "", is not.
func later(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}

// versionOf returns the newest resource version that is known of a pod, "" if there is no such pod.
func (m *mirror) versionOf(name types.NamespacedName, uid types.UID) (version string, annotated int) {
	if s := m.get(name); s != nil && s.uid == uid {
		if s.status != nil {
			annotated = s.status.annotated
		}
		return cmp.Or(s.newest, s.version), annotated
	}
	return "", 0
}

// sawPod is saw of a pod that was read, or written, with what a bind goes by.
func (m *mirror) sawPod(pod *v1.Pod) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.objects[name]
	if s == nil || s.uid != pod.UID || !later(pod.ResourceVersion, cmp.Or(s.newest, s.version)) {
		return
	}
	changed := *s
	changed.newest = pod.ResourceVersion
	if s.status != nil {
		status := *s.status
		status.annotated = annotated(pod)
		changed.status = &status
	}
	m.objects[name] = &changed
}

// saw remembers a resource version that was read, until the watch has come as far.
func (m *mirror) saw(name types.NamespacedName, uid types.UID, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.objects[name]; s != nil && s.uid == uid && later(version, cmp.Or(s.newest, s.version)) {
		changed := *s
		changed.newest = version
		m.objects[name] = &changed
	}
}

// written remembers what was written to the status of a pod that has no node, until the watch shows it, and the resource
// version that it has with that.
func (m *mirror) written(name types.NamespacedName, uid types.UID, p statusPatch, version string) {
	m.saw(name, uid, version)
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.objects[name]; s != nil && s.uid == uid && s.status != nil && !later(s.version, version) && !later(s.status.written, version) {
		changed, status := *s, *s.status
		status.written = version
		if len(p.Conditions) > 0 {
			status.scheduled = &p.Conditions[0]
		}
		if p.NominatedNodeName != nil {
			status.nominated = *p.NominatedNodeName
		}
		changed.status = &status
		m.objects[name] = &changed
	}
}

// unsure remembers that nobody knows whether a nomination has been written.
func (m *mirror) unsure(name types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.objects[name]; s != nil && s.uid == uid && s.status != nil {
		changed, status := *s, *s.status
		status.unsure = true
		changed.status = &status
		m.objects[name] = &changed
	}
}
