package whatif

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/whatif"
	"github.com/berth-scheduler/berth/test/berthtest"
)

const (
	seed      = 42
	sequences = 100
	nodes     = 12
)

// A Berth and a sandbox are told the same, one thing after the other: pods that come alone or in a burst, pods that go, nodes
// that are cordoned. The sandbox says first what will happen. What makes both sides certain of it:
//   - the next thing is told when Berth has nothing left to do;
//   - a pod that fits nowhere is deleted at once, for when it would come back depends on its backoff, which is time;
//   - no two pods have the same priority: which of two equal pods has to go, their ids decide, and these depend on the order in
//     which earlier victims went;
//   - pods of a burst, which Berth may cut into batches as it likes, have the lowest priority there is, so that none makes room,
//     and ask for nothing that those behind them could give.
func TestWhatWouldHappenHappens(t *testing.T) {
	berth := berthtest.Start(t, berthtest.Options{Seed: seed})
	both := newPair(t, berth)
	err := both.sandbox.Try(t.Context(), func(w *whatif.World) error {
		both.world = w
		for k := range sequences {
			both.sequence(k)
		}
		return nil
	})
	if err != nil || both.sandbox.Spoiled() != nil {
		t.Errorf("Try: %v; spoiled: %v", err, both.sandbox.Spoiled())
	}
	t.Logf("%d pods: %v; %d victims", both.pods, both.seen, both.victims)
	for _, o := range []whatif.Outcome{whatif.Unplaced, whatif.Placed, whatif.Preempts} {
		if both.seen[o] < sequences/10 {
			t.Errorf("%d pods were %v: the sequences say little about that", both.seen[o], o)
		}
	}
}

// pair is a Berth with the sandbox that is to know what it does.
type pair struct {
	t       *testing.T
	berth   *berthtest.Berth
	sandbox *whatif.Sandbox
	world   *whatif.World
	at      map[string]string // where each pod is, by namespace/name
	random  *rand.Rand
	pods    int // so far
	victims int
	seen    map[whatif.Outcome]int
	history []string
}

func newPair(t *testing.T, berth *berthtest.Berth) *pair {
	var manifests []string
	for k := range nodes {
		manifests = append(manifests, node(k, false))
	}
	manifests = append(manifests,
		`{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {selector: {app: web}}}`)
	berth.Apply(manifests...)
	settings := cluster.Settings{Shards: 1, Seed: seed, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}
	sandbox, err := whatif.FromObjects([]byte(strings.Join(manifests, "\n---\n")), settings, engine.EvaluatorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &pair{t: t, berth: berth, sandbox: sandbox, at: map[string]string{}, seen: map[whatif.Outcome]int{}}
}

func node(k int, cordoned bool) string {
	name := fmt.Sprintf("node-%02d", k)
	taints := ""
	if k%4 == 3 {
		taints = `taints: [{key: dedicated, value: batch, effect: NoSchedule}], `
	}
	return fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/hostname: %s, topology.kubernetes.io/zone: zone-%d, disk: %s}}, spec: {%sunschedulable: %t}, status: {allocatable: {cpu: "%d", memory: 8Gi, pods: "8"}}}`,
		name, name, k%3, []string{"ssd", "hdd"}[k%2], taints, cordoned, 2+k%3)
}

// What pods may ask for. The ones of the first list ask for nothing that a pod placed behind them could give.
var (
	patient = []string{
		"", "", "nodeSelector: {disk: ssd}, ", "tolerations: [{key: dedicated, operator: Exists}], ",
		`affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: alone}}}]}}, `,
		`topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}], `,
		`affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 50, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: web}}}}]}}, `,
	}
	needy = []string{
		`affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: web}}}]}}, `,
		`topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: db}}}], `,
		`preemptionPolicy: Never, `,
	}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// pod returns the manifest of a new pod of a level. Its priority is below that of all earlier ones of the level.
func (p *pair) pod(level int, spec string) string {
	name := fmt.Sprintf("p%05d", p.pods)
	p.pods++
	priority := level*100_000 - p.pods
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default, labels: {app: %s}}, spec: {priority: %d, %scontainers: [{name: c, image: i, resources: {requests: {cpu: %dm, memory: %dMi}}}]}}`,
		name, pick(p.random, []string{"web", "db", "alone", "other"}), priority, spec,
		pick(p.random, []int{100, 250, 500, 1000, 1500}), pick(p.random, []int{64, 512, 1024}))
}

// sequence is some things that happen.
func (p *pair) sequence(number int) {
	p.random = rand.New(rand.NewPCG(uint64(number), 7))
	p.history = []string{fmt.Sprintf("sequence %d", number)}
	for range 4 + p.random.IntN(5) {
		switch p.random.IntN(8) {
		case 0:
			p.cordon(p.random.IntN(nodes), p.random.IntN(3) == 0)
		case 1, 2:
			for range 1 + p.random.IntN(3) {
				if placed := slices.Sorted(maps.Keys(p.at)); len(placed) > 0 {
					p.remove(pick(p.random, placed))
				}
			}
		case 3:
			var burst []string
			for range 2 + p.random.IntN(5) {
				burst = append(burst, p.pod(0, pick(p.random, patient)))
			}
			p.arrive(burst...)
		default:
			spec := pick(p.random, slices.Concat(patient, needy))
			p.arrive(p.pod(p.random.IntN(4), spec))
		}
	}
}

func (p *pair) did(format string, args ...any) {
	p.history = append(p.history, fmt.Sprintf(format, args...))
}

// must ends the test with what has happened in this sequence.
func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%v\nafter:\n%s", err, strings.Join(p.history, "\n"))
	}
}

func (p *pair) cordon(k int, cordoned bool) {
	p.did("node %d cordoned: %v", k, cordoned)
	p.must(p.world.Cordon(fmt.Sprintf("node-%02d", k), cordoned))
	p.berth.Apply(node(k, cordoned))
	p.settle()
}

// remove deletes a pod.
func (p *pair) remove(key string) {
	p.did("%s goes", key)
	name := strings.TrimPrefix(key, "default/")
	p.must(p.world.RemovePod(p.id(name)))
	delete(p.at, key)
	_, err := p.berth.Delete(p.berth.Context(), &schedulingv1.DeleteRequest{Kind: "Pod", Name: name})
	p.must(err)
	p.settle()
}

// id returns a pod's id in the sandbox, where its uid says its name.
func (p *pair) id(name string) cluster.PodID {
	id, ok := p.world.State().PodByUID("object:default/" + name)
	if !ok {
		p.must(fmt.Errorf("the sandbox has no pod %s", name))
	}
	return id
}

// arrive says what becomes of pods, and has it happen.
func (p *pair) arrive(manifests ...string) {
	events, err := whatif.Events([]byte(strings.Join(manifests, "\n---\n")))
	p.must(err)
	var ids []cluster.PodID
	for _, e := range events {
		if e.Kind == source.PodSet {
			id, err := p.world.AddPod(e.Pod)
			p.must(err)
			ids = append(ids, id)
		}
	}
	outcomes, err := whatif.Place(p.world, ids, whatif.PlaceOptions{Preempt: true})
	p.must(err)
	var unplaced []string
	for k, o := range outcomes {
		p.did("%s\n  would be %v on %q, victims %v %s", manifests[k], o.Outcome, o.Node, o.Victims, o.Message)
		p.seen[o.Outcome]++
		p.victims += len(o.Victims)
		key := o.Namespace + "/" + o.Name
		p.at[key] = o.Node
		if o.Node == "" {
			unplaced = append(unplaced, key)
		}
		for _, v := range o.Victims {
			delete(p.at, v.Namespace+"/"+v.Name)
		}
	}
	p.berth.Apply(manifests...)
	p.settle()
	for _, key := range unplaced {
		p.remove(key)
	}
}

// settle waits until Berth has nothing left to do and all pods are where they would be.
func (p *pair) settle() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		at, idle := p.look()
		if idle && maps.Equal(at, p.at) {
			return
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			p.t.Fatalf("(-what would be +what is):\n%s\nafter:\n%s", cmp.Diff(p.at, at), strings.Join(p.history, "\n"))
		}
	}
}

// look returns where the pods are, and whether none of them is on its way.
func (p *pair) look() (at map[string]string, idle bool) {
	status, err := p.berth.GetStatus(p.berth.Context(), &schedulingv1.GetStatusRequest{})
	p.must(err)
	idle = status.GetPods().GetAssumed() == 0
	for _, shard := range status.GetShards() {
		d := shard.GetDepth()
		idle = idle && d.GetActive()+d.GetBackoff()+d.GetInFlight() == 0
	}
	at = make(map[string]string)
	for name, pod := range p.berth.Pods() {
		at[name] = pod.GetNode()
	}
	return at, idle
}
