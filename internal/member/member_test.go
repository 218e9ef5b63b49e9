package member_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a member over a memory network, until the end of the test or a call of end.
func serve(t *testing.T, cfg member.Config) (c memberv1.MemberServiceClient, end func()) {
	t.Helper()
	s, err := member.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	config := rpc.Config{Net: rpc.Memory()}
	server := rpc.NewServer(config, cfg.Role)
	s.Register(server.Registrar())
	l, err := config.Net.Listen("member")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	clients := rpc.NewClients(config)
	t.Cleanup(func() {
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := clients.Conn("member")
	if err != nil {
		t.Fatal(err)
	}
	return memberv1.NewMemberServiceClient(conn), cancel
}

// ask serves a member and returns what it says of itself.
func ask(t *testing.T, cfg member.Config) *memberv1.GetMemberResponse {
	t.Helper()
	c, _ := serve(t, cfg)
	got, err := c.GetMember(t.Context(), &memberv1.GetMemberRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestMemberTellsItsOwnView(t *testing.T) {
	got := ask(t, member.Config{
		ID: "q-1", Role: "queue",
		Version: func() cluster.Version { return cluster.Version{Epoch: 7, Seq: 3} },
		Head:    func() cluster.Version { return cluster.Version{Epoch: 7, Seq: 5} },
		Digest:  func() uint64 { return 99 },
		Ready:   func() error { return errors.New("no shards yet") },
		Drain:   func() {},
		Build:   "v1.2.3", Started: time.Unix(1000, 0),
	})
	want := &memberv1.GetMemberResponse{
		Id: "q-1", Role: "queue", Version: &logv1.Version{Epoch: 7, Seq: 3}, Head: &logv1.Version{Epoch: 7, Seq: 5},
		Digest: 99, NotReadyBecause: "no shards yet", Build: "v1.2.3", Started: timestamppb.New(time.Unix(1000, 0)),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetMember (-want +got):\n%s", diff)
	}
}

func TestMemberWithoutReplicaIsReadyAndHasNoVersion(t *testing.T) {
	got := ask(t, member.Config{ID: "b-1", Role: "binder"})
	want := &memberv1.GetMemberResponse{Id: "b-1", Role: "binder", Ready: true, Available: true, SharesProcess: true}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetMember (-want +got):\n%s", diff)
	}
}

func TestAMemberThatStandsByIsAvailableAndNotReady(t *testing.T) {
	got := ask(t, member.Config{
		ID: "b-1", Role: "binder", Ready: func() error { return errors.New("standing by") }, Available: func() error { return nil },
	})
	if got.GetReady() || !got.GetAvailable() {
		t.Errorf("%v, want it available and not ready", got)
	}
	got = ask(t, member.Config{
		ID: "b-1", Role: "binder", Ready: func() error { return errors.New("no etcd") }, Available: func() error { return errors.New("no etcd") },
	})
	if got.GetReady() || got.GetAvailable() {
		t.Errorf("%v, want it neither ready nor available", got)
	}
}

func TestDrainBeginsOnceAndIsNotReadyFromThere(t *testing.T) {
	began := 0
	c, _ := serve(t, member.Config{ID: "f-1", Role: "filter-worker", Drain: func() { began++ }, Available: func() error { return nil }})
	if got, err := c.GetMember(t.Context(), &memberv1.GetMemberRequest{}); err != nil || !got.GetReady() || got.GetDraining() {
		t.Errorf("before: %v, %v, want it ready and not draining", got, err)
	}
	for range 3 {
		if _, err := c.Drain(t.Context(), &memberv1.DrainRequest{Role: "filter-worker", Id: "f-1"}); err != nil {
			t.Fatal(err)
		}
	}
	if began != 1 {
		t.Errorf("the end was begun %d times, want once", began)
	}
	got, err := c.GetMember(t.Context(), &memberv1.GetMemberRequest{})
	if err != nil || got.GetReady() || got.GetAvailable() || !got.GetDraining() || got.GetNotReadyBecause() == "" {
		t.Errorf("after: %v, %v, want it draining, and neither ready nor available", got, err)
	}
}

func TestADrainIsAnsweredAndWhatIsInFlightFinished(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	var end func()
	var c memberv1.MemberServiceClient
	c, end = serve(t, member.Config{
		ID: "f-1", Role: "filter-worker", Drain: func() { end() },
		Version: func() cluster.Version {
			entered <- struct{}{}
			<-release
			return cluster.Version{Epoch: 7, Seq: 3}
		},
	})
	inFlight := make(chan error, 1)
	go func() {
		_, err := c.GetMember(t.Context(), &memberv1.GetMemberRequest{})
		inFlight <- err
	}()
	<-entered
	if _, err := c.Drain(t.Context(), &memberv1.DrainRequest{Role: "filter-worker", Id: "f-1"}); err != nil {
		t.Errorf("drain: %v", err)
	}
	var err error
	for err == nil { // until nothing new is taken
		_, err = c.Drain(t.Context(), &memberv1.DrainRequest{Role: "filter-worker", Id: "f-1"})
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a new call: %v, want UNAVAILABLE", err)
	}
	close(release)
	if err := <-inFlight; err != nil {
		t.Errorf("the call that was in flight: %v", err)
	}
}

func TestOnlyTheMemberThatIsMeantDrains(t *testing.T) {
	began := 0
	c, _ := serve(t, member.Config{ID: "f-1", Role: "filter-worker", Drain: func() { began++ }})
	for _, test := range []struct {
		role, id string
		code     codes.Code
		reason   rpc.Reason
	}{
		{"", "", codes.InvalidArgument, rpc.ReasonInvalid},
		{"filter-worker", "", codes.InvalidArgument, rpc.ReasonInvalid},
		{"", "f-1", codes.InvalidArgument, rpc.ReasonInvalid},
		{"filter-worker", "f-2", codes.FailedPrecondition, member.ReasonWrongMember},
		{"score-worker", "f-1", codes.FailedPrecondition, member.ReasonWrongMember},
	} {
		_, err := c.Drain(t.Context(), &memberv1.DrainRequest{Role: test.role, Id: test.id})
		if status.Code(err) != test.code || rpc.ReasonOf(err) != test.reason {
			t.Errorf("drain %q %q: %v, want %v, %s", test.role, test.id, err, test.code, test.reason)
		}
	}
	if began != 0 {
		t.Error("it drains, and somebody else was meant")
	}
}

func TestAMemberThatSharesItsProcessDoesNotDrain(t *testing.T) {
	c, _ := serve(t, member.Config{ID: "f-1", Role: "filter-worker"})
	_, err := c.Drain(t.Context(), &memberv1.DrainRequest{Role: "filter-worker", Id: "f-1"})
	if status.Code(err) != codes.FailedPrecondition || rpc.ReasonOf(err) != member.ReasonSharesProcess {
		t.Errorf("%v, want FAILED_PRECONDITION, %s", err, member.ReasonSharesProcess)
	}
	if got, err := c.GetMember(t.Context(), &memberv1.GetMemberRequest{}); err != nil || !got.GetReady() || !got.GetSharesProcess() {
		t.Errorf("afterwards: %v, %v, want it ready and sharing its process", got, err)
	}
}

func TestDigestIsAlwaysOfTheVersionBesideIt(t *testing.T) {
	seq := cluster.Seq(1)
	moves := 0 // how often the replica still moves on before a digest is read
	cfg := member.Config{
		ID: "f-1", Role: "filter-worker",
		Version: func() cluster.Version { return cluster.Version{Epoch: 1, Seq: seq} },
		Digest: func() uint64 {
			if moves > 0 {
				moves--
				seq++
			}
			return uint64(seq) * 100
		},
	}
	moves = 2
	got := ask(t, cfg)
	if got.GetVersion().GetSeq() != 3 || got.GetDigest() != 300 {
		t.Errorf("a replica that moved twice: seq %d with digest %d, want 3 with 300", got.GetVersion().GetSeq(), got.GetDigest())
	}
	moves = 1000
	if got := ask(t, cfg); got.GetDigest() != 0 {
		t.Errorf("a replica that never stands still: digest %d, want 0", got.GetDigest())
	}
}

func TestMemberNeedsANameAndARole(t *testing.T) {
	for _, cfg := range []member.Config{{Role: "queue"}, {ID: "q-1"}} {
		if _, err := member.New(cfg); err == nil {
			t.Errorf("New(%+v) succeeded", cfg)
		}
	}
}
