package queue_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// written is a log that tests read while it is written.
type written struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *written) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(line)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// TestAttemptsOfPodGroupsAreCountedAndLogged has groups that the binder places, as a whole or in part, or does not place, or refuses. What is tried again comes to the same.
func TestAttemptsOfPodGroupsAreCountedAndLogged(t *testing.T) {
	const assumed, noFit, gone, failed = binderv1.Outcome_RESULT_ASSUMED, binderv1.Outcome_RESULT_NO_FIT, binderv1.Outcome_RESULT_GONE, binderv1.Outcome_RESULT_FAILED
	for name, tt := range map[string]struct {
		results []binderv1.Outcome_Result // of the pods; nil: it is refused
		want    string                    // the result that is counted
	}{
		"placed":       {[]binderv1.Outcome_Result{assumed, assumed}, "scheduled"},
		"in part":      {[]binderv1.Outcome_Result{assumed, noFit}, "scheduled"},
		"unplaced":     {[]binderv1.Outcome_Result{noFit, noFit}, "unschedulable"},
		"one has gone": {[]binderv1.Outcome_Result{gone, noFit}, "unschedulable"},
		"failed":       {[]binderv1.Outcome_Result{failed, failed}, "error"},
		"refused":      {nil, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			registry, log := prometheus.NewRegistry(), new(written)
			w.metrics, w.log = registry, slog.New(logs.Text(log, logs.Options{Level: slog.LevelInfo - logs.Attempts}))
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
				if tt.results == nil {
					return nil, rpc.Error(codes.InvalidArgument, "NO", "no")
				}
				response := new(binderv1.PlaceGroupResponse)
				for k := range request.GetPods() {
					response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: tt.results[k]}})
				}
				return response, nil
			}
			for i := range 2 {
				w.ledger.pod(fmt.Sprintf("g-%d", i), 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group = "g" })
			}
			w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "g", Gang: true, MinCount: 2}})
			w.queueMember("q1")
			const attempts, seconds, algorithm = "scheduler_podgroup_schedule_attempts_total", "scheduler_podgroup_scheduling_attempt_duration_seconds", "scheduler_podgroup_scheduling_algorithm_duration_seconds"
			labels := fmt.Sprintf(`{profile="default-scheduler",result=%q}`, tt.want)
			var got map[string]float64
			until(t, "the group has been tried", func() bool {
				got = samples(t, registry)
				maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "scheduler_podgroup_") })
				return got[seconds+labels] > 0
			})
			want := map[string]bool{attempts + labels: true, seconds + labels: true, algorithm: true}
			is := make(map[string]bool)
			for name, n := range got {
				is[name] = n > 0
			}
			if diff := cmp.Diff(want, is); diff != "" {
				t.Errorf("what is counted (-want +got):\n%s", diff)
			}
			if line := `"Attempting to schedule pod group" shard=0 podGroup="default/g"`; !strings.Contains(log.String(), line) {
				t.Errorf("%s is not logged:\n%s", line, log)
			}
		})
	}
}

// TestAGroupThatIsToComeBackKeepsNobodyBehindIt has a group of a high priority told to come back all the time, in two ways: a pod behind it is placed, and nothing is reported of those of the group, against which nothing is known.
func TestAGroupThatIsToComeBackKeepsNobodyBehindIt(t *testing.T) {
	for name, answer := range map[string]func(*binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error){
		"by what there is too much of": func(*binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
			return nil, rpc.Exhausted("BUSY", time.Millisecond, "there is too much to do")
		},
		"by what has changed": func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
			response := new(binderv1.PlaceGroupResponse)
			for range request.GetPods() {
				response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_RETRY}, Error: "something has changed"})
			}
			return response, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			var tries atomic.Int32
			w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
				tries.Add(1)
				return answer(request)
			}
			for i := range 2 {
				w.ledger.pod(fmt.Sprintf("g-%d", i), 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group, p.Priority = "g", 1000 })
			}
			w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "g", Gang: true, MinCount: 2}})
			w.ledger.pod("behind", 100, nil)
			q, _ := w.queueMember("q1")
			until(t, "the pod behind the group is placed", func() bool { r := w.row("behind"); return r.Placed() })
			until(t, "the group is tried again", func() bool { return tries.Load() > 3 })
			for i := range 2 {
				pod := fmt.Sprintf("g-%d", i)
				if got := w.binder.report(pod); got != "" || w.binder.handedIn(pod) {
					t.Errorf("of %s it is reported %q", pod, got)
				}
				if is := pending(t, q)[pod]; is == nil || is.GetMessage() != "" {
					t.Errorf("%s is %v in the queue", pod, is)
				}
			}
		})
	}
}

// TestAGroupThatIsSearchedForLongKeepsNobodyBehindItButGroups has pods of a low priority placed meanwhile, and other groups tried behind it, in queue order. One that is not answered any more keeps its member from nothing.
func TestAGroupThatIsSearchedForLongKeepsNobodyBehindItButGroups(t *testing.T) {
	checkLeaks(t)
	w := newWorld(t, 1)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	w.ledger.node("n1", 10_000)
	asked, answer, end := make(chan string, 100), make(chan struct{}), make(chan struct{})
	w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
		asked <- request.GetName()
		switch request.GetName() {
		case "long":
			<-answer
		case "endless":
			<-end
		}
		response := new(binderv1.PlaceGroupResponse)
		for range request.GetPods() {
			response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_NO_FIT}})
		}
		return response, nil
	}
	defer close(end)
	group := func(name string, priority int32) {
		for i := range 2 {
			w.ledger.pod(fmt.Sprintf("%s-%d", name, i), 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group, p.Priority = name, priority })
		}
		w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: name, UID: name, Gang: true, MinCount: 2}})
	}
	group("long", 1000)
	q, _ := w.queueMember("q1")
	if is := <-asked; is != "long" {
		t.Fatalf("%s is tried", is)
	}
	inFlight := func(name string) {
		t.Helper()
		until(t, name+" has had its turn", func() bool {
			is := pending(t, q)[name+"-1"]
			return is != nil && is.GetState() == queuev1.State_STATE_IN_FLIGHT
		})
	}
	group("second", 900)
	inFlight("second")
	group("first", 950)
	inFlight("first")
	w.ledger.pod("behind", 100, nil)
	until(t, "the pod behind the group is placed", func() bool { r := w.row("behind"); return r.Placed() })
	if len(asked) > 0 {
		t.Errorf("%s is tried beside another group", <-asked)
	}
	group("urgent", 2000)
	for _, want := range []string{"urgent", "long"} { // which was asked about for nobody any more
		if is := <-asked; is != want {
			t.Errorf("%s is tried, want %s", is, want)
		}
	}
	inFlight("second")
	close(answer)
	for _, want := range []string{"first", "second"} {
		if is := <-asked; is != want {
			t.Errorf("%s is tried, want %s", is, want)
		}
	}
	for _, name := range []string{"long", "first", "second"} {
		until(t, name+" has been found to fit nowhere", func() bool {
			is := pending(t, q)[name+"-1"]
			return is != nil && is.GetState() == queuev1.State_STATE_UNSCHEDULABLE
		})
	}
	for name, want := range map[string]int32{"long": 2, "first": 1, "second": 1} { // to be behind another is no attempt
		if n := pending(t, q)[name+"-1"].GetAttempts(); n != want {
			t.Errorf("%s: %d attempts, want %d", name, n, want)
		}
	}
	group("endless", 1000)
	for is := ""; is != "endless"; is = <-asked {
	}
	w.ledger.pod("behind-that", 100, nil)
	until(t, "the pod behind that is placed", func() bool { r := w.row("behind-that"); return r.Placed() })
}

// TestAGroupIsGivenUpOnceForMoreImportantOnesAndThenWhenNoSearchTakesAsLong has one that is never answered while others come: each in turn is behind it, but the first. Where a group has been given up for one that is itself given up, it has been all the same.
func TestAGroupIsGivenUpOnceForMoreImportantOnesAndThenWhenNoSearchTakesAsLong(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.filterWorker("f1", nil)
		w.scoreWorker("s1")
		w.ledger.node("n1", 10_000)
		hang := make(chan struct{})
		defer close(hang)
		type question struct {
			name string
			at   time.Time
		}
		asked := make(chan question, 100)
		var mid atomic.Int32
		w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
			name := request.GetName()
			asked <- question{name, time.Now()}
			if name == "low" || name == "mid" && mid.Add(1) == 1 {
				<-hang
			}
			response := new(binderv1.PlaceGroupResponse)
			for range request.GetPods() {
				response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_NO_FIT}})
			}
			return response, nil
		}
		group := func(name string, priority int32) {
			w.ledger.pod(name+"-0", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group, p.Priority = name, priority })
			w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: name, UID: name, Gang: true, MinCount: 1}})
		}
		next := func(want string) time.Time {
			t.Helper()
			q := <-asked
			if q.name != want {
				t.Fatalf("%s is tried, want %s", q.name, want)
			}
			return q.at
		}
		group("low", 0)
		w.queueMember("q1")
		next("low")
		elapse(time.Second)
		group("mid", 10)
		next("mid")
		elapse(time.Second)
		group("top", 20)
		next("top")
		next("mid")
		began := next("low")
		for k := range 2 {
			elapse(time.Second)
			name := fmt.Sprint("more-", k)
			group(name, 30)
			took := next(name).Sub(began)
			if least := 32 * time.Second << k; took < least || took > least+30*time.Second { // as long as the binder tries, and twice as long
				t.Errorf("%s is tried when the other has been asked about for %v", name, took)
			}
			began = next("low")
		}
	})
}

// TestAGangThatWaitsForRoomStaysNominated has one that fits nowhere, and that the binder says waits, or not.
func TestAGangThatWaitsForRoomStaysNominated(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint(waits), func(t *testing.T) {
			checkLeaks(t)
			w := newWorld(t, 1)
			w.filterWorker("f1", nil)
			w.scoreWorker("s1")
			w.ledger.node("n1", 1000)
			w.binder.grouping = func(request *binderv1.PlaceGroupRequest) (*binderv1.PlaceGroupResponse, error) {
				response := &binderv1.PlaceGroupResponse{Waits: waits, Message: "room is reserved for it"}
				for range request.GetPods() {
					response.Pods = append(response.Pods, &binderv1.GroupedPod{Outcome: &binderv1.Outcome{Result: binderv1.Outcome_RESULT_NO_FIT}})
				}
				return response, nil
			}
			w.ledger.pod("g-0", 100, func(p *cluster.Pod, _ *cluster.ClassSpec) { p.Group, p.Nominated = "g", "n1" })
			w.ledger.apply(cluster.ObjectSet{Object: &cluster.PodGroup{Namespace: "default", Name: "g", UID: "g", Gang: true, MinCount: 1}})
			w.queueMember("q1")
			until(t, "it is reported", func() bool { return w.binder.report("g-0") != "" })
			if got := w.binder.clears("g-0"); got == waits {
				t.Errorf("its nomination is to end: %v", got)
			}
			if got := w.binder.report("g-0"); !strings.Contains(got, "room is reserved for it") {
				t.Errorf("it is reported %q", got)
			}
		})
	}
}
