package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/plugin"
)

// view is what a plugin sees of a pod on a node.
type view struct {
	kind, node, requested, pods string
}

// said is what the plugins of these tests say of a view, as far as they depend on it.
func (v view) said(name string) (refusal string, score int64) {
	h := fnv.New64a()
	fmt.Fprintln(h, name, v.kind, v.node)
	if name != "bare" {
		fmt.Fprintln(h, v.requested)
	}
	if name == "pods" {
		fmt.Fprintln(h, v.pods)
	}
	sum := h.Sum64()
	if sum%4 == 0 {
		refusal = fmt.Sprint(name, " says no ", sum%3)
	}
	return refusal, int64(sum >> 8 % 101)
}

// seen is the view that a plugin has.
func seen(k *plugin.Kind, n *plugin.Node) view {
	pods := make(map[string]string)
	for uid, p := range n.Pods {
		pods[uid] = fmt.Sprint(p.Name, kindText(p.Kind.Namespace, p.Kind.Labels, p.Kind.Requested, p.Kind.Priority, p.Kind.SchedulerName))
	}
	var taints []cluster.Taint
	for _, t := range n.Taints {
		taints = append(taints, cluster.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return view{
		kind: kindText(k.Namespace, k.Labels, k.Requested, k.Priority, k.SchedulerName), node: nodeText(n.Name, n.Labels, taints, n.Unschedulable, n.Allocatable),
		requested: fmt.Sprint(n.Requested, n.PodCount), pods: fmt.Sprint(pods),
	}
}

// is is the view that the state gives.
func is(st *cluster.State, subject engine.Subject, i cluster.NodeIndex) view {
	kind := func(s engine.Subject) string {
		spec, labels := st.Class(s.Class).Spec, map[string]string{}
		namespace := ""
		if set := st.Labels(s.Labels); set != nil {
			namespace = set.Namespace
			for _, l := range set.Labels {
				labels[l.Key] = l.Value
			}
		}
		return kindText(namespace, labels, amounts(spec.Requests), s.Priority, spec.SchedulerName)
	}
	spec, labels, requested, pods := &st.Nodes.Spec[i], map[string]string{}, map[string]int64{}, map[string]string{}
	for _, l := range st.Nodes.Labels[i] {
		labels[st.Symbols.Text(l.Key)] = st.Symbols.Text(l.Value)
	}
	for r := range st.Nodes.Requested {
		name := st.ResourceName(cluster.ResourceID(r))
		if v := st.Nodes.Requested[r][i]; v != 0 && slices.ContainsFunc(spec.Allocatable, func(q cluster.Quantity) bool { return q.Name == name }) {
			requested[name] = v
		}
	}
	for _, row := range st.PodsOn(i) {
		pods[row.UID] = fmt.Sprint(row.Name, kind(engine.SubjectOf(&row.Pod)))
	}
	return view{
		kind: kind(subject), node: nodeText(spec.Name, labels, spec.Taints, spec.Unschedulable, amounts(spec.Allocatable)),
		requested: fmt.Sprint(requested, st.Nodes.PodCount[i]), pods: fmt.Sprint(pods),
	}
}

func amounts(of []cluster.Quantity) map[string]int64 {
	out := map[string]int64{}
	for _, q := range of {
		out[q.Name] = q.Value
	}
	return out
}

func kindText(namespace string, labels map[string]string, requested map[string]int64, priority int32, schedulerName string) string {
	return fmt.Sprint(namespace, labels, requested, priority, schedulerName)
}

func nodeText(name string, labels map[string]string, taints []cluster.Taint, unschedulable bool, allocatable map[string]int64) string {
	return fmt.Sprint(name, labels, append([]cluster.Taint{}, taints...), unschedulable, allocatable)
}

// server is a service of these tests.
type server struct {
	conn   *grpc.ClientConn
	judged atomic.Int64 // filters called
	gate   atomic.Pointer[gate]
}

// gate holds filters up.
type gate struct {
	reached chan struct{} // once
	once    sync.Once
	open    chan struct{}
}

// serve serves plugins of some names, each with the least that it depends on.
func serve(t testing.TB, names ...string) *server {
	s := new(server)
	var plugins []plugin.Plugin
	for _, name := range names {
		plugins = append(plugins, plugin.Plugin{
			Name: name, Depends: plugin.Dependencies{Requested: name != "bare", Pods: name == "pods"},
			Filter: func(_ context.Context, k *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
				s.judged.Add(1)
				if g := s.gate.Load(); g != nil {
					g.once.Do(func() { close(g.reached) })
					<-g.open
				}
				if reason, _ := seen(k, n).said(name); reason != "" {
					return &plugin.Refusal{Reason: reason}, nil
				}
				return nil, nil
			},
			Score: func(_ context.Context, k *plugin.Kind, n *plugin.Node) (int64, error) {
				_, score := seen(k, n).said(name)
				return score, nil
			},
		})
	}
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- plugin.Serve(ctx, plugin.Config{Plugins: plugins, Listener: l, InsecurePlaintext: true})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s.conn = dial(t, l)
	return s
}

func dial(t testing.TB, l *bufconn.Listener) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///plugins", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// profile has plugins of services filter and score, with weight 2.
func profile(schedulerName string, names ...string) cluster.Profile {
	p := cluster.Profile{SchedulerName: schedulerName, Filters: append([]string{"NodeUnschedulable"}, names...)}
	for _, name := range names {
		p.Weights = append(p.Weights, cluster.PluginWeight{Name: name, Weight: 2})
	}
	return p
}

func newHost(t testing.TB, profiles []cluster.Profile, services ...Service) *Host {
	h, err := New(Config{Services: services, Profiles: profiles, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func serviceOf(name string, conn grpc.ClientConnInterface, plugins ...string) Service {
	s := Service{Name: name, Conn: conn, Timeout: 5 * time.Minute}
	for _, p := range plugins {
		s.Plugins = append(s.Plugins, Plugin{Name: p, Filters: true, Scores: true})
	}
	return s
}

// Whatever happens to a cluster, plugins see it as it is, and what they have said is taken for true only as long as it is. Nobody is asked what is known.
func TestAnswersAreOfTheStateAsItIs(t *testing.T) {
	counts := make(map[string]int)
	sets := [][]string{{"bare"}, {"requested"}, {"pods"}, {"bare", "requested"}, {"bare", "pods"}}
	served := make([]*server, len(sets))
	for k, names := range sets {
		served[k] = serve(t, names...)
	}
	clustertest.CheckUntil(t, clustertest.Unseen(counts, "known", "asked", "refused", "taken", "left", "forgotten kind", "node gone", "void"), func(rt *rapid.T) {
		which := rapid.IntRange(0, len(sets)-1).Draw(rt, "plugins")
		names, s := sets[which], served[which]
		st := cluster.New(cluster.Version{Epoch: 1})
		intn := func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "") }
		delta := func() {
			d := clustertest.Delta(intn, st)
			if err := st.Apply(d); err != nil {
				rt.Fatalf("%T: %v", d, err)
			}
		}
		h := newHost(t, []cluster.Profile{profile("default-scheduler", names...)}, serviceOf("s", s.conn, names...))
		defer h.services[0].end()
		type key struct {
			kind kindKey
			node cluster.NodeIndex
		}
		known := make(map[key]view) // what was said last, of what
		for range rapid.IntRange(1, 40).Draw(rt, "rounds") {
			h.services[0].limits = limits{told: 3, asked: 5, bytes: 500, kinds: 2, columns: 9000} // they grow
			for range intn(15) {
				before := st.Nodes.Count()
				delta()
				if st.Nodes.Count() < before {
					counts["node gone"]++
				}
			}
			var subjects []engine.Subject
			for _, row := range st.Pods() {
				subjects = append(subjects, engine.SubjectOf(&row.Pod))
			}
			var nodes []cluster.NodeIndex
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if st.Nodes.Live.Has(i) && intn(3) > 0 {
					nodes = append(nodes, i)
				}
			}
			if len(subjects) == 0 || len(nodes) == 0 {
				continue
			}
			if intn(3) == 0 { // somebody asks, and goes
				k, err := h.Begin(rt.Context(), 1, "default-scheduler")
				if err != nil {
					rt.Fatal(err)
				}
				k.Collect(st, subjects[intn(len(subjects))], nodes)
				g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
				s.gate.Store(g)
				ctx, cancel := context.WithCancel(rt.Context())
				over := make(chan error, 1)
				go func() { over <- k.Exchange(ctx) }()
				select {
				case <-g.reached:
					cancel()
					if err := <-over; !errors.Is(err, context.Canceled) {
						rt.Fatalf("who has gone is told %v", err)
					}
					counts["left"]++
				case err := <-over: // all was known
					if err != nil {
						rt.Fatal(err)
					}
				}
				cancel()
				k.Done()
				for range intn(5) {
					delta()
				}
				nodes = slices.DeleteFunc(nodes, func(i cluster.NodeIndex) bool { return !st.Nodes.Live.Has(i) })
				subjects = subjects[:0]
				for _, row := range st.Pods() {
					subjects = append(subjects, engine.SubjectOf(&row.Pod))
				}
				s.gate.Store(nil)
				close(g.open)
				if len(subjects) == 0 || len(nodes) == 0 {
					continue
				}
			}
			subject := subjects[intn(len(subjects))]
			k, err := h.Begin(rt.Context(), 1, "default-scheduler")
			if err != nil {
				rt.Fatal(err)
			}
			all := make(cluster.Bitmap, (st.Nodes.Len()+63)/64)
			for _, i := range nodes {
				all.Set(i)
			}
			k.Excluded(st, subject, all)
			for _, i := range nodes {
				if reason := refusedBy(is(st, subject, i), names); reason == "" && !all.Has(i) {
					rt.Fatalf("node %d is excluded, and nobody refuses it", i)
				}
			}
			k.Collect(st, subject, nodes)
			before := s.judged.Load()
			if err := k.Exchange(rt.Context()); err != nil {
				rt.Fatal(err)
			}
			asked := s.judged.Load() - before
			var left []cluster.NodeIndex
			want := make([]int64, 0)
			for _, i := range nodes {
				now := is(st, subject, i)
				reason := refusedBy(now, names)
				r, refused := k.Refusal(i)
				if refused != (reason != "") || r.Reason != reason {
					rt.Fatalf("node %d: refused %v, %q; want %q of %+v", i, refused, r.Reason, reason, now)
				}
				if !k.Holds(st, i) {
					rt.Fatalf("node %d: what was just said does not hold", i)
				}
				if was, is := known[key{kindKey{Subject: subject}, i}]; is && was == now {
					counts["known"]++
				}
				known[key{kindKey{Subject: subject}, i}] = now
				if refused {
					counts["refused"]++
					continue
				}
				counts["taken"]++
				left = append(left, i)
				var sum int64
				for _, name := range names {
					_, score := now.said(name)
					sum += 2 * score
				}
				want = append(want, sum)
			}
			counts["asked"] += int(min(asked, 1))
			got := make([]int64, len(left))
			k.Score(left, got)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				rt.Fatalf("nodes %v score %v, want %v", left, got, want)
			}
			// Now all is known.
			k.Collect(st, subject, nodes)
			before = s.judged.Load()
			if err := k.Exchange(rt.Context()); err != nil {
				rt.Fatal(err)
			}
			if n := s.judged.Load() - before; n != 0 {
				rt.Fatalf("%d questions about what is known", n)
			}
			// And then something happens.
			viewed := make(map[cluster.NodeIndex]view)
			for _, i := range nodes {
				viewed[i] = is(st, subject, i)
			}
			for range 1 + intn(3) {
				delta()
			}
			kept := st.Class(subject.Class) != nil && (subject.Labels == cluster.NoLabels || st.Labels(subject.Labels) != nil)
			for _, i := range nodes {
				if !kept || !st.Nodes.Live.Has(i) || !k.Holds(st, i) {
					counts["void"]++
					continue
				}
				if now := is(st, subject, i); refusedBy(now, names) != refusedBy(viewed[i], names) {
					rt.Fatalf("node %d: what was said holds, and is wrong: of %+v, and it is %+v", i, viewed[i], now)
				}
			}
			k.Done()
			if n := len(h.services[0].session.dropped); n > 0 {
				counts["forgotten kind"]++
			}
		}
	})
}

// refusedBy returns the first refusal of some plugins.
func refusedBy(v view, names []string) string {
	for _, name := range names {
		if reason, _ := v.said(name); reason != "" {
			return reason
		}
	}
	return ""
}
