package rpc

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestGateBoundsWhoRunsAndWhoWaits(t *testing.T) {
	g := NewGate(1, 1)
	leave, err := g.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := g.Enter(waiting); left <- err }()
	for len(g.admitted) != 2 { // until the second waits, Enter would take its place
		select {
		case err := <-left:
			t.Fatalf("the second did not wait: %v", err)
		default:
		}
	}
	_, err = g.Enter(t.Context())
	if after, ok := RetryAfter(err); status.Code(err) != codes.ResourceExhausted || ReasonOf(err) != ReasonQueueFull || !ok || after <= 0 {
		t.Errorf("a third: %v, retry after %v; want RESOURCE_EXHAUSTED, QUEUE_FULL and a time", err, after)
	}

	// One that stops waiting makes room for another, and so does one that is done.
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the end of the one that waited: %v", err)
	}
	leave()
	if leave, err = g.Enter(t.Context()); err != nil {
		t.Errorf("after both have left: %v", err)
	} else {
		leave()
	}
	if len(g.admitted) != 0 || len(g.running) != 0 {
		t.Errorf("%d are counted, %d as running, and nobody is there", len(g.admitted), len(g.running))
	}
}
