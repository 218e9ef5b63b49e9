package service

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/berth-scheduler/berth/app"
	"github.com/berth-scheduler/berth/test/bubble"
)

// What is wrong from the start is said at once.
func TestWhatIsWrongFromTheStartIsNotWaitedFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		wrong := errors.New("there is no API server")
		made, err := newService(app.Environment{Kubeconfig: func() (*rest.Config, error) { return nil, wrong }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := made.Run(t.Context()); !errors.Is(err, wrong) || time.Since(began) > 0 {
			t.Errorf("%v, %v later", err, time.Since(began))
		}
	})
}

// Pods wait until the cluster has been read, and not for ever. All sleep is by the clock of the bubble, which goes on at once when everybody in it waits.
func TestPodsWaitUntilTheClusterHasBeenReadOrItTakesTooLong(t *testing.T) {
	for name, test := range map[string]struct {
		then func(synced chan struct{}, end context.CancelFunc)
		want bool
	}{
		"it is read":          {func(synced chan struct{}, _ context.CancelFunc) { close(synced) }, true},
		"it takes too long":   {func(chan struct{}, context.CancelFunc) { time.Sleep(readyWithin) }, true},
		"it takes a while":    {func(chan struct{}, context.CancelFunc) { time.Sleep(readyWithin - 1) }, false},
		"the process is over": {func(_ chan struct{}, end context.CancelFunc) { end() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				synced, ready := make(chan struct{}), make(chan struct{})
				go soon(ctx, synced, ready)
				test.then(synced, end)
				synctest.Wait()
				select {
				case <-ready:
					if !test.want {
						t.Error("it is ready")
					}
				default:
					if test.want {
						t.Error("it is not ready")
					}
				}
				end()
			})
		})
	}
}
