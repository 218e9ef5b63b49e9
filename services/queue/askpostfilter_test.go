package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	queuev1 "github.com/berth-scheduler/berth/internal/gen/berth/queue/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// postFilters has the profile those plugins at PostFilter, and the test answer for those that are others'.
func (w *world) postFilters(plugins string, answer func(plugins []string, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error)) (asked func() []string) {
	profile := engine.DefaultProfile("default-scheduler")
	profile.PostFilters = strings.Fields(plugins)
	w.ledger.apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: []cluster.Profile{profile}}})
	var mu sync.Mutex
	var all []string
	w.binder.mu.Lock()
	defer w.binder.mu.Unlock()
	w.binder.looking = func(_ context.Context, _ string, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
		mu.Lock()
		all = append(all, strings.Join(request.GetPlugins(), "+"))
		mu.Unlock()
		return answer(request.GetPlugins(), request)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

func found(result binderv1.AskPostFilterResponse_Result, message string) *binderv1.AskPostFilterResponse {
	return &binderv1.AskPostFilterResponse{Result: result, Message: message}
}

// kube-scheduler asks the plugins at PostFilter in order, until one has found a way, or says that there is none, or fails.
func TestPluginsLookForAWayInTheirPlace(t *testing.T) {
	const (
		none    = binderv1.AskPostFilterResponse_RESULT_NONE
		ends    = binderv1.AskPostFilterResponse_RESULT_ENDS
		success = binderv1.AskPostFilterResponse_RESULT_SUCCESS
		never   = " no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
		nobody  = "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
	)
	for name, tt := range map[string]struct {
		plugins string
		answers map[string]*binderv1.AskPostFilterResponse
		change  func(*cluster.Pod)
		asked   []string
		want    string
		clears  bool
	}{
		"behind preemption, of a pod that may not": {
			"DynamicResources DefaultPreemption A B", map[string]*binderv1.AskPostFilterResponse{"A+B": found(none, "A and B tried")}, func(p *cluster.Pod) { p.NeverPreempts = true },
			[]string{"A+B"}, insufficient + never + ", A and B tried", false,
		},
		"behind preemption, which finds nobody": {
			"DefaultPreemption A", map[string]*binderv1.AskPostFilterResponse{"A": found(none, "A tried")}, func(p *cluster.Pod) { p.Priority = -1 },
			[]string{"A"}, insufficient + " " + nobody + ", A tried", true,
		},
		"without a word": {
			"DefaultPreemption A", map[string]*binderv1.AskPostFilterResponse{"A": found(none, "")}, func(p *cluster.Pod) { p.Priority = -1 },
			[]string{"A"}, insufficient + " " + nobody, true,
		},
		"before preemption, and behind it": {
			"A DefaultPreemption DynamicResources B", map[string]*binderv1.AskPostFilterResponse{"A": found(none, "A tried"), "B": found(none, "B tried")}, func(p *cluster.Pod) { p.Priority = -1 },
			[]string{"A", "B"}, insufficient + " A tried, " + nobody + ", no new claims to deallocate, B tried", true,
		},
		"before preemption, and that is all": {
			"A DefaultPreemption B", map[string]*binderv1.AskPostFilterResponse{"A": found(ends, "A says never")}, nil, []string{"A"}, insufficient + " A says never", false,
		},
		"behind preemption, and that is all": {
			"DefaultPreemption A", map[string]*binderv1.AskPostFilterResponse{"A": found(ends, "A says never")}, func(p *cluster.Pod) { p.NeverPreempts = true }, []string{"A"}, insufficient + " A says never", false,
		},
		"one finds a way before preemption": {
			"A DefaultPreemption B", map[string]*binderv1.AskPostFilterResponse{"A": found(success, "")}, nil, []string{"A"}, insufficient, false,
		},
		"without preemption": {
			"A DynamicResources B", map[string]*binderv1.AskPostFilterResponse{"A+B": found(none, "A and B tried")}, nil, []string{"A+B"}, insufficient + " A and B tried, no new claims to deallocate", false,
		},
		"a nomination that ends": {
			"A DynamicResources", map[string]*binderv1.AskPostFilterResponse{"A": {Result: none, ClearsNomination: true}}, nil, []string{"A"}, insufficient + " no new claims to deallocate", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := full(t)
			asked := w.postFilters(tt.plugins, func(plugins []string, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
				if got := request.GetPod().GetMessage(); got != insufficient {
					t.Errorf("asked about a pod of which is said %q", got)
				}
				return tt.answers[strings.Join(plugins, "+")], nil
			})
			w.ledger.pod("p", 600, func(p *cluster.Pod, _ *cluster.ClassSpec) {
				if p.Priority, p.Nominated = 10, "n1"; tt.change != nil {
					tt.change(p)
				}
			})
			q, _ := w.queueMember("q1")
			p := untilState(t, q, "p", queuev1.State_STATE_UNSCHEDULABLE)
			until(t, "it is reported", func() bool { return w.binder.handedIn("p") })
			if got := w.binder.report("p"); got != tt.want || p.GetMessage() != tt.want {
				t.Errorf("reported %q, in the queue %q, want %q", got, p.GetMessage(), tt.want)
			}
			if got := asked(); !slices.Equal(got, tt.asked) {
				t.Errorf("asked %v, want %v", got, tt.asked)
			}
			if got := w.binder.clears("p"); got != tt.clears {
				t.Errorf("its nomination ends: %v, want %v", got, tt.clears)
			}
		})
	}
}

// A plugin that finds no way before preemption does not keep the pod from preempting, also if extenders have refused it before.
func TestAPodPreemptsBehindAPluginThatFindsNoWay(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) { preemptsBehind(t, refused) })
	}
}

func preemptsBehind(t *testing.T, refused bool) {
	w, _ := full(t)
	asked := w.postFilters("A DefaultPreemption B", func([]string, *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
		return found(binderv1.AskPostFilterResponse_RESULT_NONE, "tried"), nil
	})
	asks := 0
	if refused {
		w.ledger.node("n3", 1000)
		w.asks("gpu", func(context.Context, string, *binderv1.AskRequest) (*binderv1.AskResponse, error) {
			asks++
			return refusedBy("no gpu", 1, false), nil
		})
	}
	w.ledger.pod("gpu", 600, priority(10))
	w.queueMember("q1")
	until(t, "the pod is nominated", func() bool { return w.row("gpu").Nominated != "" })
	if got := asked(); !slices.Equal(got, []string{"A"}) {
		t.Errorf("asked %v, want A, before preemption", got)
	}
	if refused && asks != 1 {
		t.Errorf("extenders were asked %d times, want once", asks)
	}
}

func TestAPodThatAPluginNominatesIsReportedOnce(t *testing.T) {
	w, _ := full(t)
	w.postFilters("A DefaultPreemption", func(_ []string, request *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
		w.ledger.nominate(request, "n2")
		return found(binderv1.AskPostFilterResponse_RESULT_NOMINATED, ""), nil
	})
	w.ledger.pod("p", 600, priority(10))
	q, _ := w.queueMember("q1")
	until(t, "it is nominated, and not in flight", func() bool {
		s := pending(t, q)["p"].GetState()
		return w.row("p").Nominated == "n2" && (s == queuev1.State_STATE_UNSCHEDULABLE || s == queuev1.State_STATE_BACKOFF)
	})
	if w.binder.handedIn("p") {
		t.Error("it is reported by itself, too")
	}
	w.ledger.gone("low2")
	w.untilPlaced("p")
	if got := w.ledger.nodeOf("p"); got != "n2" {
		t.Errorf("it is on %s, want n2", got)
	}
}

// What is not known yet is asked again; what changes each time backs off, and so does a pod that cannot be asked about.
func TestAPodThatPluginsCannotBeAskedAboutBacksOff(t *testing.T) {
	for name, tt := range map[string]struct {
		response *binderv1.AskPostFilterResponse
		err      error
		want     string
		asked    int
	}{
		"it fails":      {found(binderv1.AskPostFilterResponse_RESULT_FAILED, "plugin service: no answer"), nil, "plugin service: no answer", 2},
		"it changes":    {found(binderv1.AskPostFilterResponse_RESULT_RETRY, ""), nil, "again and again, what fits the pod had changed when plugins were to look for a way for it", 4},
		"it is refused": {nil, rpc.Error(codes.Unimplemented, "OLD", "of an older release"), "post-filter: of an older release", 2},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := full(t)
			first := make(chan struct{}, 1)
			first <- struct{}{}
			asked := w.postFilters("A DefaultPreemption", func([]string, *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
				select {
				case <-first:
					return nil, rpc.Exhausted("EXTENDER_BUSY", time.Millisecond, "later")
				default:
					return tt.response, tt.err
				}
			})
			w.ledger.pod("p", 600, priority(10))
			q, _ := w.queueMember("q1")
			p := untilState(t, q, "p", queuev1.State_STATE_BACKOFF)
			if p.GetMessage() != tt.want || len(asked()) != tt.asked {
				t.Errorf("in the queue %q, want %q; asked %d times, want %d", p.GetMessage(), tt.want, len(asked()), tt.asked)
			}
		})
	}
}

// While a plugin looks for a way, other pods of the shard are placed; and one that is gone meanwhile is forgotten.
func TestNobodyWaitsForPluginsThatLookForAWay(t *testing.T) {
	w, _ := full(t)
	w.ledger.node("small", 100)
	looks, goOn := make(chan struct{}), make(chan struct{})
	w.postFilters("A DefaultPreemption", func([]string, *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
		close(looks)
		<-goOn
		return found(binderv1.AskPostFilterResponse_RESULT_GONE, ""), nil
	})
	w.ledger.pod("p", 600, priority(10))
	q, _ := w.queueMember("q1")
	<-looks
	w.ledger.pod("fits", 50, nil)
	w.untilPlaced("fits")
	w.ledger.gone("p")
	close(goOn)
	until(t, "the queue has forgotten it", func() bool { return pending(t, q)["p"] == nil })
}

// nominate nominates a pod.
func (l *ledger) nominate(request *binderv1.AskPostFilterRequest, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applyLocked(cluster.PodNominated{ID: cluster.PodID(request.GetPod().GetId()), Node: node})
}

// A plugin may say that a pod is worth trying while another one looks for a way for it: what follows that asks nobody, and the pod is tried again behind it.
func TestAPodThatIsWokenWhilePluginsLookForAWayIsTriedAgain(t *testing.T) {
	for _, delta := range []cluster.PodActivated{{}, {AfterBackoff: true}} {
		w, _ := full(t)
		first := make(chan struct{}, 1)
		first <- struct{}{}
		asked := w.postFilters("A DefaultPreemption", func([]string, *binderv1.AskPostFilterRequest) (*binderv1.AskPostFilterResponse, error) {
			select {
			case <-first:
				w.ledger.wakes("p", delta)
			default:
			}
			return found(binderv1.AskPostFilterResponse_RESULT_NONE, ""), nil
		})
		w.ledger.pod("p", 600, priority(-1))
		w.queueMember("q1")
		until(t, "it is tried again", func() bool { return len(asked()) == 2 })
	}
}
