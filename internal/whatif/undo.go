package whatif

import (
	"errors"
	"fmt"
	"maps"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// step undoes one change, or a part of it. Steps are taken in the opposite order of the changes, so that each finds the state
// as its change had left it.
type step struct {
	delta cluster.Delta // to be applied, if it is not nil; else one of those that follow

	act action
	row *cluster.PodRow // restorePod: what the pod was
	its *belongings     // restorePod, redefine: what may be gone and is to be there
	id  int32           // of the pod, the class, the label set
}

type action uint8

const (
	restorePod action = iota
	redefine
	dropClass
	dropLabels
)

// belongings are the class and the label set of a pod, which go with the last one.
type belongings struct {
	class  *cluster.Class
	labels *cluster.Labels // nil: NoLabels
	chosen []cluster.VolumeChoice
}

// Apply changes the World by one delta, as the ledger's state would change, and remembers how to undo it.
func (w *World) Apply(d cluster.Delta) error {
	switch err := between(w.ctx); {
	case w.s.world != w:
		return errors.New("apply: the try has ended")
	case err != nil:
		return err
	case len(w.steps) >= MaxChanges:
		return fmt.Errorf("%w: at most %d changes are possible", ErrTooMuch, MaxChanges)
	}
	n := len(w.steps)
	if err := w.remember(d); err != nil {
		return err
	}
	uid := w.comes(d)
	if err := w.s.state.Apply(d); err != nil {
		w.steps = w.steps[:n]
		return err
	}
	if _, is := w.placed[uid]; uid != "" && !is {
		w.placed[uid] = n
	}
	return nil
}

// comes returns the uid of a pod that a delta has come to a node, "" if it does not.
func (w *World) comes(d cluster.Delta) string {
	id, uid, node := cluster.NoPod, "", ""
	switch d := d.(type) {
	case cluster.PodSet:
		id, uid, node = d.ID, d.Pod.UID, d.Pod.NodeName
	case cluster.PodAssumed:
		id = d.ID
	case cluster.PodBound:
		id = d.ID
	default:
		return ""
	}
	row := w.s.state.Pod(id)
	switch {
	case row != nil && row.Placed() && (uid == "" || row.UID == uid && row.NodeName == node):
		return ""
	case uid == "" && row != nil:
		return row.UID
	case node == "":
		return ""
	}
	return uid
}

// remember appends the steps that undo a delta, which need not be one that the state accepts.
func (w *World) remember(d cluster.Delta) error {
	st := w.s.state
	then := func(d cluster.Delta) { w.steps = append(w.steps, step{delta: d}) }
	switch d := d.(type) {
	case cluster.SettingsSet:
		if st.Settings.Shards < 1 {
			return errors.New("settings: there are none to go back to")
		}
		then(cluster.SettingsSet{Settings: st.Settings})
	case cluster.ClassDefined:
		w.steps = append(w.steps, step{act: dropClass, id: int32(d.ID)})
	case cluster.LabelsDefined:
		w.steps = append(w.steps, step{act: dropLabels, id: int32(d.ID)})
	case cluster.NodeSet:
		if st.Nodes.Live.Has(d.Index) {
			w.rememberNode(d.Index)
		} else {
			then(cluster.NodeRemoved{Index: d.Index})
		}
	case cluster.NodeRemoved:
		w.rememberNode(d.Index)
	case cluster.NodeTouched, cluster.PodActivated: // change nothing
	case cluster.NamespaceSet:
		w.rememberNamespace(d.Name)
	case cluster.NamespaceRemoved:
		w.rememberNamespace(d.Name)
	case cluster.SelectorSet:
		w.rememberSelector(d.Kind, d.Namespace, d.Name)
	case cluster.SelectorRemoved:
		w.rememberSelector(d.Kind, d.Namespace, d.Name)
	case cluster.ObjectSet:
		if d.Object != nil {
			w.rememberObject(d.Object.Key())
		}
	case cluster.ObjectRemoved:
		w.rememberObject(d.ObjectKey)
	case cluster.PodSet:
		if unused := w.unused(&d.Pod); unused != nil {
			w.steps = append(w.steps, step{act: redefine, its: unused})
		}
		if st.Pod(d.ID) == nil {
			then(cluster.PodRemoved{ID: d.ID})
		} else {
			w.rememberPod(d.ID)
		}
	case cluster.PodAssumed:
		if row := st.Pod(d.ID); row != nil && row.Attempt == d.Attempt && !row.Preempting {
			then(forgotten(d.ID))
		} else {
			w.rememberPod(d.ID)
		}
	case cluster.PodBound:
		w.rememberPod(d.ID)
	case cluster.PodForgotten:
		w.rememberPod(d.ID)
	case cluster.PodRemoved:
		w.rememberPod(d.ID)
	case cluster.PodNominated:
		if row := st.Pod(d.ID); row != nil {
			then(cluster.PodNominated{ID: d.ID, Node: row.Nominated})
		}
	case cluster.PreemptionStarted:
		w.rememberPod(d.ID)
		for _, id := range d.Victims {
			w.rememberPod(id)
		}
	case cluster.PreemptionEnded:
		w.rememberPod(d.ID)
		for _, id := range d.Spared {
			w.rememberPod(id)
		}
	default:
		return fmt.Errorf("%T is no change", d)
	}
	return nil
}

func forgotten(id cluster.PodID) cluster.Delta { return cluster.PodForgotten{ID: id} }

// rememberNode remembers a node. An image that only this node shows has the size that the first one of all had that showed it.
func (w *World) rememberNode(i cluster.NodeIndex) {
	st := w.s.state
	if !st.Nodes.Live.Has(i) {
		return
	}
	w.steps = append(w.steps, step{delta: cluster.NodeSet{Index: i, Node: st.Node(i)}})
	for _, name := range st.Nodes.Images(i) {
		if image := st.Image(name); image.Nodes == 1 {
			w.steps = append(w.steps, step{delta: cluster.ImageSized{Name: st.Symbols.Text(name), Size: image.Size}})
		}
	}
}

func (w *World) rememberNamespace(name string) {
	was := step{delta: cluster.NamespaceRemoved{Name: name}}
	if labels, ok := w.s.state.Namespace(name); ok {
		was.delta = cluster.NamespaceSet{Name: name, Labels: labels}
	}
	w.steps = append(w.steps, was)
}

func (w *World) rememberSelector(kind, namespace, name string) {
	was := step{delta: cluster.SelectorRemoved{Kind: kind, Namespace: namespace, Name: name}}
	if selector, ok := w.s.state.Selector(kind, namespace, name); ok {
		was.delta = cluster.SelectorSet{Kind: kind, Namespace: namespace, Name: name, Selector: selector}
	}
	w.steps = append(w.steps, was)
}

func (w *World) rememberObject(key cluster.ObjectKey) {
	was := step{delta: cluster.ObjectRemoved{ObjectKey: key}}
	if set, ok := w.s.state.Object(key); ok {
		was.delta = set
	}
	w.steps = append(w.steps, was)
}

func (w *World) rememberPod(id cluster.PodID) {
	st := w.s.state
	if row := st.Pod(id); row != nil {
		was := *row
		its := &belongings{st.Class(row.Class), st.Labels(row.Labels), st.Chosen(id)}
		w.steps = append(w.steps, step{act: restorePod, id: int32(id), row: &was, its: its})
	}
}

// unused returns what of a pod's class and label set is there without any pod, nil if nothing is: the end of the pod would take
// it along.
func (w *World) unused(pod *cluster.Pod) *belongings {
	class, labels := w.s.state.Class(pod.Class), w.s.state.Labels(pod.Labels)
	if class == nil || class.Pods > 0 {
		class = nil
	}
	if labels == nil || labels.Pods > 0 {
		labels = nil
	}
	if class == nil && labels == nil {
		return nil
	}
	return &belongings{class: class, labels: labels}
}

// Try calls ask, and undoes what it has changed in this World.
func (w *World) Try(ask func() error) error {
	before := len(w.steps)
	err := ask()
	return errors.Join(err, w.undo(before))
}

// undo takes all changes back but the first.
func (w *World) undo(first int) error {
	for ; len(w.steps) > first; w.steps = w.steps[:len(w.steps)-1] {
		if err := w.s.undo(&w.steps[len(w.steps)-1]); err != nil {
			return err
		}
	}
	maps.DeleteFunc(w.placed, func(_ string, behind int) bool { return behind >= first })
	return nil
}

func (s *Sandbox) undo(t *step) error {
	switch {
	case t.delta != nil:
		return s.state.Apply(t.delta)
	case t.act == restorePod:
		return s.restore(t)
	case t.act == redefine:
		return s.define(t.its)
	case t.act == dropClass:
		return s.dropClass(cluster.ClassID(t.id))
	default:
		return s.dropLabels(cluster.LabelsID(t.id))
	}
}

// restore makes a pod what it was. Some of it never goes back while the pod is there.
func (s *Sandbox) restore(t *step) error {
	id, was := cluster.PodID(t.id), t.row
	now := s.state.Pod(id)
	if now != nil && (now.Attempt > was.Attempt || now.Phase == cluster.Assumed && was.Phase == cluster.Pending ||
		now.Preempting && !was.Preempting || now.Victim && !was.Victim || len(t.its.chosen) > 0 || len(s.state.Chosen(id)) > 0) {
		if err := s.state.Apply(cluster.PodRemoved{ID: id}); err != nil {
			return err
		}
	}
	if err := s.define(t.its); err != nil {
		return err
	}
	return s.state.Apply(cluster.PodSet{
		ID: id, Pod: was.Pod, Assumed: was.Phase == cluster.Assumed, Preempting: was.Preempting, Victim: was.Victim,
		Volumes: t.its.chosen,
	})
}

// define brings back what has gone with its last pod.
func (s *Sandbox) define(its *belongings) error {
	if c := its.class; c != nil && s.state.Class(c.ID) == nil {
		if err := s.state.Apply(cluster.ClassDefined{ID: c.ID, Spec: c.Spec}); err != nil {
			return err
		}
	}
	if l := its.labels; l != nil && s.state.Labels(l.ID) == nil {
		return s.state.Apply(cluster.LabelsDefined{ID: l.ID, Set: l.LabelSet})
	}
	return nil
}

// dropClass and dropLabels drop what has no pods, unless its last pod has taken it along. They do it as the ledger does: a pod
// of it comes and goes.
func (s *Sandbox) dropClass(id cluster.ClassID) error {
	if s.state.Class(id) == nil {
		return nil
	}
	return s.passBy(cluster.Pod{Class: id})
}

func (s *Sandbox) dropLabels(id cluster.LabelsID) error {
	if s.state.Labels(id) == nil {
		return nil
	}
	class := s.fold.NextClass()
	for s.state.Class(class) != nil {
		class++
	}
	if err := s.state.Apply(cluster.ClassDefined{ID: class}); err != nil {
		return err
	}
	return s.passBy(cluster.Pod{Class: class, Labels: id})
}

func (s *Sandbox) passBy(pod cluster.Pod) error {
	id := s.state.FreePod()
	pod.UID = "passes by"
	if err := s.state.Apply(cluster.PodSet{ID: id, Pod: pod}); err != nil {
		return err
	}
	return s.state.Apply(cluster.PodRemoved{ID: id})
}
