package system

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// attemptsOf returns how often each pod was tried.
func attemptsOf(b *berthtest.Berth) map[string]int32 {
	out := make(map[string]int32)
	for name, p := range b.Pods() {
		out[name] = p.GetAttempts()
	}
	return out
}

// awaitQuietHeartbeats waits until two heartbeats in a row, which come every few seconds when nothing is placed, are of the
// same version: then nothing was appended to the log in between.
func awaitQuietHeartbeats(t *testing.T, b *berthtest.Berth) {
	t.Helper()
	stream, err := b.WatchPlacements(b.Context(), &schedulingv1.WatchPlacementsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var last *schedulingv1.Version
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.GetPod() != "":
			last = nil
		case last != nil && last.GetEpoch() == m.GetVersion().GetEpoch() && last.GetSeq() == m.GetVersion().GetSeq():
			return
		default:
			last = m.GetVersion()
		}
	}
}

func TestPodsThatFitNowhereHoldNobodyBackAndAreNotTriedAgain(t *testing.T) {
	const pairs = 300
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	ops := "127.0.0.1:" + ports[0]
	b := berthtest.Start(t, berthtest.Options{Nodes: 20, Shards: 2, FilterWorkers: 2, ScoreWorkers: 2, BatchSize: 32, OpsListen: ops})
	// Those that fit nowhere come first, with a higher priority, and are of many classes.
	var pods []string
	for i := range pairs {
		pods = append(pods,
			berthtest.Pod(fmt.Sprintf("hopeless-%03d", i), fmt.Sprintf("%dm", 9000+i), "1Gi", "priority: 10, "),
			berthtest.Pod(fmt.Sprintf("fits-%03d", i), fmt.Sprintf("%dm", 100+i%7), "64Mi", ""))
	}
	b.Apply(pods...)
	b.AwaitDecided(2 * pairs)
	b.CheckCapacity()
	const message = "0/20 nodes are available: 20 Insufficient cpu."
	for name, p := range b.Pods() {
		hopeless := p.GetPriority() == 10
		if want := hopeless; (p.GetNode() == "") != want {
			t.Errorf("%s is on node %q", name, p.GetNode())
		}
		if hopeless && (p.GetMessage() == "" || len(p.GetMessage()) < len(message) || p.GetMessage()[:len(message)] != message) {
			t.Errorf("%s: %q, want %q at first", name, p.GetMessage(), message)
		}
	}

	// Each was tried once, and again only where its attempt came to no end, which the queue counts, one for one: most of all where a batch had
	// taken too long over looking for victims to come to it. How often that is depends on the machine; services/queue bounds it, on none.
	hopeless := func() map[string]int32 {
		all := attemptsOf(b)
		maps.DeleteFunc(all, func(name string, _ int32) bool { return !strings.HasPrefix(name, "default/hopeless-") })
		return all
	}
	tried := hopeless()
	if len(tried) != pairs {
		t.Errorf("%d pods that fit nowhere are known, want %d", len(tried), pairs)
	}
	again := 0
	for name, attempts := range tried {
		if attempts < 1 {
			t.Errorf("%s was tried %d times in the storm", name, attempts)
		}
		again += int(attempts) - 1
	}
	theirs, anybodys := 0, 0 // attempts: of pods that fit nowhere, as none but they look for victims, and of all the pods of a batch
	for series, value := range metricsAt(t, ops) {
		name, labels, _ := strings.Cut(series, "{")
		if name != "berth_queue_retries_total" {
			continue
		}
		_, reason, found := strings.Cut(labels, `reason="`)
		reason, _, _ = strings.Cut(reason, `"`)
		switch {
		case !found:
			t.Errorf("a series without a reason: %s", series)
		case strings.HasPrefix(reason, "binder_"): // a question's
		case strings.HasPrefix(reason, "preempt"):
			theirs += int(value)
		case !slices.Contains([]string{"score", "aborted", "no_fit", "retry", "too_many_unbound"}, reason): // of those that fit somewhere
			anybodys += int(value)
		}
	}
	t.Logf("pods that fit nowhere were tried %d times again; %d of their attempts came to no end, and %d of anybody's", again, theirs, anybodys)
	if again < theirs || again > theirs+anybodys {
		t.Errorf("pods that fit nowhere were tried %d times again, want %d to %d times", again, theirs, theirs+anybodys)
	}
	// What has been placed meanwhile, and what comes and fits now, helps none of them.
	b.Apply(berthtest.Pod("late", "100m", "64Mi", ""))
	berthtest.Await(t, berthtest.Patience, "the late pod to be bound", func(context.Context) error {
		if b.Placements()["default/late"] == "" {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	awaitQuietHeartbeats(t, b)
	if diff := cmp.Diff(tried, hopeless()); diff != "" {
		t.Errorf("attempts when nothing changes (-want +got):\n%s", diff)
	}

	// A node that is large enough wakes them.
	b.Apply(berthtest.Node("large", "10000", "10000Gi"))
	berthtest.Await(t, berthtest.Patience, "pods to be placed on the large node", func(context.Context) error {
		n := 0
		for _, node := range b.Placements() {
			if node == "large" {
				n++
			}
		}
		if want := 110; n != want { // what it has room for
			return fmt.Errorf("%d are, want %d", n, want)
		}
		return nil
	})
}
