package member_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	memberv1 "github.com/berth-scheduler/berth/internal/gen/berth/member/v1"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask serves a member over a memory network and returns its answer.
func ask(t *testing.T, cfg member.Config) *memberv1.GetMemberResponse {
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	clients := rpc.NewClients(config)
	defer func() {
		if err := clients.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := clients.Conn("member")
	if err != nil {
		t.Fatal(err)
	}
	got, err := memberv1.NewMemberServiceClient(conn).GetMember(ctx, &memberv1.GetMemberRequest{})
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
	})
	want := &memberv1.GetMemberResponse{
		Id: "q-1", Role: "queue", Version: &logv1.Version{Epoch: 7, Seq: 3}, Head: &logv1.Version{Epoch: 7, Seq: 5},
		Digest: 99, NotReadyBecause: "no shards yet",
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetMember (-want +got):\n%s", diff)
	}
}

func TestMemberWithoutReplicaIsReadyAndHasNoVersion(t *testing.T) {
	got := ask(t, member.Config{ID: "b-1", Role: "binder"})
	want := &memberv1.GetMemberResponse{Id: "b-1", Role: "binder", Ready: true}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("GetMember (-want +got):\n%s", diff)
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
