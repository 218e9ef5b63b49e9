package binder

import (
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Whoever may create a pod, or a node, must not be able to end a term with it: neither the one in which it comes, nor those of
// the binders that load it.
func TestWhatCannotBeToldEndsNoTerm(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	network := rpc.Config{Net: rpc.Memory(), Log: testLog(t)}
	src.setNode(node("a", 1000))
	src.setPod(pod("before", 100))
	one := start(t, etcd, src, named("one"))
	serve(t, network, one)
	epoch := one.active()
	rep := followed(t, etcd, network)

	odd := node("odd", 1000)
	odd.Labels = []cluster.Label{{Key: "zone", Value: "x\xff"}}
	pictured := node("pictured", 1)
	pictured.Images = []cluster.Image{{Names: []string{"good:1"}, Size: 1}, {Names: []string{"a\xffb"}, Size: 1}}
	pending, bound := pod("pending", 100), on(pod("bound", 400), "a")
	pending.Class.Images, bound.Class.Images = []string{"a\xffb"}, []string{"a\xffb"}
	src.setNode(odd)
	src.setNode(pictured)
	src.setPod(bound)
	src.setPod(pending)
	src.setPod(pod("after", 100))

	check := func(b *running, plain string) {
		t.Helper()
		if got := b.commit(b.request(1, plain)); got[0] != "assumed" {
			t.Errorf("%s is %s", plain, got[0])
		}
		b.awaitPhase(plain, "bound on a")
		eventually(t, "the replica has the ledger", func() bool {
			v := b.Version()
			return !v.IsZero() && rep.Version() == v && rep.Digest() == b.Digest()
		})
		b.look(func(st *cluster.State) { checkOdd(t, st) })
	}
	check(one, "before")
	if got := one.active(); got != epoch {
		t.Errorf("epoch %d is over, this is %d", epoch, got)
	}
	eventually(t, "the node has an event", func() bool {
		src.mu.Lock()
		defer src.mu.Unlock()
		return len(src.unsupported) == 1 && src.unsupported[0].Kind == "Node" && src.unsupported[0].Name == "odd"
	})

	one.stop()
	two := start(t, etcd, src, named("two"))
	serve(t, network, two)
	two.active()
	check(two, "after")
}

// checkOdd says what has become of the odd objects.
func checkOdd(t *testing.T, st *cluster.State) {
	t.Helper()
	for _, uid := range []string{"pending", "bound"} {
		id, ok := st.PodByUID(uid)
		if !ok {
			t.Fatalf("pod %s is not known", uid)
		}
		spec := &st.Class(st.Pod(id).Class).Spec
		if spec.UnsupportedPlugin != ingest.PluginPodUnsupported || !strings.Contains(spec.Unsupported, `"a\xffb"`) {
			t.Errorf("pod %s is unsupported as %q by %q", uid, spec.Unsupported, spec.UnsupportedPlugin)
		}
	}
	if got := st.Nodes.Requested[cluster.CPU][st.Nodes.ByName("a")]; got < 500 {
		t.Errorf("the pods of a request %dm", got)
	}
	if i := st.Nodes.ByName("odd"); i == cluster.NoNode || !st.Nodes.Unsupported.Has(i) {
		t.Errorf("the odd node is at %d, and not unsupported", i)
	}
	if i := st.Nodes.ByName("pictured"); st.Nodes.Unsupported.Has(i) || len(st.Nodes.Images(i)) != 1 {
		t.Errorf("of the node with an odd image, %d images are known, and it is unsupported: %v", len(st.Nodes.Images(i)), st.Nodes.Unsupported.Has(i))
	}
}
