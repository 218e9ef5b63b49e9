package pluginhost

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// toAnnotations returns a host of a service that depends on annotations, and on pods on nodes, and what it may be sent of nodes.
func toAnnotations(t *testing.T, s *scripted) (*Host, *keptNodes) {
	t.Helper()
	s.plugins = []*pluginv1.PluginDescription{
		{Name: "P", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Annotations: true, Pods: true}},
		{Name: "Unused", Filters: true, Depends: &pluginv1.Dependencies{Objects: true}},
	}
	service, nodes := serviceOf("s", s.serve(t), "P"), &keptNodes{nodes: make(map[string]*corev1.Node)}
	service.Objects = true
	h, err := New(Config{Services: []Service{service}, Profiles: []cluster.Profile{profile("default-scheduler", "P")}, Objects: nodes, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return h, nodes
}

// A service that depends on annotations is told those of the pod that is asked about, and no object. Pods are of one kind if their annotations are the same, whatever else they are; those without any are of that of pods on nodes.
func TestAnnotationsTellKindsApart(t *testing.T) {
	s := &scripted{}
	h, nodes := toAnnotations(t, s)
	st, subjects := world(t, 2)
	placed, _ := st.PodByUID("u0")
	if err := st.Apply(cluster.PodAssumed{ID: placed, Node: 1, Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		nodes.set(object(fmt.Sprint("n", i), "yes"))
	}
	nodes.reads = 0
	many := make(map[string]string)
	for i := range 20 {
		many[fmt.Sprint(i)] = "x"
	}
	ids := make(map[string]int32)
	for _, tt := range []struct {
		kind        string // the same for those that are to be of one
		annotations map[string]string
		want        map[string]string // that are told; nil: the kind is known
	}{
		{"none", nil, nil},
		{"none", map[string]string{}, nil},
		{"one", map[string]string{"a": "bc"}, map[string]string{"a": "bc"}},
		{"one", map[string]string{"a": "bc"}, nil},
		{"cut elsewhere", map[string]string{"ab": "c"}, map[string]string{"ab": "c"}},
		{"cut nowhere", map[string]string{"a": "b", "c": ""}, map[string]string{"a": "b", "c": ""}},
		{"many", many, many},
		{"many", many, nil},
		{"many", many, nil},
		{"no text", map[string]string{"a": "b\xff"}, map[string]string{"a": "b\ufffd"}},
		{"none", nil, nil},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", len(s.asked)), UID: types.UID(fmt.Sprint("u", len(s.asked))), GenerateName: fmt.Sprint("g", len(s.asked)), Annotations: tt.annotations}}
		pod.Spec.Containers = []corev1.Container{{Image: fmt.Sprint("i", len(s.asked))}}
		before, was := len(s.asked), maps.Clone(tt.annotations)
		k, err := h.Begin(t.Context(), 1, "default-scheduler")
		if err != nil {
			t.Fatal(err)
		}
		if !k.NeedsPod() {
			t.Error("it needs no pod")
		}
		if err := k.SetPod(pod); err != nil {
			t.Fatal(err)
		}
		k.Refresh()
		k.Collect(st, subjects[0], []cluster.NodeIndex{0, 1})
		if err := k.Exchange(t.Context()); err != nil {
			t.Fatalf("%s: %v", tt.kind, err)
		}
		id := k.parts[0].kind.id
		k.Done()
		if !maps.Equal(pod.Annotations, was) {
			t.Errorf("%s: the pod has annotations %q now", tt.kind, pod.Annotations)
		}
		if was, known := ids[tt.kind]; known && was != id {
			t.Errorf("%s: another kind", tt.kind)
		}
		for kind, other := range ids {
			if kind != tt.kind && other == id {
				t.Errorf("%s: the kind of %s", tt.kind, kind)
			}
		}
		_, known := ids[tt.kind]
		if asked := len(s.asked) > before; asked == known {
			t.Errorf("%s: the service is asked: %v, though what it has said of the kind is known: %v", tt.kind, asked, known)
		}
		ids[tt.kind] = id
		for _, r := range s.asked[before:] {
			for _, m := range r.GetKinds() {
				if diff := cmp.Diff(tt.want, m.GetAnnotations()); diff != "" || len(m.GetObject()) > 0 {
					t.Errorf("%s: told with object %q, annotations (-want +got):\n%s", tt.kind, m.GetObject(), diff)
				}
			}
			for _, n := range r.GetNodes() {
				if len(n.GetSpec().GetObject()) > 0 {
					t.Errorf("%s: the object of node %d is told", tt.kind, n.GetId())
				}
				for _, p := range n.GetAdded() {
					if p.GetKind() != ids["none"] {
						t.Errorf("a pod on a node is of kind %d, want %d", p.GetKind(), ids["none"])
					}
				}
			}
		}
	}
	if nodes.reads != 0 {
		t.Errorf("%d objects of nodes were looked at", nodes.reads)
	}
	if all := s.asked[0]; len(all.GetNodes()) != 2 || len(all.GetNodes()[1].GetAdded()) != 1 {
		t.Errorf("first it is told %v", all)
	}
}

// Who looks for a way for a pod is told its annotations, and the next pod's, though it is asked nothing else.
func TestWhoLooksForAWayIsToldAnnotations(t *testing.T) {
	s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", PostFilters: true, Depends: &pluginv1.Dependencies{Annotations: true}}}}
	s.answer = func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
		return &pluginv1.JudgeResponse{Id: r.GetId(), Answers: []*pluginv1.Answer{{PostFiltered: &pluginv1.PostFiltered{Success: true}}}}, nil
	}
	service := serviceOf("s", s.serve(t), "P")
	service.Objects = true
	h, err := New(Config{Services: []Service{service}, Profiles: []cluster.Profile{{SchedulerName: "default-scheduler", PostFilters: []string{"P"}}}, Objects: noNodes{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	st, subjects := world(t, 1)
	for n, want := range []string{"first", "second"} {
		k, err := h.BeginPostFilter(t.Context(), 1, "default-scheduler", []string{"P"})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": want}}}); err != nil {
			t.Fatal(err)
		}
		of := k.PostFilters([]string{"P"})
		k.CollectPostFilter(st, subjects[0], of[0], []RefusedNode{{0, "n0", Refusal{Plugin: "Q", Reason: "no"}}})
		if err := k.Exchange(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.Done()
		kinds := s.asked[n].GetKinds()
		if len(kinds) != 1 || kinds[0].GetAnnotations()["a"] != want || len(kinds[0].GetObject()) > 0 {
			t.Errorf("it is told %v, want the annotation %s alone", kinds, want)
		}
	}
}

// Of a pod of a placement, or one that is to be let in or sorted, a service is told what its plugins depend on, at these steps alone. One that depends on nothing of it has it read by nobody.
func TestOfPlacedPodsIsToldWhatPluginsDependOn(t *testing.T) {
	for _, depends := range []*pluginv1.Dependencies{{}, {Objects: true}, {Annotations: true}, {Objects: true, Annotations: true}, {Pod: true}} {
		s := &stepper{name: "P", depends: depends}
		profile := engine.DefaultProfile("default-scheduler")
		profile.PreEnqueues, profile.QueueSort = []string{"P"}, "P"
		all := []string{"P"}
		h, err := New(Config{
			Services: []Service{{Name: "s", Plugins: []Plugin{{Name: "P"}}, Conn: s.serve(t), Timeout: time.Minute, PreBindTimeout: time.Hour, Objects: true}},
			Profiles: []cluster.Profile{profile}, Steps: map[string]Steps{"default-scheduler": {Reserve: all, Permit: all}}, Objects: noNodes{}, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.EndPlacing(math.MaxInt64) })
		read := 0
		pod := func(context.Context) (*corev1.Pod, error) {
			read++
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "is read", Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "\xff"}}}, nil
		}
		h.Stands(t.Context(), 1, func() []Standing { return []Standing{{placementOf("stands"), pod}} })
		if out := h.PreEnqueue(t.Context(), 1, "default-scheduler", []Entering{{UID: "u", Namespace: "n", Name: "p", Pod: pod}}); out[0].Err != nil {
			t.Fatal(out[0].Err)
		}
		if _, err := h.Reserve(t.Context(), 1, placementOf("p"), pod); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Permit(t.Context(), 1, placementOf("p"), nil); err != nil {
			t.Fatal(err)
		}
		has := ""
		if depends.GetObjects() || depends.GetPod() {
			has += ", the object"
		}
		if depends.GetAnnotations() {
			has += ", map[l:1] map[a:\ufffd]"
		}
		want := []string{"STEP_RESERVE stands" + has, "STEP_PRE_ENQUEUE p" + has, "STEP_QUEUE_SORT p" + has, "STEP_RESERVE p" + has, "STEP_PERMIT p"}
		var told []string
		for _, r := range s.requests()[1:] {
			p := r.GetPlacement()
			text := fmt.Sprint(r.GetStep(), " ", p.GetName())
			if strings.Contains(string(p.GetObject()), "is read") {
				text += ", the object"
			}
			if len(p.GetPodLabels())+len(p.GetPodAnnotations()) > 0 {
				text += fmt.Sprint(", ", p.GetPodLabels(), " ", p.GetPodAnnotations())
			}
			told = append(told, text)
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("%v: (-want +got):\n%s", depends, diff)
		}
		if (read > 0) != (has != "") {
			t.Errorf("%v: pods are read %d times", depends, read)
		}
	}
}

// Annotations may say what is not for everybody: a service is sent them only if the configuration lets it.
func TestAnnotationsTakeThePermissionForObjects(t *testing.T) {
	for _, depends := range []*pluginv1.Dependencies{{Annotations: true}, {Objects: true}, {Pod: true}, {Pods: true}} {
		for _, may := range []bool{true, false} {
			s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Depends: depends}}}
			service := serviceOf("s", s.serve(t), "P")
			service.Objects = may
			h, err := New(Config{Services: []Service{service}, Profiles: []cluster.Profile{profile("default-scheduler", "P")}, Objects: noNodes{}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.Begin(t.Context(), 1, "default-scheduler")
			if refused := err != nil && strings.Contains(err.Error(), "say objects: true of the service"); refused != (!may && !depends.GetPods()) {
				t.Errorf("%v, objects: %v: %v", depends, may, err)
			}
		}
	}
}

// Who passes on what people ask adds what plugins depend on that are asked, and nothing else.
func TestAQuestionIsCompletedByWhatIsDependedOn(t *testing.T) {
	encoded, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}})
	if err != nil {
		t.Fatal(err)
	}
	brought := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	whole, err := json.Marshal(brought)
	if err != nil {
		t.Fatal(err)
	}
	found := brought.DeepCopy()
	found.Annotations = map[string]string{"a": "found"}
	for name, tt := range map[string]struct {
		plugins []*pluginv1.PluginDescription
		may     bool
		want    string // of the pod that is found, of one that is gone, of one that is brought, and of the node
	}{
		"nothing":           {[]*pluginv1.PluginDescription{{Name: "P"}}, true, "|||"},
		"objects":           {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Objects: true}}}, true, "object|object|object|object"},
		"annotations":       {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Annotations: true}}}, true, "found||brought|"},
		"both":              {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Annotations: true, Objects: true}}}, true, "object found|object|object brought|object"},
		"both, and may not": {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Annotations: true, Objects: true}}}, false, "|||"},
		"another's":         {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Annotations: true}}, {Name: "Unused", Depends: &pluginv1.Dependencies{Objects: true}}}, true, "found||brought|"},
		"who is not asked":  {[]*pluginv1.PluginDescription{{Name: "P", Depends: &pluginv1.Dependencies{Annotations: true}}, {Name: "All", Depends: &pluginv1.Dependencies{Objects: true, Cluster: true}}}, true, "found||brought|"},
	} {
		s := &scripted{plugins: tt.plugins}
		service := serviceOf("s", s.serve(t), "P", "All")
		service.Objects = tt.may
		h, err := New(Config{Services: []Service{service}, Profiles: []cluster.Profile{profile("default-scheduler", "P", "All")}, Objects: oneNode{object("a", "yes")}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		j, err := h.Passages()[0].Judge(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// As an Inquiry tells them: what it does not have is named by an object.
		r := &pluginv1.JudgeRequest{Id: 2, Kinds: []*pluginv1.Kind{{Id: 1, Object: encoded}, {Id: 2, Object: encoded}, {Id: 3, Annotations: map[string]string{"a": "brought"}}}, Nodes: []*pluginv1.Node{{Id: 1, Spec: &pluginv1.NodeSpec{Name: "a"}}}}
		if j.depends.object {
			r.Kinds[2].Object = whole
		}
		if !j.depends.annotations {
			r.Kinds[2].Annotations = nil
		}
		looks := 0
		err = j.Complete(r, func(*corev1.Pod) (*corev1.Pod, error) {
			if looks++; looks == 2 {
				return nil, nil
			}
			return found, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range r.GetKinds() {
			text := k.GetAnnotations()["a"]
			if len(k.GetObject()) > 0 {
				text = strings.TrimSpace("object " + text)
			}
			got = append(got, text)
		}
		if len(r.GetNodes()[0].GetSpec().GetObject()) > 0 {
			got = append(got, "object")
		} else {
			got = append(got, "")
		}
		if got := strings.Join(got, "|"); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A pod that is bound gets its node's zone: what has been said of the node holds, and the pod is told as it was. Of other labels that it gets, it is told.
func TestWhoDependsOnPodsIsNotAskedAnewForAZoneThatABoundPodGets(t *testing.T) {
	s := &scripted{plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Depends: &pluginv1.Dependencies{Pods: true}}}}
	h, err := New(Config{Services: []Service{serviceOf("s", s.serve(t), "P")}, Profiles: []cluster.Profile{profile("default-scheduler", "P")}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	st, subjects := world(t, 2)
	apply := func(deltas ...cluster.Delta) {
		t.Helper()
		for _, d := range deltas {
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	zone := cluster.Label{Key: "topology.kubernetes.io/zone", Value: "z"}
	apply(
		cluster.NodeSet{Index: 1, Node: cluster.Node{Name: "n1", Labels: []cluster.Label{zone}, Allocatable: []cluster.Quantity{{Name: "pods", Value: 10}}}},
		cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Namespace: "n", Labels: []cluster.Label{{Key: "app", Value: "web"}}}},
		cluster.LabelsDefined{ID: 2, Set: cluster.LabelSet{Namespace: "n", Labels: []cluster.Label{{Key: "app", Value: "web"}, zone}}},
		cluster.LabelsDefined{ID: 3, Set: cluster.LabelSet{Namespace: "n", Labels: []cluster.Label{{Key: "app", Value: "db"}, zone}}},
	)
	pod := cluster.Pod{UID: "w", Namespace: "n", Name: "w", Class: subjects[1].Class, Labels: 1}
	id := st.FreePod()
	apply(cluster.PodSet{ID: id, Pod: pod})
	apply(cluster.PodSet{ID: st.FreePod(), Pod: cluster.Pod{UID: "waits", Namespace: "n", Name: "waits", Class: subjects[1].Class, Labels: 1}}) // so that the labels stay
	other := cluster.Pod{UID: "v", Namespace: "n", Name: "v", Class: subjects[1].Class, NodeName: "n1"}
	for _, tt := range []struct {
		what string
		then cluster.Delta
		want string // that is told of pods of the node; "": nobody asks
	}{
		{"it begins", cluster.NamespaceSet{Name: "n"}, "[] []"},
		{"a pod comes", cluster.PodAssumed{ID: id, Node: 1, Attempt: 1}, "[w web] []"},
		{"it is bound, and gets the zone", cluster.PodSet{ID: id, Pod: with(pod, func(p *cluster.Pod) { p.NodeName, p.Labels = "n1", 2 })}, ""},
		{"another one comes", cluster.PodSet{ID: st.FreePod(), Pod: other}, "[v ] []"},
		{"it gets another label", cluster.PodSet{ID: id, Pod: with(pod, func(p *cluster.Pod) { p.NodeName, p.Labels = "n1", 3 })}, "[w db] [w]"},
		{"it goes", cluster.PodRemoved{ID: id}, "[] [w]"},
	} {
		before := len(s.asked)
		apply(tt.then)
		if _, err := judge(t, h, st, subjects[0]); err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		var got []string
		for _, r := range s.asked[before:] {
			apps := make(map[int32]string)
			for _, all := range s.asked {
				for _, k := range all.GetKinds() {
					apps[k.GetId()] = k.GetLabels()["app"]
				}
			}
			for _, n := range r.GetNodes() {
				if n.GetId() != 1 {
					continue
				}
				var added []string
				for _, p := range n.GetAdded() {
					added = append(added, p.GetUid()+" "+apps[p.GetKind()])
				}
				got = append(got, fmt.Sprint(added, " ", n.GetRemoved()))
			}
		}
		if text := strings.Join(got, "; "); text != tt.want {
			t.Errorf("%s: %q is told, want %q", tt.what, text, tt.want)
		}
		if asked := len(s.asked) > before; asked != (tt.want != "") {
			t.Errorf("%s: it is asked: %v", tt.what, asked)
		}
	}
}

func with(p cluster.Pod, change func(*cluster.Pod)) cluster.Pod {
	change(&p)
	return p
}
