package whatif

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// tables is a plugin by which two pods with the label app=diner sit at a node, and which likes nodes the better the lower the digit is that their names end with.
type tables struct {
	mu           sync.Mutex
	asked        int  // nodes
	hypothetical bool // a hypothetical pod was among those of a node
}

func (p *tables) plugin() plugin.Plugin {
	return plugin.Plugin{
		Name: "Tables", Depends: plugin.Dependencies{Pods: true},
		Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			sitting, hypothetical := 0, false
			for _, pod := range n.Pods {
				if pod.Kind.Labels["app"] == "diner" {
					sitting++
				}
				hypothetical = hypothetical || pod.Hypothetical
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked++
			p.hypothetical = p.hypothetical || hypothetical
			if sitting >= 2 {
				return &plugin.Refusal{Reason: "node(s) had no free seat"}, nil
			}
			return nil, nil
		},
		Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) {
			last, err := strconv.Atoi(n.Name[len(n.Name)-1:])
			return int64(90 - 10*last), err
		},
	}
}

// take returns how many nodes were asked about since it was called last, and whether hypothetical pods were among those on them.
func (p *tables) take() (asked int, hypothetical bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, hypothetical = p.asked, p.hypothetical
	p.asked, p.hypothetical = 0, false
	return asked, hypothetical
}

func diner(name string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default, labels: {app: diner}}, spec: {schedulerName: dining, containers: [{name: c, image: i, resources: {requests: {cpu: 10m}}}]}}`, name)
}

// Who asks what would become of a pod is told what then becomes of it, though a plugin of a service decides: by which nodes it refuses, and by what it scores the others. While many ask, the binder goes on as if nobody did, and no answer of the service that it keeps is lost.
func TestWhatWouldHappenByAPluginServiceHappens(t *testing.T) {
	const tablesThere = 4
	var p tables
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- plugin.Serve(ctx, plugin.Config{Listener: l, Plugins: []plugin.Plugin{p.plugin()}}) }()
	end := sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	defer end()
	dining := engine.DefaultProfile("dining")
	dining.Filters = append(slices.Clone(dining.Filters), "Tables")
	dining.Weights = append(slices.Clone(dining.Weights), cluster.PluginWeight{Name: "Tables", Weight: 100})
	berth := berthtest.Start(t, berthtest.Options{
		Seed: seed, Nodes: tablesThere, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler"), dining},
		PluginServices: []config.PluginService{{
			Name: "restaurant", Address: l.Addr().String(), Timeout: metav1.Duration{Duration: berthtest.Patience}, PreBindTimeout: metav1.Duration{Duration: berthtest.Patience},
			Plugins: []config.ServicePlugin{{Name: "Tables", Points: []string{"filter", "score"}}},
		}},
	})
	fit := func() int32 {
		r, err := berth.GetCapacity(berth.Context(), &schedulingv1.GetCapacityRequest{Manifest: diner("more")})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.GetNotes()) > 0 || r.GetAtLeast() {
			t.Errorf("capacity: %v", r)
		}
		return r.GetFit()
	}

	// 1. Each is asked about before it comes, while others ask.
	asking, quiet := context.WithCancel(berth.Context())
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for asking.Err() == nil {
				if _, err := berth.GetCapacity(asking, &schedulingv1.GetCapacityRequest{Manifest: diner("other")}); err != nil && asking.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	pods := 0
	for k := range 2*tablesThere + 1 {
		name := fmt.Sprintf("diner-%d", k)
		would, err := berth.WhatIf(berth.Context(), &schedulingv1.WhatIfRequest{Manifests: diner(name), NoPreemption: true})
		if err != nil {
			t.Fatal(err)
		}
		pods++
		berth.Apply(diner(name))
		berth.AwaitDecided(pods)
		is := berth.Pods()["default/"+name]
		if is == nil || len(would.GetOutcomes()) != 1 || would.GetOutcomes()[0].GetNode() != is.GetNode() || len(would.GetNotes()) > 0 {
			t.Fatalf("it was to be %v, and is %v", would, is)
		}
		if want := fmt.Sprintf("node-%04d", k/2); k < 2*tablesThere && is.GetNode() != want {
			t.Errorf("%s is on %q, want %s", name, is.GetNode(), want)
		}
		if k == 2*tablesThere && would.GetOutcomes()[0].GetMessage() != "0/4 nodes are available: 4 node(s) had no free seat." {
			t.Errorf("the last one was to be told %q", would.GetOutcomes()[0].GetMessage())
		}
	}
	quiet()
	others.Wait()

	// 2. Why the last one is nowhere.
	x, err := berth.ExplainPod(berth.Context(), &schedulingv1.ExplainPodRequest{Name: fmt.Sprintf("diner-%d", 2*tablesThere)})
	if err != nil {
		t.Fatal(err)
	}
	rejected := x.GetRejected()
	if len(rejected) != 1 || rejected[0].GetPlugin() != "Tables" || rejected[0].GetNodes() != tablesThere || rejected[0].GetReason() != "node(s) had no free seat" || x.GetFeasible() != 0 || len(x.GetNotAsked())+len(x.GetNotes()) > 0 {
		t.Errorf("it is explained by %v", x)
	}

	// And of one that has a place, which nodes it could have now, and by what it is there.
	if x, err = berth.ExplainPod(berth.Context(), &schedulingv1.ExplainPodRequest{Name: "diner-2"}); err != nil {
		t.Fatal(err)
	}
	here := x.GetCandidates()
	if len(here) != 1 || here[0].GetNode() != "node-0001" || !here[0].GetChosen() || x.GetFeasible() != 1 || !slices.ContainsFunc(here[0].GetScores(), func(s *schedulingv1.PluginScore) bool {
		return s.GetPlugin() == "Tables" && s.GetNormalized() == 80 && s.GetWeight() == 100
	}) {
		t.Errorf("where it is, is explained by %v", x)
	}

	// 3. A node more, and each question has hypothetical pods; behind them, the binder asks about the node of the last pod, and no other one again.
	berth.Apply(berthtest.Node("node-0009", "8", "32Gi"))
	berthtest.Await(t, berthtest.Patience, "the pod that waits to have a seat", func(context.Context) error {
		if is := berth.Pods()[fmt.Sprintf("default/diner-%d", 2*tablesThere)]; is.GetNode() == "" {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
	berth.AwaitDecided(pods)
	if got := fit(); got != 1 { // the one that waited has the other seat
		t.Errorf("%d more fit, want 1", got)
	}
	drained, err := berth.WhatIf(berth.Context(), &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_Drain{Drain: "node-0000"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if drained.GetPlaced() != 1 || drained.GetUnplaced() != 1 {
		t.Errorf("of a drained node's pods, it is said: %v", drained)
	}
	if _, hypothetical := p.take(); !hypothetical {
		t.Error("no question has had a hypothetical pod")
	}
	pods++
	berth.Apply(diner("last"))
	berth.AwaitDecided(pods)
	if asked, hypothetical := p.take(); asked > 1 || hypothetical {
		t.Errorf("the binder has asked about %d nodes, want the one that has changed; hypothetical pods among these: %v", asked, hypothetical)
	}
	if is := berth.Pods()["default/last"]; is.GetNode() != "node-0009" {
		t.Errorf("the last one is %v", is)
	}

	// 4. What is told of a pod may be much.
	var labels []string
	for k := range 2000 {
		labels = append(labels, fmt.Sprintf("label-%d: %s", k, strings.Repeat("x", 60)))
	}
	large, err := berth.GetCapacity(berth.Context(), &schedulingv1.GetCapacityRequest{Manifest: strings.Replace(diner("large"), "app: diner", "app: diner, "+strings.Join(labels, ", "), 1)})
	if err != nil || large.GetFit() != 0 || len(large.GetNotes()) > 0 {
		t.Errorf("of a pod with many labels: %v, %v", large, err)
	}

	// 5. Without the service, answers say so.
	end()
	r, err := berth.GetCapacity(berth.Context(), &schedulingv1.GetCapacityRequest{Manifest: diner("more"), Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(r.GetNotes(), "\n")
	if !r.GetAtLeast() || !strings.Contains(said, "plugin service restaurant could not be asked: describe: Unavailable") || !strings.Contains(said, "plugins of others were not asked: Tables") {
		t.Errorf("without the service, capacity is %v", r)
	}
}
