package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bind posts the bindings. The fence is the caller's: see the package comment.
func (s *Source) Bind(ctx context.Context, _ coord.Cond, bindings []source.Binding) []source.Outcome {
	out := make([]source.Outcome, len(bindings))
	for i, b := range bindings {
		out[i] = s.bind(ctx, b)
	}
	return out
}

func (s *Source) bind(ctx context.Context, b source.Binding) source.Outcome {
	request, cancel := s.request(ctx)
	defer cancel()
	began := time.Now()
	err := s.binds.CoreV1().Pods(b.Namespace).Bind(request, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, UID: types.UID(b.UID)},
		Target:     v1.ObjectReference{Kind: "Node", Name: b.Node},
	}, metav1.CreateOptions{})
	s.observe(s.binds, began, err)
	switch code := httpCode(err); {
	case err == nil:
		return source.Outcome{Result: source.BindDone}
	case code == http.StatusNotFound:
		return outcome(source.BindGone, b, err)
	case code == http.StatusConflict:
		return s.afterConflict(ctx, b, err)
	case code == http.StatusBadRequest, code == http.StatusForbidden, code == http.StatusUnprocessableEntity,
		code == http.StatusMethodNotAllowed, code == http.StatusNotAcceptable, code == http.StatusUnsupportedMediaType,
		code == http.StatusRequestEntityTooLarge:
		return outcome(source.BindRefused, b, err)
	default: // no answer, a timeout, an overloaded or broken server, credentials that can be renewed
		return unknown(b, err)
	}
}

// afterConflict finds what a conflict was about: the pod is on a node, is another one, is being deleted, or was merely
// being written by someone else.
func (s *Source) afterConflict(ctx context.Context, b source.Binding, conflict error) source.Outcome {
	pod, err := s.get(ctx, s.binds, b.Namespace, b.Name)
	switch {
	case err != nil:
		return unknown(b, errors.Join(conflict, err))
	case pod == nil || string(pod.UID) != b.UID || pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return outcome(source.BindGone, b, conflict)
	case pod.Spec.NodeName == b.Node:
		return source.Outcome{Result: source.BindDone}
	case pod.Spec.NodeName != "":
		return outcome(source.BindElsewhere, b, conflict)
	default:
		return unknown(b, conflict)
	}
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

func statusCode(err error) string { return strconv.Itoa(httpCode(err)) }
