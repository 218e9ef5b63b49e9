package overload

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/local"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var (
	waiting = flag.Int("waiting", 5_000, "how many pods there is no room for; there is room for a tenth as many")
	within  = flag.Duration("within", 3*time.Minute, "how long each step may take")
)

const (
	classes    = 200
	priorities = 5
	perNode    = 50 // pods that a node has room for
	appliers   = 4
)

// backoff is more than a pod that has failed a few times waits before it is tried again.
const backoff = 12 * time.Second

func TestTenTimesThePodsThatFit(t *testing.T) {
	room := *waiting / 10
	r := start(t)

	// 1. All pods come while the first of them are being placed.
	r.apply(nodes("first", room/perNode, perNode))
	began := time.Now()
	r.applyPods(room + *waiting)
	r.say("%d pods applied, %.0f/s", r.pods, float64(r.pods)/time.Since(began).Seconds())
	r.awaitSettled(room)
	r.say("%d placed, %d wait, %.1f s after the first was applied", room, *waiting, time.Since(began).Seconds())
	first := r.stored()
	first.checkArrivals(t)
	memory := r.memory()
	r.checkPeak()

	// 2. More calls than are answered at a time, and clients that do not read what they asked for.
	r.flood()
	r.leaveUnread()
	r.awaitSettled(room)

	// 3. Room for some: those of the highest priorities get it, whatever shard they are in.
	some := room / 2
	r.awaitBackoffs()
	r.apply(nodes("large", 1, some))
	r.awaitSettled(room + some)
	r.stored().checkPriorities(t, first)

	// 4. Room for all.
	began = time.Now()
	more := (*waiting-some)/perNode + 1
	r.apply(nodes("more", more, perNode))
	r.awaitSettled(r.pods)
	r.say("the %d that waited are placed, %.0f/s, %.1f s after there was room", *waiting-some,
		float64(*waiting-some)/time.Since(began).Seconds(), time.Since(began).Seconds())
	r.CheckCapacity()
	r.checkIntents()
	r.checkPeak()
	for id, after := range r.memory() {
		if before := memory[id]; after > before+slackBytes+int64(bytesPerCell*classes*more) {
			t.Errorf("%s holds %.1f MiB now that nothing waits, %.1f MiB when all did", id, mib(after), mib(before))
		}
	}
}

// run is a Berth of separate processes under load.
type run struct {
	*berthtest.Processes
	t      *testing.T
	etcd   *coord.Client
	client schedulingv1.SchedulingServiceClient // waits as long as it is asked to
	pods   int                                  // that were applied
}

func start(t *testing.T) *run {
	p := berthtest.StartProcesses(t, berthtest.Crew{
		Binders: 1, Queues: 2, FilterWorkers: 2, ScoreWorkers: 1, Shards: 4, LeaseTTL: 10 * time.Second, Profiling: true,
	})
	etcd, err := coord.Connect(coord.Config{Endpoints: p.Etcd.Endpoints(), RequestTimeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	return &run{Processes: p, t: t, etcd: etcd, client: schedulingv1.NewSchedulingServiceClient(rpc.RetryRefused(p.Conn))}
}

// say prints a figure, with -v at once.
func (r *run) say(format string, args ...any) {
	r.t.Helper()
	r.t.Logf(format, args...)
}

func (r *run) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), *within)
	r.t.Cleanup(cancel)
	return ctx
}

// nodes returns manifests of n nodes with room for so many pods each.
func nodes(name string, n, room int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(
			`{apiVersion: v1, kind: Node, metadata: {name: %s-%04d}, status: {allocatable: {cpu: "%d", memory: %dMi, pods: "%d"}}}`,
			name, i, room, 16*room, room)
	}
	return out
}

func podName(i int) string { return fmt.Sprintf("pod-%06d", i) }

// pod returns a manifest. All pods are of a size; what they tolerate makes them of different classes, and so of different
// shards. None evicts another.
func pod(i int, priority int) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {priority: %d, preemptionPolicy: Never, `+
		`tolerations: [{key: class-%d, operator: Exists}], containers: [{name: c, image: i, resources: {requests: {cpu: "1", memory: 16Mi}}}]}}`,
		podName(i), priority, i%classes)
}

func (r *run) apply(manifests []string) {
	r.t.Helper()
	for part := range slices.Chunk(manifests, 400) {
		if _, err := r.client.Apply(r.context(), &schedulingv1.ApplyRequest{Manifests: strings.Join(part, "\n---\n")}); err != nil {
			r.t.Fatalf("apply: %v", err)
		}
	}
}

// applyPods writes n pods, with priorities in no order, as fast as etcd takes them.
func (r *run) applyPods(n int) {
	r.t.Helper()
	r.pods = n
	random := rand.New(rand.NewPCG(1, 1))
	models := map[[2]int]*corev1.Pod{}
	objects := make([]manifest.Object, n)
	for i := range objects {
		class, priority := i%classes, 100*random.IntN(priorities)
		model := models[[2]int{class, priority}]
		if model == nil {
			parsed, err := manifest.Parse([]byte(pod(class, priority)))
			if err != nil {
				r.t.Fatal(err)
			}
			model = parsed[0].Pod
			models[[2]int{class, priority}] = model
		}
		pod := *model
		pod.Name = podName(i)
		objects[i] = manifest.Object{Pod: &pod}
	}
	store := local.NewStore(r.etcd, local.Config{})
	applying, ctx := errgroup.WithContext(r.context())
	for part := range slices.Chunk(objects, (n+appliers-1)/appliers) {
		applying.Go(func() error {
			_, err := store.Apply(ctx, part, false)
			return err
		})
	}
	if err := applying.Wait(); err != nil {
		r.t.Fatalf("apply pods: %v", err)
	}
}

// awaitSettled waits until so many pods are bound and the queues hold all others, as pods that fit nowhere: none is lost.
func (r *run) awaitSettled(bound int) {
	r.t.Helper()
	berthtest.Await(r.t, *within, fmt.Sprintf("%d pods to be bound and %d to be unschedulable", bound, r.pods-bound), func(ctx context.Context) error {
		s, err := r.client.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		var depth schedulingv1.QueueDepth
		for _, shard := range s.GetShards() {
			d := shard.GetDepth()
			depth.Gated += d.GetGated()
			depth.Active += d.GetActive()
			depth.Backoff += d.GetBackoff()
			depth.Unschedulable += d.GetUnschedulable()
			depth.InFlight += d.GetInFlight()
		}
		others := depth.GetGated() + depth.GetActive() + depth.GetBackoff() + depth.GetInFlight()
		c := s.GetPods()
		if int(c.GetBound()) != bound || c.GetAssumed() != 0 || int(c.GetPending()) != r.pods-bound ||
			int(depth.GetUnschedulable()) != r.pods-bound || others != 0 {
			return fmt.Errorf("%v; in the queues %v", c, &depth)
		}
		return nil
	})
}

// awaitBackoffs waits until no pod that is tried again has to serve a backoff, so that priority alone decides.
func (r *run) awaitBackoffs() {
	r.t.Helper()
	berthtest.Await(r.t, *within, "backoffs to pass", func(ctx context.Context) error {
		page, err := r.client.ListPods(ctx, &schedulingv1.ListPodsRequest{PageSize: 1000, PendingOnly: true})
		if err != nil {
			return err
		}
		for _, p := range page.GetPods() {
			if since := time.Since(p.GetSince().AsTime()); since < backoff {
				return fmt.Errorf("%s was tried %v ago", p.GetName(), since)
			}
		}
		return nil
	})
}

// checkIntents fails the test if a bind is not finished.
func (r *run) checkIntents() {
	r.t.Helper()
	berthtest.Await(r.t, *within, "all intents to be finished", func(ctx context.Context) error {
		record, err := r.etcd.ReadRecord(ctx)
		if err == nil && len(record.Batches) > 0 {
			return fmt.Errorf("%d batches are left", len(record.Batches))
		}
		return err
	})
}

// storedPod is a pod in etcd.
type storedPod struct {
	created  int64 // in seconds, which is how pods tell their age
	revision int64 // of etcd, when it was written: the order among those of a second
	class    string
	priority int32
	node     string // "" while it waits
}

type stored map[string]*storedPod

// stored reads the pods and their placements from etcd.
func (r *run) stored() stored {
	r.t.Helper()
	pods := stored{}
	kvs, _, err := r.etcd.List(r.context(), "local/pods/")
	for _, kv := range kvs {
		var p corev1.Pod
		if err := json.Unmarshal(kv.Value, &p); err != nil {
			r.t.Fatalf("%s: %v", kv.Key, err)
		}
		pods[string(p.UID)] = &storedPod{
			created: p.CreationTimestamp.Unix(), revision: kv.CreateRevision, class: p.Spec.Tolerations[0].Key, priority: *p.Spec.Priority,
		}
	}
	if err == nil {
		kvs, _, err = r.etcd.List(r.context(), "local/placements/")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for _, kv := range kvs {
		var p struct{ Node string }
		if err := json.Unmarshal(kv.Value, &p); err != nil {
			r.t.Fatalf("%s: %v", kv.Key, err)
		}
		pods[strings.TrimPrefix(kv.Key, "local/placements/")].node = p.Node
	}
	if len(pods) != r.pods {
		r.t.Errorf("%d pods are in etcd, %d were applied", len(pods), r.pods)
	}
	return pods
}

// checkArrivals fails the test if of two pods of a class and priority, which are of one shard, one was placed and the other,
// which is as old at least and was written before it, waits.
func (s stored) checkArrivals(t *testing.T) {
	t.Helper()
	type line struct {
		class    string
		priority int32
	}
	lines := map[line][]*storedPod{}
	for _, p := range s {
		of := line{p.class, p.priority}
		lines[of] = append(lines[of], p)
	}
	for of, pods := range lines {
		slices.SortFunc(pods, func(a, b *storedPod) int { return cmp.Compare(a.revision, b.revision) })
		var waits *storedPod // the oldest of those written so far
		for _, p := range pods {
			switch {
			case p.node == "" && (waits == nil || p.created < waits.created):
				waits = p
			case p.node != "" && waits != nil && waits.created <= p.created && waits.revision < p.revision:
				t.Errorf("%v: the pod of %d, revision %d, waits; that of %d, revision %d, was placed", of, waits.created, waits.revision, p.created, p.revision)
			}
		}
	}
}

// checkPriorities fails the test if a pod was placed since before, and one of a higher priority waits.
func (s stored) checkPriorities(t *testing.T, before stored) {
	t.Helper()
	placed, wait := map[int32]int{}, map[int32]int{}
	for uid, p := range s {
		switch {
		case p.node == "":
			wait[p.priority]++
		case before[uid].node == "":
			placed[p.priority]++
		case before[uid].node != p.node:
			t.Errorf("pod %s was on %s and is on %s", uid, before[uid].node, p.node)
		}
	}
	if len(placed) == 0 || len(wait) == 0 {
		t.Fatalf("placed %v, waiting %v: nothing to compare", placed, wait)
	}
	if lowest, highest := slices.Min(slices.Collect(maps.Keys(placed))), slices.Max(slices.Collect(maps.Keys(wait))); lowest < highest {
		t.Errorf("placed by priority: %v; %v wait", placed, wait)
	}
	t.Logf("placed since by priority: %v; %v wait", placed, wait)
}
