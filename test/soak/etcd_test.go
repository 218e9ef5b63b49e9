package soak

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var written = flag.Int64("written", 48, "MiB that go through etcd's log")

const (
	quota = 16 << 20
	round = 100      // pods that come and go together
	padBy = 16 << 10 // bytes that each has besides
	rate  = 3 << 20  // bytes per second of manifests, so that a second of history has room

	// Of what the active binder compacts, with fewer and larger revisions: fewer than it would keep by their number.
	largePadBy, largeRate = 32 << 10, 4 << 20
)

// shipped returns how the etcd of the manifests compacts, with the time cut to a second, no more than the quota is.
func shipped(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kustomize/components/etcd/etcd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var shippedQuota int64
	if m := regexp.MustCompile(`--quota-backend-bytes=(\d+)`).FindSubmatch(text); m != nil {
		shippedQuota, _ = strconv.ParseInt(string(m[1]), 10, 64)
	}
	var flags []string
	for _, m := range regexp.MustCompile(`--auto-compaction-\S+`).FindAllString(string(text), -1) {
		if name, kept, ok := strings.Cut(m, "="); ok && strings.HasSuffix(name, "retention") {
			retention, err := time.ParseDuration(kept)
			if err != nil || retention.Seconds() > float64(shippedQuota)/quota {
				t.Fatalf("%s, %v: with a quota of %d MiB to %d that is to be %d seconds at most", m, err, shippedQuota>>20, quota>>20, shippedQuota/quota)
			}
			m = name + "=1s"
		}
		flags = append(flags, m)
	}
	return append(flags, fmt.Sprintf("--quota-backend-bytes=%d", quota))
}

// world is a Berth of the local source on an etcd of its own.
type world struct {
	*berthtest.Berth
	t      *testing.T
	etcd   *etcdtest.Process
	client *coord.Client
	padBy  int
	rate   int
	rounds int
	peak   coord.Database // the most that was seen
}

func start(t *testing.T, o berthtest.Options, flags ...string) *world {
	t.Helper()
	w := &world{t: t, etcd: etcdtest.Start(t, flags...), padBy: padBy, rate: rate}
	o.Nodes, o.EtcdEndpoints, o.EtcdLook = 10, w.etcd.Endpoints(), 200*time.Millisecond
	o.LeaseTTL = time.Minute // a disk that stands still for seconds ends no term here
	w.Berth = berthtest.Start(t, o)
	var err error
	if w.client, err = coord.Connect(coord.Config{Endpoints: w.etcd.Endpoints()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.Close() })
	return w
}

// logged returns the bytes that etcd has written to its log.
func (w *world) logged() int64 {
	w.t.Helper()
	response, err := http.Get("http://" + w.etcd.Endpoints()[0] + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "etcd_disk_wal_write_bytes_total "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				w.t.Fatal(err)
			}
			return int64(f)
		}
	}
	w.t.Fatal("etcd does not say how much it has written")
	return 0
}

// pods returns manifests of the next round, and their names.
func (w *world) pods() (manifests, names []string) {
	w.rounds++
	pad := strings.Repeat("x", w.padBy)
	for i := range round {
		name := fmt.Sprintf("pod-%d-%d", w.rounds, i)
		names = append(names, name)
		manifests = append(manifests, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, annotations: {pad: %s}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 10m}}}]}}`, name, pad))
	}
	return manifests, names
}

// come has a round of pods placed.
func (w *world) come() (names []string, err error) {
	manifests, names := w.pods()
	if _, err := w.SchedulingServiceClient.Apply(w.Context(), &schedulingv1.ApplyRequest{Manifests: strings.Join(manifests, "\n---\n")}); err != nil {
		return names, err
	}
	w.AwaitDecided(round)
	return names, nil
}

// comeAndGo has a round of pods placed, and deletes them.
func (w *world) comeAndGo() error {
	names, err := w.come()
	if err != nil {
		return err
	}
	w.leave(names)
	return nil
}

func (w *world) leave(names []string) {
	w.t.Helper()
	for _, name := range names {
		w.delete(name)
	}
	w.AwaitDecided(0)
}

func (w *world) delete(name string) {
	w.t.Helper()
	berthtest.Await(w.t, berthtest.Patience, "a pod to be deleted", func(ctx context.Context) error {
		_, err := w.Delete(ctx, &schedulingv1.DeleteRequest{Kind: "Pod", Namespace: "default", Name: name})
		if status.Code(err) == codes.NotFound { // the answer to a try before was late
			return nil
		}
		return err
	})
}

// look asks etcd how full it is.
func (w *world) look() coord.Database {
	w.t.Helper()
	var d coord.Database
	berthtest.Await(w.t, time.Minute, "etcd to answer", func(ctx context.Context) (err error) {
		d, err = w.client.Database(ctx)
		return err
	})
	w.peak.Size, w.peak.InUse, w.peak.Full = max(w.peak.Size, d.Size), max(w.peak.InUse, d.InUse), w.peak.Full || d.Full
	return d
}

// churn lets pods come and go until so much has been written.
func (w *world) churn(mib int64) {
	w.t.Helper()
	began := time.Now()
	turn := time.NewTicker(time.Second * time.Duration(round*w.padBy) / time.Duration(w.rate))
	defer turn.Stop()
	for w.logged() < mib<<20 {
		if err := w.comeAndGo(); err != nil {
			w.t.Fatalf("after %d MiB: %v; etcd: %+v", w.logged()>>20, err, w.look())
		}
		if w.look().Full {
			w.t.Fatalf("after %d MiB etcd is full: %+v", w.logged()>>20, w.look())
		}
		<-turn.C
	}
	for _, prefix := range []string{"local/placements/", "local/conditions/", "local/pods/"} {
		if left, _, err := w.client.List(w.Context(), prefix); err != nil || len(left) > 0 {
			w.t.Errorf("of pods that have gone there is %d left under %s, %v", len(left), prefix, err)
		}
	}
	w.t.Logf("%d pods came and went in %.1f s; etcd wrote %d MiB with a quota of %d MiB; its file was %.1f MiB at most, %.1f in use",
		w.rounds*round, time.Since(began).Seconds(), w.logged()>>20, quota>>20, float64(w.peak.Size)/(1<<20), float64(w.peak.InUse)/(1<<20))
}

func TestTheEtcdOfTheManifestsNeverFillsUp(t *testing.T) {
	start(t, berthtest.Options{}, shipped(t)...).churn(*written)
}

func TestTheActiveBinderKeepsAnEtcdOfBerthsOwnFromFillingUp(t *testing.T) {
	w := start(t, berthtest.Options{EtcdOwned: true}, fmt.Sprintf("--quota-backend-bytes=%d", quota))
	w.padBy, w.rate = largePadBy, largeRate
	w.churn(*written)
}

// Without compaction etcd fills up. Berth does not touch an etcd that is not its own, says so, and goes on when there is room.
func TestAnEtcdThatIsFullIsSaidAndBindingGoesOnWhenItHasRoom(t *testing.T) {
	w := start(t, berthtest.Options{}, fmt.Sprintf("--quota-backend-bytes=%d", quota))
	for !w.look().Full {
		manifests, _ := w.pods()
		if _, err := w.SchedulingServiceClient.Apply(w.Context(), &schedulingv1.ApplyRequest{Manifests: strings.Join(manifests, "\n---\n")}); err != nil {
			t.Logf("round %d: %v", w.rounds, err)
		}
		if w.rounds > 100 {
			t.Fatalf("etcd is not full after %d rounds: %+v", w.rounds, w.look())
		}
	}
	leader := w.leader()
	berthtest.Await(t, time.Minute, "the status to say that etcd is full", func(ctx context.Context) error {
		s, err := w.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if e := s.GetEtcd(); !e.GetFull() || e.GetQuotaBytes() != quota || e.GetSizeBytes() == 0 {
			return fmt.Errorf("the status says %v", e)
		}
		return nil
	})
	if _, err := w.SchedulingServiceClient.Apply(w.Context(), &schedulingv1.ApplyRequest{Manifests: berthtest.Pod("late", "10m", "1Mi", "")}); err == nil {
		t.Error("a pod is taken by an etcd that is full")
	}
	if _, err := w.ListPods(w.Context(), &schedulingv1.ListPodsRequest{PageSize: 1}); err != nil {
		t.Errorf("reads do not go on: %v", err)
	}

	etcd, err := clientv3.New(clientv3.Config{Endpoints: w.etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	if _, err := etcd.Get(w.Context(), "/berth/", clientv3.WithRev(2)); err != nil {
		t.Errorf("somebody has compacted an etcd that is not Berth's alone: %v", err)
	}
	const pods = "local/pods/default/"
	left, _, err := w.client.List(w.Context(), pods) // by etcd: Berth may not have been told of all yet
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range left { // what came before has to go, or nothing would have room
		w.delete(strings.TrimPrefix(pod.Key, pods))
	}
	w.makeRoomAsTheRunbookSays()
	if _, err := etcd.Get(w.Context(), "/berth/", clientv3.WithRev(2)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("the past is read after the runbook's compaction: %v", err)
	}
	if d := w.look(); d.Full || d.Size > quota/2 {
		t.Errorf("after what the runbook says: %+v", d)
	}
	if err := w.comeAndGo(); err != nil {
		t.Errorf("binding does not go on: %v", err)
	}
	if now := w.leader(); now != leader {
		t.Errorf("the term did not outlive it: %s led, and now %s", leader, now)
	}
}

// makeRoomAsTheRunbookSays runs the command lines of the runbook for a full etcd, as they stand there, with etcd's own client. Where there is "…"
// in them, people put in where etcd is, and so does this.
func (w *world) makeRoomAsTheRunbookSays() {
	w.t.Helper()
	const section, elided = "## BerthEtcdFull\n", "ETCDCTL_ENDPOINTS=…"
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		w.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), section)
	rest, _, _ = strings.Cut(rest, "\n## ")
	_, rest, _ = strings.Cut(rest, "```sh\n")
	script, _, found := strings.Cut(rest, "```\n")
	if !found || strings.Count(script, "…") != 1 || !strings.Contains(script, elided) {
		w.t.Fatalf("the runbook's %q has the command lines %q, want some with %s", section, script, elided)
	}
	programs, err := kubetest.Build(w.Context(), kubetest.Etcdctl)
	if err != nil {
		w.t.Fatal(err)
	}
	// The key pair is read, and shown to nobody: this etcd has no TLS.
	dir := w.t.TempDir()
	if _, err := certs.Make(certs.Request{Dir: dir, Roles: []string{"etcd"}, Known: []string{"etcd"}, Now: time.Now(), CALife: time.Hour, Life: time.Hour}); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.Context(), "bash", "-euxo", "pipefail", "-c", strings.Replace(script, "…", "http://"+strings.Join(w.etcd.Endpoints(), ",http://"), 1))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(programs[kubetest.Etcdctl])+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("what the runbook says: %v\n%s", err, out)
	}
	w.t.Logf("what the runbook says:\n%s", out)
}

// leader returns who leads in which epoch.
func (w *world) leader() string {
	w.t.Helper()
	s, err := w.GetStatus(w.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("%s in epoch %d", s.GetLeader(), s.GetVersion().GetEpoch())
}
