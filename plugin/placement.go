package plugin

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
)

// Placement is a pod and the node that it was given. A plugin gets the same one at all of its steps, from Reserve on, and another one if the pod is reserved again: what a plugin keeps of
// a placement goes by it, and not by the pod's UID, for the pod may be reserved on one stream while it still is on another. PreEnqueue and SortKey, which come before there is a node, get another one each time. It is only to be read.
type Placement struct {
	// UID, Namespace and Name are those of the pod's metadata.
	UID, Namespace, Name string
	// SchedulerName is spec.schedulerName, and the name of the profile.
	SchedulerName string
	// Node is the node's metadata.name. "" at PreEnqueue and SortKey.
	Node string
	// Stands: the pod was reserved before, here or elsewhere, and what was chosen for it then is recorded. Reserve notes what [Placement.Annotations] say, and chooses nothing.
	Stands bool
	// Labels and PodAnnotations are metadata.labels and metadata.annotations, as they were when the pod was reserved, or are when PreEnqueue or SortKey is called, if some plugin of the process depends on annotations. There are none in PostBind and Unreserve of a pod that was not reserved. What is chosen for the pod
	// is in [Placement.Annotations].
	Labels, PodAnnotations map[string]string

	plugin string     // whose it is
	of     *placement // nil: none that a stream has told of
	at     *placeserver.Placement
}

// Queued is how a pod waits.
type Queued struct {
	// Since is since when: the pod was made then, or its last attempt ended.
	Since time.Time
	// First is when it was first let in, or is, if it is now: a different time for each pod.
	First time.Time
	// Attempts are how many there have been, Unschedulable how many of them found no node, and Errors how many of the last have failed.
	Attempts, Unschedulable, Errors int
}

func queuedOf(q *pluginv1.Queued) Queued {
	return Queued{
		Since: time.Unix(0, q.GetSinceUnixNanos()), First: time.Unix(0, q.GetFirstUnixNanos()), Attempts: int(q.GetAttempts()), Unschedulable: int(q.GetUnschedulable()), Errors: int(q.GetErrors()),
	}
}

var errPodNotTold = errors.New("the pod was not told: no plugin of the process depends on objects, or it is bound and was not reserved on this stream")

// Pod returns the pod as Kubernetes has it, without managedFields, as it was when it was reserved, or is when PreEnqueue or SortKey is called. It is decoded once, when somebody asks. It fails if no plugin of the process depends on
// objects, and in PostBind and Unreserve of a pod that was not reserved.
func (p *Placement) Pod() (*corev1.Pod, error) {
	if p.of == nil || p.of.pod == nil {
		return nil, errPodNotTold
	}
	return p.of.pod()
}

var errOfNoStream = errors.New("nothing can be chosen for a placement that no stream has told of")

// Annotate chooses an annotation for the pod, in Reserve: which of the node's cards are the pod's own, say. Berth records it before anything is written to the API server, so that another binder that takes over chooses nothing else, tells it again with
// the placement when that is reserved anew, and writes it to the pod in the request that binds it: who reads the pod, and sees it on the node, sees the annotation. Unreserve ends that, without that anybody has seen it. It is over once the pod is bound:
// then the API server's pod says it, and Berth does not.
//
// An error names what is wrong: the name is none of an annotation, has no prefix, or one of Kubernetes' own; or there are more than 64, or more than 4096 bytes in all; or it has been chosen with another value, also by another plugin; or the placement
// stands; or Reserve has returned. Then nothing has changed. Annotations are no secret, and whoever may change the pod can change them.
func (p *Placement) Annotate(name, value string) error {
	if p.at == nil {
		return errOfNoStream
	}
	return p.at.Annotate(name, value)
}

// Annotations returns what has been chosen for the pod so far, by all plugins.
func (p *Placement) Annotations() map[string]string {
	if p.at == nil {
		return nil
	}
	return p.at.Annotations()
}

// Allow says that a placement that waits may be, as far as the plugin is concerned: it goes on when all plugins have said so that have it wait. It can be called from anywhere, also more than
// once, and as soon as the placement is reserved, before Permit has returned. It does nothing to a placement that is decided, or over.
func (p *Placement) Allow() {
	if p.of != nil {
		p.of.say(p.plugin, word{allowed: true})
	}
}

// Reject says that a placement that waits may not be, whoever else has allowed it. The reason is told to people; without one it is "rejected". Otherwise it is as Allow.
func (p *Placement) Reject(reason string) {
	if reason == "" {
		reason = "rejected"
	}
	if p.of != nil {
		p.of.say(p.plugin, word{rejected: reason})
	}
}

// Rejection says why a placement does not come about: it is given back, and its pod is unschedulable. Of PreEnqueue, it says why the pod may not be tried.
type Rejection struct {
	// Reason is told to people. Required; at most 1 KiB, or it is cut.
	Reason string
}

// Permission is whether a placement may be. The zero Permission says that it may.
type Permission struct {
	// Rejection: it may not.
	Rejection *Rejection
	// Wait: that is not known yet. The placement waits until [Placement.Allow] or [Placement.Reject] is called of it, and is rejected after so long, or 15 minutes if that is less. 0: it does
	// not wait.
	Wait time.Duration
}

// maxWait is kube-scheduler's maxTimeout.
const maxWait = 15 * time.Minute

// check returns what is wrong with a rejection, if there is one.
func (r *Rejection) check() error {
	if r != nil && r.Reason == "" {
		return errors.New("it is rejected without a reason")
	}
	return nil
}

func (p *Permission) check() error {
	switch {
	case p.Wait < 0:
		return fmt.Errorf("it is to wait for %v: want 0 at least", p.Wait)
	case p.Wait > 0 && p.Rejection != nil:
		return errors.New("it is rejected, and is to wait")
	}
	return p.Rejection.check()
}
