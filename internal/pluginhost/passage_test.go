package pluginhost

import (
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// oneNode has one node.
type oneNode struct{ node *corev1.Node }

func (o oneNode) Node(name string) *corev1.Node {
	if name == o.node.Name {
		return o.node
	}
	return nil
}

func (oneNode) NodeChanges() uint64 { return 1 }

func passageTo(t *testing.T, objects bool) *Judging {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"was": "there"}, Annotations: map[string]string{"cards": "8"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
	node.Spec.ProviderID = "somewhere"
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
	h, err := New(Config{
		Services:  []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Timeout: time.Minute, Objects: objects}, {Name: "own", Plugins: []Plugin{{Name: "Q"}}, Profile: "one", Timeout: time.Minute}},
		Profiles:  []cluster.Profile{{SchedulerName: "one", Filters: []string{"P", "Q"}}},
		Arguments: map[string]map[string][]byte{"one": {"P": []byte(`{"model":"x"}`)}}, Objects: oneNode{node}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	all := h.Passages()
	if len(all) != 1 || all[0].Service().Name != "s" {
		t.Fatalf("there are passages %v: want that to the service which is of no profile alone", all)
	}
	return &Judging{service: all[0].service, depends: dependencies{object: true}}
}

// Whoever asks from elsewhere says neither whether it is a question, nor with which arguments.
func TestAFirstRequestHasTheArgumentsAndIsAQuestion(t *testing.T) {
	p := passageTo(t, true)
	for id, want := range map[int64]*pluginv1.JudgeRequest{
		1: {Id: 1, Hypothetical: true, TellsAnnotations: true, Profiles: []*pluginv1.Profile{{SchedulerName: "one", Arguments: []*pluginv1.PluginArguments{{Plugin: "P", Json: []byte(`{"model":"x"}`)}}}}},
		2: {Id: 2},
	} {
		r := &pluginv1.JudgeRequest{Id: id, Profiles: []*pluginv1.Profile{{SchedulerName: "another"}}, Hypothetical: id == 2}
		if err := p.Complete(r, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r, protocmp.Transform()); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", id, diff)
		}
	}
}

// The object of a node is the cluster's, with what the question has changed; one that the question has added has what is told of it.
func TestObjectsOfNodesAreAsTheQuestionHasThem(t *testing.T) {
	spec := func(name string) *pluginv1.NodeSpec {
		return &pluginv1.NodeSpec{
			Name: name, Labels: map[string]string{"is": "told"}, Unschedulable: true, Taints: []*pluginv1.Taint{{Key: "k", Effect: "NoSchedule"}},
			Allocatable: map[string]int64{"cpu": 2000, "memory": 2 << 30, "cards": 3},
		}
	}
	objects := func(may bool) map[string]*corev1.Node {
		r := &pluginv1.JudgeRequest{Id: 2, Nodes: []*pluginv1.Node{{Id: 1, Spec: spec("a")}, {Id: 2, Spec: spec("new")}, {Id: 3}}}
		if err := passageTo(t, may).Complete(r, nil); err != nil {
			t.Fatal(err)
		}
		out := make(map[string]*corev1.Node)
		for _, n := range r.GetNodes() {
			if encoded := n.GetSpec().GetObject(); len(encoded) > 0 {
				object := new(corev1.Node)
				if err := json.Unmarshal(encoded, object); err != nil {
					t.Fatal(err)
				}
				out[object.Name] = object
			}
		}
		return out
	}
	want := func(name string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": "told"}}}
		n.Spec.Unschedulable, n.Spec.Taints = true, []corev1.Taint{{Key: "k", Effect: "NoSchedule"}}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("2Gi"), "cards": resource.MustParse("3")}
		return n
	}
	known := want("a")
	known.Annotations, known.Spec.ProviderID = map[string]string{"cards": "8"}, "somewhere"
	if diff := cmp.Diff(map[string]*corev1.Node{"a": known, "new": want("new")}, objects(true)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if got := objects(false); len(got) > 0 {
		t.Errorf("a service that may have no objects is sent %v", got)
	}
}

// A pod that has metadata alone stands for the cluster's; another one is what the question says.
func TestPodsThatAreNamedAreFilledIn(t *testing.T) {
	encode := func(p *corev1.Pod) []byte {
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	named := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}}
	whole := named.DeepCopy()
	whole.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	brought := whole.DeepCopy()
	brought.Name = "brought"
	gone := named.DeepCopy()
	gone.Name = "gone"
	find := func(like *corev1.Pod) (*corev1.Pod, error) {
		if like.Name == "p" && like.UID == "u" {
			return whole, nil
		}
		return nil, nil
	}
	for _, may := range []bool{true, false} {
		r := &pluginv1.JudgeRequest{Id: 2, Kinds: []*pluginv1.Kind{{Id: 1, Object: encode(named)}, {Id: 2, Object: encode(brought)}, {Id: 3, Object: encode(gone)}, {Id: 4}}}
		if err := passageTo(t, may).Complete(r, find); err != nil {
			t.Fatal(err)
		}
		for k, want := range [][]byte{encode(whole), encode(brought), encode(gone), nil} {
			if !may {
				want = nil
			}
			if got := r.GetKinds()[k].GetObject(); string(got) != string(want) {
				t.Errorf("objects %v: kind %d has %s, want %s", may, k+1, got, want)
			}
		}
	}
	fails := errors.New("the API server is away")
	r := &pluginv1.JudgeRequest{Id: 2, Kinds: []*pluginv1.Kind{{Id: 1, Object: encode(named)}}}
	if err := passageTo(t, true).Complete(r, func(*corev1.Pod) (*corev1.Pod, error) { return nil, fails }); !errors.Is(err, fails) {
		t.Errorf("a pod that cannot be read: %v", err)
	}
}
