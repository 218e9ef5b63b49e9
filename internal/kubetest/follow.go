package kubetest

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// follow tells handler of the objects of a core resource, in all namespaces, and returns when it has told of those that
// exist. Kind is an object of the resource. Stop ends it, waits for its end, and may be called again.
func follow(ctx context.Context, client *kubernetes.Clientset, resource string, kind runtime.Object, which fields.Selector,
	transform cache.TransformFunc, handler cache.ResourceEventHandler,
) (stop func(), err error) {
	following, cancel := context.WithCancel(ctx)
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(
			cache.NewListWatchFromClient(client.CoreV1().RESTClient(), resource, "", which), client),
		ObjectType: kind,
		Transform:  transform,
		Handler:    handler,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.RunWithContext(following)
	}()
	stop = func() {
		cancel()
		<-done
	}
	if !cache.WaitForCacheSync(following.Done(), controller.HasSynced) {
		stop()
		return nil, fmt.Errorf("watch %s: %w", resource, ctx.Err())
	}
	return stop, nil
}
