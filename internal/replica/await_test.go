package replica

import (
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// slowStream takes a message when the test lets it.
type slowStream struct {
	grpc.ServerStreamingServer[logv1.FollowResponse]
	took chan logv1.FollowResponse_Kind
}

func (s slowStream) Send(m *logv1.FollowResponse) error {
	s.took <- m.GetKind()
	return nil
}

// late is a ledger whose snapshot takes until the test lets it be made.
type late struct {
	st   *cluster.State
	turn chan struct{}
}

func (l late) Snapshot(encode func(*cluster.State)) {
	<-l.turn
	encode(l.st)
}

func TestWhoWaitsForASnapshotIsNotCutOffForWhatItHad(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 3, Seq: 1000}) // far beyond what a new follower has, and the ring keeps
	f := NewFeed(FeedConfig{Ring: 10})
	f.Open(st.Version(), st.Digest())
	stream, ledger, tick := slowStream{took: make(chan logv1.FollowResponse_Kind)}, late{st, make(chan struct{})}, make(chan time.Time)
	out := startSender(stream)
	to := &follower{term: f.current(), ctx: t.Context(), tick: tick, within: time.Hour, out: out}
	ended := make(chan error, 1)
	go func() {
		_, err := f.sendSnapshot(to, ledger)
		ended <- err
	}()
	tick <- time.Now() // a first part, to show that the binder is not silent
	for range 3 {
		select {
		case tick <- time.Now(): // which the follower has not taken yet
		case <-time.After(5 * time.Minute):
			t.Fatal("a follower that waits is given up")
		}
	}
	if kind := <-stream.took; kind != logv1.FollowResponse_KIND_SNAPSHOT_FIRST {
		t.Errorf("the follower is told %v while it waits", kind)
	}
	close(ledger.turn)
	for _, want := range []logv1.FollowResponse_Kind{logv1.FollowResponse_KIND_SNAPSHOT_FIRST, logv1.FollowResponse_KIND_SNAPSHOT_LAST} {
		if kind := <-stream.took; kind != want {
			t.Errorf("then it is told %v, want %v", kind, want)
		}
	}
	if err := <-ended; err != nil || to.at != st.Version() {
		t.Errorf("it is at %v, %v; want %v", to.at, err, st.Version())
	}
	close(out.messages)
	<-out.done
}
