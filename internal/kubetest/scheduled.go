package kubetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// ScheduledWatcher sees the Scheduled events that are still to come: one that is started when the last pod is bound costs
// little, and tells how far the events were behind. Its methods may be called concurrently.
type ScheduledWatcher struct {
	events watch.Interface
	done   chan struct{}

	mu   sync.Mutex
	seen int
	last time.Time
}

// WatchScheduled starts a ScheduledWatcher. It ends with ctx or Stop.
func WatchScheduled(ctx context.Context, client *kubernetes.Clientset) (*ScheduledWatcher, error) {
	now, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	events, err := client.CoreV1().Events("").Watch(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled", ResourceVersion: now.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("watch events: %w", err)
	}
	w := &ScheduledWatcher{events: events, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for e := range events.ResultChan() {
			if e.Type != watch.Added && e.Type != watch.Modified {
				continue
			}
			w.mu.Lock()
			w.seen++
			w.last = time.Now()
			w.mu.Unlock()
		}
	}()
	return w, nil
}

// Seen returns how many events have come, and when the last of them did.
func (w *ScheduledWatcher) Seen() (n int, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen, w.last
}

// Stop ends the watch and waits for its end. What was seen can still be read.
func (w *ScheduledWatcher) Stop() {
	w.events.Stop()
	<-w.done
}
