package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestAMirrorKnowsOfAStatusWhatWasWrittenLast(t *testing.T) {
	m := newMirror(&teller{left: 1, sink: func(source.Event) {}}, podKind(map[string]bool{"": true}, nil, nil, nil), func() {})
	name := types.NamespacedName{Name: "p"}
	tell := func(version, nominated string) *podStatus {
		t.Helper()
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: version}, Status: v1.PodStatus{NominatedNodeName: nominated}}
		if err := m.Add(pod); err != nil {
			t.Fatal(err)
		}
		return m.waiting(name, "u")
	}
	tell("5", "")
	a := "a"
	m.written(name, "u", statusPatch{NominatedNodeName: &a}, "10")
	if got := tell("8", ""); got.nominated != "a" {
		t.Errorf("behind an event that is older than what was written: %+v", got)
	}
	if got := tell("10", "a"); got.nominated != "a" || got.unsure {
		t.Errorf("as it was written: %+v", got)
	}
	if got := tell("11", "b"); got.nominated != "b" {
		t.Errorf("as somebody else has written: %+v", got)
	}
	m.written(name, "u", statusPatch{NominatedNodeName: &a}, "10")
	if got := m.waiting(name, "u"); got.nominated != "b" {
		t.Errorf("behind an answer that is late: %+v", got)
	}
	m.unsure(name, "u")
	if got := tell("12", ""); !got.unsure {
		t.Errorf("a write without an answer may come yet: %+v", got)
	}
	m.written(name, "u", statusPatch{NominatedNodeName: &a}, "13")
	if got := m.waiting(name, "u"); !got.unsure {
		t.Errorf("it may come behind one that has an answer: %+v", got)
	}
	none := ""
	m.written(name, "u", statusPatch{NominatedNodeName: &none}, "15")
	m.written(name, "u", statusPatch{NominatedNodeName: &a}, "14")
	if got := m.waiting(name, "u"); got.nominated != "" {
		t.Errorf("behind an answer that is late, of which the watch has not told the newer one yet: %+v", got)
	}
	m.saw(name, "u", "17")
	m.written(name, "u", statusPatch{NominatedNodeName: &a}, "16")
	if got := m.waiting(name, "u"); got.nominated != "a" {
		t.Errorf("behind an answer that is newer than any that was written, but not than what was read: %+v", got)
	}
}

// Whoever writes to a pod's status has a newer version of it than was told, which has the annotations that others have written meanwhile: a bind names that version, and goes by these.
func TestWhatWasReadOrWrittenSaysHowLongAnnotationsAre(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "p"}
	m := newMirror(&teller{sink: func(source.Event) {}}, podKind(map[string]bool{"berth": true}, nil, nil, nil), func() {})
	pod := func(version string, bytes int) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u", ResourceVersion: version, Annotations: map[string]string{"own": strings.Repeat("x", bytes-3)}},
			Spec:       v1.PodSpec{SchedulerName: "berth"},
		}
	}
	expect := func(what, version string, bytes int) {
		t.Helper()
		if v, n := m.versionOf(name, "u"); v != version || n != bytes {
			t.Errorf("%s: version %s with %d bytes, want %s with %d", what, v, n, version, bytes)
		}
	}
	if err := m.Add(pod("10", 10)); err != nil {
		t.Fatal(err)
	}
	expect("told", "10", 10)
	m.sawPod(pod("12", 1000))
	m.written(name, "u", statusPatch{}, "12")
	expect("written, with what others have written", "12", 1000)
	m.sawPod(pod("11", 500))
	expect("an older one", "12", 1000)
	if err := m.Update(pod("11", 500)); err != nil {
		t.Fatal(err)
	}
	expect("what was told late", "12", 1000)
	if err := m.Update(pod("13", 20)); err != nil {
		t.Fatal(err)
	}
	expect("what is newer than all", "13", 20)
}

// writers is how many write at once while the pods are listed again.
const writers = 16

func TestAMirrorIsReplacedWhileStatusIsWritten(t *testing.T) {
	const pods, lists = 300, 200
	told := make(map[string]bool) // by uid; the teller's lock guards it
	m := newMirror(&teller{left: 1, sink: func(e source.Event) {
		switch e.Kind {
		case source.PodSet:
			told[e.Pod.UID] = true
		case source.PodGone:
			delete(told, e.Pod.UID)
		}
	}}, podKind(map[string]bool{"": true}, nil, nil, nil), func() {})
	list := func(from, end int) (objs []any) {
		for i := from; i < end; i++ {
			name := fmt.Sprintf("p%d", i)
			objs = append(objs, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}})
		}
		return objs
	}
	all, some := list(0, pods), list(pods/3, pods)
	var done atomic.Bool
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			node := fmt.Sprint(w)
			for i := 0; !done.Load(); i = (i + 1) % pods {
				name := types.NamespacedName{Name: fmt.Sprintf("p%d", i)}
				m.waiting(name, types.UID(name.Name))
				m.written(name, types.UID(name.Name), statusPatch{NominatedNodeName: &node}, "2")
			}
		})
	}
	for i := range lists {
		objs := all
		if i%2 == 0 {
			objs = some
		}
		if err := m.Replace(objs, "1"); err != nil {
			t.Error(err)
		}
	}
	done.Store(true)
	writing.Wait()
	if len(told) != pods || len(m.objects) != pods {
		t.Errorf("%d pods are told and %d are kept, want %d", len(told), len(m.objects), pods)
	}
}

// forgetful is an API server behind a proxy that has forgotten where every watch of pods left off, so that they are listed
// again and again.
type forgetful struct {
	*httptest.Server
	lists atomic.Int32
}

func startForgetful(t *testing.T, c *testCluster) *forgetful {
	t.Helper()
	f := new(forgetful)
	f.Server = startProxy(t, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		pods := strings.HasSuffix(r.URL.Path, "/api/v1/pods")
		if pods && r.URL.Query().Get("watch") != "" {
			if !refuseInitialEvents(w, r) {
				refuse(w, http.StatusGone, metav1.StatusReasonExpired)
			}
			return
		}
		next.ServeHTTP(w, r)
		if pods {
			f.lists.Add(1)
		}
	})
	return f
}

// startProxy starts a proxy before the API server, which asks handle what to do with each request.
func startProxy(t *testing.T, c *testCluster, handle func(w http.ResponseWriter, r *http.Request, next http.Handler)) *httptest.Server {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.plane.URL())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Authorization") // the transport has its own
		handle(w, r, proxy)
	}))
	t.Cleanup(server.Close)
	return server
}

// refuseInitialEvents refuses a list that is to come as a watch, as an API server does that does not know these.
func refuseInitialEvents(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Query().Get("sendInitialEvents") == "" {
		return false
	}
	refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	return true
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"no"}`, reason, code)
}

func TestPodsAreListedAgainWhileBindsAndStatusAreWritten(t *testing.T) {
	c := startCluster(t)
	c.SetNode(t, sourcetest.Node("one"))
	var bindings []source.Binding
	for i := range 4 * writers {
		name := fmt.Sprintf("p%d", i)
		bindings = append(bindings, source.Binding{UID: c.SetPod(t, sourcetest.Pod(name)), Namespace: "default", Name: name, Node: "one"})
	}
	server := startForgetful(t, c)
	cfg := c.config()
	cfg.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, cfg.Kubeconfig, server.URL)
	s := newSource(t, cfg)
	r := sourcetest.Record(t, s).Synced()
	var done atomic.Bool
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := 0; !done.Load(); i++ {
				b := bindings[w+writers*(i%4)]
				report := source.Report{
					UID: b.UID, Namespace: b.Namespace, Name: b.Name, Reason: "Unschedulable",
					Message: fmt.Sprintf("try %d", i), Nominate: true, Nominated: []string{"", "one"}[i%2],
				}
				if err := s.Unschedulable(within(t), report); err != nil {
					t.Error(err)
				}
				if i%4 == 3 { // the last of each writer is deleted or bound, and told by the next list
					if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone && out[0].Result != source.BindUnknown {
						t.Errorf("Bind: %+v", out[0])
					}
				}
			}
		})
	}
	await(t, func() string {
		if n := server.lists.Load(); n < 5 {
			return fmt.Sprintf("the pods were listed %d times", n)
		}
		return ""
	})
	done.Store(true)
	writing.Wait()
	for i := range writers {
		b := bindings[3*writers+i]
		if out := s.Bind(within(t), coord.Cond{}, []source.Binding{b}); out[0].Result != source.BindDone {
			t.Errorf("Bind: %+v", out[0])
		}
		r.Pod(b.Namespace, b.Name, "one")
	}
}
