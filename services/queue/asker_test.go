package queue

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

// Pods that are gone are not kept for an extender that hangs, however many come.
func TestPodsThatAreGoneDoNotWaitToBeAskedAbout(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nobody is asked
	s := &Service{binding: newBinding()}
	sh := newShard(0, 1, judge{engine.NewEvaluator(engine.EvaluatorConfig{Parallelism: 1})}, func() {})
	k := newAsker(&driver{s: s, sh: sh, log: slog.New(slog.DiscardHandler)})
	k.lines[1] = &line{asking: asksAtOnce} // they hang
	st := cluster.New(cluster.Version{Epoch: 1})
	apply := func(d cluster.Delta) {
		t.Helper()
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
		sh.apply(st, d)
	}
	apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Seed: 1, Profiles: []cluster.Profile{engine.DefaultProfile("default-scheduler")}}})
	apply(cluster.ClassDefined{ID: 0, Spec: cluster.ClassSpec{SchedulerName: "default-scheduler"}})
	for n := range 5 * leastPurged {
		id := st.FreePod()
		apply(cluster.PodSet{ID: id, Pod: cluster.Pod{UID: fmt.Sprint("u", n), Name: fmt.Sprint("p", n), Namespace: "n", Created: int64(n + 1)}})
		var a []pending.Attempt
		sh.with(func(q *pending.Queue, now time.Time) { a = q.Pop(now, 1) })
		asked := &question{Attempt: a[0], turn: 1}
		sh.with(func(q *pending.Queue, _ time.Time) { asked.at, _ = q.Leave(a[0]) })
		k.add(ctx, []*question{asked})
		if n%100 > 0 {
			apply(cluster.PodRemoved{ID: id})
		}
		if waiting := len(k.lines[1].waiting); waiting > leastPurged+2*(n/100+1) {
			t.Fatalf("%d wait, of which %d are there", waiting, n/100+1)
		}
	}
	if waiting := k.lines[1].waiting; waiting[0].UID != "u0" || waiting[1].UID != "u100" {
		t.Errorf("first wait %s and %s", waiting[0].UID, waiting[1].UID)
	}
}

// An attempt that is not asked about, since its commit is to be tried again, comes to nothing, and the count goes on.
func TestAnswersOfNoUseAreCountedWhateverComesInBetween(t *testing.T) {
	k := newAsker(nil)
	for n := range int32(mostMisfits) {
		if k.forget("another"); k.tooOften(&question{Attempt: pending.Attempt{UID: "u", Number: 1 + 2*n}}) != (n == mostMisfits-1) {
			t.Errorf("after %d", n+1)
		}
	}
	k.tooOften(&question{Attempt: pending.Attempt{UID: "u", Number: 9}})
	if k.forget("u"); len(k.vain) != 0 {
		t.Error("it is counted on though the pod has come to something")
	}
}

// Who was to be asked about and is gone has given its id to another pod.
func TestTheEndOfAnAttemptIsNotThatOfAnotherOfItsID(t *testing.T) {
	b := newBinding()
	popped := time.Unix(1000, 0)
	b.begin(3, "p", popped.Add(time.Second), nil)
	if b.end(3, popped); len(b.pods) != 1 {
		t.Error("another attempt has ended")
	}
	if b.end(3, popped.Add(time.Second)); len(b.pods) != 0 {
		t.Error("the attempt has not ended")
	}
}

// What extenders have said of another attempt than the last, or to another binder, is not what they would say now.
func TestARefusalIsOfTheAttemptBefore(t *testing.T) {
	said := pending.Attempt{ID: 3, UID: "u", Number: 7, Nominated: "n1"}
	for _, c := range []struct {
		name   string
		change func(*pending.Attempt)
		epoch  cluster.Epoch
		want   bool
	}{
		{"the next", func(*pending.Attempt) {}, 2, true},
		{"one behind it", func(a *pending.Attempt) { a.Number++ }, 2, false},
		{"one of a queue that counts anew", func(a *pending.Attempt) { a.Number = 1 }, 2, false},
		{"of another epoch", func(*pending.Attempt) {}, 3, false},
		{"nominated elsewhere", func(a *pending.Attempt) { a.Nominated = "n2" }, 2, false},
	} {
		k := newAsker(nil)
		k.refusals["u"] = refusal{said, cluster.Version{Epoch: 2, Seq: 5}, nil, false}
		a := said
		a.Number++
		c.change(&a)
		if got := k.takeRefusal(&a, c.epoch); (got != nil) != c.want {
			t.Errorf("%s: %v, want one: %v", c.name, got, c.want)
		}
		if len(k.refusals) > 0 {
			t.Errorf("%s: it is kept", c.name)
		}
	}
}
