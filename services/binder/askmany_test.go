package binder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/coord"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/plugin"
)

// questions commits pods, and returns one question about all of them, in that order.
func (b *running) questions(uids ...string) *binderv1.AskRequest {
	b.t.Helper()
	req := b.question(1, uids[0])
	for _, uid := range uids[1:] {
		q := b.question(1, uid)
		req.More = append(req.More, &binderv1.PodAttempt{Id: q.GetId(), Uid: uid, Attempt: 1})
	}
	return req
}

// awaitNothingUnbound waits until all that was taken of the unbound pods has been given back.
func (b *running) awaitNothingUnbound() {
	b.t.Helper()
	eventually(b.t, "nothing is unbound", func() bool {
		unbound := b.open().unbound
		unbound.mu.Lock()
		defer unbound.mu.Unlock()
		return unbound.taken == 0 && unbound.stuck == 0
	})
}

// askAll asks, and returns what became of each pod that was asked about, as ask does.
func (b *running) askAll(req *binderv1.AskRequest) (said []string) {
	b.t.Helper()
	resp, err := b.Ask(b.t.Context(), req)
	if err != nil {
		return []string{"error: " + err.Error()}
	}
	said = append(said, b.saidOf(&binderv1.AskedPod{Version: resp.GetVersion(), Outcome: resp.GetOutcome(), Refusals: resp.GetRefusals(), Error: resp.GetError()}))
	for _, more := range resp.GetMore() {
		said = append(said, b.saidOf(more))
	}
	return said
}

// Each pod of a question is judged, and scored, with all that are ahead of it where they were placed, whatever kinds they are of: as if each had been asked about by itself.
func TestEachPodOfAQuestionIsJudgedBehindThoseAheadOfIt(t *testing.T) {
	const pods, nodes = 24, 12
	for name, depends := range map[string]plugin.Dependencies{"in sum": {Requested: true}, "pod by pod": {Pods: true}} {
		t.Run(name, func(t *testing.T) {
			var where [2][]string
			for k, together := range []bool{false, true} {
				src, c := newFakeSource(), newChoosy(t, depends)
				for i := range nodes {
					src.setNode(node(fmt.Sprint("n", i), 2000))
				}
				uids := make([]string, pods)
				for i := range uids {
					uids[i] = fmt.Sprint("p", i)
					src.setPod(forChoosy(pod(uids[i], int64(100+50*(i%3)))))
				}
				c.set(func() { // all want n0 first, then n1, until three are there
					c.filter = func(n *plugin.Node) (string, error) {
						if n.PodCount >= 3 {
							return "three are there", nil
						}
						return "", nil
					}
					c.score = func(n *plugin.Node) int64 { return 100 - 8*int64(n.Name[1]-'0') - int64(len(n.Name)) }
				})
				b := start(t, startEtcd(t), src, withChoosy(t, c))
				b.active()
				if together {
					where[k] = b.askAll(b.questions(uids...))
				} else {
					for _, uid := range uids {
						where[k] = append(where[k], b.ask(b.question(1, uid)))
					}
				}
				on := map[string]int{}
				for _, uid := range uids {
					eventually(t, "it is bound", func() bool { return src.nodeOf(uid) != "" })
					on[src.nodeOf(uid)]++
				}
				for name, n := range on {
					if n > 3 {
						t.Errorf("%d are on %s, where the service lets 3 be", n, name)
					}
				}
				if got := b.Service.extenders.busy; got != 0 {
					t.Errorf("the turn of %b has not ended", got)
				}
				b.stop()
			}
			if diff := cmp.Diff(where[0], where[1]); diff != "" {
				t.Errorf("(-one by one +in one question):\n%s", diff)
			}
		})
	}
}

// What becomes of one pod is nothing to those behind it, unless it is to be tried again, or another is waited for.
func TestAQuestionGoesOnBehindAPodThatIsNotPlaced(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(src *fakeSource, b *running) // while the service is asked about p
		more func(req *binderv1.AskRequest)
		want []string
	}{
		"all are placed": {want: []string{"assumed on a", "assumed on a", "assumed on a"}},
		"one is deleted": {
			then: func(src *fakeSource, b *running) {
				src.deletePod("q")
				eventually(b.t, "the ledger is told", func() bool { return b.phase("q") == "gone" })
			},
			want: []string{"assumed on a", "gone", "assumed on a"},
		},
		"one has become another": {
			then: func(src *fakeSource, b *running) {
				before := b.Version()
				p := forChoosy(pod("q", 1000))
				p.Gates = []string{"wait"}
				src.setPod(p)
				eventually(b.t, "the ledger is told", func() bool { return before.Less(b.Version()) })
			},
			want: []string{"assumed on a", "gone", "assumed on a"},
		},
		"one is no more to be tried": {
			more: func(req *binderv1.AskRequest) { req.More[0].Uid = "other" },
			want: []string{"assumed on a", "gone", "assumed on a"},
		},
		"one comes twice": {
			more: func(req *binderv1.AskRequest) {
				req.More[0] = &binderv1.PodAttempt{Id: req.GetId(), Uid: req.GetUid(), Attempt: 1}
			},
			want: []string{"assumed on a", "already placed on a", "assumed on a"},
		},
		"the shard is lost": { // behind p, of which the service has been asked
			then: func(_ *fakeSource, b *running) {
				b.open().shards.learn([]coord.ShardOwner{{Shard: 0, Revision: 2}})
			},
			want: []string{"error: rpc error: code = FailedPrecondition desc = ask of shard 0 claimed at revision 1: it has been claimed since"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
			src.setNode(node("a", 4000))
			src.setNode(node("small", 10))
			for _, uid := range []string{"p", "q", "r"} {
				src.setPod(forChoosy(pod(uid, 1000)))
			}
			b := start(t, startEtcd(t), src, withChoosy(t, c))
			b.active()
			req := b.questions("p", "q", "r")
			if tt.more != nil {
				tt.more(req)
			}
			first := true
			c.set(func() {
				c.filter = func(*plugin.Node) (string, error) {
					if first && tt.then != nil {
						first = false
						tt.then(src, b)
					}
					return "", nil
				}
			})
			if diff := cmp.Diff(tt.want, b.askAll(req)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			b.awaitNothingUnbound()
		})
	}
}

// A shard that is lost between two pods keeps what it had: the pod that has been placed is told, and no other is placed.
func TestAShardIsLostInTheMiddleOfAQuestion(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q", "r"} {
		src.setPod(forChoosy(pod(uid, 1000)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	req := b.questions("p", "q", "r")
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.PodCount == 1 { // p is there
				b.open().shards.learn([]coord.ShardOwner{{Shard: 0, Revision: 2}})
			}
			return "", nil
		}
	})
	if diff := cmp.Diff([]string{"assumed on a"}, b.askAll(req)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, uid := range []string{"q", "r"} {
		if got := b.phase(uid); got != "pending" {
			t.Errorf("%s is %s", uid, got)
		}
	}
	_, err := b.Ask(t.Context(), req)
	wantError(t, err, codes.FailedPrecondition, "SHARD_LOST")
}

// A pod of which the best node changes each time ends the question, as one that is retried ends a commit.
func TestAPodThatIsToBeTriedAgainEndsTheQuestion(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Pods: true})
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q", "r"} {
		src.setPod(forChoosy(pod(uid, 100)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	req := b.questions("p", "q", "r")
	times := 0
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if len(n.Pods) > 0 { // p is there
				times++
				uid := fmt.Sprintf("quick%d", times)
				src.setPod(on(pod(uid, 100), "a"))
				eventually(t, "the ledger is told", func() bool { return b.phase(uid) == "bound on a" })
			}
			return "", nil
		}
	})
	if diff := cmp.Diff([]string{"assumed on a", "retry"}, b.askAll(req)); diff != "" || times != mostAsks {
		t.Errorf("asked %d times (-want +got):\n%s", times, diff)
	}
}

// A service that dies in the middle fails the pod that it is asked about, and those behind it, and has placed those ahead of it.
func TestAPluginServiceDiesInTheMiddleOfAQuestion(t *testing.T) {
	for name, tt := range map[string]struct {
		ignorable bool
		want      []string
	}{
		"it is needed":           {false, []string{"assumed on", "failed: pl", "failed: pl"}},
		"it may be done without": {true, []string{"assumed on", "assumed on", "assumed on"}},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
			src.setNode(node("a", 4000))
			src.setNode(node("b", 4000))
			for _, uid := range []string{"p", "q", "r"} {
				src.setPod(forChoosy(pod(uid, 1000)))
			}
			b := start(t, startEtcd(t), src, withChoosy(t, c, func(s *pluginhost.Service) { s.Ignorable = tt.ignorable }))
			b.active()
			req := b.questions("p", "q", "r")
			c.set(func() {
				c.filter = func(n *plugin.Node) (string, error) {
					if n.PodCount > 0 {
						_ = c.conn.Close()
						return "", errors.New("nobody hears that")
					}
					return "", nil
				}
				c.score = func(n *plugin.Node) int64 { return map[string]int64{"a": 100}[n.Name] }
			})
			got := b.askAll(req)
			for k := range got {
				got[k] = got[k][:min(10, len(got[k]))]
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The best of the nodes that a service has judged is that no more if it has failed, and the pod does without it.
func TestWhatAServiceHasSaidCountsForNothingIfAPodDoesWithoutIt(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Requested: true})
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 4000))
	}
	src.setPod(on(pod("there", 2000), "c"))
	src.setPod(forChoosy(pod("p", 1000)))
	src.setPod(forChoosy(pod("q", 1000)))
	b := start(t, startEtcd(t), src, withChoosy(t, c, func(s *pluginhost.Service) { s.Ignorable = true }))
	b.active()
	req := b.questions("p", "q")
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.Name == "a" && n.PodCount > 0 {
				return "", errors.New("no idea")
			}
			return "", nil
		}
		c.score = func(n *plugin.Node) int64 { return map[string]int64{"a": 100, "c": 100}[n.Name] }
	})
	if got := b.askAll(req); !slices.Equal(got, []string{"assumed on a", "assumed on b"}) {
		t.Errorf("%v: nobody says that c is better than b, which is empty", got)
	}
}

// Pods that interest extenders are asked about one at a time, whatever comes in a question.
func TestAPodOfAnExtenderIsNotAskedAboutBehindAnother(t *testing.T) {
	src, h := newFakeSource(), newWebhook(t)
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q"} {
		src.setPod(of(pod(uid, 100), 1))
	}
	b := start(t, startEtcd(t), src, withExtenders(t, src, extenderAt(h)))
	b.active()
	req := b.questions("p", "q")
	if got := b.askAll(req); !slices.Equal(got, []string{"assumed on a"}) {
		t.Errorf("%v", got)
	}
	if got := b.phase("q"); got != "pending" {
		t.Errorf("q is %s", got)
	}
	if got := b.askAll(&binderv1.AskRequest{ShardRevision: 1, Version: req.GetVersion(), Id: req.GetMore()[0].GetId(), Uid: "q", Attempt: 1}); !slices.Equal(got, []string{"assumed on a"}) {
		t.Errorf("by itself: %v", got)
	}
	resp, err := b.Commit(t.Context(), b.request(1, "p"))
	if err != nil {
		t.Fatal(err)
	}
	if out := resp.GetOutcomes()[0]; out.GetResult() != binderv1.Outcome_RESULT_PLACED {
		t.Errorf("%v", out)
	}
}

func TestWhatIsWrongWithAQuestionAboutManyIsNamed(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	src.setNode(node("a", 4000))
	src.setPod(forChoosy(pod("p", 100)))
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	req := b.question(1, "p")
	req.More = []*binderv1.PodAttempt{{Id: 7, Uid: "q", Attempt: 1}, {Id: 8, Uid: "r"}}
	_, err := b.Ask(t.Context(), req)
	if v := rpc.Violations(err); len(v) != 1 || v[0].Field != "more[1].attempt" {
		t.Errorf("%v", err)
	}
	req.More = make([]*binderv1.PodAttempt, maxMore+1)
	for k := range req.More {
		req.More[k] = &binderv1.PodAttempt{Attempt: 1}
	}
	_, err = b.Ask(t.Context(), req)
	if v := rpc.Violations(err); len(v) != 1 || v[0].Field != "more" {
		t.Errorf("%v", err)
	}
	if got := b.phase("p"); got != "pending" {
		t.Errorf("the pod is %s", got)
	}
}

// One pod is asked about in any case, and further ones only for so long as others may wait for the turn. Those behind are for the shard to ask about next.
func TestAQuestionBeginsWithFurtherPodsForAWhileOnly(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	src.setNode(node("a", 4000))
	uids := []string{"p", "q", "r"}
	for _, uid := range uids {
		src.setPod(forChoosy(pod(uid, 100)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	b.Service.extenders.askFor = 0
	req := b.questions(uids...)
	for k := range uids {
		if got := b.askAll(req); !slices.Equal(got, []string{"assumed on a"}) {
			t.Errorf("%v of %s and those behind it", got, uids[k])
		}
		if len(req.GetMore()) > 0 {
			req.Id, req.Uid, req.More = req.GetMore()[0].GetId(), req.GetMore()[0].GetUid(), req.GetMore()[1:]
		}
	}
	b.awaitNothingUnbound()
}

// So many pods as there is room for are asked about, and one in any case that Ask is about.
func TestAQuestionTakesNoMoreRoomThanThereIs(t *testing.T) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	src.setNode(node("a", 4000))
	uids := []string{"p", "q", "r", "s"}
	for _, uid := range uids {
		src.setPod(forChoosy(pod(uid, 100)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	req := b.questions(uids...)
	unbound := b.open().unbound
	taken := unbound.limit - 2
	unbound.giveOf("", -taken)
	if got := b.askAll(req); !slices.Equal(got, []string{"assumed on a", "assumed on a"}) {
		t.Errorf("with room for two: %v", got)
	}
	unbound.giveOf("", taken)
	b.awaitNothingUnbound()
	if got := b.askAll(req); len(got) != len(uids) || got[3] != "assumed on a" {
		t.Errorf("with room for all: %v", got)
	}
	b.awaitNothingUnbound()
}

// toldOf are objects that tell of some pods alone, and count how often others are read.
type toldOf struct {
	objects
	told  func(name string) bool
	reads atomic.Int32
}

func (o *toldOf) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	o.reads.Add(1)
	return o.objects.Pod(ctx, namespace, name)
}

func (o *toldOf) LastPod(namespace, name string) *corev1.Pod {
	if !o.told(name) {
		return nil
	}
	return o.objects.LastPod(namespace, name)
}

// Plugin services are sent pods as these were told. One that was not told yet, or is another one by then, is read, and has nobody wait in its turn for that.
func TestPluginServicesAreSentPodsAsTheyWereTold(t *testing.T) {
	for name, tt := range map[string]struct {
		told  func(name string) bool
		want  int // pods of the question that are placed
		reads int32
	}{
		"all are told":     {func(string) bool { return true }, 4, 0},
		"the first is not": {func(name string) bool { return name != "p0" }, 4, 1},
		"the third is not": {func(name string) bool { return name != "p2" }, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{Pod: true})
			o := &toldOf{objects: objects{src}, told: tt.told}
			src.setNode(node("a", 4000))
			uids := []string{"p0", "p1", "p2", "p3"}
			for _, uid := range uids {
				src.setPod(forChoosy(pod(uid, 10)))
			}
			b := start(t, startEtcd(t), src, func(cfg *Config) { cfg.Objects = o }, withChoosy(t, c, func(s *pluginhost.Service) { s.Objects = true }))
			b.active()
			if got, want := b.askAll(b.questions(uids...)), slices.Repeat([]string{"assumed on a"}, tt.want); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if n := o.reads.Load(); n != tt.reads {
				t.Errorf("%d pods are read, want %d", n, tt.reads)
			}
			b.awaitNothingUnbound()
			for _, uid := range uids[tt.want:] {
				if got := b.ask(b.question(1, uid)); got != "assumed on a" {
					t.Errorf("%s: %s", uid, got)
				}
			}
		})
	}
}

// annotated are objects of pods that want a node by an annotation: that of the first letter of their name.
type annotated struct{ objects }

func (o annotated) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := o.objects.Pod(ctx, namespace, name)
	if pod != nil {
		pod.Annotations = map[string]string{"wants": name[:1]}
	}
	return pod, err
}

func (o annotated) LastPod(namespace, name string) *corev1.Pod {
	pod, _ := o.Pod(context.Background(), namespace, name)
	return pod
}

// Pods that differ in annotations alone are judged each by its own, and what was said of those of others holds for them if they are the same. Whoever asks what might be names a pod, and it is asked about by its annotations too.
func TestAPodGoesWhereItsAnnotationsHaveIt(t *testing.T) {
	src, judged := newFakeSource(), make(chan string, 100)
	c := newChoosy(t, plugin.Dependencies{Annotations: true}, func(p *plugin.Plugin) {
		p.Filter = func(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
			_, podErr := kind.Pod()
			if _, err := node.Object(); err == nil || podErr == nil {
				return nil, errors.New("objects are told")
			}
			judged <- kind.Annotations["wants"] + " on " + node.Name
			if kind.Annotations["wants"] != node.Name {
				return &plugin.Refusal{Reason: "another one is wanted"}, nil
			}
			return nil, nil
		}
	})
	for _, name := range []string{"a", "b"} {
		src.setNode(node(name, 4000))
	}
	uids := []string{"a0", "b0", "b1", "a1"}
	for _, uid := range append(uids, "b2") {
		src.setPod(forChoosy(pod(uid, 10)))
	}
	b := start(t, startEtcd(t), src, func(cfg *Config) { cfg.Objects = annotated{objects{src}} }, withChoosy(t, c, func(s *pluginhost.Service) { s.Objects = true }))
	b.active()
	if got, want := b.askAll(b.questions(uids...)), []string{"assumed on a", "assumed on b", "assumed on b", "assumed on a"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := len(judged); n != 4 {
		t.Errorf("%d nodes are judged for two kinds of pods, want 4", n)
	}
	encoded, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b2", UID: "b2"}})
	if err != nil {
		t.Fatal(err)
	}
	q := &questions{ctx: t.Context(), in: make(chan *binderv1.JudgeHypotheticalRequest, 1), out: make(chan *pluginv1.JudgeResponse, 1)}
	q.in <- &binderv1.JudgeHypotheticalRequest{Service: "s", Request: &pluginv1.JudgeRequest{
		Id: 1, Kinds: []*pluginv1.Kind{{Id: 1, SchedulerName: "choosy", Object: encoded}}, Nodes: []*pluginv1.Node{{Id: 1, Spec: &pluginv1.NodeSpec{Name: "a"}}, {Id: 2, Spec: &pluginv1.NodeSpec{Name: "b"}}},
		Questions: []*pluginv1.Question{{Kind: 1, Filters: []string{"Choosy"}, Nodes: []int32{1, 2}}},
	}}
	close(q.in)
	if err := b.JudgeHypothetical(q); err != nil {
		t.Fatal(err)
	}
	if got := (<-q.out).GetAnswers()[0]; got.GetError() != "" || !slices.Equal(got.GetVerdicts(), []uint32{1, 0}) {
		t.Errorf("in a question b2 is answered %v, want a refused, and b not", got)
	}
}
