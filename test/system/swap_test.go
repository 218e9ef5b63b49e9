package system

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var swaps = flag.Int("swaps", 2, "how often kube-scheduler and Berth take over from each other")

// The two that take turns, by the prefix of kube-scheduler's user agent, and the suffix of Berth's.
const (
	theirs = "kube-scheduler"
	ours   = "berth"
)

// auditBindings has an API server write down who binds pods.
const auditBindings = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [create]
    resources: [{group: "", resources: [pods/binding]}]
  - level: None
`

// binders returns who bound each pod, from an audit log: every binding that was made, not those that were refused. Of a pod without one
// it is who asked for a binding and did not wait for the answer, as a kube-scheduler that is stopped does: that may be made all the same.
func binders(t *testing.T, log string) map[string][]string {
	t.Helper()
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	by, unanswered := make(map[string][]string), make(map[string][]string)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			UserAgent  string `json:"userAgent"`
			RequestURI string `json:"requestURI"`
			ObjectRef  struct {
				Name string `json:"name"`
			} `json:"objectRef"`
			ResponseStatus struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		agent, pod, status := theirs, event.ObjectRef.Name, event.ResponseStatus
		if strings.HasSuffix(event.UserAgent, "/"+ours) { // also of a program that is called kube-scheduler
			agent = ours
			if !strings.Contains(event.RequestURI, "timeout=") {
				t.Errorf("%s: the API server is not told when to give up: %s", pod, event.RequestURI)
			}
		}
		switch {
		case status.Code == http.StatusCreated:
			by[pod] = append(by[pod], agent)
		case status.Code == 0, status.Code >= http.StatusInternalServerError, strings.Contains(status.Message, "context canceled"):
			unanswered[pod] = append(unanswered[pod], agent)
		}
	}
	for pod, who := range unanswered {
		if len(by[pod]) == 0 {
			slices.Sort(who)
			by[pod] = slices.Compact(who)
		}
	}
	return by
}

// turn is a write of the lease.
type turn struct {
	revision int64
	holder   string // theirs, ours, or "" for nobody
}

// turns follows who holds the lease, and at which revision of the API server's etcd each pod was bound: one counter for both.
type turns struct {
	mu     sync.Mutex
	leases []turn
	bound  map[string]int64 // by pod
}

func (s *turns) follow(t *testing.T, cp *kubetest.ControlPlane) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	one := func(kind string, w watch.Interface, err error, take func(revision int64, o any)) {
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			for e := range w.ResultChan() {
				o, ok := e.Object.(metav1.Object)
				if !ok && ctx.Err() != nil {
					return
				}
				if !ok {
					t.Errorf("the watch of %s says %v", kind, e.Object)
					return
				}
				revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
				if err != nil {
					t.Errorf("watch of %s: %v", kind, err)
				}
				s.mu.Lock()
				take(revision, o)
				s.mu.Unlock()
			}
			if ctx.Err() == nil {
				t.Errorf("the watch of %s has ended", kind)
			}
		})
	}
	list, err := cp.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// An API server that has too much to do ends watches: they go on where they have ended.
	forEver := func(watch cache.WatchFuncWithContext) (watch.Interface, error) {
		return watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: watch})
	}
	leases, err := forEver(cp.Client().CoordinationV1().Leases("kube-system").Watch)
	one("leases", leases, err, func(revision int64, o any) {
		if lease := o.(*coordinationv1.Lease); lease.Name == theirs {
			holder := ""
			if id := lease.Spec.HolderIdentity; id != nil && *id != "" {
				if holder = theirs; strings.HasPrefix(*id, "berth_") {
					holder = ours
				}
			}
			s.leases = append(s.leases, turn{revision, holder})
		}
	})
	pods, err := forEver(cp.Client().CoreV1().Pods("default").Watch)
	one("pods", pods, err, func(revision int64, o any) {
		if pod := o.(*corev1.Pod); pod.Spec.NodeName != "" && s.bound[pod.Name] == 0 {
			s.bound[pod.Name] = revision
		}
	})
}

// holder returns who holds the lease.
func (s *turns) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases) == 0 {
		return ""
	}
	return s.leases[len(s.leases)-1].holder
}

// at returns who had written the lease last at a revision. One who has just given it up counts as the holder if late is set.
func (s *turns) at(revision int64, late bool) string {
	holder := ""
	for _, l := range s.leases {
		if l.revision > revision {
			break
		}
		if l.holder != "" || !late {
			holder = l.holder
		}
	}
	return holder
}

func (s *turns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bound)
}

// TestKubeSchedulerAndBerthTakeTurnsAndNoPodIsPlacedTwice has both alive all the time, with pods arriving all the time, and ends
// whichever holds the lease: by a signal to stop, by killing it, and Berth also by pausing it for longer than the lease lasts.
func TestKubeSchedulerAndBerthTakeTurnsAndNoPodIsPlacedTwice(t *testing.T) {
	takeTurns(t, swapping{
		commands: func(cp *kubetest.ControlPlane, dir string) map[string][]string {
			lease := []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms"}
			return map[string][]string{
				theirs: append([]string{kubeScheduler(t), "--kubeconfig", cp.Kubeconfig(), "--secure-port", "0", "--kube-api-qps", "1000", "--kube-api-burst", "1000"}, lease...),
				ours:   append([]string{berthtest.Binary(t), "all", "--kubeconfig", cp.Kubeconfig(), "--data-dir", filepath.Join(dir, "berth"), "--listen", "127.0.0.1:0", "--http-listen", "", "--lease-ttl", "2s"}, lease...),
			}
		},
		ends: []string{"stop", "stop", "kill", "kill", "stop", "pause"},
	})
}

// kubeScheduler returns the path of the program.
func kubeScheduler(t *testing.T) string {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	return programs[kubetest.KubeScheduler]
}

// swapping says how kube-scheduler and Berth take turns.
type swapping struct {
	plane kubetest.Options
	// commands returns how each is started.
	commands func(cp *kubetest.ControlPlane, dir string) map[string][]string
	ends     []string // how the one that holds the lease is ended, in turns: stop, kill or pause
	// alone says that one is started when the other has been ended. Else both run all the time.
	alone bool
	// begun is called when one has been started; nil: nothing is.
	begun func(who string)
}

// takeTurns has them do so, and checks that nothing is placed twice, and nobody does what is the other's.
func takeTurns(t *testing.T, how swapping) {
	dir := t.TempDir()
	policy, audit := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditBindings), 0o600); err != nil {
		t.Fatal(err)
	}
	how.plane.APIServerFlags = append(how.plane.APIServerFlags, "--audit-policy-file="+policy, "--audit-log-path="+audit, "--audit-log-mode=blocking")
	cp := kubetest.StartT(t, how.plane)
	// Nodes are full at the end but for a tenth: room that is given away twice shows.
	const perTurn, patience = 60, 5 * time.Minute
	pods := (*swaps + 1) * perTurn
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*swaps+1)*patience)
	defer cancel()
	if err := cp.CreateNodes(ctx, pods*11/40+1, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	seen := &turns{bound: make(map[string]int64)}
	seen.follow(t, cp)

	commands := how.commands(cp, dir)
	running := make(map[string]*kubetest.Process)
	started := 0
	begin := func(who string) {
		t.Helper()
		started++
		p, err := kubetest.StartProcess(who, filepath.Join(dir, fmt.Sprintf("%s-%d.log", who, started)), commands[who]...)
		if err != nil {
			t.Fatal(err)
		}
		running[who] = p
		t.Cleanup(func() {
			p.Kill()
			if t.Failed() {
				t.Logf("%s:\n%s", p.Name(), p.LogTail(6<<10))
			}
		})
		if how.begun != nil {
			how.begun(who)
		}
	}
	held := func(by string) {
		t.Helper()
		berthtest.Await(t, patience, by+" to hold the lease", func(context.Context) error {
			if got := seen.holder(); got != by {
				return fmt.Errorf("%q does", got)
			}
			return nil
		})
	}
	placed := func(n int) {
		t.Helper()
		berthtest.Await(t, patience, fmt.Sprintf("%d pods to be bound", n), func(context.Context) error {
			if got := seen.count(); got < n {
				return fmt.Errorf("%d are", got)
			}
			return nil
		})
	}

	// 1. Pods come all the time, as fast as they are bound: some wait in each takeover.
	created := make(chan error, 1)
	go func() {
		created <- func() error {
			for i := range pods {
				for i-seen.count() > perTurn/2 {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(5 * time.Millisecond):
					}
				}
				pod := kubetest.PlainPod(i)
				pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1")
				if err := cp.CreatePods(ctx, 1, func(int) *corev1.Pod { return pod }); err != nil {
					return err
				}
			}
			return nil
		}()
	}()

	// 2. They take turns.
	holder, standby := theirs, ours
	begin(holder)
	held(holder)
	began := time.Now()
	var took []string
	for n := range *swaps {
		end := how.ends[n%len(how.ends)]
		if running[standby] == nil && !how.alone {
			begin(standby)
		}
		placed((n + 1) * perTurn)
		if got := seen.holder(); got != holder {
			t.Fatalf("%q holds the lease while %s renews it", got, holder)
		}
		at := time.Now()
		switch p := running[holder]; end {
		case "pause":
			if err := p.Pause(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Resume() }() // it may have ended
		case "kill":
			p.Kill()
			running[holder] = nil
		default:
			p.Stop()
			running[holder] = nil
		}
		if how.alone {
			begin(standby)
		}
		held(standby)
		took = append(took, fmt.Sprintf("%s %s: %v", end, holder, time.Since(at).Round(100*time.Millisecond)))
		if end == "pause" {
			if err := running[holder].Resume(); err != nil {
				t.Fatal(err)
			}
		}
		holder, standby = standby, holder
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	placed(pods)
	t.Logf("%d swaps, %d pods, in %v: %s", *swaps, pods, time.Since(began).Round(time.Second), strings.Join(took, "; "))

	// 3. Nobody did what was the other's.
	checkCluster(t, cp)
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
	by, share := binders(t, audit), map[string]int{}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for pod, revision := range seen.bound {
		if len(by[pod]) != 1 {
			t.Errorf("%s was bound by %v, want one", pod, by[pod])
			continue
		}
		who := by[pod][0]
		share[who]++
		// kube-scheduler gives the lease up while its last binds are on their way; Berth does not.
		if got := seen.at(revision, who == theirs); got != who {
			t.Errorf("%s was bound by %s at revision %d, when %q held the lease", pod, who, revision, got)
		}
	}
	t.Logf("bound by kube-scheduler: %d, by Berth: %d", share[theirs], share[ours])
	if share[theirs] == 0 || share[ours] == 0 {
		t.Error("one of the two has bound nothing")
	}
}
