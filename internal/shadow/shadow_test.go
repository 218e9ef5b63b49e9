package shadow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
)

// tale is a cluster that a Shadow follows.
type tale struct {
	t   *testing.T
	s   *Shadow
	now time.Time
}

func begin(t *testing.T, percentage int32, nodes map[string]string) *tale {
	t.Helper()
	profile := engine.DefaultProfile("default-scheduler")
	profile.PercentageOfNodesToScore = percentage
	s, err := New(Config{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{profile}}, Examples: 10, Now: func() time.Time { return time.Unix(0, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	y := &tale{t: t, s: s, now: time.Unix(1000, 0)}
	for name, cpu := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}
		y.tell(source.Event{Kind: source.NodeSet, Node: source.ReduceNode(node)})
	}
	y.tell(source.Event{Kind: source.Synced})
	return y
}

func (y *tale) tell(e source.Event) {
	y.t.Helper()
	y.now = y.now.Add(time.Millisecond)
	if err := y.s.Tell(e, y.now); err != nil {
		y.t.Fatal(err)
	}
}

// pod tells a pod with requests for CPU, on a node or, if that is "", nowhere.
func (y *tale) pod(name, cpu, node string) {
	y.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		SchedulerName: "default-scheduler", NodeName: node,
		Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}},
	}}
	y.tell(source.Event{Kind: source.PodSet, Pod: source.ReducePod(pod)})
}

func (y *tale) gone(name string) {
	e := source.Event{Kind: source.PodGone}
	e.Pod.UID, e.Pod.Namespace, e.Pod.Name = name, "default", name
	y.tell(e)
}

// advance looks at what there is to be looked at.
func (y *tale) advance(now time.Time, all bool) {
	y.t.Helper()
	for more := true; more; {
		var err error
		if more, err = y.s.Advance(now, all); err != nil {
			y.t.Fatal(err)
		}
	}
}

// end has all looked at, and checks what is counted: same, equal, other order, sampled, better, elsewhere, nowhere, unknown.
func (y *tale) end(want ...int) Report {
	y.t.Helper()
	y.advance(y.now, true)
	r := y.s.Report(y.now)
	got := []int{r.Same, r.Equal, r.OtherOrder, r.Sampled, r.Better, r.Elsewhere, r.Nowhere, r.Unknown}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		y.t.Errorf("same, equal, other order, sampled, better, elsewhere, nowhere, unknown are %v, want %v: %+v", got, want, r.Examples)
	}
	if len(y.s.waits)+len(y.s.binding)+len(y.s.ahead)+len(y.s.coming) > 0 || y.s.binds != 0 || len(y.s.last) != len(y.s.recent) {
		y.t.Errorf("it remembers %d pods that wait, %d, %d and %d that are bound, %d events, and %d states of %d pods", len(y.s.waits), len(y.s.binding), y.s.binds, len(y.s.coming), len(y.s.ahead), len(y.s.last), len(y.s.recent))
	}
	return r
}

func TestAPodWhereBerthWouldHavePutItIsTheSame(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4", "large": "8"})
	y.pod("p", "1", "")
	y.pod("p", "1", "large") // the least allocated
	y.pod("p", "1", "large") // is told again, with a status
	y.gone("p")
	r := y.end(1, 0, 0, 0, 0, 0, 0, 0)
	if r.Bound() != 1 || r.Explained() != 1 || r.Waited.Max != 0.001 {
		t.Errorf("%+v", r)
	}
}

func TestANodeOfTheSameScoreIsEqual(t *testing.T) {
	for _, node := range []string{"a", "b"} { // one of them is Berth's
		y := begin(t, 0, map[string]string{"a": "4", "b": "4"})
		y.pod("p", "1", "")
		y.pod("p", "1", node)
		y.advance(y.now, true)
		if r := y.s.Report(y.now); r.Same+r.Equal != 1 {
			t.Errorf("%s: %+v", node, r)
		}
	}
}

func TestAWorseNodeIsToldWithBothScores(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4", "large": "8"})
	y.pod("p", "2", "")
	y.pod("p", "2", "small")
	r := y.end(0, 0, 0, 0, 1, 0, 0, 0)
	if e := r.Examples.Better; len(e) != 1 || e[0].Pod != "default/p" || e[0].Node != "small" || e[0].Berth != "large" || e[0].Best <= e[0].Total || e[0].Total == 0 {
		t.Errorf("%+v", e)
	}
	if r.Explained() != 0 {
		t.Errorf("%d are explained", r.Explained())
	}
}

// The second pod was decided when the first one was on its node, but its bind arrives before.
func TestBindsThatArriveInAnotherOrderThanThatOfTheDecisionsAreExplained(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "5", "large": "8"})
	y.pod("first", "4", "")
	y.pod("second", "4", "")
	y.pod("second", "4", "small") // large would be better, if first were not there
	y.pod("first", "4", "large")
	r := y.end(1, 0, 1, 0, 0, 0, 0, 0)
	if e := r.Examples.OtherOrder; len(e) != 1 || e[0].Pod != "default/second" || e[0].Order != "decided after default/first, whose binds arrived later" {
		t.Errorf("%+v", e)
	}
	// What was tried has been taken back.
	for name, node := range map[string]string{"first": "large", "second": "small"} {
		id, ok := y.s.state.PodByUID(name)
		if !ok || y.s.state.Pod(id).NodeName != node {
			t.Errorf("%s is not on %s", name, node)
		}
	}
	for i := range y.s.state.Nodes.Len() {
		n := 0
		for range y.s.state.PodsOn(cluster.NodeIndex(i)) {
			n++
		}
		if n != 1 {
			t.Errorf("node %d has %d pods", i, n)
		}
	}
}

// It is the other way round: one was decided before another one, whose bind arrived before.
func TestABindThatWasLateIsExplained(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "5", "large": "8"})
	y.pod("late", "3", "")
	y.pod("other", "4", "")
	y.pod("other", "4", "large") // 4 of 8 are left, when late is bound there: small would be better
	y.pod("late", "3", "large")
	r := y.end(1, 0, 1, 0, 0, 0, 0, 0)
	if e := r.Examples.OtherOrder; len(e) != 1 || e[0].Pod != "default/late" || !strings.HasPrefix(e[0].Order, "decided before default/other") {
		t.Errorf("%+v", e)
	}
}

// A bind that came long ago, or comes much later, was not in flight.
func TestWhatWasNotInFlightExplainsNothing(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "5", "large": "8"})
	y.pod("first", "4", "")
	y.pod("second", "4", "")
	y.pod("second", "4", "small")
	y.now = y.now.Add(lag)
	y.pod("first", "4", "large")
	y.end(1, 0, 0, 0, 1, 0, 0, 0)
}

func TestANodeThatIsTheBestOfEnoughIsSampled(t *testing.T) {
	nodes := make(map[string]string)
	for i := range 200 {
		nodes[fmt.Sprintf("n%03d", i)] = "4"
	}
	nodes["large"] = "8"
	y := begin(t, 50, nodes) // 100 of 201 are enough
	y.pod("p", "1", "")
	y.pod("p", "1", "n007")
	y.end(0, 0, 0, 1, 0, 0, 0, 0)

	nodes["small"] = "2" // which is the worst, so no best of a hundred
	y = begin(t, 50, nodes)
	y.pod("p", "1", "")
	y.pod("p", "1", "small")
	y.end(0, 0, 0, 0, 1, 0, 0, 0)
}

func TestAPodWhereBerthWouldNotPutItIsToldWithWhy(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4", "large": "8"})
	y.pod("p", "6", "")
	y.pod("p", "6", "small")
	r := y.end(0, 0, 0, 0, 0, 1, 0, 0)
	if e := r.Examples.Elsewhere; len(e) != 1 || e[0].Berth != "large" || e[0].Why != "0/1 nodes are available: 1 Insufficient cpu." {
		t.Errorf("%+v", e)
	}
	y.pod("q", "60", "")
	y.pod("q", "60", "large")
	r = y.end(0, 0, 0, 0, 0, 1, 1, 0)
	if e := r.Examples.Nowhere; len(e) != 1 || e[0].Berth != "" || e[0].Why == "" {
		t.Errorf("%+v", e)
	}
}

func TestOfANodeThatHasGoneNothingIsSaid(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4"})
	y.pod("p", "1", "")
	y.pod("p", "1", "gone")
	y.end(0, 0, 0, 0, 0, 0, 0, 1)
}

func TestAPodThatIsRefusedAndFitsCountsWhenItHasForAWhile(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4"})
	y.pod("p", "1", "")
	y.pod("large", "100", "")
	y.advance(y.now, true)
	refused := []Refused{{"p", "default", "p", "0/1 nodes are available: 1 Insufficient cpu."}, {"large", "default", "large", ""}, {"nobody", "default", "nobody", ""}}
	for look, want := range []int{0, 0, 1, 1} {
		y.s.Look(refused, y.now)
		y.now = y.now.Add(steady / 2)
		if r := y.s.Report(y.now); r.Places != want || len(r.Examples.Places) != want {
			t.Errorf("look %d: %d, %+v, want %d", look, r.Places, r.Examples.Places, want)
		}
	}
	y.s.Look(nil, y.now) // it is refused no more
	y.s.Look(refused, y.now.Add(steady))
	if r := y.s.Report(y.now); r.Places != 1 || r.Examples.Places[0].Berth != "small" {
		t.Errorf("%+v", r)
	}
	if len(y.s.fit) != 1 {
		t.Errorf("it remembers %v", y.s.fit)
	}
}

// What waits for what was in flight to arrive is looked at when that is over, or there is too much of it.
func TestBindsAreLookedAtWhenThoseAroundThemHaveArrived(t *testing.T) {
	y := begin(t, 0, map[string]string{"n": "64"})
	for i := range around + 10 {
		y.pod(fmt.Sprint(i), "10m", "")
	}
	y.pod("0", "10m", "n")
	y.advance(y.now, false)
	if r := y.s.Report(y.now); r.Bound() != 0 {
		t.Errorf("%d are looked at at once", r.Bound())
	}
	y.advance(y.now.Add(lag), false)
	if r := y.s.Report(y.now); r.Bound() != 1 {
		t.Errorf("%d are looked at in time", r.Bound())
	}
	for i := range around + 9 {
		y.pod(fmt.Sprint(i+1), "10m", "n")
	}
	y.advance(y.now, false)
	if r := y.s.Report(y.now); r.Bound() != 10 {
		t.Errorf("%d are looked at where many wait, want all but %d", r.Bound(), around)
	}
	if len(y.s.recent) > around {
		t.Errorf("%d are remembered", len(y.s.recent))
	}
}

func TestQuantilesAreNearWhatWasMeasured(t *testing.T) {
	var d durations
	for i := range 1000 {
		d.add(time.Duration(i+1) * time.Millisecond)
	}
	q := d.quantiles()
	if q.P50 < 0.5 || q.P50 > 0.56 || q.P99 < 0.98 || q.P99 > 1 || q.Max != 1 {
		t.Errorf("%+v", q)
	}
	if q := new(durations).quantiles(); q != (Quantiles{}) {
		t.Errorf("of none: %+v", q)
	}
}

// pods returns what the state has of pods, by name: where they are, whether they are being deleted, and their labels.
func (y *tale) pods() map[string]string {
	all := make(map[string]string)
	for id, row := range y.s.state.Pods() {
		all[row.Name] = fmt.Sprint(row.NodeName, row.Phase, row.Deleting, row.Started, y.s.state.Labels(y.s.state.Pod(id).Labels).LabelSet.Labels)
	}
	return all
}

// object tells a pod as it is.
func (y *tale) object(change func(*corev1.Pod)) {
	y.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: corev1.PodSpec{SchedulerName: "default-scheduler", Containers: []corev1.Container{{Name: "c"}}}}
	change(pod)
	pod.UID = types.UID(pod.Name)
	y.tell(source.Event{Kind: source.PodSet, Pod: source.ReducePod(pod)})
}

// What is tried leaves the state as it was: also of pods that have changed, or gone, since they were bound.
func TestWhatIsTriedIsTakenBack(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4", "large": "8"})
	for _, name := range []string{"job", "changes", "judged", "behind", "new"} {
		if name == "new" {
			continue
		}
		y.pod(name, "1", "")
	}
	y.pod("job", "1", "large")
	y.pod("changes", "1", "large")
	y.object(func(p *corev1.Pod) { // its status, and labels that it has got meanwhile
		p.Name, p.Spec.NodeName, p.Labels = "changes", "large", map[string]string{"zone": "a"}
		p.DeletionTimestamp, p.Status.StartTime = &metav1.Time{Time: y.now}, &metav1.Time{Time: y.now}
	})
	y.gone("job")
	y.advance(y.now, true)
	before := y.pods()
	y.pod("judged", "1", "small") // which nothing explains: all orders are tried
	y.pod("behind", "1", "large")
	y.advance(y.now, true)
	after := y.pods()
	if r := y.s.Report(y.now); r.Better+r.Elsewhere != 1 {
		t.Fatalf("nothing was tried: %+v", r)
	}
	for _, name := range []string{"job", "changes"} {
		if after[name] != before[name] {
			t.Errorf("%s is %q, and was %q", name, after[name], before[name])
		}
	}
	if !strings.Contains(after["changes"], "true") || after["job"] != "" {
		t.Errorf("%q", after)
	}
}

// The order of two pods is known where one had been bound before the other was seen.
func TestAnOrderThatCannotBeExplainsNothing(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "5", "large": "8"})
	y.pod("p", "4", "")
	y.pod("p", "4", "small")
	y.pod("later", "4", "") // was created when p had been bound
	y.pod("later", "4", "large")
	if r := y.end(1, 0, 0, 0, 1, 0, 0, 0); len(r.Examples.OtherOrder) > 0 {
		t.Errorf("%+v", r.Examples.OtherOrder)
	}
	y = begin(t, 0, map[string]string{"small": "5", "large": "8"})
	y.pod("other", "4", "")
	y.pod("other", "4", "large")
	y.pod("p", "3", "") // was created when other had been bound
	y.pod("p", "3", "large")
	y.end(1, 0, 0, 0, 1, 0, 0, 0)
}

// A scheduler that takes any node is not explained by what it has not looked at.
func TestAScheduleByChanceIsNotExplained(t *testing.T) {
	nodes := make(map[string]string)
	for i := range 1000 {
		nodes[fmt.Sprintf("n%03d", i)] = fmt.Sprintf("%dm", 16000+i*10)
	}
	y := begin(t, 20, nodes) // 200 are enough
	state := uint64(7)
	for i := range 200 {
		state = state*6364136223846793005 + 1442695040888963407
		name := fmt.Sprint("p", i)
		y.pod(name, "1", "")
		y.now = y.now.Add(2 * lag)
		y.pod(name, "1", fmt.Sprintf("n%03d", state>>33%1000))
	}
	y.advance(y.now, true)
	if r := y.s.Report(y.now); r.Bound() != 200 || r.Explained() > 20 {
		t.Errorf("%d of %d are explained: %d sampled", r.Explained(), r.Bound(), r.Sampled)
	}
}

func TestOfAPodThatWasNominatedNothingIsSaid(t *testing.T) {
	y := begin(t, 0, map[string]string{"small": "4", "large": "8"})
	y.object(func(p *corev1.Pod) { p.Name, p.Status.NominatedNodeName = "p", "small" })
	y.object(func(p *corev1.Pod) { p.Name, p.Spec.NodeName = "p", "small" })
	claim := func(p *corev1.Pod) {
		p.Name, p.Spec.Volumes = "q", []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}
	y.object(claim)
	y.object(func(p *corev1.Pod) { claim(p); p.Spec.NodeName = "small" })
	y.end(0, 0, 0, 0, 0, 0, 0, 2)
}

// Pods that were bound, or went, while the cluster was read are no binds when they are told again.
func TestWhatHappenedWhileTheClusterWasReadIsNotLookedAt(t *testing.T) {
	y := begin(t, 0, map[string]string{"n": "4"})
	y.s.synced = false
	y.pod("bound", "1", "")
	y.pod("gone", "1", "")
	y.object(func(p *corev1.Pod) { p.Name, p.CreationTimestamp = "old", metav1.Unix(5, 0) })
	y.object(func(p *corev1.Pod) { p.Name, p.CreationTimestamp = "older", metav1.Unix(1, 0) })
	y.pod("bound", "1", "n")
	y.gone("gone")
	y.tell(source.Event{Kind: source.Synced})
	if a, b := y.s.waits["older"], y.s.waits["old"]; a.number >= b.number {
		t.Errorf("the older pod is the %d., the other one the %d.", a.number, b.number)
	}
	y.pod("bound", "1", "n") // its status
	y.pod("old", "1", "n")
	y.gone("older")
	y.pod("unseen", "1", "n") // was created and bound while nobody looked
	y.pod("unseen", "1", "n")
	if r := y.end(1, 0, 0, 0, 0, 0, 0, 0); r.Unseen != 1 {
		t.Errorf("%d were not seen before", r.Unseen)
	}
}
