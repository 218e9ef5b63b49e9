package binder

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/pluginhost"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/wire"
)

// withDoor configures a binder whose pods of the scheduler name "gated" have the plugin say whether they may be tried.
func withDoor(t testing.TB, g *gate, change ...func(*pluginhost.Service)) func(*Config) {
	return func(cfg *Config) {
		p := engine.DefaultProfile("gated")
		p.PreEnqueues = []string{"Gate"}
		cfg.Settings.Profiles = append(slices.Clone(cfg.Settings.Profiles), p)
		service := pluginhost.Service{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Gate"}}, Conn: g.conn, Timeout: patience, PreBindTimeout: patience}
		for _, f := range change {
			f(&service)
		}
		h, err := pluginhost.New(pluginhost.Config{Services: []pluginhost.Service{service}, Profiles: cfg.Settings.Profiles, Log: testLog(t)})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = h
	}
}

// entering asks about pods by their UIDs.
func (b *running) entering(uids ...string) *binderv1.AskPreEnqueueRequest {
	out := &binderv1.AskPreEnqueueRequest{ShardRevision: 1}
	b.look(func(st *cluster.State) {
		out.Version = wire.ToVersion(st.Version())
		for _, uid := range uids {
			id, _ := st.PodByUID(uid)
			out.Pods = append(out.Pods, &binderv1.EnteringPod{Id: int32(id), Uid: uid})
		}
	})
	return out
}

func (b *running) preEnqueue(uids ...string) (out []string) {
	b.t.Helper()
	resp, err := b.AskPreEnqueue(b.t.Context(), b.entering(uids...))
	if err != nil {
		b.t.Fatalf("pre-enqueue: %v", err)
	}
	for _, e := range resp.GetEntrances() {
		said := entranceResult(e.GetResult())
		if e.GetPlugin() != "" || e.GetMessage() != "" {
			said += fmt.Sprintf(" %s: %s, told %v", e.GetPlugin(), e.GetMessage(), e.GetTold())
		}
		out = append(out, said)
	}
	return out
}

// Each pod is answered for itself: of those that are gone, or placed, nobody is asked.
func TestPluginsSayWhichPodsMayBeTried(t *testing.T) {
	for _, tells := range []bool{false, true} {
		src, g := newFakeSource(), newGate(t)
		g.tells = tells
		src.setNode(node("a", 4000))
		for _, uid := range []string{"in", "out", "ill", "placed"} {
			src.setPod(gated(pod(uid, 100)))
		}
		src.setPod(pod("of another profile", 100))
		g.answers(func(step, pod string) *pluginv1.PlaceResponse {
			switch {
			case step == "pre_enqueue" && pod == "out":
				return rejects("not yet")
			case step == "pre_enqueue" && pod == "ill":
				return &pluginv1.PlaceResponse{Error: "no idea"}
			}
			return nil
		})
		b := start(t, startEtcd(t), src, withDoor(t, g))
		b.active()
		if got := b.commit(b.request(1, "placed")); !slices.Equal(got, []string{"assumed"}) {
			t.Fatalf("the plugin has nothing to do with placements: %v", got)
		}
		want := []string{"gone", "enters", fmt.Sprintf("gated Gate: not yet, told %v", tells), `failed : plugin service "s": no idea, told false`, "enters"}
		req := b.entering("placed", "in", "out", "ill", "of another profile")
		if got := b.preEnqueue("placed", "in", "out", "ill", "of another profile"); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		g.wants(t, "in", "pre_enqueue in on ")
		if heard := slices.Concat(g.hears("placed"), g.hears("of another profile")); len(heard) > 0 {
			t.Errorf("the service has heard %q", heard)
		}
		src.deletePod("in")
		eventually(t, "the pod is gone", func() bool { return b.phase("in") == "gone" })
		req.Pods = req.GetPods()[1:2]
		if resp, err := b.AskPreEnqueue(t.Context(), req); err != nil || resp.GetEntrances()[0].GetResult() != binderv1.Entrance_RESULT_GONE {
			t.Errorf("of one that is gone: %v, %v", resp, err)
		}
	}
}

func TestQuestionsAboutPodsThatComeAreChecked(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 100)))
	b := start(t, startEtcd(t), src, withDoor(t, g))
	b.active()
	for name, tt := range map[string]struct {
		change func(*binderv1.AskPreEnqueueRequest)
		code   codes.Code
		reason string
	}{
		"no shard":                    {func(r *binderv1.AskPreEnqueueRequest) { r.Shard = 99 }, codes.InvalidArgument, "shard"},
		"no pods":                     {func(r *binderv1.AskPreEnqueueRequest) { r.Pods = nil }, codes.InvalidArgument, "pods"},
		"too many pods":               {func(r *binderv1.AskPreEnqueueRequest) { r.Pods = make([]*binderv1.EnteringPod, 65) }, codes.InvalidArgument, "pods"},
		"a version that has not been": {func(r *binderv1.AskPreEnqueueRequest) { r.Version.Seq += 1000 }, codes.InvalidArgument, "version"},
		"another epoch":               {func(r *binderv1.AskPreEnqueueRequest) { r.Version.Epoch-- }, codes.Aborted, "OTHER_EPOCH"},
	} {
		req := b.entering("p")
		tt.change(req)
		_, err := b.AskPreEnqueue(t.Context(), req)
		if status.Code(err) != tt.code || !strings.Contains(fmt.Sprint(err, rpc.ReasonOf(err)), tt.reason) {
			t.Errorf("%s: %v, want %v %s", name, err, tt.code, tt.reason)
		}
	}
}

// A service that hangs holds up neither the ledger nor pods of others, and whoever asks may go.
func TestAServiceThatDoesNotSayWhoMayBeTriedHoldsUpNobody(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 100)))
	src.setPod(pod("q", 100))
	g.answers(when("pre_enqueue", "p", later))
	b := start(t, startEtcd(t), src, withDoor(t, g))
	b.active()
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	req := b.entering("p")
	go func() {
		_, err := b.AskPreEnqueue(ctx, req)
		asked <- err
	}()
	g.wants(t, "p", "pre_enqueue p on ")
	if got := b.commit(b.request(1, "q")); !slices.Equal(got, []string{"assumed"}) {
		t.Errorf("meanwhile: %v", got)
	}
	cancel()
	<-asked
	g.answers(nil)
	g.decide(t, "pre_enqueue p", rejects("what was said to somebody who has gone"))
	if got := b.preEnqueue("p"); !slices.Equal(got, []string{"enters"}) {
		t.Errorf("then: %q", got)
	}
}

// What a service says of one pod is not heard by a term that has ended.
func TestTheEndOfATermEndsQuestionsAboutPodsThatCome(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	src.setPod(gated(pod("p", 100)))
	g.answers(when("pre_enqueue", "p", later))
	b := start(t, startEtcd(t), src, withDoor(t, g))
	b.active()
	asked := make(chan error, 1)
	req := b.entering("p")
	go func() {
		_, err := b.AskPreEnqueue(context.Background(), req)
		asked <- err
	}()
	g.wants(t, "p", "pre_enqueue p on ")
	b.stop()
	if err := <-asked; status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

// Who may be tried is sorted, by how it waits, which the binder is told; who is only to be sorted is not asked about before.
func TestAPluginSaysWherePodsBelong(t *testing.T) {
	src, g := newFakeSource(), newGate(t)
	src.setNode(node("a", 4000))
	for _, uid := range []string{"new", "kept", "in"} {
		src.setPod(gated(pod(uid, 100)))
	}
	g.answers(func(step, pod string) *pluginv1.PlaceResponse {
		switch {
		case step == "pre_enqueue" && pod == "kept":
			return rejects("not yet")
		case step == "queue_sort":
			return &pluginv1.PlaceResponse{SortKey: int64(len(pod))}
		}
		return nil
	})
	b := start(t, startEtcd(t), src, func(cfg *Config) {
		withDoor(t, g)(cfg)
		profiles := cfg.Settings.Profiles
		for i := range profiles {
			profiles[i].QueueSort = "Gate"
		}
		var err error
		cfg.Plugins, err = pluginhost.New(pluginhost.Config{
			Services: []pluginhost.Service{{Name: "s", Plugins: []pluginhost.Plugin{{Name: "Gate"}}, Conn: g.conn, Timeout: patience, PreBindTimeout: patience}}, Profiles: profiles, Log: testLog(t),
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	b.active()
	req := b.entering("new", "kept", "in")
	in := req.GetPods()[2]
	in.OnlySorts, in.Arrival, in.SinceUnixNanos, in.FirstUnixNanos, in.Attempts, in.Unschedulable, in.Errors = true, 1, 2, 3, 4, 5, 6
	resp, err := b.AskPreEnqueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range resp.GetEntrances() {
		got = append(got, fmt.Sprintf("%s %d/%d", entranceResult(e.GetResult()), e.GetSortOrder(), e.GetSortKey()))
	}
	if want := []string{"enters 1/3", "gated 0/0", "enters 1/2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	g.wants(t, "new", "pre_enqueue new on ", "queue_sort new on ")
	g.wants(t, "in", "queue_sort in on ")
	if q := g.queued("in"); q.GetArrival() != 1 || q.GetSinceUnixNanos() != 2 || q.GetFirstUnixNanos() != 3 || q.GetAttempts() != 4 || q.GetUnschedulable() != 5 || q.GetErrors() != 6 {
		t.Errorf("the service was told %v", q)
	}
}
