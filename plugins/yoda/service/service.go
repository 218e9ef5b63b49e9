package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-scheduler/berth/app"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugins/yoda/keeper"
)

// AnnotationPrefix is that of the annotations that it chooses for pods.
const AnnotationPrefix = "yoda.berth.dev"

// Service returns the service.
func Service() app.Service {
	return app.Service{Name: Name, Annotations: []string{AnnotationPrefix}, Make: newService, InProcess: true}
}

// How many requests the API server gets: one for each placement that is given back, and else a list of each kind of objects. The priorities of the API server bound them too.
const (
	requestsPerSecond = 200
	requestsAtOnce    = 400
)

// newService makes the plugins, and what keeps them informed.
func newService(e app.Environment) (*app.Made, error) {
	cards, activator := keeper.New(), new(plugin.Activator)
	synced, ready := make(chan struct{}), make(chan struct{})
	if err := e.Metrics.Register(keeper.Collector(cards, synced)); err != nil {
		return nil, fmt.Errorf("register the metrics of Yoda: %w", err)
	}
	run := func(ctx context.Context) error {
		var waiting sync.WaitGroup
		defer waiting.Wait()
		ctx, end := context.WithCancel(ctx)
		defer end() // before that waits
		waiting.Go(func() { soon(ctx, synced, ready) })
		cfg, err := e.Kubeconfig()
		if err != nil {
			return err
		}
		cfg = rest.CopyConfig(cfg)
		cfg.QPS, cfg.Burst = requestsPerSecond, requestsAtOnce
		binary := rest.CopyConfig(cfg) // quicker for both sides, as far as there is no custom resource
		binary.AcceptContentTypes, binary.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
		kube, err := kubernetes.NewForConfig(binary)
		if err != nil {
			return fmt.Errorf("reach the API server: %w", err)
		}
		dyn, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return fmt.Errorf("reach the API server: %w", err)
		}
		return keeper.NewWatch(keeper.Config{
			Cards: cards, Kube: kube, Dynamic: dyn, Changed: activator.Changed, Wake: activator.Wake, Log: e.Log, Synced: synced,
		}).Run(ctx)
	}
	return &app.Made{Plugins: Plugins(cards, synced, activator.Wake), Activator: activator, Ready: ready, Run: run}, nil
}

// readyWithin is how long pods wait, also those that ask for no card, until the cluster has been read. Then who asks for cards fails, and is told why, and others are placed.
const readyWithin = 10 * time.Second

// soon closes ready when synced is closed, or it has taken too long.
func soon(ctx context.Context, synced <-chan struct{}, ready chan<- struct{}) {
	late := time.NewTimer(readyWithin)
	defer late.Stop()
	select {
	case <-synced:
	case <-late.C:
	case <-ctx.Done():
		return
	}
	close(ready)
}
