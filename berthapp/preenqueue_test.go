package berthapp

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-scheduler/berth/test/bubble"
)

// Plugins say one after the other whether a pod may be tried, and the first that does not let it in is the last.
func TestPodsAreTriedIfNoPluginGatesThem(t *testing.T) {
	w := newWalk(t, podNamed("p"))
	for _, tt := range []struct {
		says func() *fwk.Status
		want string
	}{
		{nil, ""},
		{always(fwk.Unschedulable, "no quota", "is left"), " A: no quota, is left"},
		{always(fwk.UnschedulableAndUnresolvable), " A: rejected by plugin A"},
		{always(fwk.Pending, "wait for it"), " A: wait for it"},
		{always(fwk.Skip), " A: rejected by plugin A"}, // kube-scheduler has it so
		{always(fwk.Error, "it is ill"), ` error: running PreEnqueue plugin "called A": it is ill`},
	} {
		w.say("a preenqueue p", tt.says)
		w.step(preEnqueue, "p", "B", "A")
		w.expect(fmt.Sprint(w.last) + tt.want)
		w.hears("B PreEnqueue: p", "A PreEnqueue: p")
	}
	w.step(preEnqueue, "p", "A", "B")
	w.expect(fmt.Sprint(w.last) + ` error: running PreEnqueue plugin "called A": it is ill`)
	w.step(preEnqueue, "p")
	w.expect(fmt.Sprint(w.last))
	w.hears("A PreEnqueue: p")
	described, err := w.host.Describe(t.Context(), nil)
	if err != nil || !described.GetPlugins()[0].GetPreEnqueues() {
		t.Errorf("described: %v, %v", described, err)
	}
}

// What becomes of a pod that waits is nothing to what plugins have judged: its steps go on with that.
func TestWhetherAPodMayBeTriedIsNoStepOfIt(t *testing.T) {
	w := newWalk(t, podNamed("p"))
	w.judges("p")
	w.step(preEnqueue, "p", "A")
	w.expect("2")
	w.step(reserve, "p", "A", "B")
	w.expect("3")
	w.hears("A Filter: p on , state of p", "B Filter: p on , state of p", "A PreEnqueue: p", "A Reserve: p on n, state of p", "B Reserve: p on n, state of p")
}

// A pod that is gated is tried when the plugin that gates it wants that, and behind nothing else.
func TestWhoGatesAPodSaysWhenItIsTried(t *testing.T) {
	h, heard, _ := newTestHints(t)
	on := h.handler(foos, fwk.Add|fwk.Update|fwk.Delete)
	for _, tt := range []struct {
		name string
		is   func()
		want []string
	}{
		{"an object has come", func() { on.OnAdd(&v1.ConfigMap{}, false) }, []string{"fails", "queues"}},
		{"one has changed", func() { on.OnUpdate(&v1.ConfigMap{}, &v1.ConfigMap{}) }, nil},
		{"a node has come", func() { h.nodeHandler().OnAdd(&v1.Node{}, false) }, []string{"queues", "silent"}},
		{"a node is gone", func() { h.nodeHandler().OnDelete(&v1.Node{}) }, []string{"silent"}},
		{"an object of another kind has come", func() { h.handler(fwk.CSINode, fwk.Add).OnAdd(&v1.ConfigMap{}, false) }, []string{"silent"}},
	} {
		h.isGated(t, "queues", "Queues")
		h.isGated(t, "skips", "Skips")
		h.isGated(t, "fails", "Fails")
		h.isGated(t, "silent", "Silent")
		h.isGated(t, "enters", "")
		tt.is()
		if diff := cmp.Diff(tt.want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A pod that is gated is tried when it has changed itself, if the plugin registers that.
func TestPodsThatAreGatedAndChangeMayBeTried(t *testing.T) {
	h, heard, _ := newTestHints(t)
	for name, by := range map[string]string{"labels": "Labels", "queues": "Queues"} {
		pod := h.isGated(t, name, by)
		changed := pod.DeepCopy()
		changed.ResourceVersion, changed.Labels = "9", map[string]string{"a": "b"}
		if err := h.pods.Update(changed); err != nil {
			t.Fatal(err)
		}
		h.podChanged(pod, changed)
	}
	if diff := cmp.Diff([]string{"labels"}, heard.take()); diff != "" {
		t.Errorf("tried (-want +got):\n%s", diff)
	}
}

// What happens while plugins say whether a pod may be tried is asked about when they have, and no earlier, and who gates it is asked alone.
func TestWhatHappensWhilePluginsSayWhetherAPodMayBeTried(t *testing.T) {
	h, heard, _ := newTestHints(t)
	on := h.handler(foos, fwk.Add)
	pod := h.isGated(t, "p", "Skips")
	tried := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, heard.take()); diff != "" {
			t.Errorf("%s: tried (-want +got):\n%s", what, diff)
		}
	}
	on.OnAdd(&v1.ConfigMap{}, false)
	tried("before")
	for by, want := range map[string][]string{"Queues": {"p"}, "Skips": nil, "": nil} {
		h.enter(pod.UID)
		on.OnAdd(&v1.ConfigMap{}, false)
		tried("amid it")
		h.entered(pod, by)
		tried("gated by "+by, want...)
	}
	h.enter(pod.UID)
	for range mostDuring + 1 {
		on.OnAdd(&v1.ConfigMap{}, false)
	}
	h.entered(pod, "Skips")
	tried("more has happened than is kept", "p")
	h.enter(pod.UID)
	h.entered(pod, "Queues")
	tried("nothing has happened since")
	h.enter(pod.UID)
	on.OnAdd(&v1.ConfigMap{}, false)
	tried("amid it, by who has gated it before")
	h.entered(pod, "Skips")
	tried("gated by another one now")
	h.enter(pod.UID)
	h.entered(pod, "Queues")
	for _, want := range [][]string{{"p"}, nil} { // once
		on.OnAdd(&v1.ConfigMap{}, false)
		tried("behind it", want...)
	}
	changed := pod.DeepCopy()
	changed.ResourceVersion, changed.Labels = "9", map[string]string{"a": "b"}
	h.enter(pod.UID)
	h.podChanged(pod, changed)
	h.entered(pod, "Labels")
	tried("it has changed itself", "p")
}

// What was said of a pod before it was asked whether it may be tried is void, and what is said late of it, too.
func TestWhoGatesAPodIsTheLastToHaveRefusedIt(t *testing.T) {
	h, heard, _ := newTestHints(t)
	on := h.handler(foos, fwk.Add)
	h.waits(t, "enters", fwk.Unschedulable, "Queues")
	h.isGated(t, "enters", "")
	h.waits(t, "gated", fwk.Unschedulable, "Queues")
	h.isGated(t, "gated", "Skips")
	h.begin(false)
	late := h.isGated(t, "late", "Queues")
	h.judgedNow(late, "Skips", false)
	h.end(late, nil, nil, false)
	on.OnAdd(&v1.ConfigMap{}, false)
	if diff := cmp.Diff([]string{"late"}, heard.take()); diff != "" {
		t.Errorf("tried (-want +got):\n%s", diff)
	}
	gone := h.isGated(t, "gone", "Queues")
	h.podGone(gone)
	if err := h.pods.Delete(gone); err != nil {
		t.Fatal(err)
	}
	h.enter(gone.UID)
	h.entered(gone, "Queues")
	if _, ok := h.refused[gone.UID]; ok {
		t.Error("a pod that is gone is kept")
	}
}

// onlyGates is a profile of which a plugin runs at PreEnqueue, and nowhere else.
const onlyGates = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  plugins:
    preEnqueue:
      enabled: [{name: A}]
`

// A plugin that only gates pods sees nodes, and its pods are tried behind whatever happens that Kubernetes knows of, if it registers nothing itself.
func TestAPluginMayRunAtPreEnqueueAlone(t *testing.T) {
	w := newWalkOf(t, onlyGates, podNamed("p"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	var nodes atomic.Int32
	w.say("a preenqueue p", func() *fwk.Status {
		if all, err := w.walkers["A"].handle.SnapshotSharedLister().NodeInfos().List(); err == nil {
			nodes.Store(int32(len(all)))
		}
		return fwk.NewStatus(fwk.Unschedulable, "not yet")
	})
	w.step(preEnqueue, "p", "A")
	w.expect("2 A: not yet")
	if nodes.Load() != 1 {
		t.Errorf("it sees %d nodes, want 1", nodes.Load())
	}
	client := w.walkers["A"].handle.ClientSet()
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect("0 wakes [p]")
	w.step(preEnqueue, "p", "A")
	w.expect("3 A: not yet")
	changed := podNamed("p")
	changed.ResourceVersion, changed.Annotations = "9", map[string]string{"a": "b"}
	if _, err := client.CoreV1().Pods("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect("0 wakes [p]")
	w.say("a preenqueue p", nil)
	w.step(preEnqueue, "p", "A")
	w.expect("4")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.got.Annotations["a"] != "b" {
		t.Error("the pod is not as the API server has told it")
	}
	hints := w.host.profile.Load().hints
	hints.mu.Lock()
	defer hints.mu.Unlock()
	if len(hints.refused) > 0 {
		t.Errorf("kept: %v", hints.refused)
	}
}

// What a plugin at PreEnqueue registers is heard in any case, and of others what Berth's log does not tell.
func TestAllIsHeardThatWhoGatesPodsRegisters(t *testing.T) {
	for _, gates := range []bool{false, true} {
		w := newWalkOf(t, map[bool]string{true: onlyGates, false: strings.Replace(onlyGates, "preEnqueue", "filter", 1)}[gates], podNamed("p"))
		claims := w.host.profile.Load().framework.SharedInformerFactory().Core().V1().PersistentVolumeClaims().Informer()
		if started := claims.HasSynced(); started != gates {
			t.Errorf("gates %v: claims are heard of: %v", gates, started)
		}
	}
}

// What happens amid PreEnqueue in a process has the pod tried, and what happened before is not asked about.
func TestEventsAmidPreEnqueueAreHeardInAProcess(t *testing.T) {
	w := newWalk(t, podNamed("p"))
	h := w.host.profile.Load().hints
	asked := make(chan string, 10)
	h.registered = []registered{{fwk.ClusterEvent{Resource: foos, ActionType: fwk.Add}, "called A", func(_ klog.Logger, pod *v1.Pod, _, is any) (fwk.QueueingHint, error) {
		asked <- string(pod.UID) + ": " + is.(*v1.ConfigMap).Name
		return fwk.Queue, nil
	}}}
	happens := func(name string) {
		h.handler(foos, fwk.Add).OnAdd(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, false)
	}
	happens("before")
	w.say("a preenqueue p", always(fwk.Pending, "no"))
	w.step(preEnqueue, "p", "B", "A")
	w.expect("2 A: no")
	w.say("a preenqueue p", func() *fwk.Status {
		happens("amid")
		return fwk.NewStatus(fwk.Pending, "no") // kube-scheduler has it serve its backoff all the same
	})
	w.step(preEnqueue, "p", "B", "A")
	w.expectAnyhow("0 wakes [p]", "3 A: no")
	if got := <-asked; got != "p: amid" || len(asked) > 0 {
		t.Errorf("first, it is asked about %s, and then about %d more", got, len(asked))
	}
}

// A pod that plugins do not know of yet is waited for, for half of the time; one that is bound or gone may be tried, as Berth will hear of it.
func TestPodsAreAskedAboutAsTheInformerHasThem(t *testing.T) {
	bound := podNamed("bound")
	bound.Spec.NodeName = "n"
	w := newWalk(t, bound, podNamed("gone"))
	client, profile := w.walkers["A"].handle.ClientSet(), w.host.profile.Load()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), podNamed("first"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for profile.hints.get("default/name-of-first", "first") == nil { // the informer has listed pods before it watches them: of one that goes between, this API server tells nobody
		<-look.C
	}
	if err := client.CoreV1().Pods("default").Delete(t.Context(), "name-of-gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for profile.hints.get("default/name-of-gone", "gone") != nil {
		<-look.C
	}
	for _, uid := range []string{"bound", "gone"} {
		w.step(preEnqueue, uid, "A")
		w.expect(fmt.Sprint(w.last))
	}
	w.hears()
	w.step(preEnqueue, "late", "A")
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), podNamed("late"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect(fmt.Sprint(w.last))
	w.hears("A PreEnqueue: late")
	w.host.timeout = 20 * time.Millisecond
	w.begin(t.Context())
	w.step(preEnqueue, "never", "A")
	w.expect("2 error: the API server has not told the plugins of pod default/name-of-never yet")
}

// PreEnqueue runs for one pod at a time, beside cycles and steps. Who waits longer for its turn than half of the time is told so.
func TestPreEnqueueRunsForOnePodAtATime(t *testing.T) {
	const many = 20
	objects := []runtime.Object{podNamed("first")}
	for i := range many {
		objects = append(objects, podNamed(fmt.Sprint(i)))
	}
	w := newWalk(t, objects...)
	began, goOn := make(chan struct{}), make(chan struct{})
	var at, most atomic.Int32
	counts := func(meanwhile func()) func() *fwk.Status {
		return func() *fwk.Status {
			most.Store(max(most.Load(), at.Add(1)))
			meanwhile()
			at.Add(-1)
			return nil
		}
	}
	w.say("a preenqueue first", counts(func() { close(began); <-goOn }))
	w.step(preEnqueue, "first", "A")
	<-began
	for i := range many {
		w.say("a preenqueue "+fmt.Sprint(i), counts(func() {}))
		w.step(preEnqueue, fmt.Sprint(i), "A")
	}
	w.judges("judged")
	w.step(reserve, "placed", "A", "B")
	w.expect(fmt.Sprint(w.last)) // nobody waits
	close(goOn)
	got := w.next(make([]string, many+1))
	slices.Sort(got)
	var want []string
	for i := range many + 1 {
		want = append(want, fmt.Sprint(i+2))
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if most.Load() != 1 {
		t.Errorf("%d at a time, want 1", most.Load())
	}

	began, goOn = make(chan struct{}), make(chan struct{})
	w.step(preEnqueue, "first", "A")
	<-began
	w.host.timeout = 20 * time.Millisecond
	w.begin(t.Context())
	w.step(preEnqueue, "0", "A")
	w.expect("2 error: plugins that run at PreEnqueue say of other pods whether they may be tried, and not of default/name-of-0 in time")
	close(goOn)
}

// Whether a pod may be tried is said beside a cycle that is under way.
func TestPreEnqueueDoesNotWaitForACycle(t *testing.T) {
	w := newWalk(t, podNamed("p"))
	began, goOn := make(chan struct{}), make(chan struct{})
	w.say("a filter q", func() *fwk.Status {
		close(began)
		<-goOn
		return nil
	})
	judged := make(chan struct{})
	go func() {
		defer close(judged)
		w.judges("q")
	}()
	<-began
	w.host.profile.Load().outdated() // what plugins see is no reason, either
	w.step(preEnqueue, "p", "A")
	w.expect("2")
	close(goOn)
	<-judged
}

// A plugin that hangs or panics at PreEnqueue ends the process, as anywhere.
func TestAPreEnqueueThatHangsOrPanicsEndsTheProcess(t *testing.T) {
	does := os.Getenv(hangsIn)
	if does == "" {
		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for does, want := range map[string]struct {
			code int
			says string
		}{"hang": {hungCode, "plugins hang: nobody has waited"}, "panic": {2, "panic: trouble has come"}} {
			c := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
			c.Env = append(os.Environ(), hangsIn+"="+does)
			out, _ := c.CombinedOutput()
			if code := c.ProcessState.ExitCode(); code != want.code || !strings.Contains(string(out), want.says) {
				t.Errorf("%s: it ends with %d, want %d and %q:\n%s", does, code, want.code, want.says, out)
			}
		}
		return
	}
	w := newWalk(t, podNamed("p"))
	began := make(chan struct{})
	w.say("a preenqueue p", func() *fwk.Status {
		if does == "panic" {
			panic("trouble has come")
		}
		close(began)
		select {}
	})
	ctx, cut := context.WithCancel(t.Context())
	w.begin(ctx)
	w.step(preEnqueue, "p", "A")
	<-began
	cut()
	select {}
}

// As in kube-scheduler, a pod that does not go to its node after all may let others be tried: those that a plugin gates hear of it, of all others Berth knows. One that was not reserved has taken nothing.
func TestAPodThatIsGivenBackMayLetOthersBeTried(t *testing.T) {
	w := newWalk(t, podNamed("gated"), podNamed("refused"))
	hints := w.host.profile.Load().hints
	refuse := func() {
		hints.enter("gated")
		hints.entered(podNamed("gated"), "called A")
		hints.begin(false)
		hints.end(podNamed("refused"), refusedBy(fwk.Unschedulable, "called A"), nil, false)
	}
	refuse()
	w.say("b reserve p", always(fwk.Unschedulable, "no"))
	w.step(reserve, "p", "A", "B")
	w.expect("2 B: no")
	w.step(unreserve, "p", "B", "A")
	w.expect("3")
	w.step(reserve, "q", "A", "B")
	w.expect("4")
	w.step(unreserve, "q", "B", "A")
	w.expectAnyhow("0 wakes [gated]", "5")
	refuse()
	w.step(reserve, "r")
	w.expect("6")
	w.step(unreserve, "r")
	w.expectAnyhow("0 wakes [gated]", "7")
}

// kube-scheduler's queue is locked while a plugin says whether a pod may be tried, and while it says whether one is worth trying behind an event: who relies on that locks nothing itself.
func TestHintsAreNotAskedBesidePreEnqueue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h, heard, _ := newTestHints(t)
		h.isGated(t, "p", "Queues")
		h.handler(foos, fwk.Add).OnAdd(&v1.ConfigMap{}, false)
		h.turn <- struct{}{}
		asked := make(chan []string, 1)
		go func() { asked <- heard.take() }()
		synctest.Wait()
		select {
		case got := <-asked:
			t.Errorf("asked meanwhile: %q", got)
		default:
		}
		<-h.turn
		if got := <-asked; !slices.Equal(got, []string{"p"}) {
			t.Errorf("and then: %q", got)
		}
	})
}
