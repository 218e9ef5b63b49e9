package soak

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// What the runbook says of an etcd that is restored from a snapshot: every role is stopped, revisions are raised above all that anybody
// has seen, and the roles begin anew.
func TestBerthGoesOnFromAnEtcdThatIsRestoredFromASnapshot(t *testing.T) {
	w := start(t, berthtest.Options{})
	if _, err := w.come(); err != nil {
		t.Fatal(err)
	}
	before := w.Placements()

	// 1. A snapshot, and what comes after it.
	client, err := clientv3.New(clientv3.Config{Endpoints: w.etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	taken, err := client.Snapshot(w.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	to, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, taken); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	w.Apply(berthtest.Pod("lost", "10m", "1Mi", ""))
	w.AwaitDecided(round + 1)
	epoch, revision := w.epoch(), w.look().Revision

	// 2. Every role stops, and etcd is restored.
	w.Stop()
	w.etcd.Kill()
	if err := os.RemoveAll(w.etcd.Dir()); err != nil {
		t.Fatal(err)
	}
	name, peer, _ := strings.Cut(w.etcd.Cluster(), "=")
	if err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: name, OutputDataDir: w.etcd.Dir(), PeerURLs: []string{peer}, InitialCluster: w.etcd.Cluster(),
		InitialClusterToken: "etcd-cluster", RevisionBump: 1_000_000_000, MarkCompacted: true,
	}); err != nil {
		t.Fatal(err)
	}
	w.etcd.Restart()
	if now := w.look().Revision; now <= revision {
		t.Errorf("revisions go on from %d, and were at %d before", now, revision)
	}

	// 3. The roles begin anew.
	w.Berth = berthtest.Start(t, berthtest.Options{EtcdEndpoints: w.etcd.Endpoints()})
	w.AwaitDecided(round)
	if now := w.epoch(); now <= epoch {
		t.Errorf("the epoch is %d, and was %d before: who remembers that would not follow", now, epoch)
	}
	if diff := cmp.Diff(before, w.Placements()); diff != "" {
		t.Errorf("placements (-snapshot +restored):\n%s", diff)
	}
	w.Apply(berthtest.Pod("new", "10m", "1Mi", ""))
	w.AwaitDecided(round + 1)
	if w.Placements()["default/new"] == "" {
		t.Error("a new pod is not placed")
	}
}

// epoch returns the epoch of the log.
func (w *world) epoch() int64 {
	w.t.Helper()
	s, err := w.GetStatus(w.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return s.GetVersion().GetEpoch()
}
