package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// nullBinderCommand is the subcommand that is the null binder.
const nullBinderCommand = "null-binder"

// runNullBinder binds every pending pod to the next node in turn, with its UID, and does nothing else: no filter, no
// score, no event, no retry. It is the most that an API server lets any scheduler do. With --claims it writes the nomination and what a scheduler
// writes for the claims of the pod before, waits until they are bound, and tells the event of the binding: the same writes. It ends with ctx, or with an error when a write fails.
func runNullBinder(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(nullBinderCommand, flag.ContinueOnError)
	kubeconfig := f.String("kubeconfig", "", "`path` of the kubeconfig file")
	concurrency := f.Int("concurrency", 64, "binds in flight at `most`")
	claims := f.Bool("claims", false, "write what a scheduler writes for claims")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if *concurrency < 1 {
		return fmt.Errorf("--concurrency: %d is not positive", *concurrency)
	}
	client, err := kubetest.NewClient(*kubeconfig)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	if len(nodes.Items) == 0 {
		return errors.New("bind pods: no nodes")
	}

	g, ctx := errgroup.WithContext(ctx)
	prepare := func(_ context.Context, _ *corev1.Pod, node string) (string, error) { return node, nil }
	if *claims {
		c, err := followClaims(ctx, g, client)
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		prepare = c.prepare
	}
	pending := make(chan *corev1.Pod, *concurrency)
	g.Go(func() error {
		watchPending(ctx, client, pending)
		return nil
	})
	var next atomic.Int64
	for range *concurrency {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case pod := <-pending:
					node := nodes.Items[int(next.Add(1)-1)%len(nodes.Items)].Name
					node, err := prepare(ctx, pod, node)
					if err == nil {
						err = bind(ctx, client, pod, node)
					}
					if err == nil && *claims {
						err = tell(ctx, client, pod, node)
					}
					if err != nil && ctx.Err() == nil {
						return err
					}
				}
			}
		})
	}
	return g.Wait()
}

// watchPending sends the pods that have no node, each once, until ctx ends.
func watchPending(ctx context.Context, client *kubernetes.Clientset, pending chan<- *corev1.Pod) {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(
			client.CoreV1().RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", "")), client),
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return
			}
			select {
			case pending <- pod:
			case <-ctx.Done():
			}
		}},
	})
	controller.RunWithContext(ctx)
}

// bind places the pod, if it is still the one that was seen.
func bind(ctx context.Context, client *kubernetes.Clientset, pod *corev1.Pod, node string) error {
	err := client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind %s/%s to %s: %w", pod.Namespace, pod.Name, node, err)
	}
	return nil
}

// tell writes the event of a binding, as kube-scheduler does.
func tell(ctx context.Context, client *kubernetes.Clientset, pod *corev1.Pod, node string) error {
	now := metav1.Now()
	_, err := client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: pod.Name + "."},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Reason:         "Scheduled", Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Message: fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node),
		Source:  corev1.EventSource{Component: nullBinderCommand},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("tell that %s/%s is bound: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
