package local

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

func TestAFencedBinderEvictsNothing(t *testing.T) {
	c := startCluster(t)
	uid := c.SetPod(t, sourcetest.Pod("p"))
	e := source.Eviction{UID: uid, Namespace: "default", Name: "p", Node: "one"}
	guard := c.term.Guard()
	if err := c.term.Resign(within(t)); err != nil {
		t.Fatal(err)
	}
	next := elect(t, c.etcd, "binder-2")
	s := New(c.etcd, Config{})
	if err := s.Evict(within(t), guard, e); !errors.Is(err, coord.ErrFenced) {
		t.Errorf("Evict of a deposed binder: %v, want ErrFenced", err)
	}
	if got := c.stored(t, "default", "p").uid; got != uid {
		t.Errorf("the pod has the uid %s, want %s", got, uid)
	}
	if err := s.Evict(within(t), next.Guard(), e); err != nil {
		t.Errorf("Evict of the next binder: %v", err)
	}
	if kv, _, err := c.etcd.Get(within(t), podKey("default", "p")); err != nil || kv != nil {
		t.Errorf("the pod is still there: %v, %v", kv, err)
	}
}

func TestAnEvictionLeavesNothingOfThePod(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	uid := c.SetPod(t, sourcetest.Pod("p"))
	s := New(c.etcd, Config{})
	if err := s.Nominate(within(t), source.Nomination{UID: uid, Namespace: "default", Name: "p", Node: "one"}); err != nil {
		t.Fatal(err)
	}
	b := source.Binding{UID: uid, Namespace: "default", Name: "p", Node: "one"}
	if out := s.Bind(within(t), c.Fence(t), []source.Binding{b}); out[0].Result != source.BindDone {
		t.Fatal(out[0])
	}
	if err := s.Evict(within(t), c.Fence(t), source.Eviction{UID: uid, Namespace: "default", Name: "p", Node: "one"}); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{podKeys, placementKeys, conditionKeys} {
		if kvs, _, err := c.etcd.List(within(t), prefix); err != nil || len(kvs) != 0 {
			t.Errorf("left below %s: %v, %v", prefix, kvs, err)
		}
	}
}

func TestTheNominationOfABinderStandsAgainstThatOfTheManifest(t *testing.T) {
	c := startCluster(t)
	const text = `{apiVersion: v1, kind: Pod, metadata: {name: p, labels: {a: %s}}, spec: {containers: [{name: a}]}, status: {nominatedNodeName: %s}}`
	c.apply(t, parse(t, fmt.Sprintf(text, "x", "one"))...)
	n := source.Nomination{UID: c.stored(t, "default", "p").uid, Namespace: "default", Name: "p"}
	s := New(c.etcd, Config{})
	told := func(want string) {
		t.Helper()
		sourcetest.Record(t, New(c.etcd, Config{})).Synced().View(func(v sourcetest.View) {
			if got := v.Pods["default/p"].Nominated; got != want {
				t.Errorf("nominated to %q, want %q", got, want)
			}
		})
	}
	nominate := func(node string) {
		t.Helper()
		n.Node = node
		if err := s.Nominate(within(t), n); err != nil {
			t.Fatal(err)
		}
	}
	told("one")
	nominate("one")
	if kvs, _, err := c.etcd.List(within(t), conditionKeys); err != nil || len(kvs) != 0 {
		t.Errorf("a nomination that the manifest has was written: %v, %v", kvs, err)
	}
	nominate("")
	told("")
	nominate("two")
	c.apply(t, parse(t, fmt.Sprintf(text, "z", "one"))...)
	told("two")
}

func TestReportsAndNominationsDoNotLoseEachOther(t *testing.T) {
	c := startCluster(t)
	for i := range 20 {
		name := fmt.Sprintf("p-%d", i)
		uid := c.SetPod(t, sourcetest.Pod(name))
		s := New(c.etcd, Config{})
		var writers sync.WaitGroup
		writers.Go(func() {
			if err := s.Nominate(within(t), source.Nomination{UID: uid, Namespace: "default", Name: name, Node: "one"}); err != nil {
				t.Error(err)
			}
		})
		writers.Go(func() {
			if err := s.Unschedulable(within(t), source.Report{UID: uid, Namespace: "default", Name: name, Reason: "Unschedulable", Message: "m"}); err != nil {
				t.Error(err)
			}
		})
		writers.Wait()
		kv, _, err := c.etcd.Get(within(t), conditionKeys+uid)
		if err != nil || kv == nil || !strings.Contains(string(kv.Value), `"nominated":"one"`) || !strings.Contains(string(kv.Value), `"message":"m"`) {
			t.Fatalf("condition of %s: %+v, %v", name, kv, err)
		}
	}
}

const guarded = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop}
spec: {minAvailable: %s, selector: {matchLabels: {app: web}}}
status: {disruptionsAllowed: %d, currentHealthy: %[2]d, desiredHealthy: 1, expectedPods: 1}
`

func TestOfABudgetOnlyWhatPreemptionReadsIsKept(t *testing.T) {
	c := startCluster(t)
	for _, step := range []struct {
		available string
		allowed   int
		want      string
	}{
		{"1", 3, "created"}, {"50%", 3, "unchanged"}, {"1", 2, "configured"},
	} {
		if got, want := results(c.apply(t, parse(t, fmt.Sprintf(guarded, step.available, step.allowed))...)), "PodDisruptionBudget shop/web "+step.want; got != want {
			t.Errorf("minAvailable %s, allowed %d: %s, want %s", step.available, step.allowed, got, want)
		}
	}
	kv, _, err := c.etcd.Get(within(t), "local/poddisruptionbudgets/shop/web")
	if err != nil || kv == nil || strings.Contains(string(kv.Value), "minAvailable") || !strings.Contains(string(kv.Value), `"disruptionsAllowed":2`) {
		t.Errorf("stored: %+v, %v", kv, err)
	}
}
