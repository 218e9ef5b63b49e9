package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// Plugin has a say in where pods go: which may be tried, and in which order, which nodes can run them, which of these are best, and what is done between the choice of a node and the bind.
//
// Its functions are called by several goroutines at a time, also about one kind: about different nodes, and for different streams, such as those of a binder that was active
// and of the one that took over from it. Their context ends when Berth does not want the answer any more; what calls others has to heed it, for the stream waits.
type Plugin struct {
	// Name is what profiles of Berth's configuration call it. Required. None of Berth's own plugins has it.
	Name string
	// Filter says whether a node can run pods of a kind. nil: all can, as far as this plugin is concerned.
	Filter FilterFunc
	// Score says how good a node is for pods of a kind that it can run. nil: the plugin does not score.
	Score ScoreFunc
	// Normalization is what becomes of the scores of a pod's feasible nodes before they are weighed, whatever Configure says.
	Normalization Normalization
	// Depends says what answers depend on, besides the kind of the pod and what the node is itself. Who says too little is not asked again when something changes.
	Depends Dependencies

	// PreEnqueue says whether a pod may be tried at all: kube-scheduler's PreEnqueue. It is called each time that the pod comes to wait for its turn, when it is new and when it comes back, for different pods at the same time, and
	// for one pod by one stream once at a time, whatever step of it is under way; its context ends with the stream. [Placement.Node] is "", and [Placement.Pod] is the pod if some plugin of the process depends on objects. Many pods may come at a time, so it
	// is fast. A rejection gates the pod: it is not attempted, nobody is told of it in an event, and it is asked about again when [Activator.Activate] or [Activator.Wake] names it; of a process without an
	// [Activator], when the pod has changed, and from time to time. An error is no rejection: the pod is asked about again soon. [Placement.Allow] and [Placement.Reject] do nothing for it. nil: all may be tried, as far as this plugin is concerned.
	PreEnqueue func(context.Context, *Placement) (*Rejection, error)
	// SortKey says where a pod belongs in the queue: pods with lower keys go first, and those of equal keys by priority, the highest first, and then by time, as without it. It is called once a pod is let in, each time, and when it has changed, as
	// PreEnqueue is, and must be fast. What it says is good until it is called again, and is compared with what it has said of other pods, also in another process: it is to be found in the pod, or in what all processes of the plugin know. One plugin
	// of others at most sorts the pods of all profiles. An error keeps the pod out, and it is asked about again soon. nil: the plugin does not sort.
	SortKey func(context.Context, *Placement, Queued) (int64, error)
	// PostFilter looks for a way for a pod that fits nowhere. nil: the plugin does not.
	PostFilter PostFilterFunc

	// What follows are the steps between the choice of a pod's node and its bind, and the bind, all of them optional: kube-scheduler's extension points of the same names. Those of one placement are
	// called one after the other, and those of different ones at the same time. A step may come again, on another stream, for a pod that it has been taken for before. But for
	// Unreserve's, their context also ends when the placement is given back, its pod is bound, or the stream ends, and they have to return soon then: what comes next waits.

	// Reserve notes that the pod is to go to the node, before anybody else is placed. Unreserve takes back what any step of the plugin has done, for the pod does not go there: it is also called if
	// Reserve has failed, or was not called, and when the stream ends, of all that is not bound. It has some seconds. There are both, or neither.
	Reserve   func(context.Context, *Placement) (*Rejection, error)
	Unreserve func(context.Context, *Placement)
	// Permit says whether the pod may go to the node. Pods of profiles that use the process wait for it, so what takes long is said later, by [Placement.Allow].
	Permit func(context.Context, *Placement) (Permission, error)
	// PreBind does what has to be done before the bind, when all is decided. It may take minutes.
	PreBind func(context.Context, *Placement) (*Rejection, error)
	// Bind binds the pod to the node: it writes that to the API server, and nobody else does. False: it does not bind this pod, and whoever is next does. It may be called again for a pod that it has bound, or is about to bind, and it has the service's
	// timeout. An error fails the attempt, unless the pod is found to be bound.
	Bind func(context.Context, *Placement) (bound bool, err error)
	// PostBind is told that the pod is bound. It is called once at most, and may not be called at all. The pod need not have been reserved on this stream.
	PostBind func(context.Context, *Placement)

	// Configure returns the plugin as it is for a profile with arguments: args of the profile's pluginConfig, in JSON. All functions are taken of it. It is called when a stream
	// begins, one of questions or one of steps, and must be fast. If it fails, so do all attempts of pods of the profile that the plugin is asked about. A profile without arguments gets the plugin itself.
	// nil: the plugin has no arguments, and profiles that give it some get an error.
	Configure func(arguments json.RawMessage) (Plugin, error)
}

// FilterFunc returns nil if the node can run pods of the kind, and else why it cannot. An error fails the attempts of the pods that are asked about.
type FilterFunc func(ctx context.Context, kind *Kind, node *Node) (*Refusal, error)

// ScoreFunc returns how good the node is for pods of the kind, from 0 to 100, where 100 is best. If the plugin's normalization is [Proportional] or [Reversed], it is from 0 to 2147483647, and of [Reversed] the lowest is best: kube-scheduler's Score
// of a plugin whose NormalizeScore is DefaultNormalizeScore. An error, or a score out of bounds, fails the attempts of the pods that are asked about.
type ScoreFunc func(ctx context.Context, kind *Kind, node *Node) (int64, error)

// PostFilterFunc looks for a way for a pod of the kind, which fits nowhere: it evicts others, say, or has a node made. Of the nodes, refused has those that could run it if pods were evicted from them. Which pod it is says [Kind.Pod], if the
// plugin depends on the pod. Unlike verdicts and scores, nothing of it is kept, and what it does may change things; it may be called twice for an attempt of a pod, if nobody knows what became of the first call, or the pod's node has changed meanwhile. An
// error ends what people are told of the pod, and no further plugin is asked.
type PostFilterFunc func(ctx context.Context, kind *Kind, refused []Refused) (PostFiltered, error)

// Refused is a node that cannot run a pod.
type Refused struct {
	*Node
	// Plugin is who refuses it, a plugin of the process or any other one, and Reason why.
	Plugin, Reason string
}

// PostFiltered is what has become of a pod that fits nowhere.
type PostFiltered struct {
	// Success: it will fit. Then no further plugin is asked, and Berth evicts nobody for it. It is tried again when something has changed in the cluster, a pod gone for example.
	Success bool
	// Nominated is the node that it will fit on: room there is for it, and not for pods of a lower priority. Optional, and only with Success.
	Nominated string
	// ClearsNomination: it is to be nominated to no node any more.
	ClearsNomination bool
	// Unresolvable: without Success, nobody else is asked, either. It is kube-scheduler's UnschedulableAndUnresolvable.
	Unresolvable bool
	// Reason ends what people are told of the pod, without Success. At most 1 KiB, or it is cut.
	Reason string
}

// check returns what is wrong with it.
func (f *PostFiltered) check() error {
	switch {
	case f.Nominated != "" && !f.Success:
		return errors.New("it nominates the pod without success")
	case f.Nominated != "" && f.ClearsNomination:
		return errors.New("it nominates the pod, and ends its nomination")
	case f.Success && f.Unresolvable:
		return errors.New("it has success, and is unresolvable")
	}
	return nil
}

// Refusal says why a node cannot run a pod.
type Refusal struct {
	// Reason is told to people with the number of nodes of which it is said, so it should not name the node: "no GPU of that model". Required; at most 1 KiB, or it is cut.
	// Beyond some 900 different reasons in one answer, further ones are told as "another reason".
	Reason string
	// Unresolvable: nothing would change if pods were evicted from the node. It is kube-scheduler's UnschedulableAndUnresolvable.
	Unresolvable bool
}

// Normalization is what becomes of scores before they are weighed.
type Normalization int

const (
	// AsIs: scores are what they are.
	AsIs Normalization = iota
	// Proportional: the highest becomes 100, and others so much of it as they are of the highest, rounded down. If the highest is 0, all are 0.
	Proportional
	// Reversed: the same, and then 100 less that: a low score is good.
	Reversed
)

// Dependencies are what the answers of a plugin depend on, besides the kind of the pod and what its node is itself.
type Dependencies struct {
	// Requested: on [Node.Requested] or [Node.PodCount]. An answer holds until a pod comes to the node, or leaves it.
	Requested bool
	// Pods: on [Node.Pods], which has none else. An answer holds as long as with Requested, which is told too, and until a pod there gets other labels or another priority. That a pod has got the zone and the region of its node, which the API server
	// copies to each pod that is bound (topology.kubernetes.io/zone and region), changes nothing, and may not be told: they are to be read of the node.
	Pods bool
	// Objects: on [Kind.Pod] or [Node.Object], which fail else, as [Placement.Pod] does. It takes a Berth with an API server.
	Objects bool
	// Pod: on the pod itself, its name say, and not only on what pods of its kind have in common: each is a kind of its own then. Much slower. It includes Objects.
	Pod bool
	// Annotations: on [Kind.Annotations], which are nil else, as [Placement.Labels] and [Placement.PodAnnotations] are. Much cheaper than Objects: nothing else of the pod is told, and no objects of nodes. It takes a Berth with an API server.
	Annotations bool
	// Holds: on things that Berth does not know of. An answer holds for so long, in whole milliseconds. 0: as long as the rest lets it. Who knows when such things change says so by [Activator.Changed], and needs no Holds.
	Holds time.Duration
}

// Kind is what pods of one specification have in common. It is only to be read, and only until the function returns that got it.
type Kind struct {
	// Namespace is metadata.namespace.
	Namespace string
	// Labels are metadata.labels.
	Labels map[string]string
	// Requested is what a pod requests, by resource: thousandths of a CPU for cpu, bytes for memory, and the resource's own unit for others.
	Requested map[string]int64
	// Priority is spec.priority.
	Priority int32
	// SchedulerName is spec.schedulerName, and the name of the profile.
	SchedulerName string
	// Annotations are metadata.annotations, if some plugin that the profile uses depends on annotations. Kinds that are only on nodes have none, whatever their pods have.
	Annotations map[string]string

	pod  func() (*corev1.Pod, error)
	kept *sync.Map // nil: nothing is
}

// Once returns what a function returns that it calls for the kind the first time that it is asked by a key, as kube-scheduler's PreFilter and PreScore work out for a pod what Filter and Score then need for each node. The key is of a type of the caller's own; what is returned is only to be read, for others have it too. It is forgotten when
// the kind is another one. The function may be called more than once if several goroutines ask at a time, and then all get the same.
func (k *Kind) Once(key any, f func() any) any {
	if k.kept == nil {
		return f()
	}
	if is, ok := k.kept.Load(key); ok {
		return is
	}
	is, _ := k.kept.LoadOrStore(key, f())
	return is
}

// Pod returns the pod as Kubernetes has it, but without what tells pods of a kind apart: name, UID, times, status, managedFields, and the volume with its own token. A plugin
// that depends on the pod gets all of it but managedFields. It is decoded once, when somebody asks. It fails if no plugin of the process depends on objects, and for kinds that are only on nodes.
func (k *Kind) Pod() (*corev1.Pod, error) {
	if k.pod == nil {
		return nil, errNotTold
	}
	return k.pod()
}

// Node is a node with what Berth has placed there, whether it is bound already or not. It is only to be read, and only until the function returns that got it.
type Node struct {
	// Name is metadata.name.
	Name string
	// Labels are metadata.labels.
	Labels map[string]string
	// Taints are spec.taints, in order, with key, value and effect.
	Taints []corev1.Taint
	// Unschedulable is spec.unschedulable.
	Unschedulable bool
	// Allocatable is status.allocatable, in the units of [Kind.Requested]; "pods" included.
	Allocatable map[string]int64
	// Requested is what its pods request in all, in the same units. Of resources of which nothing is requested there is nothing.
	Requested map[string]int64
	// PodCount is how many pods there are.
	PodCount int
	// Pods are those pods, by UID, if some plugin of the process depends on pods.
	Pods map[string]*Pod
	// Hypothetical: a question that a person has is about it, of what might be. Pods that are not among Pods are not there, whatever a plugin knows besides, and some that are may be hypothetical.
	Hypothetical bool

	object func() (*corev1.Node, error)
}

// Object returns the node as Kubernetes has it, without managedFields. It is decoded once, when somebody asks. It fails if no plugin of the process depends on objects.
func (n *Node) Object() (*corev1.Node, error) {
	if n.object == nil {
		return nil, errNotTold
	}
	return n.object()
}

var errNotTold = errors.New("the object was not told: no plugin of the process depends on objects, or it is that of pods that nobody asks about")

// Pod is a pod on a node.
type Pod struct {
	UID, Name string
	// Kind is what it is. Its namespace is the pod's.
	Kind *Kind
	// Hypothetical: it is there only in a question that a person has, about what might be. Nobody has reserved anything for it, and it may have been told of another node before, or be there in truth. A plugin that knows more of pods than it is told, such as what it has
	// reserved for them, takes it for one that has what it would get now.
	Hypothetical bool
}

const (
	maxPlugins   = 64
	maxNameBytes = 253
)

// check returns what is wrong with the plugins of a process.
func check(plugins []Plugin) error {
	if len(plugins) == 0 || len(plugins) > maxPlugins {
		return fmt.Errorf("%d plugins: want 1 to %d", len(plugins), maxPlugins)
	}
	seen := make(map[string]bool)
	for i, p := range plugins {
		if p.Name == "" || len(p.Name) > maxNameBytes || !utf8.ValidString(p.Name) {
			return fmt.Errorf("plugin %d: its name is %q: want 1 to %d bytes of UTF-8", i, p.Name, maxNameBytes)
		}
		if seen[p.Name] {
			return fmt.Errorf("plugin %s: there are two", p.Name)
		}
		seen[p.Name] = true
		if err := p.check(); err != nil {
			return fmt.Errorf("plugin %s: %w", p.Name, err)
		}
	}
	return nil
}

func (p *Plugin) check() error {
	switch {
	case p.Filter == nil && p.Score == nil && p.PostFilter == nil && !p.steps():
		return errors.New("it has neither Filter nor Score, nor PostFilter, nor a step")
	case (p.Reserve == nil) != (p.Unreserve == nil):
		return errors.New("it has one of Reserve and Unreserve: want both, or neither")
	case p.Normalization < AsIs || p.Normalization > Reversed:
		return fmt.Errorf("its Normalization is %d: want AsIs, Proportional or Reversed", p.Normalization)
	case p.Normalization != AsIs && p.Score == nil:
		return errors.New("it has a Normalization, and no Score")
	case p.Depends.Holds < 0 || p.Depends.Holds%time.Millisecond != 0:
		return fmt.Errorf("its answers hold for %v: want whole milliseconds, or 0", p.Depends.Holds)
	}
	return nil
}

// steps reports whether a plugin takes steps, or says which pods may be tried, or in which order.
func (p *Plugin) steps() bool {
	return p.PreEnqueue != nil || p.SortKey != nil || p.Reserve != nil || p.Unreserve != nil || p.Permit != nil || p.PreBind != nil || p.Bind != nil || p.PostBind != nil
}

// like reports whether a plugin has the functions that another one has.
func (p *Plugin) like(q *Plugin) bool {
	has := func(p *Plugin) [11]bool {
		return [...]bool{p.PreEnqueue != nil, p.SortKey != nil, p.Filter != nil, p.Score != nil, p.PostFilter != nil, p.Reserve != nil, p.Unreserve != nil, p.Permit != nil, p.PreBind != nil, p.Bind != nil, p.PostBind != nil}
	}
	return has(p) == has(q)
}
