package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Prepare notes the newest resource version that is known of each pod.
func (s *Source) Prepare(bindings []source.Binding) {
	pods := s.watched()
	if pods == nil {
		return
	}
	for i := range bindings {
		b := &bindings[i]
		b.Version, b.Annotated = pods.versionOf(types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, types.UID(b.UID))
	}
}

// Bind posts the bindings. The fence is the caller's: see the package comment. A binding names the pod's resource version, so
// the API server refuses it when the pod has been written since: that is what Withdraw builds on. A pod whose version is not
// known is read first.
func (s *Source) Bind(ctx context.Context, _ coord.Cond, bindings []source.Binding) []source.Outcome {
	out := make([]source.Outcome, len(bindings))
	for i, b := range bindings {
		out[i] = s.bind(ctx, b)
	}
	return out
}

func (s *Source) bind(ctx context.Context, b source.Binding) source.Outcome {
	if b.Version == "" {
		pod, err := s.get(ctx, s.reads, b.Namespace, b.Name)
		if err != nil {
			return unknown(b, err)
		}
		if o, ok := standing(b, pod, errGone); ok {
			return o
		}
		if source.Ended(ctx) {
			return unknown(b, errEnded)
		}
		b.Version, b.Annotated = pod.ResourceVersion, annotated(pod)
	}
	if n := b.Annotated + bytesOf(b.Annotations); len(b.Annotations) > 0 && n > validation.TotalAnnotationSizeLimitB { // the API server does not look, and would refuse whatever anybody writes to the pod then
		return outcome(source.BindRefused, b, fmt.Errorf("with the annotations that plugins have chosen for the pod, there are %d bytes of them: at most %d are possible", n, validation.TotalAnnotationSizeLimitB))
	}
	err := s.post(ctx, b)
	switch code := httpCode(err); {
	case err == nil:
		return source.Outcome{Result: source.BindDone}
	case code == http.StatusConflict, code == http.StatusNotFound: // or an admission webhook that says so
		return s.afterConflict(ctx, b, err)
	case refuses(code):
		return outcome(source.BindRefused, b, err)
	default: // no answer, a timeout, an overloaded or broken server or webhook, credentials that can be renewed
		return unknown(b, err)
	}
}

// annotated returns how many bytes of annotations a pod has, as the API server counts.
func annotated(pod *v1.Pod) int { return bytesOf(pod.Annotations) }

func bytesOf(annotations map[string]string) (n int) {
	for name, value := range annotations {
		n += len(name) + len(value)
	}
	return n
}

// post sends a binding, once: of a second try that the client makes by itself, nobody would know that the first one may still
// happen.
func (s *Source) post(ctx context.Context, b source.Binding) error {
	// Whoever binds may do so until ctx ends, by the clock that stands still while a machine is suspended, and by the one that does not.
	left := s.cfg.RequestTimeout
	if until, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(until), until.Round(0).Sub(time.Now().Round(0)))
	}
	if left <= 0 {
		return context.DeadlineExceeded
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	began := time.Now()
	request := s.binds.CoreV1().RESTClient().Post().
		Namespace(b.Namespace).Resource("pods").Name(b.Name).SubResource("binding").MaxRetries(0)
	request.Timeout(max(left.Truncate(time.Millisecond), time.Millisecond)) // nor does the API server go on with what nobody waits for: another scheduler may hold the Lease by then
	err := request.
		Body(&v1.Binding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: b.Namespace, Name: b.Name, UID: types.UID(b.UID), ResourceVersion: b.Version, Annotations: b.Annotations,
			},
			Target: v1.ObjectReference{Kind: "Node", Name: b.Node},
		}).Do(ctx).Error()
	s.observe(s.binds, began, err)
	return err
}

var errEnded = errors.New("the term has ended while the pod was read")

var errGone = errors.New("there is no such pod any more, or it is being deleted")

// standing returns what has become of a binding by the newest there is of its pod, nil for none. False: the pod waits.
// why is the error of a binding that is not done.
func standing(b source.Binding, pod *v1.Pod, why error) (source.Outcome, bool) {
	switch {
	case pod == nil || string(pod.UID) != b.UID || pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return outcome(source.BindGone, b, why), true
	case pod.Spec.NodeName == b.Node:
		return source.Outcome{Result: source.BindDone}, true
	case pod.Spec.NodeName != "":
		return outcome(source.BindElsewhere, b, why), true
	}
	return source.Outcome{}, false
}

// afterConflict finds what a conflict was about: the pod is on a node, is another one, is being deleted, or was merely
// written by someone else. Then the next try is of the version that is read here.
func (s *Source) afterConflict(ctx context.Context, b source.Binding, conflict error) source.Outcome {
	pod, err := s.get(ctx, s.binds, b.Namespace, b.Name)
	if err != nil {
		return unknown(b, errors.Join(conflict, err))
	}
	if o, ok := standing(b, pod, conflict); ok {
		return o
	}
	if pods := s.watched(); pods != nil {
		pods.sawPod(pod)
	}
	if pod.ResourceVersion != b.Version {
		conflict = fmt.Errorf("%w: %w", source.ErrChanged, conflict)
	}
	return unknown(b, conflict)
}

// Withdraw writes to the pod, to its PodScheduled condition. If it has no node at that moment, it gets none by a binding of an
// earlier version any more: the API server refuses one that comes later, and etcd one that is on its way there. No answer to
// an earlier try, and no time that has passed since, would prove that.
func (s *Source) Withdraw(ctx context.Context, _ coord.Cond, b source.Binding, why source.Report) source.Outcome {
	// 1. What has become of the pod?
	pod, err := s.get(ctx, s.binds, b.Namespace, b.Name)
	if err != nil {
		return unknown(b, err)
	}
	if o, ok := standing(b, pod, errGone); ok {
		return o
	}
	// 2. Write something that is not there. The time of the last probe, of whole seconds, says nothing else to anybody.
	now := s.cfg.Now()
	condition := v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: why.Reason, Message: why.Message,
		ObservedGeneration: pod.Generation, LastProbeTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	stands := conditionOf(pod, v1.PodScheduled)
	differs(&condition, stands, now)
	if stands != nil && !stands.LastProbeTime.Before(&condition.LastProbeTime) {
		condition.LastProbeTime = metav1.NewTime(stands.LastProbeTime.Add(time.Second))
	}
	patch := statusPatch{Conditions: []v1.PodCondition{condition}}
	if why.Nominate {
		patch.NominatedNodeName = &why.Nominated
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	// Of the version that was read: if a binding is carried out meanwhile, its condition stands.
	written, err := s.patchStatusOf(ctx, s.binds, name, pod.UID, pod.ResourceVersion, patch)
	if err != nil {
		return unknown(b, err)
	}
	// 3. What was it when that was written?
	if o, ok := standing(b, written, errGone); ok {
		return o
	}
	if pods := s.watched(); pods != nil {
		pods.sawPod(written)
		pods.written(name, pod.UID, patch, written.ResourceVersion)
	}
	if written.ResourceVersion == pod.ResourceVersion {
		return unknown(b, errors.New("the pod could not be changed"))
	}
	return outcome(source.BindRefused, b, errors.New("the binding was withdrawn"))
}

// get reads a pod by way of a lane, as new as there is, nil if there is none.
func (s *Source) get(ctx context.Context, by lane, namespace, name string) (*v1.Pod, error) {
	ctx, cancel := s.request(ctx)
	defer cancel()
	pod, err := by.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func unknown(b source.Binding, err error) source.Outcome {
	return outcome(source.BindUnknown, b, err)
}

func outcome(r source.Result, b source.Binding, err error) source.Outcome {
	return source.Outcome{Result: r, Err: fmt.Errorf("bind %s/%s to %s: %w", b.Namespace, b.Name, b.Node, err)}
}

// refuses reports whether an answer says that the same request will not be carried out later either.
func refuses(code int) bool {
	switch code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusUnsupportedMediaType, http.StatusRequestEntityTooLarge:
		return true
	}
	return false
}

// httpCode returns the HTTP status of the API server's answer, 0 if it did not answer.
func httpCode(err error) int {
	if err == nil {
		return http.StatusOK
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// statusCode returns what a metric calls the HTTP status of an answer.
func statusCode(err error) string { return nameOfStatus(httpCode(err)) }
