package replica

import (
	"bufio"
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/coord"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

// nobody leads and nobody is reached: the test is the stream.
type nobody struct{}

func (nobody) WatchLeader(context.Context) <-chan coord.Leader { return nil }
func (nobody) Conn(string) (*grpc.ClientConn, error)           { return nil, errTooLarge }

// logOf returns a log as bytes, each message behind its length: a snapshot of a random state, a run of deltas and a
// heartbeat. Versions and digests are left out: foldAll fills them in.
func logOf(f *testing.F, seed uint32, before, after int) []byte {
	f.Helper()
	intn := func(n int) int { seed = seed*1664525 + 1013904223; return int(seed>>8) % n }
	st := cluster.New(cluster.Version{Epoch: 1})
	for range before {
		if err := st.Apply(clustertest.Delta(intn, st)); err != nil {
			f.Fatal(err)
		}
	}
	var out bytes.Buffer
	write := func(m *logv1.FollowResponse) {
		if _, err := protodelim.MarshalTo(&out, m); err != nil {
			f.Fatal(err)
		}
	}
	var c snapshot
	if err := c.encode(st); err != nil {
		f.Fatal(err)
	}
	half := len(c.parts[0]) / 2
	write(&logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_SNAPSHOT_FIRST, Deltas: c.parts[0][:half]})
	write(&logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_SNAPSHOT_LAST, Deltas: c.parts[0][half:]})
	var run [][]byte
	for range after {
		d := clustertest.Delta(intn, st)
		b, err := wire.Encode(d)
		if err != nil {
			f.Fatal(err)
		}
		if err := st.Apply(d); err != nil {
			f.Fatal(err)
		}
		run = append(run, b)
	}
	write(&logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_DELTAS, Deltas: run})
	write(&logv1.FollowResponse{Kind: logv1.FollowResponse_KIND_HEARTBEAT})
	return out.Bytes()
}

// FuzzLog: whatever a binder sends, a follower folds it or drops what it has: it never panics, a state that it keeps is whole,
// and a good snapshot is taken afterwards.
func FuzzLog(f *testing.F) {
	for seed := range uint32(8) {
		f.Add(logOf(f, seed, 40, 20))
	}
	good := logOf(f, 99, 30, 0)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := New(Config{Member: "fuzz", Leaders: nobody{}, Conns: nobody{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := foldAll(r, data); err == errTooLarge {
			return
		}
		if r.state != nil {
			if err := clustertest.Recompute(r.state); err != nil {
				t.Fatalf("a state was kept that is not whole: %v", err)
			}
		}
		if err := foldAll(r, good); err != nil || r.state == nil {
			t.Errorf("a good snapshot afterwards: %v", err)
		}
	})
}

type tooLarge struct{}

func (tooLarge) Error() string { return "larger than a test should be" }

var errTooLarge error = tooLarge{}

// foldAll folds messages as one stream, until one is refused. Where a message leaves out version or digest, those are filled in
// that a binder would have sent: nobody guesses them.
func foldAll(r *Replica, data []byte) error {
	epoch := r.Version().Epoch + 1
	fold := folding{replica: r, epoch: epoch}
	for in := bufio.NewReader(bytes.NewReader(data)); ; {
		var m logv1.FollowResponse
		if err := protodelim.UnmarshalFrom(in, &m); err != nil {
			return nil // the end
		}
		for _, b := range m.GetDeltas() {
			if d, err := wire.Decode(b); err == nil && !small(d) {
				return errTooLarge
			}
		}
		have := r.Version()
		switch m.GetKind() {
		case logv1.FollowResponse_KIND_SNAPSHOT_FIRST, logv1.FollowResponse_KIND_SNAPSHOT_MORE:
			if m.GetVersion() == nil {
				m.Version = wire.ToVersion(cluster.Version{Epoch: epoch, Seq: 10})
			}
		case logv1.FollowResponse_KIND_SNAPSHOT_LAST:
			if m.GetVersion() == nil {
				m.Version = wire.ToVersion(cluster.Version{Epoch: epoch, Seq: 10})
			}
			if m.GetDigest() == 0 {
				more := proto.CloneOf(&m)
				more.Kind = logv1.FollowResponse_KIND_SNAPSHOT_MORE
				if err := fold.message(more); err != nil {
					return err
				}
				m.Deltas, m.Digest = nil, fold.loading.Digest()
			}
		case logv1.FollowResponse_KIND_DELTAS:
			if m.GetVersion() == nil {
				m.Version = wire.ToVersion(cluster.Version{Epoch: have.Epoch, Seq: have.Seq + cluster.Seq(len(m.GetDeltas()))})
			}
		case logv1.FollowResponse_KIND_HEARTBEAT:
			if m.GetVersion() == nil {
				m.Version, m.Digest = wire.ToVersion(have), r.Digest()
			}
		}
		if err := fold.message(&m); err != nil {
			return err
		}
	}
}

// small reports whether a delta's index is one that a test has memory for.
func small(d cluster.Delta) bool {
	const most = 1 << 12
	switch d := d.(type) {
	case cluster.NodeSet:
		return d.Index < most
	case cluster.PodSet:
		return d.ID < most
	}
	return true
}
