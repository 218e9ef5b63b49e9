package system

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

func plainPods(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, berthtest.Pod(fmt.Sprintf("p%05d", i), fmt.Sprintf("%dm", 10+i%16), "16Mi", ""))
	}
	return out
}

func TestSeparateProcessesSurviveTheLossOfOneOfEach(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 2, Queues: 2, FilterWorkers: 3, ScoreWorkers: 2, Shards: 4})
	p.Apply(berthtest.Nodes(60)...)
	const pods = 3000
	leader := p.Leader("")
	killed := []string{"filter-worker-0", "score-worker-0", "queue-0", leader}
	step := pods / (len(killed) + 1)
	for i := range pods / step {
		p.Apply(plainPods(i*step, (i+1)*step)...)
		if i < len(killed) {
			p.ByID[killed[i]].Kill() // SIGKILL while its pods are being scheduled
		}
	}
	p.Leader(leader)
	p.AwaitDecided(pods)
	if got := len(p.Placements()); got != pods {
		t.Errorf("%d of %d pods placed", got, pods)
	}
	p.CheckCapacity()
}

func TestRolesStartInAnyOrder(t *testing.T) {
	p := berthtest.NewProcesses(t, berthtest.Crew{Binders: 1, Shards: 2})
	for _, role := range []string{"gateway", "score-worker", "queue", "filter-worker", "binder"} {
		p.Start(role, 0)
	}
	p.AwaitReady()
	p.Apply(berthtest.Nodes(2)...)
	p.Apply(plainPods(0, 10)...)
	p.AwaitDecided(10)
	if got := len(p.Placements()); got != 10 {
		t.Errorf("%d of 10 pods placed", got)
	}
}

func TestMembersComeAndGoWithoutAnybodyBeingTold(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1, Shards: 2})
	p.Apply(berthtest.Nodes(10)...)
	p.Start("filter-worker", 1)
	p.Start("queue", 1)
	members := func(want ...string) {
		t.Helper()
		berthtest.Await(t, berthtest.Patience, "members "+strings.Join(want, " "), func(ctx context.Context) error {
			s, err := p.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			have := map[string]bool{}
			for _, m := range s.GetMembers() {
				have[m.GetId()] = m.GetReady() && m.GetLag() >= 0
			}
			if len(have) != len(want) {
				return fmt.Errorf("members %v", have)
			}
			for _, id := range want {
				if !have[id] {
					return fmt.Errorf("members %v", have)
				}
			}
			return nil
		})
	}
	members("binder-0", "gateway-0", "queue-0", "queue-1", "filter-worker-0", "filter-worker-1", "score-worker-0")
	p.ByID["filter-worker-0"].Stop() // SIGTERM: it leaves by itself
	p.ByID["queue-0"].Stop()
	members("binder-0", "gateway-0", "queue-1", "filter-worker-1", "score-worker-0")
	p.Apply(plainPods(0, 50)...)
	p.AwaitDecided(50)
	if got := len(p.Placements()); got != 50 {
		t.Errorf("%d of 50 pods placed", got)
	}
}

func TestEtcdBackAfterALongOutageIsPickedUpAgain(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 2, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1})
	p.Apply(berthtest.Nodes(5)...)
	p.Apply(plainPods(0, 20)...)
	p.AwaitDecided(20)
	before, err := p.GetStatus(p.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}

	p.Etcd.Pause() // for several leases: the binder must have given up its term
	berthtest.Await(t, berthtest.Patience, "the binder to say that it has no term", func(context.Context) error {
		if log := p.Log(before.GetLeader()); !strings.Contains(log, "not the active binder any more") {
			return fmt.Errorf("its log does not say so")
		}
		return nil
	})
	nodes, err := p.ListNodes(p.Context(), &schedulingv1.ListNodesRequest{}) // reads go on
	if err != nil || len(nodes.GetNodes()) != 5 {
		t.Errorf("list nodes without etcd: %d nodes, %v", len(nodes.GetNodes()), err)
	}
	p.Etcd.Continue()

	berthtest.Await(t, berthtest.Patience, "a new epoch", func(ctx context.Context) error {
		s, err := p.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if s.GetVersion().GetEpoch() <= before.GetVersion().GetEpoch() {
			return fmt.Errorf("version %v", s.GetVersion())
		}
		return nil
	})
	p.AwaitReady()
	p.Apply(plainPods(20, 40)...)
	p.AwaitDecided(40)
	if got := len(p.Placements()); got != 40 {
		t.Errorf("%d of 40 pods placed", got)
	}
}

func TestRolesWaitForEtcdAndSaySo(t *testing.T) {
	p := berthtest.NewProcesses(t, berthtest.Crew{})
	p.Etcd.Kill()
	for _, role := range []string{"binder", "queue", "filter-worker", "score-worker", "gateway"} {
		p.Start(role, 0)
	}
	berthtest.Await(t, berthtest.Patience, "the gateway to answer that it is not ready", func(ctx context.Context) error {
		_, err := p.ListPods(ctx, &schedulingv1.ListPodsRequest{})
		if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "connection refused") {
			return fmt.Errorf("list pods: %v", err)
		}
		return nil
	})
	berthtest.Await(t, berthtest.Patience, "the binder to say what it waits for", func(context.Context) error {
		if log := p.Log("binder-0"); !strings.Contains(log, "no answer from etcd") {
			return fmt.Errorf("its log: %s", log)
		}
		return nil
	})
	p.Etcd.Restart()
	p.AwaitReady()
	for id, proc := range p.ByID {
		select {
		case <-proc.Done():
			t.Errorf("%s ended: %v", id, proc.Err())
		default:
		}
	}
}
