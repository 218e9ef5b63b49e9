package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// doorman says which pods may be tried: all but those that a test keeps out.
type doorman struct {
	mu    sync.Mutex
	out   map[string]*binderv1.Entrance // by name
	fails error                         // if not nil
	asked []string
}

func (d *doorman) set(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn()
}

// took returns about whom it was asked since.
func (d *doorman) took() (names []string) {
	d.set(func() { names, d.asked = d.asked, nil })
	return names
}

func keeps(why string, told bool) *binderv1.Entrance {
	return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_GATED, Plugin: "Doorman", Message: why, Told: told}
}

// guard has profiles of some scheduler names have a plugin at PreEnqueue, as which the doorman answers.
func (w *world) guard(names ...string) *doorman {
	var profiles []cluster.Profile
	for _, name := range []string{"default-scheduler", "other"} {
		p := engine.DefaultProfile(name)
		if slices.Contains(names, name) {
			p.PreEnqueues = []string{"Doorman"}
		}
		profiles = append(profiles, p)
	}
	w.ledger.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: profiles}})
	d := &doorman{out: make(map[string]*binderv1.Entrance)}
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	w.binder.letting = func(_ context.Context, names []string, request *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.asked = append(d.asked, names...)
		if d.fails != nil {
			return nil, d.fails
		}
		out := new(binderv1.AskPreEnqueueResponse)
		for _, name := range names {
			e := d.out[name]
			if e == nil {
				e = &binderv1.Entrance{Result: binderv1.Entrance_RESULT_ENTERS}
			}
			out.Entrances = append(out.Entrances, e)
		}
		return out, nil
	}
	return d
}

// roomy is a world with a node, and workers.
func roomy(t *testing.T) *world {
	w := newWorld(t, 1)
	w.ledger.node("n1", 100_000)
	w.filterWorker("f1", nil)
	w.scoreWorker("s1")
	return w
}

// A pod goes to its node when plugins have let it in; one that is kept out is tried when its plugin has it asked about again. Nobody is told of it.
func TestPodsAreTriedThatPluginsLetIn(t *testing.T) {
	w := roomy(t)
	d := w.guard("default-scheduler")
	d.out["kept"] = keeps("not yet", true)
	for _, name := range []string{"in", "kept"} {
		w.ledger.pod(name, 100, nil)
	}
	q, _ := w.queueMember("q1")
	w.untilPlaced("in")
	p := untilState(t, q, "kept", queuev1.State_STATE_GATED)
	until(t, "it is said who keeps it out", func() bool {
		p = pending(t, q)["kept"]
		return p.GetMessage() == "gated by plugin Doorman: not yet"
	})
	if p.GetAttempts() != 0 || w.binder.handedIn("kept") {
		t.Errorf("it has been tried %d times; reported: %v", p.GetAttempts(), w.binder.handedIn("kept"))
	}
	d.set(func() { delete(d.out, "kept") })
	w.ledger.mu.Lock()
	id, _ := w.ledger.st.PodByUID("uid-kept")
	w.ledger.applyLocked(cluster.PodActivated{ID: id, AfterBackoff: true})
	w.ledger.mu.Unlock()
	w.untilPlaced("kept")
	if names := d.took(); !slices.Equal(names[len(names)-1:], []string{"kept"}) || slices.Index(names, "in") < 0 {
		t.Errorf("asked about %v", names)
	}
}

// Many pods that come at once are asked about in batches, all of them.
func TestManyPodsThatComeAtOnceAreAllAskedAbout(t *testing.T) {
	w := roomy(t)
	for _, name := range []string{"n2", "n3"} { // 110 pods each
		w.ledger.node(name, 100_000)
	}
	d := w.guard("default-scheduler")
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprint("p", i))
		w.ledger.pod(names[i], 1, nil)
	}
	w.queueMember("q1")
	w.untilPlaced(names...)
	if got := d.took(); len(got) != 300 {
		t.Errorf("asked %d times", len(got))
	}
}

// Whatever goes wrong, a pod is asked about again, and tried then; people are told why it waits.
func TestPodsOfWhichNobodySaysWhetherTheyMayBeTriedAreAskedAboutAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *binderv1.Entrance
		fails  error
		want   string
	}{
		"a service fails":            {answer: &binderv1.Entrance{Result: binderv1.Entrance_RESULT_FAILED, Message: `plugin service "s": it is away`}, want: `gated: plugin service "s": it is away`},
		"the pod is said to be gone": {answer: &binderv1.Entrance{Result: binderv1.Entrance_RESULT_GONE}, want: "gated: the pod is gone"},
		"it makes no sense":          {answer: &binderv1.Entrance{}, want: "gated: nobody says whether the pod may be tried"},
		"the binder refuses":         {fails: status.Error(codes.InvalidArgument, "what pods"), want: "gated: pre-enqueue: what pods"},
		"of another epoch":           {fails: rpc.Error(codes.Aborted, "OTHER_EPOCH", "another epoch"), want: "gated: the binder is another one: it is asked again whether the pod may be tried"},
	} {
		t.Run(name, func(t *testing.T) {
			w := roomy(t)
			d := w.guard("default-scheduler")
			d.fails = tt.fails
			if tt.answer != nil {
				d.out["p"] = tt.answer
			}
			w.ledger.pod("p", 100, nil)
			q, _ := w.queueMember("q1")
			until(t, "it has been asked about", func() bool { return len(d.took()) > 0 })
			until(t, "it is said why it waits", func() bool {
				p := pending(t, q)["p"]
				return p.GetState() == queuev1.State_STATE_GATED && p.GetMessage() == tt.want
			})
			d.set(func() { d.out, d.fails = nil, nil })
			w.untilPlaced("p")
		})
	}
}

// Pods whose profile has no such plugin wait for none of it, nor do those of another profile that has.
func TestServicesThatHangHoldUpNoPodsOfOtherProfiles(t *testing.T) {
	w := roomy(t)
	w.guard("default-scheduler", "other")
	w.binder.mu.Lock()
	letting := w.binder.letting
	w.binder.letting = func(ctx context.Context, names []string, request *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
		if slices.Contains(names, "hangs") {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return letting(ctx, names, request)
	}
	w.binder.mu.Unlock()
	w.ledger.pod("hangs", 100, nil)
	w.ledger.pod("other", 100, func(_ *cluster.Pod, c *cluster.ClassSpec) { c.SchedulerName = "other" })
	q, _ := w.queueMember("q1")
	w.untilPlaced("other")
	if p := pending(t, q)["hangs"]; p.GetState() != queuev1.State_STATE_GATED {
		t.Errorf("the pod of which nobody says anything is %v", p.GetState())
	}
}

// A pod that comes back is asked about again, also if it is a look at what has changed that brings it back.
func TestAPodThatANodeBringsBackIsAskedAboutAgain(t *testing.T) {
	w := roomy(t)
	d := w.guard("default-scheduler")
	w.ledger.pod("large", 200_000, nil)
	q, _ := w.queueMember("q1")
	untilState(t, q, "large", queuev1.State_STATE_UNSCHEDULABLE)
	if got := d.took(); !slices.Equal(got, []string{"large"}) {
		t.Errorf("asked about %v", got)
	}
	w.ledger.node("n2", 300_000)
	w.untilPlaced("large")
	if got := d.took(); !slices.Equal(got, []string{"large"}) {
		t.Errorf("and when a node has come, about %v", got)
	}
}

// Who has the shard next asks anew: what was said to another member is not known.
func TestAnotherMemberAsksAnew(t *testing.T) {
	w := roomy(t)
	d := w.guard("default-scheduler")
	d.out["p"] = keeps("not yet", true)
	w.ledger.pod("p", 100, nil)
	q1, stop := w.queueMember("q1")
	until(t, "it is kept out", func() bool { return pending(t, q1)["p"].GetMessage() != "" })
	stop()
	d.took()
	d.set(func() { d.out = nil })
	w.queueMember("q2")
	w.untilPlaced("p")
	if got := d.took(); !slices.Equal(got, []string{"p"}) {
		t.Errorf("asked about %v", got)
	}
}

// A plugin that sorts is told how pods wait, and they go in the order of its keys. With an answer of an order that is over, a pod is asked about again, and then only where it belongs.
func TestPodsGoInTheOrderThatAPluginHasThemIn(t *testing.T) {
	w := roomy(t)
	d := w.guard()
	p := engine.DefaultProfile("default-scheduler")
	p.QueueSort, p.PreEnqueues = "Turns", []string{"Doorman"}
	w.ledger.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: []cluster.Profile{p}}})
	enters := func(order uint64, key int64) *binderv1.Entrance {
		return &binderv1.Entrance{Result: binderv1.Entrance_RESULT_ENTERS, SortOrder: order, SortKey: key}
	}
	d.out = map[string]*binderv1.Entrance{"late": enters(7, 3), "soon": enters(7, -2), "later": enters(7, 9), "over": enters(6, 0)}
	answers := w.binder.letting
	told := make(map[string][]*binderv1.EnteringPod)
	w.binder.letting = func(ctx context.Context, names []string, request *binderv1.AskPreEnqueueRequest) (*binderv1.AskPreEnqueueResponse, error) {
		response, err := answers(ctx, names, request)
		d.set(func() {
			for i, name := range names {
				told[name] = append(told[name], request.GetPods()[i])
			}
			if d.out["later"] != nil && len(names) > 1 { // the next time, it is of this order
				d.out["over"] = enters(7, 1)
			}
		})
		return response, err
	}
	for _, name := range []string{"later", "late", "soon", "over"} {
		w.ledger.pod(name, 100, nil)
	}
	w.queueMember("q1")
	w.untilPlaced("later", "late", "soon", "over")
	order := slices.DeleteFunc(w.binder.order(), func(name string) bool { return name == "over" })
	if want := []string{"soon", "late", "later"}; !slices.Equal(order, want) {
		t.Errorf("placed %v, want %v", order, want)
	}
	d.set(func() {
		over := told["over"]
		if len(over) != 2 || over[0].GetOnlySorts() || !over[1].GetOnlySorts() {
			t.Errorf("over was asked about as %v", over)
		}
		if len(told["soon"]) != 1 || told["soon"][0].GetArrival() <= told["late"][0].GetArrival() || told["soon"][0].GetSinceUnixNanos() == 0 || told["soon"][0].GetFirstUnixNanos() <= told["late"][0].GetFirstUnixNanos() {
			t.Errorf("soon was asked about as %v, and late as %v", told["soon"], told["late"])
		}
	})
}
