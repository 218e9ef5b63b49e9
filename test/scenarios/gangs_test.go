package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-scheduler/berth/test/berthtest"
)

var gangSeeds = flag.Uint64("gang-seeds", 4, "with how many seeds gangs are placed at random")

// TestGangsAreWhereANaiveModelHasThem does at random what users do to a cluster with gangs, and compares what becomes of it with a model that knows nodes, their CPUs and racks, and how many pods fit:
// who is placed, who waits though he would fit or could preempt, who was evicted and need not have been, and whether any revision of the cluster shows a gang partly.
// All pods of a gang ask for the same, so how many fit does not depend on the order in which they are tried.
func TestGangsAreWhereANaiveModelHasThem(t *testing.T) {
	var evicted atomic.Int64
	t.Cleanup(func() { // when all are through
		if evicted.Load() == 0 {
			t.Error("nobody was evicted")
		}
	})
	for seed := range *gangSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			o := berthtest.Options{Seed: seed, Shards: int32(1 + seed%2*2), Queues: int(1 + seed%2)}
			b, users := startOnManifests(t, o)
			play := &gangPlay{story: &story{t: t, berth: b, users: users}, etcd: users.(*manifests).connect(t), rand: rand.New(rand.NewPCG(seed, 22)),
				world: gangWorld{nodes: make(map[string]*gangNode), units: make(map[string]*unit), pods: make(map[string]string)}, units: make(map[string]string)}
			play.begin()
			for step := range 30 {
				play.at = fmt.Sprintf("step %d", step)
				play.step()
			}
			if play.placed == 0 || play.waited == 0 {
				t.Errorf("%d gangs were placed, %d waited: want some of each", play.placed, play.waited)
			}
			evicted.Add(int64(play.evicted))
			t.Logf("%d gangs placed, %d waited, %d pods evicted, %d revisions", play.placed, play.waited, play.evicted, play.revision)
		})
	}
}

// gangNode is a node, of so many thousandths of a CPU.
type gangNode struct {
	cpu      int64
	rack     string
	cordoned bool
}

// unit is a gang, or a pod of no group: min is 1 then.
type unit struct {
	name     string
	gang     bool // it is of a PodGroup
	absent   bool // which is not there yet
	min      int
	cpu      int64 // of each pod
	priority int
	racks    bool // all its pods go to one rack
	whole    bool // all its pods are evicted, or none
}

// gangWorld is what the model knows: nodes, units, and where the pods of these are, "" for nowhere.
type gangWorld struct {
	nodes map[string]*gangNode
	units map[string]*unit  // by name
	pods  map[string]string // by name: UNIT-NUMBER
}

func unitOf(pod string) string { return pod[:strings.LastIndexByte(pod, '-')] }

// with returns the world with the pods where they are said to be.
func (w gangWorld) with(pods map[string]string) gangWorld {
	return gangWorld{nodes: w.nodes, units: w.units, pods: pods}
}

// members returns the pods of a unit that have a node, and those that have none.
func (w gangWorld) members(u *unit) (bound, waiting []string) {
	for pod, node := range w.pods {
		switch {
		case unitOf(pod) != u.name:
		case node == "":
			waiting = append(waiting, pod)
		default:
			bound = append(bound, pod)
		}
	}
	return bound, waiting
}

// fit returns how many more pods of a unit there is room for: in one rack if it wants that, that of its pods if it has some there.
func (w gangWorld) fit(u *unit) int {
	free := make(map[string]int64)
	for name, n := range w.nodes {
		if !n.cordoned {
			free[name] = n.cpu
		}
	}
	for pod, node := range w.pods {
		if _, ok := free[node]; ok {
			free[node] -= w.units[unitOf(pod)].cpu
		}
	}
	bound, waiting := w.members(u)
	in := make(map[string]int)
	for name, left := range free {
		rack := ""
		if u.racks {
			rack = w.nodes[name].rack
		}
		in[rack] += int(max(left, 0) / u.cpu)
	}
	most := 0
	for rack, n := range in {
		if u.racks && len(bound) > 0 && w.nodes[w.pods[bound[0]]].rack != rack {
			continue
		}
		most = max(most, n)
	}
	return min(most, len(waiting))
}

// wants returns how many of the pods of a unit that wait have to be placed together; 0 if it waits for something else than room.
func (w gangWorld) wants(u *unit) int {
	bound, waiting := w.members(u)
	switch {
	case len(waiting) == 0 || u.absent || len(bound)+len(waiting) < u.min:
		return 0
	case len(bound) > 0:
		return 1
	}
	return u.min
}

// without returns the world without the pods that are less important than that.
func (w gangWorld) without(priority int) gangWorld {
	pods := maps.Clone(w.pods)
	maps.DeleteFunc(pods, func(pod, node string) bool { return node != "" && w.units[unitOf(pod)].priority < priority })
	return w.with(pods)
}

// sound returns what is wrong with a world whatever came before.
func (w gangWorld) sound() error {
	used := make(map[string]int64)
	racks := make(map[string]string)
	for pod, node := range w.pods {
		if node == "" {
			continue
		}
		u := w.units[unitOf(pod)]
		used[node] += u.cpu
		if u.racks {
			if was, ok := racks[u.name]; ok && was != w.nodes[node].rack {
				return fmt.Errorf("%s is in two racks", u.name)
			}
			racks[u.name] = w.nodes[node].rack
		}
	}
	for node, cpu := range used {
		if cpu > w.nodes[node].cpu {
			return fmt.Errorf("%s has %d of %d", node, cpu, w.nodes[node].cpu)
		}
	}
	return nil
}

// settled returns who waits though nothing keeps him.
func (w gangWorld) settled() error {
	for _, u := range w.units {
		n := w.wants(u)
		if n == 0 {
			continue
		}
		if fit := w.fit(u); fit >= n {
			return fmt.Errorf("%s waits, and %d of its pods fit, of which it wants %d", u.name, fit, n)
		}
		if fit := w.without(u.priority).fit(u); fit >= n {
			return fmt.Errorf("%s waits, and %d of its pods fit if those go that are less important; it wants %d", u.name, fit, n)
		}
	}
	return nil
}

// follows returns what is wrong with what has become of a world. Only says that nothing but one unit that has come made it so.
func (w gangWorld) follows(before gangWorld, only bool) error {
	var victims, placed []string
	for pod, node := range before.pods {
		now, there := w.pods[pod]
		switch {
		case !there && node == "" && only:
			return fmt.Errorf("%s is gone, and had no node", pod)
		case !there:
			victims = append(victims, pod)
		case node != "" && now != node:
			return fmt.Errorf("%s has gone from %s to %q", pod, node, now)
		case now != node && !slices.Contains(placed, unitOf(pod)):
			placed = append(placed, unitOf(pod))
		}
	}
	highest := -1
	for _, name := range placed {
		u := w.units[name]
		bound, _ := w.members(u)
		if had, _ := before.members(u); len(had) == 0 && len(bound) < u.min {
			return fmt.Errorf("%d pods of %s are placed, which wants %d", len(bound), name, u.min)
		}
		highest = max(highest, u.priority)
	}
	for _, pod := range victims {
		u := w.units[unitOf(pod)]
		if u.priority >= highest {
			return fmt.Errorf("%s was evicted, and the most important of those who came, %v, has %d", pod, placed, highest)
		}
		if bound, _ := w.members(u); u.whole && only && len(placed) == 1 && w.units[placed[0]].gang && len(bound) > 0 {
			return fmt.Errorf("%s was evicted, and not %v", pod, bound)
		}
	}
	if !only || len(placed) != 1 {
		return nil
	}
	u := w.units[placed[0]]
	if had, waiting := before.members(u); u.gang && len(had)+len(waiting) > u.min {
		return nil // pods beyond those that it wants preempt by themselves
	}
	// Each of the victims was in the way.
	gone := before.with(maps.Clone(before.pods))
	for _, pod := range victims {
		delete(gone.pods, pod)
	}
	n := before.wants(u)
	for _, pod := range victims {
		spared := gone.with(maps.Clone(gone.pods))
		for _, other := range victims {
			if other == pod || u.gang && w.units[unitOf(pod)].whole && unitOf(other) == unitOf(pod) {
				spared.pods[other] = before.pods[other]
			}
		}
		if fit := spared.fit(u); fit >= n {
			return fmt.Errorf("%s was evicted for %s, of which %d fit without that; it wants %d", pod, u.name, fit, n)
		}
	}
	return nil
}

// gangPlay is the cluster, and what the model has of it.
type gangPlay struct {
	*story
	etcd     *clientv3.Client
	rand     *rand.Rand
	world    gangWorld
	units    map[string]string // of which unit a pod is, by uid, of all that have ever been
	revision int64             // up to where the history has been read
	counts   map[string]int    // how many pods of a unit had a node there
	next     int

	placed, waited, evicted int
}

func (p *gangPlay) begin() {
	var manifests []string
	for k := range 6 {
		name := fmt.Sprint("n", k)
		p.world.nodes[name] = &gangNode{cpu: int64(2000 * (1 + p.rand.IntN(2))), rack: string(rune('a' + k/2))}
		manifests = append(manifests, p.node(name))
	}
	p.berth.Apply(manifests...)
	p.settle()
	p.revision, p.counts = p.newest(), make(map[string]int)
}

func (p *gangPlay) node(name string) string {
	n := p.world.nodes[name]
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"rack":%q}},"spec":{"unschedulable":%v},"status":{"allocatable":{"cpu":"%dm","memory":"32Gi","pods":"110"}}}`,
		name, n.rack, n.cordoned, n.cpu)
}

func (u *unit) podGroup() string {
	topology, mode := "", ""
	if u.racks {
		topology = `,"schedulingConstraints":{"topology":[{"key":"rack"}]}`
	}
	if u.whole {
		mode = `,"disruptionMode":"PodGroup"`
	}
	return fmt.Sprintf(`{"apiVersion":"scheduling.k8s.io/v1alpha2","kind":"PodGroup","metadata":{"name":%q,"namespace":%q},"spec":{"priority":%d,"schedulingPolicy":{"gang":{"minCount":%d}}%s%s}}`,
		u.name, namespace, u.priority, u.min, topology, mode)
}

func (u *unit) pod(name string) string {
	group := ""
	if u.gang {
		group = fmt.Sprintf(`"schedulingGroup":{"podGroupName":%q},`, u.name)
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q},"spec":{%s"priority":%d,"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"%dm"}}}]}}`,
		name, namespace, group, u.priority, u.cpu)
}

// step does something, waits until Berth has done what it does about that, and compares.
func (p *gangPlay) step() {
	before := p.world.with(maps.Clone(p.world.pods))
	only := p.change(before.pods)
	p.world.pods = before.pods
	p.await("Berth and the model to agree", func(ctx context.Context) error {
		p.settle()
		now, err := p.users.pods(ctx)
		if err != nil {
			return err
		}
		pods := make(map[string]string, len(now))
		for name, pod := range now {
			pods[name], p.units[string(pod.UID)] = pod.Spec.NodeName, unitOf(name)
		}
		p.world.pods = pods
		// What is wrong with these does not become right. What waits may only just have been told that it need not.
		if err := errors.Join(p.world.sound(), p.world.follows(before, only)); err != nil {
			p.t.Fatalf("%s: %v\nbefore %v\nnow    %v\nunits  %s", p.at, err, before.pods, pods, p.describe())
		}
		if err := p.world.settled(); err != nil {
			return fmt.Errorf("%w\nbefore %v\nnow    %v\nunits  %s", err, before.pods, pods, p.describe())
		}
		return nil
	})
	p.history()
	for pod := range before.pods {
		if _, there := p.world.pods[pod]; !there {
			p.evicted++
		}
	}
}

func (p *gangPlay) describe() string {
	var lines []string
	for _, u := range p.world.units {
		lines = append(lines, fmt.Sprintf("%+v", *u))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n       ")
}

// change changes the cluster, and pods as that does. It reports whether all there is to do by it is about one unit that has come.
func (p *gangPlay) change(pods map[string]string) (only bool) {
	remove := func(pod string) {
		if err := p.users.remove(p.berth.Context(), "Pod", pod, true); err != nil {
			p.t.Fatalf("%s: %v", p.at, err)
		}
		delete(pods, pod)
	}
	all := slices.Sorted(maps.Keys(pods))
	switch what := p.rand.IntN(20); {
	case what < 3 && len(all) > 0: // a pod ends, or is deleted
		pod := all[p.rand.IntN(len(all))]
		p.at += ": delete " + pod
		remove(pod)
		return false
	case what < 6 && len(all) > 0: // a job does
		name := unitOf(all[p.rand.IntN(len(all))])
		p.at += ": delete all of " + name
		for _, pod := range all {
			if unitOf(pod) == name {
				remove(pod)
			}
		}
		return false
	case what < 8:
		name := fmt.Sprint("n", p.rand.IntN(len(p.world.nodes)))
		n := p.world.nodes[name]
		n.cordoned = !n.cordoned
		p.at += fmt.Sprint(": cordon ", name, " ", n.cordoned)
		p.berth.Apply(p.node(name))
		return false
	case what < 10: // a PodGroup comes that pods wait for
		for _, name := range slices.Sorted(maps.Keys(p.world.units)) {
			if u := p.world.units[name]; u.absent {
				p.at += ": PodGroup " + name
				u.absent = false
				p.berth.Apply(u.podGroup())
				return true
			}
		}
	}
	u := &unit{name: fmt.Sprint("u", p.next), min: 1, cpu: int64(500 * (1 + p.rand.IntN(4))), priority: 10 * p.rand.IntN(3)}
	p.next++
	p.world.units[u.name] = u
	var manifests []string
	size := 1
	if p.rand.IntN(4) > 0 {
		size = 1 + p.rand.IntN(6)
		u.gang, u.min, u.racks, u.whole, u.absent = true, 1+p.rand.IntN(size), p.rand.IntN(5) < 2, p.rand.IntN(5) < 2, p.rand.IntN(6) == 0
		if !u.absent {
			manifests = append(manifests, u.podGroup())
		}
	}
	for k := range size {
		pod := fmt.Sprintf("%s-%d", u.name, k)
		manifests, pods[pod] = append(manifests, u.pod(pod)), ""
	}
	p.at += ": create " + u.name
	p.berth.Apply(manifests...)
	return true
}

// connect makes a client that reads everything, as it was.
func (m *manifests) connect(t *testing.T) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: m.endpoints})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// newest returns the revision of what was written last.
func (p *gangPlay) newest() int64 {
	answer, err := p.etcd.Get(p.berth.Context(), "none")
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.Header.Revision
}

// countsAt returns how many pods of each unit had a placement at a revision, and how many had one or were recorded to get one.
func (p *gangPlay) countsAt(revision int64) (placed, meant map[string]int) {
	placed, meant = make(map[string]int), make(map[string]int)
	all := make(map[string]bool)
	placements, err := p.etcd.Get(p.berth.Context(), "/berth/kv/"+placementKeys, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, kv := range placements.Kvs {
		uid := strings.TrimPrefix(string(kv.Key), "/berth/kv/"+placementKeys)
		placed[p.units[uid]]++
		all[uid] = true
	}
	intents, err := p.etcd.Get(p.berth.Context(), "/berth/coord/intents/", clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, kv := range intents.Kvs {
		var batch struct{ Intents [][]any }
		if err := json.Unmarshal(kv.Value, &batch); err != nil {
			p.t.Fatalf("decode %s: %v", kv.Key, err)
		}
		for _, in := range batch.Intents {
			all[in[0].(string)] = true
		}
	}
	for uid := range all {
		meant[p.units[uid]]++
	}
	return placed, meant
}

// history reads what has been written since it was called last, revision by revision. A gang of which no pod had a node has none in the next, or as many as it wants, if those are counted that the record says will be bound.
func (p *gangPlay) history() {
	for to := p.newest(); p.revision < to; {
		p.revision++
		placed, meant := p.countsAt(p.revision)
		for name := range placed {
			u := p.world.units[name]
			if u == nil {
				p.t.Fatalf("%s: revision %d has a pod of %q", p.at, p.revision, name)
			}
			if p.counts[name] > 0 {
				continue
			}
			if meant[name] < u.min {
				p.t.Fatalf("%s: revision %d has %d pods of %s, and %d are recorded or bound; it wants %d", p.at, p.revision, placed[name], name, meant[name], u.min)
			}
			if u.gang {
				p.placed++
			}
		}
		p.counts = placed
	}
	for _, u := range p.world.units {
		if u.gang && p.world.wants(u) > 1 {
			p.waited++
		}
	}
}
