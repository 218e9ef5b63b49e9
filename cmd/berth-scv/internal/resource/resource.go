// Package resource writes what the cards of a node are into the custom resource that is named after the node. It makes the resource if there is none, as a dependent of
// the Node, so that it goes with it. It neither repeats what fails nor remembers what it was to write: its caller has something newer by then.
package resource

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

var (
	scvs  = schema.GroupVersionResource{Group: scv.Group, Version: scv.Version, Resource: scv.Resource}
	nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// tries are made of a write within one call, if others change or delete the object meanwhile.
const tries = 3

// Writer writes for one node. Its methods may not be called concurrently.
type Writer struct {
	client  dynamic.Interface
	node    string
	timeout time.Duration // of a request
	log     *slog.Logger
	warned  map[string]bool // what has been warned of: once is enough

	object *unstructured.Unstructured // as the API server has it; nil: to be read
}

// gpus is the resource that the device plugin of NVIDIA has a node tell.
const gpus = "nvidia.com/gpu"

// New returns a Writer for a node, whose requests take no longer than timeout each.
func New(client dynamic.Interface, node string, timeout time.Duration, log *slog.Logger) *Writer {
	return &Writer{client: client, node: node, timeout: timeout, log: log, warned: make(map[string]bool)}
}

// Write writes the newest status, which it asks for when it is about to send it, each time, and returns the one that it has sent last; nil: none. After an error it may have been written or not.
func (w *Writer) Write(ctx context.Context, newest func() *scv.Status) (status *scv.Status, err error) {
	for try := 1; ; try++ {
		if w.object == nil {
			if w.object, err = w.find(ctx, newest()); err != nil {
				return status, err
			}
		}
		status = newest()
		changed := w.object.DeepCopy()
		if changed.Object["status"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(status); err != nil {
			return status, fmt.Errorf("encode the status of node %s: %w", w.node, err)
		}
		written, err := request(ctx, w.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.client.Resource(scvs).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		})
		if err == nil {
			w.object = written
			return status, nil
		}
		stale := apierrors.IsConflict(err) || apierrors.IsNotFound(err)
		if stale {
			w.object = nil
		}
		if !stale || try == tries {
			return status, fmt.Errorf("write the status of Scv %s: %w", w.node, err)
		}
	}
}

// find reads the object, and makes it if there is none. One that is not the Node's, because somebody has made it or the Node is another one of that name, becomes so,
// if that is allowed.
func (w *Writer) find(ctx context.Context, status *scv.Status) (*unstructured.Unstructured, error) {
	node, err := request(ctx, w.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return w.client.Resource(nodes).Get(ctx, w.node, metav1.GetOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("read Node %s, which is to own the Scv: %w", w.node, err)
	}
	if n, _, _ := unstructured.NestedString(node.Object, "status", "capacity", gpus); n != "" && n != "0" && len(status.Cards) == 0 {
		w.warn("the node tells of GPUs, and none can be read: does the container have the driver's library?", gpus, n)
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: w.node, UID: node.GetUID()}
	object, err := request(ctx, w.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return w.client.Resource(scvs).Get(ctx, w.node, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": scv.Group + "/" + scv.Version, "kind": scv.Kind}}
		object.SetName(w.node)
		object.SetOwnerReferences([]metav1.OwnerReference{owner})
		object, err = request(ctx, w.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.client.Resource(scvs).Create(ctx, object, metav1.CreateOptions{})
		})
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("%w: is the custom resource %s.%s defined in this cluster?", err, scv.Resource, scv.Group)
		}
		if err != nil {
			return nil, fmt.Errorf("make Scv %s: %w", w.node, err)
		}
	case err != nil:
		return nil, fmt.Errorf("read Scv %s: %w", w.node, err)
	case !owned(object, owner.UID):
		changed := object.DeepCopy()
		others := slices.DeleteFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
			return o.APIVersion == owner.APIVersion && o.Kind == owner.Kind && o.Name == owner.Name // another Node that had the name
		})
		changed.SetOwnerReferences(append(others, owner))
		changed, err = request(ctx, w.timeout, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return w.client.Resource(scvs).Update(ctx, changed, metav1.UpdateOptions{})
		})
		if apierrors.IsForbidden(err) {
			w.warn("the Scv is not its Node's, and stays when the Node goes", "reason", err)
			return object, nil
		}
		if err != nil {
			return nil, fmt.Errorf("have Node %s own its Scv: %w", w.node, err)
		}
		return changed, nil
	}
	return object, nil
}

// warn logs a message, once.
func (w *Writer) warn(message string, args ...any) {
	if !w.warned[message] {
		w.warned[message] = true
		w.log.Warn(message, args...)
	}
}

func owned(object *unstructured.Unstructured, by types.UID) bool {
	for _, o := range object.GetOwnerReferences() {
		if o.UID == by {
			return true
		}
	}
	return false
}

// request gives a request its deadline.
func request(ctx context.Context, timeout time.Duration, do func(context.Context) (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return do(ctx)
}
