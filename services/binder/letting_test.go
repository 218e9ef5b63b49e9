package binder

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/plugin"
)

// reserving has Choosy reserve, as reserve says. Unreserve does nothing.
func reserving(t testing.TB, depends plugin.Dependencies, reserve func(*plugin.Placement) (*plugin.Rejection, error)) *choosy {
	c := newChoosy(t, depends, func(p *plugin.Plugin) {
		p.Reserve = func(_ context.Context, of *plugin.Placement) (*plugin.Rejection, error) { return reserve(of) }
		p.Unreserve = func(context.Context, *plugin.Placement) {}
	})
	c.steps = []string{"reserve"}
	return c
}

// A service is asked about a pod while it reserves the one before, once it has answered on the stream: the question is sent before that is reserved, and names it.
func TestAPodIsAskedAboutWhileTheOneBeforeItIsReserved(t *testing.T) {
	asked := make(chan *pluginv1.Behind, 1)
	src := newFakeSource()
	c := reserving(t, plugin.Dependencies{Requested: true}, func(p *plugin.Placement) (*plugin.Rejection, error) {
		if p.Name == "q" { // hangs unless it is asked about r meanwhile
			if behind := <-asked; behind.GetStream() == "" || behind.GetId() != 3 { // the stream's first request, and p's, came before
				return &plugin.Rejection{Reason: fmt.Sprintf("it is behind %v", behind)}, nil
			}
		}
		return nil, nil
	})
	c.set(func() {
		c.sends = func(m any) {
			if req, ok := m.(*pluginv1.JudgeRequest); ok && req.GetBehind() != nil {
				asked <- req.GetBehind()
			}
		}
	})
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q", "r"} {
		src.setPod(forChoosy(pod(uid, 1000)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	if diff := cmp.Diff([]string{"assumed on a", "assumed on a", "assumed on a"}, b.askAll(b.questions("p", "q", "r"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, uid := range []string{"p", "q", "r"} {
		b.awaitPhase(uid, "bound on a")
	}
}

// A pod that is not reserved after all is in nobody's way: the one behind it, which a service was asked about meanwhile, goes where it would have gone.
func TestAPodGoesWhereItWouldThoughTheOneBeforeItIsNotReserved(t *testing.T) {
	for name, tt := range map[string]struct {
		says  func() (*plugin.Rejection, error)
		alone bool // there is no other node
	}{
		"it is rejected":                       {func() (*plugin.Rejection, error) { return &plugin.Rejection{Reason: "q is not wanted"}, nil }, false},
		"it fails":                             {func() (*plugin.Rejection, error) { return nil, fmt.Errorf("q is too much") }, false},
		"it is rejected, and all else is full": {func() (*plugin.Rejection, error) { return &plugin.Rejection{Reason: "q is not wanted"}, nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			src := newFakeSource()
			c := reserving(t, plugin.Dependencies{Requested: true}, func(p *plugin.Placement) (*plugin.Rejection, error) {
				if p.Name == "q" {
					return tt.says()
				}
				return nil, nil
			})
			c.set(func() { c.score = func(n *plugin.Node) int64 { return map[string]int64{"a": 100}[n.Name] } })
			src.setNode(node("a", 2000)) // for two
			if !tt.alone {
				src.setNode(node("b", 4000))
			}
			for _, uid := range []string{"p", "q", "r"} {
				src.setPod(forChoosy(pod(uid, 1000)))
			}
			b := start(t, startEtcd(t), src, withChoosy(t, c))
			b.active()
			if diff := cmp.Diff([]string{"assumed on a", "assumed on a", "assumed on a"}, b.askAll(b.questions("p", "q", "r"))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			b.awaitPhase("p", "bound on a")
			b.awaitPhase("r", "bound on a")
			if got := b.phase("q"); got != "pending" {
				t.Errorf("q is %s", got)
			}
			b.awaitNothingUnbound()
		})
	}
}

// What a service judges by what it has reserved, and by nothing that it is told, holds of pods of one question too: each is judged behind all that are ahead of it.
func TestPodsOfAQuestionAreJudgedBehindWhatIsReserved(t *testing.T) {
	const pods, nodes, most = 30, 12, 3
	var where [2][]string
	for k, together := range []bool{false, true} {
		src := newFakeSource()
		var mu sync.Mutex
		reserved := make(map[string]int) // by node
		c := reserving(t, plugin.Dependencies{Requested: true}, func(p *plugin.Placement) (*plugin.Rejection, error) {
			mu.Lock()
			defer mu.Unlock()
			if reserved[p.Node] == most {
				return &plugin.Rejection{Reason: "the node was judged before that was reserved"}, nil
			}
			reserved[p.Node]++
			return nil, nil
		})
		c.set(func() {
			c.filter = func(n *plugin.Node) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if reserved[n.Name] == most {
					return "so many are reserved", nil
				}
				return "", nil
			}
			c.score = func(n *plugin.Node) int64 { return 100 - 8*int64(n.Name[1]-'0') - int64(len(n.Name)) }
		})
		uids := make([]string, pods)
		for i := range nodes {
			src.setNode(node(fmt.Sprint("n", i), 2000))
		}
		for i := range uids {
			uids[i] = fmt.Sprint("p", i)
			src.setPod(forChoosy(pod(uids[i], int64(100+50*(i%3)))))
		}
		b := start(t, startEtcd(t), src, withChoosy(t, c))
		b.active()
		if together {
			where[k] = b.askAll(b.questions(uids...))
		} else {
			for _, uid := range uids {
				where[k] = append(where[k], b.ask(b.question(1, uid)))
			}
		}
		for _, uid := range uids {
			eventually(t, "it is bound", func() bool { return src.nodeOf(uid) != "" })
		}
		b.awaitNothingUnbound()
		b.stop()
	}
	if diff := cmp.Diff(where[0], where[1]); diff != "" {
		t.Errorf("(-one by one +in one question):\n%s", diff)
	}
}

// What a service says of other nodes when it reserves a pod holds for the pod behind it, which it was asked about before: nothing that was known of these is taken for so any more.
func TestAPodGoesByWhatHasChangedWhenTheOneBeforeItWasReserved(t *testing.T) {
	const pods = 6
	next := map[string]string{"a": "b", "b": "c", "c": "a"}
	var where [2][]string
	for k, together := range []bool{false, true} {
		src, activator := newFakeSource(), new(plugin.Activator)
		var mu sync.Mutex
		scores := map[string]int64{"a": 1}
		c := newChoosyWith(t, activator, plugin.Dependencies{}, func(p *plugin.Plugin) {
			p.Reserve = func(_ context.Context, of *plugin.Placement) (*plugin.Rejection, error) {
				mu.Lock()
				scores[next[of.Node]] = scores[of.Node] + 1 // it is the best now
				mu.Unlock()
				activator.Changed(next[of.Node])
				return nil, nil
			}
			p.Unreserve = func(context.Context, *plugin.Placement) {}
		})
		c.steps = []string{"reserve"}
		c.set(func() {
			c.score = func(n *plugin.Node) int64 {
				mu.Lock()
				defer mu.Unlock()
				return scores[n.Name]
			}
		})
		uids := make([]string, pods)
		for i := range uids {
			uids[i] = fmt.Sprint("p", i)
			src.setPod(forChoosy(pod(uids[i], 100)))
		}
		for name := range next {
			src.setNode(node(name, 4000))
		}
		b := start(t, startEtcd(t), src, withChoosy(t, c))
		b.active()
		if together {
			where[k] = b.askAll(b.questions(uids...))
		} else {
			for _, uid := range uids {
				where[k] = append(where[k], b.ask(b.question(1, uid)))
			}
		}
		b.stop()
	}
	if diff := cmp.Diff(where[0], where[1]); diff != "" {
		t.Errorf("(-one by one +in one question):\n%s", diff)
	}
}

// A service that never reserves a pod is late with that alone: what it was asked meanwhile about the next one it answers, and is believed.
func TestAReservationThatHangsIsLateByItself(t *testing.T) {
	src := newFakeSource()
	c := newChoosy(t, plugin.Dependencies{Requested: true}, func(p *plugin.Plugin) {
		p.Reserve = func(ctx context.Context, of *plugin.Placement) (*plugin.Rejection, error) {
			if of.Name == "q" {
				<-ctx.Done()
			}
			return nil, nil
		}
		p.Unreserve = func(context.Context, *plugin.Placement) {}
	})
	c.steps = []string{"reserve"}
	src.setNode(node("a", 4000))
	for _, uid := range []string{"p", "q", "r"} {
		src.setPod(forChoosy(pod(uid, 1000)))
	}
	b := start(t, startEtcd(t), src, withChoosy(t, c, func(s *pluginhost.Service) { s.Timeout = 10 * time.Second }))
	b.active()
	if diff := cmp.Diff([]string{"assumed on a", "assumed on a", "assumed on a"}, b.askAll(b.questions("p", "q", "r"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
