package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

// World is the cluster as it would be. It changes by deltas, as the ledger does, and remembers how to undo each.
type World struct {
	ctx   context.Context // of the call of Try, which a World does not outlive
	s     *Sandbox
	steps []step // what undoes the changes, in the order of the changes

	placed  map[string]int         // pods on nodes that are there in the question only, by uid: behind how many steps they came there
	brought map[string]*corev1.Pod // what pods are that the question has brought, by uid
	asking  asking
}

// State returns the cluster as it would be, to be read only. It is valid until Try returns; it shows later changes.
func (w *World) State() *cluster.State { return w.s.state }

// Evaluator returns what judges pods in this World, with everything that is known from earlier questions.
func (w *World) Evaluator() *engine.Evaluator { return w.s.evaluator }

// Context returns the context of Try.
func (w *World) Context() context.Context { return w.ctx }

// Between is for who asks the Evaluator about many nodes, between the parts of that: others may have their turn ([WithPause]). It returns the
// error of a question whose context has ended.
func (w *World) Between() error { return between(w.ctx) }

// Judge has the Evaluator find out what each node says of pods of a subject, unless that is known, with Between between the parts. Of those that have no
// claims that costs so little that the Evaluator does it when it is asked.
func (w *World) Judge(s engine.Subject) error {
	return w.inParts(s, func(part cluster.Range) { w.Evaluator().Judge(w.State(), s, part) })
}

// DryRun finds the node on which a pending pod would preempt others: the Evaluator's best candidate, likewise with Between between the parts.
func (w *World) DryRun(id cluster.PodID) (engine.DryRun, error) {
	row := w.State().Pod(id)
	err := w.inParts(engine.SubjectOf(&row.Pod), func(part cluster.Range) { // it remembers what it has tried
		w.Evaluator().DryRun(w.State(), id, cluster.Range{First: part.First &^ 63, End: part.End}, 1)
	})
	if err != nil {
		return engine.DryRun{}, err
	}
	found, _ := w.Evaluator().DryRun(w.State(), id, all(w.State()), 1)
	return found, nil
}

// inParts calls work for parts of all nodes, if pods of a subject have claims.
func (w *World) inParts(s engine.Subject, work func(part cluster.Range)) error {
	labels := w.State().Labels(s.Labels)
	if labels == nil || len(labels.Claims) == 0 {
		return nil
	}
	part := cluster.NodeIndex(engine.NodesAtOnce(len(labels.Claims)))
	for i := cluster.NodeIndex(0); int(i) < w.State().Nodes.Len(); i += part {
		if err := w.Between(); err != nil {
			return err
		}
		work(cluster.Range{First: i, End: i + part})
	}
	return nil
}

// Observe makes happen what a source would tell: a node, pod, namespace, service, controller or PodDisruptionBudget that is new,
// changed or gone. What changes nothing is no change.
func (w *World) Observe(e source.Event) error { return w.s.fold.Observe(e) }

// SetNode adds a node, or changes the node of that name.
func (w *World) SetNode(node cluster.Node) error {
	return w.Observe(source.Event{Kind: source.NodeSet, Node: node})
}

// Takes says why the World should not take a node of somebody's manifests, nil if it may: each resource is a column with a place for every
// node, so that there may be as many as a ledger takes.
func (w *World) Takes(node *cluster.Node) error { return ingest.TooManyResources(w.State(), node) }

// Node returns a node as SetNode takes it. False: there is none of that name.
func (w *World) Node(name string) (cluster.Node, bool) {
	if i := w.State().Nodes.ByName(name); i != cluster.NoNode {
		return w.State().Node(i), true
	}
	return cluster.Node{}, false
}

// RemoveNode takes a node away, and its pods. Evict instead, and then RemoveNode, if they are to be placed elsewhere.
func (w *World) RemoveNode(name string) error {
	i, err := w.node(name)
	if err != nil {
		return fmt.Errorf("remove node: %w", err)
	}
	var ids []cluster.PodID
	for id := range w.State().PodsOn(i) {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := w.RemovePod(id); err != nil {
			return err
		}
	}
	return w.Observe(source.Event{Kind: source.NodeGone, Node: cluster.Node{Name: name}})
}

// AddNodesLike adds so many nodes like one, with names of their own, which are their hostnames too, and what other labels call by the other one's
// name: drivers of local volumes have labels like that. They are well and schedulable, whatever the other one is, and have its CSI drivers.
func (w *World) AddNodesLike(node cluster.Node, n int) error {
	node.Unschedulable = false
	node.Taints = slices.DeleteFunc(slices.Clone(node.Taints), func(t cluster.Taint) bool { return strings.HasPrefix(t.Key, healthTaints) })
	like, renamed := node.Name, Renaming(w.State(), &node)
	for k := 0; n > 0; k++ {
		node.Name = fmt.Sprintf("%s-what-if-%d", like, k)
		if w.State().Nodes.ByName(node.Name) != cluster.NoNode {
			continue
		}
		node.Labels = renamed(node.Name)
		if err := w.SetNode(node); err != nil {
			return err
		}
		if err := w.HaveDriversOf(like, node.Name); err != nil {
			return err
		}
		n--
	}
	return nil
}

// Renaming returns what gives the labels of a node as one like it would have them that has another name: its hostname is that, and so is what other
// labels call by its name, or its hostname, unless other nodes have something else there: a pool may have the name of a node.
func Renaming(st *cluster.State, node *cluster.Node) func(name string) []cluster.Label {
	labels := node.Labels
	host, ok := cluster.ValueOf(labels, hostnameLabel)
	var own []int
	for k, l := range labels {
		named := l.Key == hostnameLabel
		if !named && (l.Value == node.Name || ok && l.Value == host) {
			_, named = OwnNames(st, l.Key)
		}
		if named {
			own = append(own, k)
		}
	}
	return func(name string) []cluster.Label {
		out := slices.Clone(labels)
		for _, k := range own {
			out[k].Value = name
		}
		return out
	}
}

// OwnNames returns how many nodes have a label of a key, and whether each of them has its own name there, or its hostname: if so, these labels tell nodes
// apart. It looks at the labels of all nodes.
func OwnNames(st *cluster.State, key string) (nodes int, own bool) {
	label, host := st.Symbols.Lookup(key), st.Symbols.Lookup(hostnameLabel)
	if label == cluster.NoSymbol {
		return 0, true
	}
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if !st.Nodes.Live.Has(i) {
			continue
		}
		value, hostname := cluster.NoSymbol, cluster.NoSymbol
		for _, l := range st.Nodes.Labels[i] {
			switch l.Key {
			case label:
				value = l.Value
			case host:
				hostname = l.Value
			}
		}
		if value == cluster.NoSymbol {
			continue
		}
		if nodes++; value != hostname && st.Symbols.Text(value) != st.Nodes.Spec[i].Name {
			return nodes, false
		}
	}
	return nodes, true
}

// HaveDriversOf gives a node the CSI drivers of another one, and so the limits of how many of their volumes can be attached to it.
func (w *World) HaveDriversOf(like, name string) error {
	drivers := w.State().CSINode(like)
	if drivers == nil {
		return nil
	}
	own := *drivers
	own.Name = name
	return w.SetObject(&own)
}

// SetObject makes an object one of the World, or changes it.
func (w *World) SetObject(o cluster.Object) error {
	return w.Observe(source.Event{Kind: source.ObjectSet, Object: o})
}

// healthTaints begin the keys of taints that say how a node is.
const healthTaints = "node.kubernetes.io/"

// The labels that kubelets and cloud providers give.
const (
	hostnameLabel = "kubernetes.io/hostname"
	zoneLabel     = "topology.kubernetes.io/zone"
)

// cordonTaint is what the node lifecycle controller gives to nodes that are cordoned.
const cordonTaint = "node.kubernetes.io/unschedulable"

// Cordon makes a node unschedulable, or schedulable again, with the taint that says so.
func (w *World) Cordon(name string, unschedulable bool) error {
	i, err := w.node(name)
	if err != nil {
		return fmt.Errorf("cordon: %w", err)
	}
	node := w.State().Node(i)
	node.Unschedulable = unschedulable
	node.Taints = slices.DeleteFunc(slices.Clone(node.Taints), func(t cluster.Taint) bool { return t.Key == cordonTaint })
	if unschedulable {
		node.Taints = append(node.Taints, cluster.Taint{Key: cordonTaint, Effect: "NoSchedule"})
	}
	return w.SetNode(node)
}

// Label gives a label of a node a value.
func (w *World) Label(name, key, value string) error {
	return w.relabel(name, func(labels []cluster.Label) []cluster.Label {
		return append(without(labels, key), cluster.Label{Key: key, Value: value})
	})
}

// Unlabel takes a label from a node. That it has none of the key is no error.
func (w *World) Unlabel(name, key string) error {
	return w.relabel(name, func(labels []cluster.Label) []cluster.Label { return without(labels, key) })
}

func without(labels []cluster.Label, key string) []cluster.Label {
	return slices.DeleteFunc(labels, func(l cluster.Label) bool { return l.Key == key })
}

func (w *World) relabel(name string, change func([]cluster.Label) []cluster.Label) error {
	i, err := w.node(name)
	if err != nil {
		return fmt.Errorf("label: %w", err)
	}
	node := w.State().Node(i)
	node.Labels = change(node.Labels)
	slices.SortFunc(node.Labels, func(a, b cluster.Label) int { return cmp.Compare(a.Key, b.Key) })
	return w.SetNode(node)
}

// AddPod adds a pod and returns its id. A pod with a NodeName is bound there, whether the node is known or not; one without
// is pending until Place. A pod with the uid of one that is there takes its place.
func (w *World) AddPod(pod source.Pod) (cluster.PodID, error) {
	if pod.UID == "" {
		return cluster.NoPod, fmt.Errorf("add pod %s/%s: it has no uid", pod.Namespace, pod.Name)
	}
	if err := w.Observe(source.Event{Kind: source.PodSet, Pod: pod}); err != nil {
		return cluster.NoPod, err
	}
	if pod.Object != nil {
		w.brought[pod.UID] = pod.Object
	} else {
		delete(w.brought, pod.UID)
	}
	id, _ := w.State().PodByUID(pod.UID)
	return id, nil
}

// Pod returns a pod as AddPod takes it: to add others like it, or to change it. False: there is none.
func (w *World) Pod(id cluster.PodID) (source.Pod, bool) {
	row := w.State().Pod(id)
	if row == nil {
		return source.Pod{}, false
	}
	pod := w.pod(row)
	if w.ctx.Value(pluginsKey{}) != nil {
		pod.Object = w.object(row)
	}
	return pod, true
}

// pod is Pod without the Object.
func (w *World) pod(row *cluster.PodRow) source.Pod {
	pod := source.Pod{Pod: row.Pod, Class: w.State().Class(row.Class).Spec}
	if labels := w.State().Labels(row.Labels); labels != nil {
		pod.Labels = labels.LabelSet
	}
	return pod
}

// RemovePod takes a pod away.
func (w *World) RemovePod(id cluster.PodID) error {
	row := w.State().Pod(id)
	if row == nil {
		return fmt.Errorf("remove pod: there is no pod %d", id)
	}
	return w.Observe(source.Event{Kind: source.PodGone, Pod: source.Pod{Pod: cluster.Pod{UID: row.UID}}})
}

// Preempt makes happen what a dry run has found, to its end: the victims are gone, and if preemption sees volumes, those are detached from the node that
// nobody uses there any more.
func (w *World) Preempt(found *engine.Preemption) error {
	st := w.State()
	used := func(a cluster.Attachment) bool { return a.Uses > 0 }
	var released []cluster.Attachment
	if st.Settings.PreemptionSeesVolumes {
		for _, a := range st.Attached(found.Node) {
			if used(a) && a.Attachments > 0 {
				released = append(released, a)
			}
		}
	}
	for _, id := range found.Victims {
		if err := w.RemovePod(id); err != nil {
			return err
		}
	}
	is := func(driver, handle string) func(cluster.Attachment) bool {
		return func(a cluster.Attachment) bool { return a.Driver == driver && a.Handle == handle }
	}
	released = slices.DeleteFunc(released, func(a cluster.Attachment) bool {
		still := slices.IndexFunc(st.Attached(found.Node), is(a.Driver, a.Handle))
		return still < 0 || used(st.Attached(found.Node)[still])
	})
	if len(released) == 0 {
		return nil
	}
	for _, name := range st.AttachmentsTo(st.Nodes.Spec[found.Node].Name) {
		key := cluster.ObjectKey{Kind: cluster.VolumeAttachmentKind, Name: name}
		attachment := cluster.ObjectAt[*cluster.VolumeAttachment](st, key)
		volume := st.PersistentVolume(attachment.Volume)
		if volume == nil || !slices.ContainsFunc(released, is(attachment.Attacher, volume.Handle)) {
			continue
		}
		if err := w.Observe(source.Event{Kind: source.ObjectGone, Key: key}); err != nil {
			return err
		}
	}
	return nil
}

// SetSettings makes profiles, seed and shards others.
func (w *World) SetSettings(settings cluster.Settings) error {
	return w.Apply(cluster.SettingsSet{Settings: settings})
}

// errNoVolumes says that a node has no volumes for all claims of a pod.
var errNoVolumes = errors.New("the node has no volumes for the pod's claims")

// assume places a pending pod. The attempt that it counts as is the pod's last, so that its end is the pod as it was.
func (w *World) assume(id cluster.PodID, node cluster.NodeIndex) error {
	row := w.State().Pod(id)
	d := cluster.PodAssumed{ID: id, Node: node, Attempt: row.Attempt}
	if set := w.State().Labels(row.Labels); set != nil && len(set.Claims) > 0 {
		var ok bool
		if d.Volumes, ok = w.Evaluator().ChooseVolumes(w.State(), engine.SubjectOf(&row.Pod), node, nil); !ok {
			return errNoVolumes
		}
	}
	return w.Apply(d)
}

func (w *World) node(name string) (cluster.NodeIndex, error) {
	if i := w.State().Nodes.ByName(name); i != cluster.NoNode {
		return i, nil
	}
	return cluster.NoNode, fmt.Errorf("there is no node %q", name)
}
