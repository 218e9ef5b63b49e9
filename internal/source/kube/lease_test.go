package kube

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	dto "github.com/prometheus/client_model/go"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var testLease = LeaseConfig{
	Namespace: "default", Name: "scheduler", Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
}

// clocked is a lease of a process whose clock a test sets.
type clocked struct {
	*Lease
	t   testing.TB
	now time.Time
}

func (c *testCluster) lease(t testing.TB) *clocked {
	t.Helper()
	l, err := newSource(t, c.config()).Lease(testLease)
	if err != nil {
		t.Fatal(err)
	}
	out := &clocked{l, t, time.Unix(1_000_000, 0)}
	l.now = func() time.Time { return out.now }
	return out
}

// try tries as a holder, which must bring that somebody holds the lease.
func (l *clocked) try(as, want string) {
	l.t.Helper()
	claim, err := l.Try(within(l.t), as)
	if err != nil || claim.Holder != want || claim.Until.IsZero() != (as != want) {
		l.t.Fatalf("%s tries at %v: %+v, %v; want it held by %s", as, l.now, claim, err, want)
	}
	if as == want && !claim.Until.Equal(l.now.Add(testLease.RenewDeadline)) {
		l.t.Errorf("%s may act until %v, want 10 s from %v", as, claim.Until, l.now)
	}
}

func (c *testCluster) leaseSpec(t testing.TB) coordinationv1.LeaseSpec {
	t.Helper()
	lease, err := c.client.CoordinationV1().Leases("default").Get(within(t), "scheduler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease.Spec
}

func TestLeaseIsTakenWhenItHasStayedAsItWasForItsTimeWhateverItSays(t *testing.T) {
	c := startCluster(t)
	one, other := c.lease(t), c.lease(t)
	other.now = one.now.Add(-100 * time.Hour) // nobody's clock is believed but one's own
	one.try("one", "one")
	other.try("other", "one")
	other.now = other.now.Add(14 * time.Second)
	other.try("other", "one")
	one.now = one.now.Add(9 * time.Second)
	one.try("one", "one")
	other.now = other.now.Add(2 * time.Second) // 16 s since it was seen first, none since it was seen to change
	other.try("other", "one")
	other.now = other.now.Add(15 * time.Second)
	other.try("other", "other")

	spec := c.leaseSpec(t)
	if *spec.HolderIdentity != "other" || *spec.LeaseDurationSeconds != 15 || *spec.LeaseTransitions != 1 ||
		!spec.AcquireTime.Time.Equal(other.now) || !spec.RenewTime.Time.Equal(other.now) {
		t.Errorf("the lease says %+v", spec)
	}
	// The one that was late finds out at once, though it thinks that it holds it.
	one.try("one", "other")
	// Under the same name nobody waits: another binder of the same Berth.
	same := c.lease(t)
	same.try("other", "other")
	for of, want := range map[*clocked]float64{one: 0, same: 1} { // renewals that read the lease first
		var slow dto.Metric
		if err := of.slow.Write(&slow); err != nil || slow.GetCounter().GetValue() != want {
			t.Errorf("slow renewals: %v, %v; want %v", slow.GetCounter(), err, want)
		}
	}
	if got := *c.leaseSpec(t).LeaseTransitions; got != 1 {
		t.Errorf("%d transitions after a change within a Berth, want 1", got)
	}
	// What another has written since is not released.
	if err := other.Release(within(t), "other"); err == nil {
		t.Error("a lease that another has renewed was released")
	}
	if err := same.Release(within(t), "other"); err != nil {
		t.Fatal(err)
	}
	if got := *c.leaseSpec(t).HolderIdentity; got != "" {
		t.Errorf("after its release %q holds it", got)
	}
	one.try("one", "one")

	events, err := c.client.EventsV1().Events("default").List(within(t), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, e := range events.Items {
		if e.Regarding.Kind == "Lease" && e.Regarding.Name == "scheduler" && e.Regarding.UID != "" && e.Reason == "LeaderElection" {
			notes = append(notes, e.Note)
		}
	}
	if got := strings.Join(notes, ", "); got != "one became leader, other became leader, other stopped leading, one became leader" {
		t.Errorf("events: %s", got)
	}
}

// elector runs client-go's election until stop, which releases the lease.
func (c *testCluster) elector(t testing.TB, id string) (leads <-chan struct{}, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "scheduler"}, Client: c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return started, stop
}

func TestLeaseIsThatOfClientGosElection(t *testing.T) {
	c := startCluster(t)
	l, err := newSource(t, c.config()).Lease(LeaseConfig{
		Namespace: "default", Name: "scheduler", Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 700 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	try := func() (holder string, mine bool) {
		t.Helper()
		claim, err := l.Try(within(t), "berth")
		if err != nil {
			t.Fatal(err)
		}
		return claim.Holder, !claim.Until.IsZero()
	}
	if _, mine := try(); !mine {
		t.Fatal("a lease that nobody has was not taken")
	}
	leads, stop := c.elector(t, "kube-scheduler")
	// It stands by for longer than the lease would last if it were not renewed.
	for range 25 {
		if _, mine := try(); !mine {
			t.Fatal("the lease was lost while it was renewed")
		}
		time.Sleep(l.RetryPeriod()) // as its user does
	}
	select {
	case <-leads:
		t.Fatal("client-go's election took a lease that was renewed")
	default:
	}
	if err := l.Release(within(t), "berth"); err != nil {
		t.Fatal(err)
	}
	<-leads
	if holder, mine := try(); mine || holder != "kube-scheduler" {
		t.Errorf("held by %q, by us: %v", holder, mine)
	}
	stop()
	if _, mine := try(); !mine {
		t.Error("a lease that was released was not taken")
	}
}

func TestCatchUpTellsWhatWasWrittenBefore(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	s := newSource(t, c.config())
	l, err := s.Lease(testLease)
	if err != nil {
		t.Fatal(err)
	}
	r := sourcetest.Record(t, s).Synced()
	for range 5 {
		name := "p" + time.Now().Format("150405.000000000")
		uid := c.SetPod(t, sourcetest.Pod(name))
		err := c.client.CoreV1().Pods("default").Bind(within(t), &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Target: v1.ObjectReference{Kind: "Node", Name: "one"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.CatchUp(within(t)); err != nil {
			t.Fatal(err)
		}
		r.View(func(v sourcetest.View) {
			if got := v.Pods["default/"+name]; got.UID != uid || got.NodeName != "one" {
				t.Errorf("after CatchUp the pod is %+v", got)
			}
		})
	}
	// The watch goes on.
	c.DeletePod(t, "default", firstPod(r))
	r.Await("the pod to be gone", func(v sourcetest.View) bool { return len(v.Pods) == 4 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	c.plane.StopAPIServer()
	if err := l.CatchUp(ended); err == nil {
		t.Error("CatchUp without an API server: no error")
	}
}

// What another scheduler has written of volumes is told too, though watches have not come as far.
func TestCatchUpTellsWhatOthersHaveMadeOfVolumes(t *testing.T) {
	c := startCluster(t)
	server := startProxy(t, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		volumes := strings.HasSuffix(r.URL.Path, "/persistentvolumes") || strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims")
		switch {
		case !volumes || r.URL.Query().Get("watch") == "":
			next.ServeHTTP(w, r)
		case !refuseInitialEvents(w, r):
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // a watch that tells nothing
		}
	})
	cfg := c.config()
	cfg.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, cfg.Kubeconfig, server.URL)
	s := newSource(t, cfg)
	l, err := s.Lease(testLease)
	if err != nil {
		t.Fatal(err)
	}
	r := sourcetest.Record(t, s).Synced()
	once := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	storage := v1.ResourceList{v1.ResourceStorage: apiresource.MustParse("1Gi")}
	_, err = c.client.CoreV1().PersistentVolumes().Create(within(t), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: storage, AccessModes: once, ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "claim"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims("default").Create(within(t), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Annotations: map[string]string{"volume.kubernetes.io/selected-node": "one"}},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: once, Resources: v1.VolumeResourceRequirements{Requests: storage}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CatchUp(within(t)); err != nil {
		t.Fatal(err)
	}
	r.View(func(v sourcetest.View) {
		volume, _ := v.Objects[cluster.ObjectKey{Kind: cluster.PersistentVolumeKind, Name: "volume"}].(*cluster.PersistentVolume)
		if volume == nil || volume.Claim.Name != "claim" {
			t.Errorf("after CatchUp the volume is %+v", volume)
		}
		claim, _ := v.Objects[cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "default", Name: "claim"}].(*cluster.PersistentVolumeClaim)
		if claim == nil || claim.SelectedNode != "one" {
			t.Errorf("after CatchUp the claim is %+v", claim)
		}
	})
}

func firstPod(r *sourcetest.Recorder) (name string) {
	r.View(func(v sourcetest.View) {
		for _, p := range v.Pods {
			name = p.Name
		}
	})
	return name
}

// Who stands by looks at the lease more often than who holds it, and when it runs out.
func TestWhoStandsByWaitsNoLongerThanTheLeaseLasts(t *testing.T) {
	now := time.Unix(1000, 0)
	l := &Lease{cfg: LeaseConfig{Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}, now: func() time.Time { return now }}
	if got := l.Wait(""); got != 500*time.Millisecond {
		t.Errorf("nothing is known: %v", got)
	}
	l.record, l.seen = resourcelock.LeaderElectionRecord{HolderIdentity: "other", LeaseDurationSeconds: 15}, now
	for after, want := range map[time.Duration]time.Duration{
		0: 500 * time.Millisecond, 14*time.Second + 900*time.Millisecond: 101 * time.Millisecond, 15 * time.Second: 500 * time.Millisecond, time.Minute: 500 * time.Millisecond,
	} {
		now = l.seen.Add(after)
		if got := l.Wait("berth"); got != want {
			t.Errorf("%v after the lease was renewed: %v, want %v", after, got, want)
		}
	}
	l.record.HolderIdentity = "berth"
	if got := l.Wait("berth"); got != 2*time.Second {
		t.Errorf("it holds the lease: %v", got)
	}
}
