package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
	"github.com/berth-scheduler/berth/plugin"
)

// looking has Choosy look for a way.
func (c *choosy) looking(way func([]plugin.Refused) (plugin.PostFiltered, error)) {
	c.set(func() { c.way = way })
}

// nowhere asks about a pod that fits nowhere.
func (b *running) nowhere(uid string, attempt int32) *binderv1.AskPostFilterRequest {
	out := &binderv1.AskPostFilterRequest{ShardRevision: 1, Attempt: attempt, Plugins: []string{"Choosy"}, Pod: &binderv1.PodReport{Uid: uid, Reason: reasonUnschedulable, Message: "it fits nowhere", Attempt: attempt}}
	b.look(func(st *cluster.State) {
		id, _ := st.PodByUID(uid)
		out.Pod.Id, out.Version = int32(id), wire.ToVersion(st.Version())
	})
	return out
}

func (b *running) postFilter(req *binderv1.AskPostFilterRequest) string {
	b.t.Helper()
	resp, err := b.AskPostFilter(b.t.Context(), req)
	if err != nil {
		b.t.Fatalf("post-filter: %v", err)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", postFilterResult(resp.GetResult()), resp.GetMessage()))
}

// full is a cluster of which nodes a and b are full, c is refused by Choosy, and d has taints that the pod does not tolerate.
func fullForChoosy(t *testing.T) (*fakeSource, *choosy, *running) {
	src, c := newFakeSource(), newChoosy(t, plugin.Dependencies{})
	for _, name := range []string{"a", "b", "c"} {
		src.setNode(node(name, 1000))
	}
	d := node("d", 1000)
	d.Taints = []cluster.Taint{{Key: "k", Effect: "NoSchedule"}}
	src.setNode(d)
	for _, name := range []string{"a", "b"} {
		p := pod("on-"+name, 1000)
		p.NodeName = name
		src.setPod(p)
	}
	src.setPod(forChoosy(pod("p", 1000)))
	c.set(func() {
		c.filter = func(n *plugin.Node) (string, error) {
			if n.Name == "c" {
				return "it is c", nil
			}
			return "", nil
		}
	})
	b := start(t, startEtcd(t), src, withChoosy(t, c))
	b.active()
	return src, c, b
}

func TestWhoLooksForAWayIsToldWhyThePodFitsNowhereAndNominatesIt(t *testing.T) {
	src, c, b := fullForChoosy(t)
	var refused []string
	c.looking(func(nodes []plugin.Refused) (plugin.PostFiltered, error) {
		for _, n := range nodes {
			refused = append(refused, fmt.Sprintf("%s: %s: %s", n.Name, n.Plugin, n.Reason))
		}
		return plugin.PostFiltered{Success: true, Nominated: "b"}, nil
	})
	req := b.nowhere("p", 1)
	if got := b.postFilter(req); got != "nominated" {
		t.Fatalf("it is %q, want nominated", got)
	}
	slices.Sort(refused)
	if diff := cmp.Diff([]string{"a: NodeResourcesFit: Insufficient cpu", "b: NodeResourcesFit: Insufficient cpu", "c: Choosy: it is c"}, refused); diff != "" {
		t.Errorf("what it was told (-want +got):\n%s", diff)
	}
	nominated := ""
	b.look(func(st *cluster.State) {
		id, _ := st.PodByUID("p")
		nominated = st.Pod(id).Nominated
	})
	if nominated != "b" {
		t.Errorf("nominated to %q in the ledger", nominated)
	}
	eventually(t, "it is reported", func() bool { return len(src.reported("p")) == 1 })
	if r := src.reported("p")[0]; r.Nominated != "b" || r.Message != "it fits nowhere" || r.Reason != reasonUnschedulable {
		t.Errorf("reported %+v", r)
	}
	// To ask again is safe, and asks nobody.
	if got := b.postFilter(req); got != "nominated" || len(refused) != 3 {
		t.Errorf("asked again, it is %q, and was told of %d nodes", got, len(refused))
	}
}

func TestWhatBecomesOfAPodThatFitsNowhere(t *testing.T) {
	for name, tt := range map[string]struct {
		way  plugin.PostFiltered
		err  error
		do   func(*fakeSource, *choosy)
		want string
	}{
		"no way":               {way: plugin.PostFiltered{Reason: "no victims"}, want: "none no victims"},
		"none at all":          {way: plugin.PostFiltered{Unresolvable: true, Reason: "never"}, want: "ends never"},
		"a way without a node": {way: plugin.PostFiltered{Success: true}, want: "success"},
		"it fails":             {err: errors.New("it is ill"), want: "ends plugin Choosy: it is ill"},
		"a node that is not":   {way: plugin.PostFiltered{Success: true, Nominated: "z"}, want: "success"},
		"it fits":              {do: func(_ *fakeSource, c *choosy) { c.set(func() { c.filter = nil }) }, want: "retry"},
		"the filter fails": {do: func(_ *fakeSource, c *choosy) {
			c.set(func() { c.filter = func(*plugin.Node) (string, error) { return "", errors.New("ill") } })
		}, want: `failed plugin service "s": plugin Choosy, node c: ill`},
		"it has been placed": {do: func(src *fakeSource, _ *choosy) { p := forChoosy(pod("p", 1000)); p.NodeName = "c"; src.setPod(p) }, want: "gone"},
		"it has gone":        {do: func(src *fakeSource, _ *choosy) { src.deletePod("p") }, want: "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			src, c, b := fullForChoosy(t)
			asked := 0
			c.looking(func([]plugin.Refused) (plugin.PostFiltered, error) { asked++; return tt.way, tt.err })
			req := b.nowhere("p", 1)
			if tt.do != nil {
				before := b.Version()
				if tt.do(src, c); tt.want == "gone" {
					eventually(t, "the ledger is told", func() bool { return before.Less(b.Version()) })
				}
			}
			if got := b.postFilter(req); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
			if told := tt.do == nil; told != (asked == 1) {
				t.Errorf("it was asked %d times", asked)
			}
		})
	}
}

// While a plugin looks for a way, nobody else is kept from being placed, and a pod that is placed meanwhile is nominated nowhere.
func TestNobodyWaitsForWhoLooksForAWay(t *testing.T) {
	src, c, b := fullForChoosy(t)
	looks, goOn := make(chan struct{}), make(chan struct{})
	c.looking(func([]plugin.Refused) (plugin.PostFiltered, error) {
		close(looks)
		<-goOn
		return plugin.PostFiltered{Success: true, Nominated: "b"}, nil
	})
	got := make(chan string, 1)
	req := b.nowhere("p", 1)
	go func() { got <- b.postFilter(req) }()
	<-looks
	src.setPod(pod("other", 1000))
	eventually(t, "the ledger has the other pod", func() bool { return b.phase("other") == "pending" })
	if got := b.commit(b.request(1, "other")); !slices.Equal(got, []string{"assumed"}) {
		t.Errorf("the other pod: %v", got)
	}
	src.deletePod("p")
	eventually(t, "the ledger is told", func() bool { return b.phase("p") != "pending" })
	close(goOn)
	if got := <-got; got != "gone" {
		t.Errorf("p is %q, want gone", got)
	}
}

func TestWhatIsWrongWithAQuestionAboutAPodThatFitsNowhere(t *testing.T) {
	_, _, b := fullForChoosy(t)
	for field, change := range map[string]func(*binderv1.AskPostFilterRequest){
		"plugins":              func(r *binderv1.AskPostFilterRequest) { r.Plugins = nil },
		"one is there twice":   func(r *binderv1.AskPostFilterRequest) { r.Plugins = []string{"Choosy", "Choosy"} },
		"attempt":              func(r *binderv1.AskPostFilterRequest) { r.Attempt = 0 },
		"pod.reason":           func(r *binderv1.AskPostFilterRequest) { r.Pod.Reason = "Bored" },
		"pod.clear_nomination": func(r *binderv1.AskPostFilterRequest) { r.Pod.ClearNomination = true },
		"shard":                func(r *binderv1.AskPostFilterRequest) { r.Shard = -1 },
	} {
		req := b.nowhere("p", 1)
		change(req)
		_, err := b.AskPostFilter(context.Background(), req)
		wantError(t, err, codes.InvalidArgument, rpc.ReasonOf(err))
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v, want %s named", err, field)
		}
	}
	other := start(t, startEtcd(t), newFakeSource())
	other.active()
	_, err := other.AskPostFilter(t.Context(), &binderv1.AskPostFilterRequest{Attempt: 1, Plugins: []string{"Choosy"}, Pod: &binderv1.PodReport{Reason: reasonUnschedulable}, Version: wire.ToVersion(other.Version())})
	if err == nil || !strings.Contains(err.Error(), "this binder has no plugin services") {
		t.Errorf("a binder without plugin services: %v", err)
	}
}
