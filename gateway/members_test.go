package gateway_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/gateway"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// counted is a peer that counts how often it begins to end.
func counted(role coord.Role, id string) (*peer, *atomic.Int32) {
	n := new(atomic.Int32)
	return &peer{role: role, id: id, version: cluster.Version{Epoch: 7, Seq: 1}, drain: func() { n.Add(1) }}, n
}

// crew starts a gateway with these peers and waits until it knows them.
func (b *berth) crew(peers ...*peer) {
	b.t.Helper()
	for _, p := range peers {
		b.join(p)
	}
	b.status(len(peers), 0)
}

func (b *berth) drain(role coord.Role, id string, force bool) (*schedulingv1.DrainMemberResponse, error) {
	return b.client.DrainMember(b.ctx, &schedulingv1.DrainMemberRequest{Role: string(role), Id: id, Force: force})
}

// turnedDown checks an error's code and reason, and that its text has some words.
func turnedDown(t *testing.T, err error, code codes.Code, reason rpc.Reason, words ...string) {
	t.Helper()
	if status.Code(err) != code || rpc.ReasonOf(err) != reason {
		t.Errorf("%v, want %v, %s", err, code, reason)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want %q in it", err, w)
		}
	}
}

func TestDrainMemberAsksTheMemberAndTellsHowItWas(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)))
	f0, drained := counted(coord.RoleFilterWorker, "f-0")
	f1, other := counted(coord.RoleFilterWorker, "f-1")
	s0, score := counted(coord.RoleScoreWorker, "s-0")
	b.crew(f0, f1, s0)
	got, err := b.drain("", "f-0", false)
	if err != nil {
		t.Fatal(err)
	}
	want := &schedulingv1.DrainMemberResponse{Member: &schedulingv1.Member{
		Role: "filter-worker", Id: "f-0", Address: "f-0", Version: &schedulingv1.Version{Epoch: 7, Seq: 1}, Ready: true,
		Build: "v1.2.3", Started: timestamppb.New(started),
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("DrainMember (-want +got):\n%s", diff)
	}
	if _, err := b.drain(coord.RoleFilterWorker, "f-0", false); err != nil {
		t.Errorf("drain it again: %v", err)
	}
	if drained.Load() != 1 || other.Load() != 0 || score.Load() != 0 {
		t.Errorf("drained %d, %d, %d times, want 1, 0, 0", drained.Load(), other.Load(), score.Load())
	}
}

func TestTheLastOfARoleDrainsOnlyByForce(t *testing.T) {
	for _, role := range []coord.Role{coord.RoleFilterWorker, coord.RoleScoreWorker, coord.RoleQueue, coord.RoleBinder, coord.RoleGateway} {
		t.Run(string(role), func(t *testing.T) {
			b := start(t, withState(stateOf(t, 7)))
			last, drained := counted(role, "m-0")
			loading, _ := counted(role, "m-1")
			loading.ready = errors.New("loading")
			another, _ := counted(coord.RoleFilterWorker, "f-0")
			if role == coord.RoleFilterWorker {
				another.role = coord.RoleScoreWorker
			}
			b.join(last)
			b.join(loading)
			b.join(another)
			b.member(coord.Member{Role: role, ID: "m-2", Address: "nobody"}) // silent
			b.member(coord.Member{Role: role, ID: "m-3", Address: "f-0"})    // which is another's
			b.status(5, 0)
			_, err := b.drain(role, "m-0", false)
			turnedDown(t, err, codes.FailedPrecondition, gateway.ReasonLastOfRole, string(role), "--force")
			if drained.Load() != 0 {
				t.Error("it drains all the same")
			}
			for range 2 { // and may be asked again without force
				if _, err := b.drain(role, "m-0", drained.Load() == 0); err != nil {
					t.Errorf("by force: %v", err)
				}
			}
			if drained.Load() != 1 {
				t.Errorf("drained %d times by force, want once", drained.Load())
			}
		})
	}
}

func TestABinderThatStandsByLetsTheActiveOneGo(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)))
	active, drained := counted(coord.RoleBinder, "binder-0")
	standby, _ := counted(coord.RoleBinder, "binder-1")
	standby.ready, standby.standby = errors.New("stands by"), true
	b.crew(active, standby)
	if _, err := b.drain("", "binder-0", false); err != nil || drained.Load() != 1 {
		t.Errorf("%v, drained %d times, want once", err, drained.Load())
	}
}

func TestOfTwoThatDrainAtTheSameTimeOneStays(t *testing.T) {
	for range 20 {
		b := start(t, withState(stateOf(t, 7)))
		f0, first := counted(coord.RoleFilterWorker, "f-0")
		f1, second := counted(coord.RoleFilterWorker, "f-1")
		b.crew(f0, f1)
		errs := make([]error, 2)
		var both sync.WaitGroup
		for i, id := range []string{"f-0", "f-1"} {
			both.Go(func() { _, errs[i] = b.drain("", id, false) })
		}
		both.Wait()
		if first.Load()+second.Load() != 1 || (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("%d and %d drain: %v", first.Load(), second.Load(), errs)
		}
		turnedDown(t, errors.Join(errs...), codes.FailedPrecondition, gateway.ReasonLastOfRole)
		b.stop()
	}
}

func TestDrainMemberSaysWhoThereIs(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)))
	f0, n := counted(coord.RoleFilterWorker, "w-0")
	b.join(f0)
	b.member(coord.Member{Role: coord.RoleScoreWorker, ID: "w-0", Address: "nobody"})
	b.status(2, 0)
	_, err := b.drain("", "w-7", true)
	turnedDown(t, err, codes.NotFound, rpc.ReasonNotFound, "no member w-7", "filter-worker/w-0, score-worker/w-0")
	_, err = b.drain(coord.RoleFilterWorker, "w-7", true)
	turnedDown(t, err, codes.NotFound, rpc.ReasonNotFound, "no filter-worker w-7: there are filter-worker/w-0")
	_, err = b.drain(coord.RoleQueue, "w-0", true)
	turnedDown(t, err, codes.NotFound, rpc.ReasonNotFound, "no queue w-0, nor any other")
	_, err = b.drain("", "w-0", true)
	turnedDown(t, err, codes.FailedPrecondition, gateway.ReasonAmbiguous, "filter-worker/w-0, score-worker/w-0")
	for _, id := range []string{"", "a/b", strings.Repeat("x", 300)} {
		_, err := b.drain("", id, true)
		turnedDown(t, err, codes.InvalidArgument, rpc.ReasonInvalid, "id")
	}
	if n.Load() > 0 {
		t.Error("something drains that nobody named")
	}
	for i := range 30 {
		b.member(coord.Member{Role: coord.RoleQueue, ID: "q" + strings.Repeat("x", i), Address: "nobody"})
	}
	b.eventually("the error names 20 of 32", func() bool {
		_, err := b.drain("", "w-7", false)
		return strings.Contains(err.Error(), "and 12 more") && strings.Count(err.Error(), "/") == 20
	})
}

func TestWhoCannotBeDrainedIsToldWithWhatToDo(t *testing.T) {
	b := start(t, withState(stateOf(t, 7)), with(func(cfg *gateway.Config) { cfg.PeerTimeout = 3 * time.Second }))
	there, n := counted(coord.RoleFilterWorker, "f-0")
	b.join(there)
	b.join(&peer{role: coord.RoleFilterWorker, id: "shared"})
	b.member(coord.Member{Role: coord.RoleFilterWorker, ID: "silent", Address: "nobody"})
	b.member(coord.Member{Role: coord.RoleFilterWorker, ID: "gone", Address: "f-0"})
	b.join(&peer{role: coord.RoleScoreWorker, id: "alone"}) // it need not be told of force first
	b.joinOld(coord.Member{Role: coord.RoleFilterWorker, ID: "old", Address: "old"})
	b.status(6, 0)
	for _, test := range []struct {
		id     string
		code   codes.Code
		reason rpc.Reason
		words  string
	}{
		{"shared", codes.FailedPrecondition, member.ReasonSharesProcess, "SIGTERM"},
		{"alone", codes.FailedPrecondition, member.ReasonSharesProcess, "SIGTERM"},
		{"silent", codes.Unavailable, gateway.ReasonSilent, "silent does not answer"},
		{"gone", codes.Unavailable, gateway.ReasonSilent, "f-0 answers at its address"},
		{"old", codes.FailedPrecondition, gateway.ReasonNoDrain, "old is of a version that cannot be drained this way"},
	} {
		_, err := b.drain("", test.id, false)
		turnedDown(t, err, test.code, test.reason, test.words)
	}
	if n.Load() > 0 {
		t.Error("another one drains instead")
	}
	// A worker of the old version is as good as any other when one leaves.
	if _, err := b.drain("", "f-0", false); err != nil {
		t.Error(err)
	}
}

// oldMember answers as before there was Drain.
type oldMember struct {
	memberv1.UnimplementedMemberServiceServer
	coord.Member
}

func (o oldMember) GetMember(context.Context, *memberv1.GetMemberRequest) (*memberv1.GetMemberResponse, error) {
	return &memberv1.GetMemberResponse{Id: o.ID, Role: string(o.Role), Ready: true}, nil
}

// joinOld serves a member of a version without Drain.
func (b *berth) joinOld(m coord.Member) {
	b.t.Helper()
	server := rpc.NewServer(rpc.Config{Net: b.net}, string(m.Role))
	memberv1.RegisterMemberServiceServer(server.Registrar(), oldMember{Member: m})
	var running sync.WaitGroup
	b.serve(&running, m.Address, server)
	stop := b.stop
	b.stop = sync.OnceFunc(func() { stop(); running.Wait() })
	b.t.Cleanup(b.stop)
	b.member(m)
}
