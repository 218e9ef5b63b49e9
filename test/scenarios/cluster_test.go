package scenarios

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// errRefused: the cluster does not allow the change.
var errRefused = errors.New("refused")

// userCluster is the cluster that a story is about, as its users see it, without Berth. Objects are named by kind, as in
// manifests, and are in the namespace default if they are in one.
type userCluster interface {
	createNode(ctx context.Context, n *corev1.Node) error
	createPod(ctx context.Context, p *corev1.Pod) error
	setBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error
	// editNode and editPod change what is stored. The error is errRefused if that is not allowed.
	editNode(ctx context.Context, name string, edit func(*corev1.Node) error) error
	editPod(ctx context.Context, name string, edit func(*corev1.Pod) error) error
	// resizePod changes the requests of a pod.
	resizePod(ctx context.Context, name string, edit func(*corev1.Pod) error) error
	// remove deletes an object; now, a pod does not end gracefully.
	remove(ctx context.Context, kind, name string, now bool) error
	// bind puts a pod on a node, as another scheduler would.
	bind(ctx context.Context, pod, node string) error
	// pods returns all pods, with their nodes and what their statuses say, by name.
	pods(ctx context.Context) (map[string]*corev1.Pod, error)
	// events returns what the events of a pod say, in the order in which they were written.
	events(ctx context.Context, uid string) ([]event, error)
}

type event struct{ kind, reason, note string }
