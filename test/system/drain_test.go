package system

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/gateway"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// exited waits until a process has ended by itself, and checks that its exit code is 0.
func exited(t *testing.T, proc *kubetest.Process) {
	t.Helper()
	select {
	case <-proc.Done():
		if err := proc.Err(); err != nil {
			t.Errorf("%s ended with: %v", proc.Name(), err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatalf("%s has not ended", proc.Name())
	}
}

// awaitGone waits until the status does not list a member.
func awaitGone(t *testing.T, b *berthtest.Berth, id string) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, id+" to be gone", func(ctx context.Context) error {
		s, err := b.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		for _, m := range s.GetMembers() {
			if m.GetId() == id {
				return fmt.Errorf("it is there: %v", m)
			}
		}
		return nil
	})
}

func TestAFilterWorkerDrainsWhilePodsAreScheduledAndTheLastOneOnlyByForce(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 2, FilterWorkers: 2, ScoreWorkers: 1, Shards: 4})
	p.Apply(berthtest.Nodes(60)...)
	const batch, most = 50, 120

	// 1. Pods come all the time, from before the drain until after the end.
	worker, answered := p.ByID["filter-worker-0"], make(chan error, 1)
	pods, behind := 0, 0
	for n := 0; behind < 4 && n < most; n++ {
		p.Apply(plainPods(pods, pods+batch)...)
		pods += batch
		if n == 3 {
			go func() {
				_, err := p.DrainMember(p.Context(), &schedulingv1.DrainMemberRequest{Id: "filter-worker-0"})
				answered <- err
			}()
		}
		select {
		case <-worker.Done():
			behind++
		default:
		}
	}
	if err := <-answered; err != nil {
		t.Fatalf("drain: %v", err)
	}
	exited(t, worker)
	if log := p.Log("filter-worker-0"); !strings.Contains(log, "asked to drain") {
		t.Errorf("it does not say why it ended:\n%s", log)
	}
	awaitGone(t, p.Berth, "filter-worker-0")
	if behind == 0 {
		t.Errorf("no pods came after its end: %d batches", most)
	}
	p.AwaitDecided(pods)
	if got := len(p.Placements()); got != pods {
		t.Errorf("%d of %d pods placed", got, pods)
	}
	p.CheckCapacity()

	// 2. Of two, one is left.
	_, err := p.DrainMember(p.Context(), &schedulingv1.DrainMemberRequest{Id: "filter-worker-1"})
	if status.Code(err) != codes.FailedPrecondition || rpc.ReasonOf(err) != gateway.ReasonLastOfRole {
		t.Errorf("drain the last one: %v, want FAILED_PRECONDITION, %s", err, gateway.ReasonLastOfRole)
	}
	command := func(args ...string) (string, error) {
		out, err := exec.Command(berthtest.Binary(t), append(args, "--server", p.GRPCAddress)...).CombinedOutput()
		return string(out), err
	}
	if out, err := command("drain-worker", "filter-worker-1"); err == nil || !strings.Contains(out, "--force") {
		t.Errorf("drain-worker of the last one: %v, %s; want it refused, and how to force it", err, out)
	}
	p.Apply(plainPods(pods, pods+20)...)
	pods += 20
	p.AwaitDecided(pods)

	// 3. By force, pods wait until there is another.
	if out, err := command("drain-worker", "filter-worker-1", "--force"); err != nil || !strings.Contains(out, "filter-worker/filter-worker-1 drained\n") {
		t.Errorf("drain-worker --force: %v, %s", err, out)
	}
	exited(t, p.ByID["filter-worker-1"])
	p.Apply(plainPods(pods, pods+20)...)
	pods += 20
	p.Start("filter-worker", 1)
	p.AwaitDecided(pods)
	if got := len(p.Placements()); got != pods {
		t.Errorf("%d of %d pods placed in the end", got, pods)
	}
}

func TestEveryRoleDrains(t *testing.T) {
	p := berthtest.StartProcesses(t, berthtest.Crew{Binders: 2, Queues: 2, FilterWorkers: 1, ScoreWorkers: 2, Shards: 4})
	p.Apply(berthtest.Nodes(20)...)
	pods := 0
	leader := p.Leader("")
	for _, id := range []string{"score-worker-0", "queue-0", leader} {
		p.Apply(plainPods(pods, pods+100)...)
		pods += 100
		if id == leader { // as soon as the other one stands by
			berthtest.Await(t, berthtest.Patience, "the active binder to drain", func(ctx context.Context) error {
				_, err := p.DrainMember(ctx, &schedulingv1.DrainMemberRequest{Role: "binder", Id: id})
				return err
			})
		} else if _, err := p.DrainMember(p.Context(), &schedulingv1.DrainMemberRequest{Id: id}); err != nil {
			t.Fatalf("drain %s: %v", id, err)
		}
		exited(t, p.ByID[id])
	}
	p.Leader(leader)
	p.AwaitDecided(pods)

	// The gateway takes the request for itself.
	if _, err := p.DrainMember(p.Context(), &schedulingv1.DrainMemberRequest{Id: "gateway-0", Force: true}); err != nil {
		t.Errorf("drain the gateway: %v", err)
	}
	exited(t, p.ByID["gateway-0"])
	p.Start("gateway", 0)
	p.AwaitReady()
	if got := len(p.Placements()); got != pods {
		t.Errorf("%d of %d pods placed", got, pods)
	}
}

func TestRolesThatShareAProcessDoNotDrain(t *testing.T) {
	b := berthtest.Start(t, berthtest.Options{Nodes: 2, FilterWorkers: 2})
	s, err := b.GetStatus(b.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.GetMembers() {
		for _, force := range []bool{false, true} {
			_, err := b.DrainMember(b.Context(), &schedulingv1.DrainMemberRequest{Role: m.GetRole(), Id: m.GetId(), Force: force})
			if status.Code(err) != codes.FailedPrecondition || rpc.ReasonOf(err) != member.ReasonSharesProcess {
				t.Errorf("drain %s, force %v: %v, want FAILED_PRECONDITION, %s", m.GetId(), force, err, member.ReasonSharesProcess)
			}
		}
	}
	b.Apply(plainPods(0, 10)...)
	b.AwaitDecided(10)
	if got := len(b.Placements()); got != 10 {
		t.Errorf("%d of 10 pods placed afterwards", got)
	}
}

func TestOverTLSTheGatewayDrainsAMember(t *testing.T) {
	s := startSecured(t)
	if _, err := s.DrainMember(s.Context(), &schedulingv1.DrainMemberRequest{Role: "filter-worker", Id: "filter-worker", Force: true}); err != nil {
		t.Fatal(err)
	}
	exited(t, s.ByID["filter-worker"])
}
