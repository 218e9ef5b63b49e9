package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// situation is a small cluster and a pod, as a file in testdata says it.
type situation struct {
	Name  string                       `json:"name"`
	Nodes map[string]map[string]string `json:"nodes"` // labels by name; the hostname is added unless they are bare
	Bare  bool                         `json:"bare"`
	// Taints are those of nodes by name.
	Taints     map[string][]v1.Taint        `json:"taints"`
	Pods       []situationPod               `json:"pods"`    // on nodes
	Waiting    []situationPod               `json:"waiting"` // nominated to nodes
	Namespaces map[string]map[string]string `json:"namespaces"`
	Services   []map[string]string          `json:"services"` // selectors, in the default namespace
	// Controllers are replica sets and stateful sets by name, replicationControllers what they say.
	ReplicaSets            map[string]*metav1.LabelSelector `json:"replicaSets"`
	StatefulSets           map[string]*metav1.LabelSelector `json:"statefulSets"`
	ReplicationControllers map[string]map[string]string     `json:"replicationControllers"`
	Pod                    situationPod                     `json:"pod"`

	HardPodAffinityWeight *int32                        `json:"hardPodAffinityWeight"`
	IgnorePreferredTerms  bool                          `json:"ignorePreferredTerms"`
	DefaultConstraints    []v1.TopologySpreadConstraint `json:"defaultConstraints"` // none said: the system's

	// Not are the nodes that the plugin excludes, Best those that it scores highest among the feasible, if it does not
	// score them all alike. Both are of kube-scheduler's decision.
	Not  []string `json:"not"`
	Best []string `json:"best"`
}

type situationPod struct {
	Node         string                        `json:"node"`  // that it is on, or nominated to
	Count        int                           `json:"count"` // of equal pods; 0 means 1
	Namespace    string                        `json:"namespace"`
	Labels       map[string]string             `json:"labels"`
	Owner        string                        `json:"owner"` // kind/name of the controller
	Terminating  bool                          `json:"terminating"`
	Priority     *int32                        `json:"priority"`
	CPU          string                        `json:"cpu"`
	Near         []v1.PodAffinityTerm          `json:"near"` // required affinity
	Apart        []v1.PodAffinityTerm          `json:"apart"`
	Likes        []v1.WeightedPodAffinityTerm  `json:"likes"` // preferred affinity
	Avoids       []v1.WeightedPodAffinityTerm  `json:"avoids"`
	Spread       []v1.TopologySpreadConstraint `json:"spread"`
	NodeSelector map[string]string             `json:"nodeSelector"`
	Tolerations  []v1.Toleration               `json:"tolerations"`
}

// pods returns the pods that p stands for.
func (p *situationPod) pods(name string) []*v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(p.Namespace, "default"), Labels: p.Labels},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{Name: "c", Image: "i"}},
			NodeSelector: p.NodeSelector, Tolerations: p.Tolerations, Priority: p.Priority, TopologySpreadConstraints: p.Spread,
			Affinity: &v1.Affinity{
				PodAffinity:     &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: p.Near, PreferredDuringSchedulingIgnoredDuringExecution: p.Likes},
				PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: p.Apart, PreferredDuringSchedulingIgnoredDuringExecution: p.Avoids},
			},
		},
	}
	if p.CPU != "" {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(p.CPU)}
	}
	if p.Terminating {
		pod.DeletionTimestamp = &deleted
	}
	if p.Owner != "" {
		kind, owner := cutLast(p.Owner)
		version := "apps/v1"
		if kind == cluster.KindReplicationController {
			version = "v1"
		}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: owner, Controller: ptr.To(true)}}
	}
	var out []*v1.Pod
	for i := range max(p.Count, 1) {
		out = append(out, named(pod, fmt.Sprintf("%s-%d", name, i)))
	}
	return out
}

// scene returns the situation in terms of objects.
func (s *situation) scene(t failer) *scene {
	out := &scene{profiles: []config.KubeSchedulerProfile{s.profile(t)}, pod: s.Pod.pods("pod")[0]}
	for _, name := range sortedKeys(s.Nodes) {
		node := plain(name, 1)
		if node.Labels = maps.Clone(s.Nodes[name]); !s.Bare {
			if node.Labels == nil {
				node.Labels = make(map[string]string)
			}
			node.Labels[v1.LabelHostname] = name
		}
		node.Spec.Taints = s.Taints[name]
		out.nodes = append(out.nodes, node)
	}
	for i := range s.Pods {
		for _, p := range s.Pods[i].pods(fmt.Sprintf("running-%d", i)) {
			out.pods = append(out.pods, onNode(p, s.Pods[i].Node, v1.PodStatus{Phase: v1.PodRunning}))
		}
	}
	for i := range s.Waiting {
		for _, p := range s.Waiting[i].pods(fmt.Sprintf("waiting-%d", i)) {
			p.Status.NominatedNodeName = s.Waiting[i].Node
			out.waiting = append(out.waiting, p)
		}
	}
	out.pod.Status.NominatedNodeName = s.Pod.Node
	for _, name := range sortedKeys(s.Namespaces) {
		out.namespaces = append(out.namespaces, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: s.Namespaces[name]}})
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	for i, selector := range s.Services {
		out.owners = append(out.owners, &v1.Service{ObjectMeta: meta(fmt.Sprintf("service-%d", i)), Spec: v1.ServiceSpec{Selector: selector}})
	}
	for _, name := range sortedKeys(s.ReplicaSets) {
		out.owners = append(out.owners, &appsv1.ReplicaSet{ObjectMeta: meta(name), Spec: appsv1.ReplicaSetSpec{Selector: s.ReplicaSets[name]}})
	}
	for _, name := range sortedKeys(s.StatefulSets) {
		out.owners = append(out.owners, &appsv1.StatefulSet{ObjectMeta: meta(name), Spec: appsv1.StatefulSetSpec{Selector: s.StatefulSets[name]}})
	}
	for _, name := range sortedKeys(s.ReplicationControllers) {
		out.owners = append(out.owners, &v1.ReplicationController{ObjectMeta: meta(name), Spec: v1.ReplicationControllerSpec{Selector: s.ReplicationControllers[name]}})
	}
	return out
}

// profile is the default profile with the situation's arguments.
func (s *situation) profile(t failer) config.KubeSchedulerProfile {
	p := defaultProfile(t)
	for i := range p.PluginConfig {
		switch args := p.PluginConfig[i].Args.(type) {
		case *config.InterPodAffinityArgs:
			args.IgnorePreferredTermsOfExistingPods = s.IgnorePreferredTerms
			args.HardPodAffinityWeight = ptr.Deref(s.HardPodAffinityWeight, args.HardPodAffinityWeight)
		case *config.PodTopologySpreadArgs:
			if s.DefaultConstraints != nil {
				args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, s.DefaultConstraints
			}
		}
	}
	return p
}

// TestSituationsAreJudgedTheSame judges each situation of testdata; the name of a file is that of a plugin.
func TestSituationsAreJudgedTheSame(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("find situations: %v, %v", files, err)
	}
	judged := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var situations []situation
		if err := yaml.UnmarshalStrict(text, &situations); err != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		plugin := file[len("testdata/") : len(file)-len(".yaml")]
		for i := range situations {
			judged++
			t.Run(plugin+"/"+situations[i].Name, func(t *testing.T) { situations[i].judge(t, plugin) })
		}
	}
	t.Logf("%d situations judged", judged)
}

// judge judges the situation as it comes about, object by object, and then says whether it is what it claims to be.
func (s *situation) judge(t *testing.T, plugin string) {
	var n tally
	scene := s.scene(t)
	w := newWorld(t, scene.profiles, gates{}, 1, &n)
	id := w.enter(scene.pod)
	everywhere := []cluster.Range{{First: 0, End: cluster.MaxIndex}}
	var decided *decision
	step := func() {
		var difference string
		if decided, difference = w.difference(id, everywhere); difference != "" {
			t.Fatalf("%s\n%s", difference, w.scene(scene.pod))
		}
	}
	for i, node := range scene.nodes {
		w.setNode(node, cluster.NodeIndex(i))
	}
	step()
	for _, p := range scene.pods {
		w.run(p)
		step()
	}
	for _, p := range scene.waiting {
		w.enter(p)
		step()
	}
	for _, ns := range scene.namespaces {
		w.setNamespace(ns)
		step()
	}
	for _, o := range scene.owners {
		w.setOwner(o)
		step()
	}

	var not, best []string
	for _, name := range w.nodeNames() {
		if v, ok := decided.Verdicts[name]; ok && v.Plugin == plugin {
			not = append(not, name)
		}
	}
	if !slices.Equal(not, s.Not) {
		t.Errorf("%s excludes %v, the situation says %v", plugin, not, s.Not)
	}
	top := int64(0)
	for _, score := range decided.Scores {
		top = max(top, score.Weighted[plugin])
	}
	for _, name := range sortedKeys(decided.Scores) {
		if decided.Scores[name].Weighted[plugin] == top {
			best = append(best, name)
		}
	}
	if len(best) == len(decided.Scores) {
		best = nil
	}
	if !slices.Equal(best, s.Best) {
		t.Errorf("%s prefers %v of %v, the situation says %v", plugin, best, decided.Scores, s.Best)
	}
}
