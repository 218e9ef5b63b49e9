package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/services/queue"
	"github.com/berth-scheduler/berth/services/score"
)

// claimGone takes away what claimOf sets.
func claimGone(name string) cluster.ObjectRemoved {
	return cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.PersistentVolumeClaimKind, Namespace: "default", Name: name}}
}

// preemptNot makes a profile whose pods evict nobody.
func (l *ledger) preemptNot() {
	profile := engine.DefaultProfile("default-scheduler")
	profile.PostFilters = nil
	l.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: []cluster.Profile{profile}}})
}

// TestPodsOfOneSignatureWhoseWorkersAreAheadOfTheLogAreAskedAboutByThemselvesNext has answers of a state that the queue's replica does not come to
// before it has given up to wait for it. So of what is said of the first pod nobody can tell whether it holds for the others.
func TestPodsOfOneSignatureWhoseWorkersAreAheadOfTheLogAreAskedAboutByThemselvesNext(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	registry := prometheus.NewRegistry()
	w.metrics = registry
	filters, _ := w.filterWorker("f1", nil)
	filters.amend = func(response *filterv1.FilterResponse) { response.Version.Seq++ }
	w.scoreWorker("s1")
	w.ledger.preemptNot()
	w.ledger.node("n1", 50)
	const pods = 6
	for k := range pods {
		name := fmt.Sprint("p", k)
		w.ledger.pod(name, 100, labelled(w.ledger.claiming(name)))
	}
	q, _ := w.queueMember("q1")
	was := 0.0
	until(t, "all pods are unschedulable", func() bool {
		if n := samples(t, registry)[`berth_queue_retries_total{reason="signature"}`]; n > was {
			was = n
			w.ledger.node("n2", 50) // the log goes on
		}
		for _, p := range pending(t, q) {
			if p.GetState() != queuev1.State_STATE_UNSCHEDULABLE {
				return false
			}
		}
		return len(pending(t, q)) == pods
	})
	attempts := make(map[int32]int)
	for _, p := range pending(t, q) {
		attempts[p.GetAttempts()]++
	}
	if attempts[1]+attempts[2] != pods {
		t.Errorf("pods by their attempts: %v, want 2 at most", attempts)
	}
	if again, reasons := countedAgain(t, registry); again != int(attempts[2]) {
		t.Errorf("%d are counted as tried again (%v), want %d", again, reasons, attempts[2])
	}
	filters.mu.Lock()
	defer filters.mu.Unlock()
	if got := len(filters.requests[0].GetSubjects()); got != 1 {
		t.Errorf("the first question is about %d subjects, want one for all", got)
	}
}

func TestPodsThatFitDoNotWaitForThoseOfWhichAnotherWasAskedAbout(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.preemptNot()
	w.ledger.node("n1", 500)
	for _, name := range []string{"first", "borrows"} {
		w.ledger.pod(name, 1000, with(labelled(w.ledger.claiming(name)), priority(10)))
	}
	w.ledger.pod("fits", 100, nil)
	runs := make(chan *queue.Service, 1)
	var states map[string]*queuev1.PendingPod
	w.binder.before = func(n int, _ *binderv1.CommitRequest) error {
		if n == 1 {
			states = pending(t, <-runs)
		}
		return nil
	}
	q, _ := w.queueMember("q1") // which finds all of them, and takes them as one batch
	runs <- q
	w.untilPlaced("fits")
	untilState(t, q, "borrows", queuev1.State_STATE_UNSCHEDULABLE)
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	if first, borrows := states["first"].GetState(), states["borrows"].GetState(); first != queuev1.State_STATE_UNSCHEDULABLE || borrows != queuev1.State_STATE_IN_FLIGHT {
		t.Errorf("when the third is committed, the first is %v and the second %v, want unschedulable and in flight", first, borrows)
	}
}

// requiresWithoutItsClaim adds p, which requires n1, where it does not fit, and whose claim a is not there.
func (w *world) requiresWithoutItsClaim() {
	w.ledger.node("n1", 50)
	set := w.ledger.claiming("a")
	w.ledger.apply(claimGone("a"))
	w.ledger.pod("p", 100, with(labelled(set), requiring("n1")))
}

// The claim of a pod that requires a node, and has none when it is popped, is there when the worker judges it.
func TestAPodThatRequiresANodeIsNotToldWhatItsClaimsAreNoMore(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	var comes sync.Once
	filters, _ := w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.requiresWithoutItsClaim()
	filters.refuse = func(*filterv1.FilterRequest) error {
		comes.Do(func() { w.ledger.apply(claimOf("a")) })
		return nil
	}
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
	if want := "0/1 nodes are available: 1 Insufficient cpu."; !strings.HasPrefix(p.GetMessage(), want) || p.GetAttempts() != 2 {
		t.Errorf("after %d attempts %q, want %q after two", p.GetAttempts(), p.GetMessage(), want)
	}
	until(t, "it is reported", func() bool { return w.binder.report("p") != "" })
	if got := w.binder.report("p"); got != p.GetMessage() {
		t.Errorf("reported is %q", got)
	}
}

func TestAPodThatRequiresANodeAndWhoseClaimsChangeAllTheTimeBacksOff(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	filters, _ := w.filterWorker("f1", func(int64) { w.ledger.apply(claimGone("a")) })
	w.scoreWorker("s1")
	w.requiresWithoutItsClaim()
	filters.refuse = func(*filterv1.FilterRequest) error {
		w.ledger.apply(claimOf("a"))
		return nil
	}
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_BACKOFF)
	if want := "again and again, its claims came to something else while it was tried"; p.GetMessage() != want || p.GetAttempts() != 3 {
		t.Errorf("after %d attempts %q, want %q after three", p.GetAttempts(), p.GetMessage(), want)
	}
}

// While two pods of one signature are judged, the claim of one comes to be of other zones. If it is the one that is asked about, the nodes that one
// worker says something about are those of another pod than those that the other does.
func TestPodsWhoseClaimsChangeBetweenTwoAnswersGoToTheNodeThatIsBestNow(t *testing.T) {
	for changes, c := range map[string]struct {
		asked, borrows string
		again          float64
	}{"asked": {"nc", "na", 2}, "borrows": {"na", "nc", 1}} {
		t.Run(changes, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			registry := prometheus.NewRegistry()
			w.metrics = registry
			const label = "topology.kubernetes.io/zone"
			zones := func(volume, zones string) cluster.ObjectSet {
				return cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: volume, Labels: []cluster.Label{{Key: label, Value: zones}}}}
			}
			filters, _ := w.filterWorker("f1", func(call int64) {
				if call == 1 {
					w.ledger.apply(zones("pv-"+changes, "b__c"))
				}
			})
			w.scoreWorker("s1")
			for k, milli := range []int64{4000, 2000, 8000} { // the emptier, the better
				zone := string(rune('a' + k))
				w.ledger.apply(cluster.NodeSet{Index: cluster.NodeIndex(k), Node: cluster.Node{
					Name: "n" + zone, Labels: []cluster.Label{{Key: label, Value: zone}}, Allocatable: quantities(milli),
				}})
			}
			sets := make(map[string]cluster.LabelsID)
			for _, name := range []string{"asked", "borrows"} {
				sets[name] = w.ledger.claiming(name)
				w.ledger.apply(zones("pv-"+name, "a__b"))
				w.ledger.pod(name, 100, labelled(sets[name]))
			}
			w.ledger.pod("other", 100, nil)
			w.ledger.pod("requires", 100, with(labelled(sets[changes]), requiring("nb"))) // of which the binder is told nothing that it does not judge itself
			w.queueMember("q1")
			w.untilPlaced("asked", "borrows", "other", "requires")
			for name, want := range map[string]string{"asked": c.asked, "borrows": c.borrows} {
				if got := w.ledger.nodeOf(name); got != want {
					t.Errorf("%s is on %s, want %s", name, got, want)
				}
			}
			if got := samples(t, registry)[`berth_queue_retries_total{reason="claims"}`]; got != c.again {
				t.Errorf("%v pods were tried again for their claims, want %v", got, c.again)
			}
			filters.mu.Lock()
			defer filters.mu.Unlock()
			if got := len(filters.requests[0].GetSubjects()); got != 2 {
				t.Errorf("the first question is about %d subjects, want one for two pods, and one for the third", got)
			}
		})
	}
}

// groupless scores nothing.
type groupless struct{ *score.Service }

func (g groupless) Score(ctx context.Context, request *scorev1.ScoreRequest) (*scorev1.ScoreResponse, error) {
	response, err := g.Service.Score(ctx, request)
	for _, s := range response.GetSubjects() {
		s.Groups = nil
	}
	return response, err
}

func TestAPodOfWhichNoNodeIsScoredBacksOffAndHoldsUpNoOther(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	s, err := score.New(score.Config{Replica: w.ledger, Evaluator: engine.NewEvaluator(engine.EvaluatorConfig{})})
	if err != nil {
		t.Fatal(err)
	}
	w.serve("s1", func(r grpc.ServiceRegistrar) { scorev1.RegisterScoreServiceServer(r, groupless{s}) })
	w.etcd.join(coord.RoleScoreWorker, "s1")
	w.ledger.node("n1", 1000)
	w.ledger.pod("p", 100, priority(10))
	w.ledger.pod("other", 100, requiring("n1"))
	q, _ := w.queueMember("q1")
	p := untilState(t, q, "p", queuev1.State_STATE_BACKOFF)
	if want := "no node was left when the pod's turn came"; p.GetMessage() != want || p.GetAttempts() != 3 {
		t.Errorf("after %d attempts %q, want %q after three", p.GetAttempts(), p.GetMessage(), want)
	}
	w.untilPlaced("other")
}

// TestAPodIsNotHeldBackForTheClaimsOfAnother has the claim of the pod that stands for a signature change with each answer. A pod of the signature that has
// no claims is asked about by itself then, and not held back again and again until it backs off.
func TestAPodIsNotHeldBackForTheClaimsOfAnother(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	var changes atomic.Int64
	w.filterWorker("f1", func(int64) {
		w.ledger.apply(cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{
			Namespace: "default", Name: "a", Volume: "pv-a", Bound: true, HasRequest: true, Request: changes.Add(1),
		}})
	})
	w.scoreWorker("s1")
	w.ledger.node("n1", 80_000)
	set := w.ledger.claiming("a")
	for k := range 40 {
		w.ledger.pod(fmt.Sprint("tenant-", k), 100, with(labelled(set), priority(10)))
	}
	w.ledger.pod("plain", 100, priority(10))
	w.queueMember("q1")
	w.untilPlaced("plain")
	for _, batch := range w.binder.sent() {
		for _, attempt := range batch {
			if name, number, _ := strings.Cut(attempt, "/"); name == "plain" && number != "1" && number != "2" {
				t.Errorf("plain was placed by attempt %s, want one of the first two", number)
			}
		}
	}
}
