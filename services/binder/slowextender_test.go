package binder

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/test/bubble"
)

// hungObjects are objects of which pods are told to nobody, after a while: so a bind by an extender hangs without a server.
type hungObjects struct {
	Objects
	takes time.Duration
}

func (h hungObjects) Pod(context.Context, string, string) (*corev1.Pod, error) {
	elapse(h.takes)
	return nil, errFake
}

// hangingBinder has an extender bind pods that interest it, and that takes so long and fails.
func hangingBinder(t *testing.T, takes time.Duration) func(*termConfig) {
	set, err := extender.New(extender.Config{Extenders: []configv1.Extender{{URLPrefix: "http://nowhere", BindVerb: "bind"}}})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *termConfig) { c.extenders = newExtenders(set, nil, hungObjects{takes: takes}) }
}

// placeWith has so many pods placed that the extender is to bind, and recorded.
func (w *slowWorld) placeWith(namespace string, n int) (uids []string) {
	w.t.Helper()
	for i := range n {
		uid := fmt.Sprint(namespace, "-by-extender-", i)
		p := of(pod(uid, 1), 1)
		p.Namespace = namespace
		w.src.setPod(p)
		observe(w.t, w.term, p)
		one := assume(w.t, w.term, uid, "a")
		if one.binders != 1 {
			w.t.Fatalf("%s is bound by %b", uid, one.binders)
		}
		w.binds <- one
		uids = append(uids, uid)
	}
	return uids
}

// Pods of one namespace: those that an extender binds which hangs are held up, and no others, neither on their way nor by what is said of their binds later.
func TestAnExtenderThatHangsHoldsUpNoBindsOfItsNamespaceButItsOwn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var tried atomic.Bool // the one whose bind fails once
		w := newSlowWorld(t, func(string) time.Duration { return 50 * time.Millisecond }, source.BindDone, hangingBinder(t, 10*time.Second))
		w.src.answers(func(b source.Binding) source.Outcome {
			elapse(50 * time.Millisecond)
			if b.UID == "once" && !tried.Swap(true) {
				return source.Outcome{Result: source.BindUnknown, Err: errFake}
			}
			return source.Outcome{Result: source.BindDone}
		})
		theirs := w.placeWith("default", 60)
		defer runBinds(t, w.term, slowWorkers)()
		for round := range 6 {
			w.after(5 * time.Second)
			var others []string
			for i := range 100 {
				uid := fmt.Sprint("plain-", round, "-", i)
				w.pod(uid, "default")
				others = append(others, uid)
			}
			if got := w.commit(1, others...); got["assumed"] != len(others) {
				t.Fatalf("round %d: %v, want all assumed", round, got)
			}
			w.after(2 * time.Second)
			if n := w.count(others, "bound on a"); n != len(others) {
				t.Errorf("round %d: %d of %d are bound that the extender does not bind", round, n, len(others))
			}
		}
		if n := w.count(theirs, "pending"); n < len(theirs)/2 {
			t.Errorf("%d of %d are pending again that the extender does not bind in time", n, len(theirs))
		}
		// One failure of another bind is not its end, though the extender's have been withdrawn just now.
		w.placeWith("default", 1)
		w.after(25 * time.Second)
		w.pod("once", "default")
		w.binds <- assume(t, w.term, "once", "a")
		withdrawn := len(w.src.withdrawals())
		w.after(time.Second)
		if got := where(w.term, "once"); got != "bound on a" {
			t.Errorf("a bind that has failed once: %s; %d withdrawals since", got, len(w.src.withdrawals())-withdrawn)
		}
	})
}

// What the extender does not bind is asked for again for five seconds, also if others that it has not bound were withdrawn before.
func TestABindByAnExtenderIsTriedForAtLeastFiveSeconds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newSlowWorld(t, func(string) time.Duration { return 50 * time.Millisecond }, source.BindDone, hangingBinder(t, 100*time.Millisecond))
		defer runBinds(t, w.term, slowWorkers)()
		for round := range 3 {
			uid := w.placeWith("default", 1)[0]
			before := len(w.src.withdrawals())
			w.after(giveBackAfter - 100*time.Millisecond)
			if n := len(w.src.withdrawals()) - before; n != 0 {
				t.Errorf("round %d: withdrawn before %v", round, giveBackAfter)
			}
			w.after(10 * time.Second)
			if n := len(w.src.withdrawals()) - before; n != 1 || where(w.term, uid) != "pending" {
				t.Errorf("round %d: %d withdrawals, and it is %s", round, n, where(w.term, uid))
			}
		}
	})
}
