// Package source is where a cluster comes from and where placements go to: a Kubernetes API server (package kube) or
// manifests kept in etcd (package local). It holds what the two share: the interface the binder uses, and the
// reduction of Kubernetes objects to what scheduling reads.
package source

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
)

// Kind tells the events of a source apart.
type Kind int

// The kinds of events.
const (
	NodeSet       Kind = iota + 1 // a node is new or was updated
	NodeGone                      // a node was deleted
	PodSet                        // a pod is new or was updated
	PodGone                       // a pod was deleted, or has succeeded or failed
	NamespaceSet                  // a namespace is new or was updated
	NamespaceGone                 // a namespace was deleted
	SelectorSet                   // a service or a controller is new or was updated, perhaps in another field than its selector
	SelectorGone                  // a service or a controller was deleted, or has no selector any more
	ObjectSet                     // an object of one of cluster's kinds of objects is new or was updated
	ObjectGone                    // such an object was deleted
	PodMoved                      // a pod that was told is on another node, or nominated to another one; all else is as it was told
	Synced                        // everything that existed when Watch began has been told
)

// Event is one thing a source saw. Only the fields of its kind are set; *Gone events carry the name (and a pod's uid), and
// PodMoved those and the two nodes.
type Event struct {
	Kind Kind
	Node cluster.Node
	// Touched says of a node, which may be as it was, that something has changed of it that only extenders read.
	Touched   bool
	Pod       Pod
	Namespace string
	Labels    []cluster.Label // of the namespace
	Selector  Selector
	Object    cluster.Object
	Key       cluster.ObjectKey // of an object that is gone
}

// Selector is a service, ReplicationController, ReplicaSet or StatefulSet, reduced to its selector.
type Selector struct {
	Kind, Namespace, Name string // Kind is one of cluster's
	Selector              cluster.LabelSelector
}

// Pod is a pod as a source sees it: cluster.Pod.Class and cluster.Pod.Labels are unset, Class is what it asks for and
// Labels what selectors and volumes see of it. A pod that is replaced by another of the same name is told gone before the other is
// told.
type Pod struct {
	cluster.Pod
	Class  cluster.ClassSpec
	Labels cluster.LabelSet
	// Extenders are those that the pod interests, if it has no node, as the source was told to find out: extender.Interest.
	Extenders uint64
	// Object is the pod in full, if plugins of others may have to be sent it and it is not one of the source: nil of all that a source tells. Nobody changes it.
	Object *corev1.Pod
}

// Binding is one placement to be written.
type Binding struct {
	UID, Namespace, Name, Node string
	// Version is the source's own business: what Prepare has found. A Bind of it happens only if the pod is still of it.
	Version string
	// Annotations become the pod's in the same write, over what it has of the same names. Nobody changes them.
	Annotations map[string]string
	// Annotated is as Version: how many bytes of annotations the pod has itself.
	Annotated int
}

// VolumeBinding is what has been chosen for the claims of a pod, to be written before the pod is bound.
type VolumeBinding struct {
	UID, Namespace, Name, Node string // of the pod, and where it goes
	Choices                    []cluster.VolumeChoice
	// Written says that all of it has been written. What is not as it was written then is not written again.
	Written bool
	// Void says that none of it is to be written. What an earlier call may have under way is to come to nothing, unless it has happened.
	Void bool
}

// ErrChanged says of a Bind with an unknown outcome that somebody had changed the pod since it was prepared: the next try is of what the
// pod is now.
var ErrChanged = errors.New("the pod has changed meanwhile")

// Result is what became of one binding.
type Result int

// The results of a bind.
const (
	// BindUnknown: no answer, or one that does not tell. The binding may or may not happen; ask Lookup, or bind again.
	BindUnknown Result = iota
	// BindDone: the pod is on the node.
	BindDone
	// BindGone: there is no pod of this uid any more, or it is being deleted.
	BindGone
	// BindElsewhere: the pod is on another node.
	BindElsewhere
	// BindRefused: the binding is not allowed and will not be later.
	BindRefused
)

// Outcome is the result of one binding, with the error behind any result but BindDone.
type Outcome struct {
	Result Result
	Err    error
}

// Report is why an attempt placed nothing, for the pod's events and its PodScheduled condition; or what has come of a PodGroup, for its PodGroupScheduled condition.
type Report struct {
	UID, Namespace, Name string
	Reason               string // Unschedulable or SchedulerError
	Message              string
	// Nominate says that status.nominatedNodeName is to become Nominated, "" for none, in the same write.
	Nominate  bool
	Nominated string
	// Assumed says that the pod has been placed, on Nominated, and is not bound yet.
	Assumed bool
	// Attempt is the number of the attempt that it tells of, 0 if it is not known.
	Attempt int32
	// Group says that it is of a PodGroup. Reason may be Scheduled then, and there is but a message besides.
	Group bool
}

// Scheduled is the Reason of a Report of a PodGroup that is placed: as many of its pods are as it wants.
const Scheduled = "Scheduled"

// Nomination is the node that a pod is nominated to, "" for none.
type Nomination struct{ UID, Namespace, Name, Node string }

// Eviction is a pod that has to go so that another, the preemptor, finds room on its node.
type Eviction struct {
	UID, Namespace, Name, Node                      string
	PreemptorUID, PreemptorNamespace, PreemptorName string
	PreemptorScheduler                              string // spec.schedulerName
	Canceled                                        bool   // it was not deleted, for it was only about to be bound
}

// Unsupported is an object, not a pod, that other roles are told otherwise than it is.
type Unsupported struct {
	Kind, Namespace, Name string // Namespace is "" if objects of the kind have none
	Why                   string
}

// Source is what the binder needs of a cluster. Every method but Watch may be called concurrently.
type Source interface {
	// Name is "kube" or "local".
	Name() string
	// Watch tells sink everything there is, at least as new as what had been written when Watch was called; then
	// Synced; then every change, in order per object. sink may block: the source waits. It returns ctx's error when
	// ctx ends, and otherwise goes on over every failure of the connection, telling the difference when it is back.
	Watch(ctx context.Context, sink func(Event)) error
	// Ready says what Watch waits for, nil if nothing.
	Ready() error
	// MaxBatch is how many bindings one Bind writes together. More are written one batch after the other.
	MaxBatch() int
	// Fenced says that a Bind writes a placement in one transaction that holds only while fence does. Nobody has to finish
	// such a bind for a binder that was deposed, so it needs no record before, unless others are to be bound with it.
	Fenced() bool
	// Prepare notes in bindings what the pods are now. It asks nobody. Whoever binds makes sure afterwards that its term holds,
	// and then calls Bind: so a Bind that leaves late, when another term has begun, is of a pod from before that.
	Prepare(bindings []Binding)
	// Bind writes placements and answers for each, in order. fence is the guard of the binder's term. BindRefused is said of
	// this Bind: one before, whose outcome was unknown, may still happen; see Withdraw. What it still has to read of a pod may be later
	// than the term; then it writes nothing if the term has Ended.
	Bind(ctx context.Context, fence coord.Cond, bindings []Binding) []Outcome
	// Withdraw makes sure that a pod is bound by no Bind that was prepared before, by whatever binder and on whatever way it
	// still is, and then answers BindRefused. Any other result is what has become of the pod instead, or that it is not known.
	// If what makes that sure is a write to the pod, it says why. A source whose binds are fenced answers for earlier terms
	// only.
	Withdraw(ctx context.Context, fence coord.Cond, b Binding, why Report) Outcome
	// BindVolumes carries out what has been chosen for claims, as far as that is a scheduler's to do: who binds claims and provisions
	// volumes goes on from there. BindDone: all of it is written, or was. BindRefused: some of it cannot be, as the claim or the volume is not
	// what it was, or may not be; the rest may have been. In both cases Watch has told all that was written by this call. BindUnknown: call it again. A
	// refusal is of this call: what an earlier one, by whatever binder, may have under way can still happen, until one with Void has been answered. Nothing is
	// written if the term has Ended.
	BindVolumes(ctx context.Context, fence coord.Cond, b VolumeBinding) Outcome
	// Lookup reads, consistently, the uid and the node ("" if none) of a pod. found is false if there is none of the name.
	// It waits for no rate limit: no error means that the cluster can be used.
	Lookup(ctx context.Context, namespace, name string) (uid, node string, found bool, err error)
	// Scheduled records that a pod was placed, for people: an event.
	Scheduled(ctx context.Context, b Binding) error
	// Unschedulable records why a pod was not placed: an event, and in one write the PodScheduled condition and the
	// nomination, as far as they differ.
	Unschedulable(ctx context.Context, r Report) error
	// GroupDecided records what an attempt to place a PodGroup has come to, in its PodGroupScheduled condition, as far as that differs. A group that was placed once stays Scheduled. Nothing
	// is written of one that Watch does not show. A source that keeps no conditions of PodGroups does nothing.
	GroupDecided(ctx context.Context, r Report) error
	// Unsupported records, for people, that an object is not taken as it is: an event.
	Unsupported(ctx context.Context, u Unsupported) error
	// Nominate writes which node a pod is nominated to. That there is no such pod any more is no error.
	Nominate(ctx context.Context, n Nomination) error
	// Evict makes a pod go: it says in the pod's condition DisruptionTarget why, and deletes it with its usual grace
	// period. That there is no such pod any more is no error. fence is the guard of the binder's term.
	Evict(ctx context.Context, fence coord.Cond, e Eviction) error
	// Preempted records that a pod was evicted, for people: an event of the victim.
	Preempted(ctx context.Context, e Eviction) error
}

// ended is the key of what tells a call whether the term that it is for has ended.
type ended struct{}

// WithEnd returns a context of calls for a term, of which has says whether it has ended, or may have.
func WithEnd(ctx context.Context, has func() bool) context.Context {
	return context.WithValue(ctx, ended{}, has)
}

// Ended reports whether the term that a call is for has ended, or may have, as far as its context says. That is known before the
// context ends, and a context may go on for a while when a term ends.
func Ended(ctx context.Context) bool {
	has, ok := ctx.Value(ended{}).(func() bool)
	return ok && has()
}
