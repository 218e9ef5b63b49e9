package whatif

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// A simulated cluster: small pods come at random, run for a random time and end; gangs that want whole nodes come now and then. Whoever waits is tried in the order in which all came, each time that something happens.
const (
	simNodes    = 32
	simCPU      = 8000             // of a node, in milli-CPU
	simRuns     = 10 * time.Minute // of a small pod, on average
	simGang     = 8                // pods of a gang, each of a whole node
	simGangRuns = time.Hour
	simEvery    = 4 * time.Hour // a gang comes, the first after one hour
	simReserve  = 5 * time.Minute
)

// simulated is what has come of a simulation.
type simulated struct {
	gangs, placed int           // of them
	mean, longest time.Duration // that gangs have waited; one that is not placed, until the end
	small         time.Duration // that small pods have waited on average
	used          float64       // of all CPU, while pods came, in percent
}

func (s simulated) String() string {
	return fmt.Sprintf("%d of %d gangs placed, which waited %v on average and %v at most; small pods waited %v on average; %.1f%% of the CPU was used",
		s.placed, s.gangs, s.mean.Round(time.Second), s.longest.Round(time.Second), s.small.Round(time.Second), s.used)
}

// happens is something in the simulation.
type happens struct {
	at  time.Duration
	n   int // of what happens at once, what is first
	act func() error
}

type agenda []happens

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(happens)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// waitingPod is a small pod, or a gang, that waits.
type waitingPod struct {
	name  string
	gang  bool
	id    cluster.PodID
	size  int64
	since time.Duration
	runs  time.Duration
}

// simulate runs a simulation of so long, of small pods that want so much of all CPU, which say by when they end or do not; with room reserved for gangs, or without.
func simulate(t testing.TB, simFor time.Duration, load float64, deadlines, reserving bool) (out simulated) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(load*1000)))
	var events []source.Event
	for k := range simNodes {
		n := aNode(fmt.Sprintf("n%02d", k), "z", simCPU)
		n.Allocatable[2].Value = 110
		events = append(events, setNode(n))
	}
	try(t, sandbox(t, events...), func(w *World) error {
		st := w.State()
		var todo agenda
		var queue []*waitingPod
		var now time.Duration
		var last time.Duration
		busy := 0.0 // milli-CPU, times seconds
		inUse, count, started := int64(0), 0, 0
		var waited, gangsWaited time.Duration
		reserved, lookAt := "", time.Duration(0) // the gang that has a reservation, and when it may be looked again
		at := func(when time.Duration, act func() error) {
			count++
			heap.Push(&todo, happens{when, count, act})
		}
		clock := func() int64 { return int64(time.Hour) + int64(now) }
		// 1. What comes, and what becomes of who is placed.
		add := func(p source.Pod) (cluster.PodID, error) {
			p.Created = clock()
			if err := w.Observe(setPod(p)); err != nil {
				return 0, err
			}
			id, _ := st.PodByUID(p.UID)
			return id, nil
		}
		runs := func(id cluster.PodID, size int64, long, by time.Duration) error {
			row := st.Pod(id)
			p := row.Pod
			p.NodeName, p.Nominated, p.Started, p.Ends = row.NodeName, "", clock(), cluster.EndsSometime
			if deadlines {
				p.Ends = int32(by / time.Second)
			}
			if err := w.Apply(cluster.PodSet{ID: id, Pod: p}); err != nil {
				return err
			}
			inUse += size
			uid := p.UID
			at(now+long, func() error {
				inUse -= size
				id, _ := st.PodByUID(uid)
				return w.Apply(cluster.PodRemoved{ID: id})
			})
			return nil
		}
		sizes := []int64{1000, 1000, 2000, 4000} // 2,000 on average
		between := float64(simRuns) * 2000 / (load * simNodes * simCPU)
		var comes func() error
		comes = func() error {
			size, long := sizes[random.IntN(len(sizes))], time.Duration(random.ExpFloat64()*float64(simRuns))
			id, err := add(aPod(fmt.Sprint("s", count), size))
			queue = append(queue, &waitingPod{id: id, size: size, since: now, runs: long})
			if next := now + time.Duration(random.ExpFloat64()*between); next < simFor {
				at(next, comes)
			}
			return err
		}
		at(0, comes)
		for when := time.Hour; when < simFor; when += simEvery {
			name := fmt.Sprint("g", out.gangs)
			out.gangs++
			at(when, func() error {
				if err := w.Observe(setGroup(cluster.PodGroup{Name: name, Gang: true, MinCount: simGang})); err != nil {
					return err
				}
				for k := range simGang {
					if _, err := add(ofGroup(aPod(fmt.Sprint(name, "-", k), simCPU), name)); err != nil {
						return err
					}
				}
				queue = append(queue, &waitingPod{name: name, gang: true, since: now, runs: simGangRuns})
				at(now+simReserve, func() error { return nil })
				return nil
			})
		}
		// 2. Who waits is tried.
		place := func(p *waitingPod, failed map[int64]bool) (bool, error) {
			if !p.gang {
				if failed[p.size] {
					return false, nil
				}
				o, err := Place(w, []cluster.PodID{p.id}, PlaceOptions{Brief: true})
				if err != nil || o[0].Outcome != Placed {
					failed[p.size] = true
					return false, err
				}
				waited += now - p.since
				started++
				return true, runs(p.id, p.size, p.runs, 2*p.runs)
			}
			pods := ids(st, p.name)
			o, err := PlaceGroup(w, groupKey(p.name), pods)
			if err != nil {
				return false, err
			}
			if o.Placed {
				out.placed++
				gangsWaited, out.longest = gangsWaited+now-p.since, max(out.longest, now-p.since)
				if reserved == p.name {
					reserved = ""
				}
				for _, id := range pods {
					if err := runs(id, simCPU, p.runs, 2*p.runs); err != nil {
						return false, err
					}
				}
				return true, nil
			}
			if reserving && reserved == "" && now-p.since >= simReserve && now >= lookAt {
				found, ok, err := ReserveGroup(w, groupKey(p.name), pods, clock())
				if err != nil {
					return false, err
				}
				lookAt = now + 10*time.Second
				if ok {
					reserved = p.name
					for k, id := range pods {
						if err := w.Apply(cluster.PodNominated{ID: id, Node: found.Nodes[k]}); err != nil {
							return false, err
						}
					}
				}
			}
			return false, nil
		}
		for todo.Len() > 0 {
			next := heap.Pop(&todo).(happens)
			if next.at > simFor {
				break
			}
			busy += float64(inUse) * (next.at - last).Seconds()
			now, last = next.at, next.at
			if err := next.act(); err != nil {
				return err
			}
			failed := make(map[int64]bool)
			var err error
			queue = slices.DeleteFunc(queue, func(p *waitingPod) bool {
				if err != nil {
					return false
				}
				var ok bool
				ok, err = place(p, failed)
				return ok
			})
			if err != nil {
				return err
			}
		}
		for _, p := range queue {
			if p.gang {
				gangsWaited, out.longest = gangsWaited+simFor-p.since, max(out.longest, simFor-p.since)
			}
		}
		out.mean, out.small = gangsWaited/time.Duration(out.gangs), waited/time.Duration(max(started, 1))
		out.used = 100 * busy / (simFor.Seconds() * simNodes * simCPU)
		return nil
	})
	return out
}

// TestALargeGangIsPlacedInABusyClusterWhereRoomIsReserved simulates half a day of a cluster where small pods want 70 % of all there is, and gangs come that want a quarter of its nodes.
func TestALargeGangIsPlacedInABusyClusterWhereRoomIsReserved(t *testing.T) {
	const long, load = 12 * time.Hour, 0.7
	without := simulate(t, long, load, true, false)
	if without.placed > 0 {
		t.Errorf("gangs are placed without a reservation, the test has no point: %v", without)
	}
	with := simulate(t, long, load, true, true)
	if with.placed != with.gangs || with.longest > time.Hour || with.used < without.used || with.small > time.Minute {
		t.Errorf("with a reservation: %v", with)
	}
}

// BenchmarkALargeGangWaits says what gangs and small pods wait in a simulated day, and how much is used, without room reserved for gangs, and with: where small pods say by when they end, twice of what they run, and where they do not.
func BenchmarkALargeGangWaits(b *testing.B) {
	for _, load := range []float64{0.5, 0.7, 0.9} {
		for _, run := range []struct {
			name                 string
			deadlines, reserving bool
		}{{"off", true, false}, {"deadlines", true, true}, {"no-deadlines", false, true}} {
			b.Run(fmt.Sprintf("small=%.0f/%s", 100*load, run.name), func(b *testing.B) {
				var out simulated
				for b.Loop() {
					out = simulate(b, 24*time.Hour, load, run.deadlines, run.reserving)
				}
				b.ReportMetric(float64(out.placed), "placed-of-6")
				b.ReportMetric(out.mean.Minutes(), "gang-min")
				b.ReportMetric(out.longest.Minutes(), "longest-min")
				b.ReportMetric(out.small.Seconds(), "small-s")
				b.ReportMetric(out.used, "used-%")
			})
		}
	}
}
