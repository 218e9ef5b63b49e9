package kubetest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestScheduledEventsAreSeenFromNowOn(t *testing.T) {
	c := StartT(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	event := func(name, reason string) {
		t.Helper()
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Reason: reason,
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "pod"},
		}
		if _, err := c.Client().CoreV1().Events("default").Create(ctx, e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	event("before", "Scheduled")
	w, err := WatchScheduled(ctx, c.Client())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	event("other", "FailedScheduling")
	event("first", "Scheduled")
	event("second", "Scheduled")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; n < 2; n, _ = w.Seen() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d events were seen, want two: %v", n, ctx.Err())
		}
	}
	w.Stop()
	if n, last := w.Seen(); n != 2 || last.Before(began) || last.After(time.Now()) {
		t.Errorf("%d events were seen, the last at %v, want two since %v", n, last, began)
	}
}
