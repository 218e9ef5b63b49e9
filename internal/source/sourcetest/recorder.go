package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// patience is how long a source has to tell what has been written.
const patience = 5 * time.Minute

// View is what a sink has been told so far.
type View struct {
	Synced     bool
	Pods       map[string]source.Pod // by namespace/name
	Nodes      map[string]cluster.Node
	Namespaces map[string][]cluster.Label
	Selectors  map[SelectorName]cluster.LabelSelector
	Objects    map[cluster.ObjectKey]cluster.Object
	Events     []source.Event
}

// SelectorName names a service or a controller.
type SelectorName struct{ Kind, Namespace, Name string }

// Budget returns a PodDisruptionBudget that was told, nil if it was not or is gone.
func (v *View) Budget(namespace, name string) *cluster.Budget {
	budget, _ := v.Objects[cluster.ObjectKey{Kind: cluster.BudgetKind, Namespace: namespace, Name: name}].(*cluster.Budget)
	return budget
}

// Recorder runs Watch and folds what it tells. Watch's rules are checked on the way.
type Recorder struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	view    View
	changed chan struct{} // closed and replaced at every event
}

// Record starts s.Watch, which ends with the test, or earlier by Stop.
func Record(t testing.TB, s source.Source) *Recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Recorder{
		t: t, cancel: cancel, done: make(chan error, 1), changed: make(chan struct{}),
		view: View{
			Pods: map[string]source.Pod{}, Nodes: map[string]cluster.Node{}, Namespaces: map[string][]cluster.Label{},
			Selectors: map[SelectorName]cluster.LabelSelector{}, Objects: map[cluster.ObjectKey]cluster.Object{},
		},
	}
	go func() { r.done <- s.Watch(ctx, r.sink) }()
	t.Cleanup(func() { r.Stop() })
	return r
}

// Stop ends Watch and fails the test if it does not return the error of its context.
func (r *Recorder) Stop() {
	r.t.Helper()
	r.cancel()
	select {
	case err := <-r.done:
		if !errors.Is(err, context.Canceled) {
			r.t.Errorf("Watch returned %v when its context was canceled", err)
		}
		r.done <- err
	case <-time.After(patience):
		r.t.Errorf("Watch did not return %v after its context was canceled", patience)
	}
}

func (r *Recorder) sink(e source.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &r.view
	key := e.Pod.Namespace + "/" + e.Pod.Name
	selector := SelectorName{e.Selector.Kind, e.Selector.Namespace, e.Selector.Name}
	switch e.Kind {
	case source.Synced:
		if v.Synced {
			r.t.Error("Synced was told twice")
		}
		v.Synced = true
	case source.PodSet:
		if old, ok := v.Pods[key]; ok && old.UID != e.Pod.UID {
			r.t.Errorf("pod %s of uid %s was told while that of uid %s was not gone", key, e.Pod.UID, old.UID)
		}
		v.Pods[key] = e.Pod
	case source.PodMoved:
		old, ok := v.Pods[key]
		if !ok || old.UID != e.Pod.UID {
			r.t.Errorf("pod %s of uid %s was told on another node; known is %q", key, e.Pod.UID, old.UID)
		}
		old.NodeName, old.Nominated = e.Pod.NodeName, e.Pod.Nominated
		v.Pods[key] = old
	case source.PodGone:
		if old, ok := v.Pods[key]; !ok || old.UID != e.Pod.UID {
			r.t.Errorf("pod %s of uid %s was told gone; known is %q", key, e.Pod.UID, old.UID)
		}
		delete(v.Pods, key)
	case source.NodeSet:
		v.Nodes[e.Node.Name] = e.Node
	case source.NodeGone:
		if _, ok := v.Nodes[e.Node.Name]; !ok {
			r.t.Errorf("node %s was told gone and is not known", e.Node.Name)
		}
		delete(v.Nodes, e.Node.Name)
	case source.NamespaceSet:
		v.Namespaces[e.Namespace] = e.Labels
	case source.NamespaceGone:
		delete(v.Namespaces, e.Namespace)
	case source.SelectorSet:
		v.Selectors[selector] = e.Selector.Selector
	case source.SelectorGone:
		if _, ok := v.Selectors[selector]; !ok {
			r.t.Errorf("%+v was told gone and is not known", selector)
		}
		delete(v.Selectors, selector)
	case source.ObjectSet:
		v.Objects[e.Object.Key()] = e.Object
	case source.ObjectGone:
		if _, ok := v.Objects[e.Key]; !ok {
			r.t.Errorf("%+v was told gone and is not known", e.Key)
		}
		delete(v.Objects, e.Key)
	default:
		r.t.Errorf("event of kind %d was told", e.Kind)
	}
	v.Events = append(v.Events, e)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Await waits until what was told satisfies ok, which must not keep the view.
func (r *Recorder) Await(what string, ok func(View) bool) {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		good, changed := ok(r.view), r.changed
		r.mu.Unlock()
		if good {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.t.Fatalf("%s was not told within %v; told were %d events, at the end %s", what, patience, len(r.view.Events), tail(r.view.Events))
		}
	}
}

// Synced waits until everything there is has been told.
func (r *Recorder) Synced() *Recorder {
	r.t.Helper()
	r.Await("Synced", func(v View) bool { return v.Synced })
	return r
}

// Pod waits until the pod was told with the node, and returns it.
func (r *Recorder) Pod(namespace, name, node string) source.Pod {
	r.t.Helper()
	var pod source.Pod
	r.Await(fmt.Sprintf("pod %s/%s on %q", namespace, name, node), func(v View) bool {
		var ok bool
		pod, ok = v.Pods[namespace+"/"+name]
		return ok && pod.NodeName == node
	})
	return pod
}

// PodGone waits until the pod is not known.
func (r *Recorder) PodGone(namespace, name string) {
	r.t.Helper()
	r.Await(fmt.Sprintf("end of pod %s/%s", namespace, name), func(v View) bool {
		_, ok := v.Pods[namespace+"/"+name]
		return !ok
	})
}

// View passes what was told so far to look.
func (r *Recorder) View(look func(View)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	look(r.view)
}

func tail(events []source.Event) string {
	out := ""
	for _, e := range events[max(0, len(events)-10):] {
		out += fmt.Sprintf("\n  kind %d: node %q pod %s/%s on %q namespace %q selector %+v object %+v %+v", e.Kind, e.Node.Name, e.Pod.Namespace, e.Pod.Name, e.Pod.NodeName, e.Namespace, e.Selector, e.Object, e.Key)
	}
	return out
}
