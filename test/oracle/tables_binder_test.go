package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/kube"
)

// binderCall is a call of kube-scheduler's binder of volumes in one of its tests.
type binderCall struct {
	Test, Point    string
	Pod            *v1.Pod
	Node           *v1.Node       // where the call is about one
	Label          string         // the label that has a node's name
	Given          []binderChoice // nil: none was given, or one list of two
	Found          []binderChoice
	Claims         []*v1.PersistentVolumeClaim // those that a volume is given for
	Before, After  binderState
	Unbound, Bound bool     // the pod has claims that are to be bound at once; all are bound
	Reasons        []string // why the node is not feasible
	Error          string
}

// binderChoice is what the binder has chosen for a claim, with the version of what it writes to.
type binderChoice struct{ Claim, UID, Volume, Version string }

// binderState is what the binder knows.
type binderState struct {
	Objects upstreamObjects
	Assumed upstreamObjects // volumes and claims that differ from those
	Written upstreamObjects // volumes and claims as the API server has them
	Nodes   []*v1.Node
	Pods    []*v1.Pod
}

func choicesOf(all []binderChoice) (out []cluster.VolumeChoice) {
	for _, c := range all {
		out = append(out, cluster.VolumeChoice{Claim: c.Claim, UID: c.UID, Volume: c.Volume})
	}
	return out
}

// binderCalls returns the calls of the binder at some points, in order.
func binderCalls(t *testing.T, points ...string) (out []*binderCall) {
	for k := range upstreamTables {
		if table := &upstreamTables[k]; table.binds {
			for _, l := range table.told(t) {
				if slices.Contains(points, l.Point) {
					out = append(out, read[binderCall](t, l))
				}
			}
		}
	}
	return out
}

// sameChoices compares choices, whatever their order.
func sameChoices(want, got []cluster.VolumeChoice) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b cluster.VolumeChoice) bool { return a.Claim < b.Claim }))
}

// TestUpstreamsBinderFindsTheSameVolumes judges the nodes of the cases of FindPodVolumes, with all that it is asked before, and compares what is chosen.
func TestUpstreamsBinderFindsTheSameVolumes(t *testing.T) {
	var n tally
	found, refused, chosen, again := 0, 0, 0, 0
	others := make(map[string]bool)
	for _, c := range binderCalls(t, "GetPodVolumeClaims", "FindPodVolumes") {
		switch {
		case c.Point == "GetPodVolumeClaims" && c.Error == "" && !c.Unbound:
			continue // FindPodVolumes follows
		case c.Point == "GetPodVolumeClaims":
			refused++
			c.refuses(t, &n)
		case len(c.Before.Assumed.all()) > 0:
			again++
			c.findsAgain(t, &n)
		default:
			found++
			chosen += c.finds(t, &n, others)
		}
	}
	if found != 125 || refused != 28 || chosen != 76 || again != 50 {
		t.Errorf("%d cases of nodes, %d of pods that are refused before, %d claims that get something, %d of what is assumed", found, refused, chosen, again)
	}
	t.Logf("%d cases of nodes, %d of pods that are refused before, %d claims that get something, %d of what is assumed", found, refused, chosen, again)
	onlyTakesAnother(t, "FindPodVolumes", others)
	n.report(t)
}

// call is the call of the plugin that asks the binder.
func (c *binderCall) call() *upstreamCall {
	return &upstreamCall{Test: c.Test, Pod: c.Pod, Node: c.Node, Objects: c.Before.Objects, Reasons: c.Reasons, Code: "Success"}
}

// refuses judges a pod of which GetPodVolumeClaims says that it has no use of going on. The plugin may have refused it before, and so in other words.
func (c *binderCall) refuses(t *testing.T, n *tally) {
	w, id := c.call().scene(t, names.VolumeBinding).open(t, n)
	want, difference := w.difference(id, []cluster.Range{{First: 0, End: cluster.MaxIndex}})
	if difference != "" || want.failed == nil && len(want.Verdicts) == 0 {
		t.Errorf("%s: %s, and here %v: %s", c.Test, c.Error, want.Verdicts, difference)
	}
}

// finds judges the node, and if it is feasible chooses for the claims. It returns for how many.
func (c *binderCall) finds(t *testing.T, n *tally, others map[string]bool) int {
	call := c.call()
	switch {
	case c.Error != "":
		call.Code = "Error"
	case len(c.Reasons) > 0:
		call.Code = "UnschedulableAndUnresolvable"
	}
	w, id := call.judge(t, names.VolumeBinding, n)
	if call.Code != "Success" {
		return 0
	}
	got := c.choose(t, w.evaluator, w.state, id)
	if diff := sameChoices(choicesOf(c.Found), got); diff != "" && !c.alike(choicesOf(c.Found), got, others) {
		t.Errorf("%s: chosen (-kube-scheduler +Berth):\n%s", c.Test, diff)
	}
	return len(got)
}

// choose returns what the claims of a pod get on the node of the case.
func (c *binderCall) choose(t *testing.T, e *engine.Evaluator, st *cluster.State, id cluster.PodID) []cluster.VolumeChoice {
	got, ok := e.ChooseVolumes(st, engine.SubjectOf(&st.Pod(id).Pod), st.Nodes.ByName(c.Node.Name), nil)
	if !ok {
		t.Errorf("%s: Berth finds no volumes on the node", c.Test)
	}
	return got
}

// takesAnother are the cases, by point and test, in which kube-scheduler may choose another volume than Berth does: of volumes of one size it takes any, by
// the order of a map, so from run to run it is more or fewer of these; Berth takes the first by name.
var takesAnother = map[string]bool{
	"FindPodVolumes TestVolumeBinding/local_volumes_with_close_capacity_are_preferred":                 true,
	"FindPodVolumes TestVolumeBinding/local_volumes_with_close_capacity_are_preferred_(multiple_pvcs)": true,
	"FindPodVolumes TestVolumeBinding/zonal_volumes_with_close_capacity_are_preferred":                 true,
	"FindPodVolumes TestVolumeBinding/zonal_volumes_with_close_capacity_are_preferred_(custom_shape)":  true,
	"FindPodVolumes TestFindAssumeVolumes":                                                             true,
	"AssumePodVolumes TestFindAssumeVolumes":                                                           true,
}

// alike reports whether others are chosen that are as good: what a claim gets is as large, and of the same class, mode, access modes, node affinity and
// claim, if it has one. It notes the case.
func (c *binderCall) alike(want, got []cluster.VolumeChoice, others map[string]bool) bool {
	others[c.Point+" "+c.Test] = true
	given := func(all []cluster.VolumeChoice) map[string]*v1.PersistentVolumeSpec {
		out := make(map[string]*v1.PersistentVolumeSpec)
		for _, choice := range all {
			for _, v := range c.Before.Objects.PersistentVolume {
				if v.Name == choice.Volume {
					out[choice.Claim+" "+choice.UID] = &v1.PersistentVolumeSpec{
						Capacity: v.Spec.Capacity, StorageClassName: v.Spec.StorageClassName, VolumeMode: v.Spec.VolumeMode, AccessModes: v.Spec.AccessModes,
						NodeAffinity: v.Spec.NodeAffinity, ClaimRef: v.Spec.ClaimRef,
					}
				}
			}
			if choice.Volume == "" {
				out[choice.Claim+" "+choice.UID] = nil
			}
		}
		return out
	}
	anyOrder := cmpopts.SortSlices(func(a, b v1.NodeSelectorRequirement) bool { return a.Key < b.Key }) // they are made of maps
	return len(got) == len(want) && len(given(want)) == len(want) && cmp.Equal(given(want), given(got), cmpopts.EquateEmpty(), anyOrder)
}

// onlyTakesAnother fails if Berth and kube-scheduler have chosen different volumes in other cases than those in which they may.
func onlyTakesAnother(t *testing.T, point string, others map[string]bool) {
	t.Helper()
	for c := range others {
		if !takesAnother[c] {
			t.Errorf("%s: kube-scheduler chooses another volume", c)
		}
	}
	t.Logf("%s: kube-scheduler chooses other volumes in %d cases: %q", point, len(others), slices.Sorted(maps.Keys(others)))
}

// assumedChoices returns what the binder has assumed: by what was chosen.
func (c *binderCall) assumedChoices(s *binderState) (out []cluster.VolumeChoice) {
	for _, v := range s.Assumed.PersistentVolume {
		out = append(out, cluster.VolumeChoice{Claim: v.Spec.ClaimRef.Name, UID: string(v.Spec.ClaimRef.UID), Volume: v.Name})
	}
	for _, claim := range s.Assumed.PersistentVolumeClaim {
		out = append(out, cluster.VolumeChoice{Claim: claim.Name, UID: string(claim.UID)})
	}
	return out
}

// world is Berth's side alone, with the objects of a state, and the pod twice, pending. Only VolumeBinding judges.
func (c *binderCall) world(t *testing.T, s *binderState, n *tally) (w *world, first, second cluster.PodID) {
	profile := defaultProfile(t)
	w = newWorld(t, []config.KubeSchedulerProfile{profile}, gates{}, 1, n)
	for _, o := range s.Objects.all() {
		w.apply(cluster.ObjectSet{Object: reduceKept(o)})
	}
	nodes := s.Nodes
	if c.Node != nil {
		node := c.Node
		if len(node.Labels) == 0 { // known by its name only
			node = node.DeepCopy()
			node.Labels = map[string]string{c.Label: node.Name}
		}
		nodes = []*v1.Node{node}
	}
	for k, node := range nodes {
		full := plain(node.Name, 0)
		full.Labels = node.Labels
		w.apply(cluster.NodeSet{Index: cluster.NodeIndex(k), Node: source.ReduceNode(full)})
	}
	if c.Pod == nil {
		return w, cluster.NoPod, cluster.NoPod
	}
	another := c.Pod.DeepCopy()
	another.Name, another.UID = "another", "another"
	call := new(upstreamCall)
	return w, w.tell(call.complete(c.Pod, "judged", ""), true), w.tell(call.complete(another, "another", ""), true)
}

// findsAgain chooses where a choice has been assumed, for another pod with the same claims: they get the same, whatever it is.
func (c *binderCall) findsAgain(t *testing.T, n *tally) {
	assumed := c.assumedChoices(&c.Before)
	w, first, second := c.world(t, &c.Before, n)
	w.apply(cluster.PodAssumed{ID: first, Node: 0, Attempt: 1, Volumes: assumed})
	got := c.choose(t, w.evaluator, w.state, second)
	if diff := sameChoices(choicesOf(c.Found), got); diff != "" || len(c.Reasons) > 0 || c.Error != "" {
		t.Errorf("%s: chosen (-kube-scheduler +Berth):\n%s", c.Test, diff)
	}
}

// assumesWhatIsNot are the cases in which AssumePodVolumes fails, as there is no such volume, or the claim has another version by now, and whether Berth
// chooses what is given. It assumes nothing but what it has chosen on the ledger of the moment, which has one version of everything.
var assumesWhatIsNot = map[string]bool{
	"TestAssumePodVolumes/tmpupdate-failed":                            false,
	"TestAssumePodVolumes/one-binding,_one-provision-tmpupdate-failed": true,
}

// TestUpstreamsBinderAssumesTheSame assumes what is given in the cases of AssumePodVolumes, and takes it back in those of RevertAssumedPodVolumes. The
// volumes are those claims' then, or nobody's.
func TestUpstreamsBinderAssumesTheSame(t *testing.T) {
	var n tally
	assumed, reverted := 0, 0
	failed, others := make(map[string]bool), make(map[string]bool)
	var pod *v1.Pod
	var node *v1.Node
	for _, c := range binderCalls(t, "AssumePodVolumes", "RevertAssumedPodVolumes") {
		if c.Point == "RevertAssumedPodVolumes" {
			reverted++
			c.Pod, c.Node = pod, node // as were assumed in the same test
			w, id, _ := c.world(t, &c.Before, &n)
			w.apply(cluster.PodAssumed{ID: id, Node: 0, Attempt: 1, Volumes: c.assumedChoices(&c.Before)})
			c.compareAssumed(t, w.state, &c.Before)
			w.apply(cluster.PodForgotten{ID: id, Reason: "reverted"})
			c.compareAssumed(t, w.state, &c.After)
			continue
		}
		assumed++
		pod, node = c.Pod, c.Node
		w, id, _ := c.world(t, &c.Before, &n)
		chosen := c.choose(t, w.evaluator, w.state, id)
		given := choicesOf(c.Given)
		diff := sameChoices(given, chosen)
		if c.Error != "" {
			failed[c.Test] = diff == ""
			continue
		}
		if diff != "" && c.alike(given, chosen, others) {
			diff, chosen = "", given
		}
		if diff != "" {
			t.Errorf("%s: what is given is not what is chosen (-given +Berth):\n%s", c.Test, diff)
		}
		if (len(chosen) == 0) != c.Bound {
			t.Errorf("%s: all are bound: %v, and here %v are chosen", c.Test, c.Bound, chosen)
		}
		w.apply(cluster.PodAssumed{ID: id, Node: 0, Attempt: 1, Volumes: chosen})
		c.compareAssumed(t, w.state, &c.After)
	}
	if diff := cmp.Diff(assumesWhatIsNot, failed); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if assumed != 9 || reverted != 1 {
		t.Errorf("%d cases, and %d of taking back", assumed, reverted)
	}
	onlyTakesAnother(t, "AssumePodVolumes", others)
	t.Logf("%d cases, and %d of taking back", assumed, reverted)
}

// compareAssumed compares whose each volume is, and the node that each claim's is to be provisioned for.
func (c *binderCall) compareAssumed(t *testing.T, st *cluster.State, s *binderState) {
	want, got := make(map[string]string), make(map[string]string)
	for _, objects := range []*upstreamObjects{&s.Objects, &s.Assumed} { // what is assumed counts
		for _, v := range objects.PersistentVolume {
			want[v.Name] = ""
			if to := v.Spec.ClaimRef; to != nil {
				want[v.Name] = to.Namespace + "/" + to.Name
			}
		}
		for _, claim := range objects.PersistentVolumeClaim {
			want[claim.Namespace+"/"+claim.Name] = claim.Annotations[volume.AnnSelectedNode]
		}
	}
	for _, v := range s.Objects.PersistentVolume {
		is := st.PersistentVolume(v.Name)
		if got[v.Name] = ""; is.HasClaim {
			got[v.Name] = is.Claim.Namespace + "/" + is.Claim.Name
		} else if namespace, name, promised := st.Promised(v.Name); promised {
			got[v.Name] = namespace + "/" + name
		}
	}
	for _, claim := range s.Objects.PersistentVolumeClaim {
		is := st.PersistentVolumeClaim(claim.Namespace, claim.Name)
		_, node := st.Promise(is)
		if got[claim.Namespace+"/"+claim.Name] = node; node == "" {
			got[claim.Namespace+"/"+claim.Name] = is.SelectedNode
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: whose the volumes are, and for which node (-kube-scheduler +Berth):\n%s", c.Test, diff)
	}
}

// saysOtherwise is what Berth says, by the test, where it says it in other words: it does not know whether a claim has other annotations.
var saysOtherwise = map[string]string{
	"TestCheckBindings/provisioning-pvc-annotations-nil": `provisioning failed for PVC "provisioned-pvc"`,
}

// changesMeanwhile are the tests in which another goroutine changes something while kube-scheduler looks, so that it may say what was so before, or what
// is so afterwards, from run to run.
var changesMeanwhile = map[string]bool{
	"TestBindPodVolumes/binding-static-pv-succeeds-after-time":    true,
	"TestBindPodVolumes/binding-dynamic-pv-succeeds-after-time":   true,
	"TestBindPodVolumes/pod-deleted-after-time":                   true,
	"TestBindPodVolumes/check-fails":                              true,
	"TestBindPodVolumes/node-affinity-fails-dynamic-provisioning": true,
}

// TestUpstreamsBinderSeesTheSameBound asks whether the claims are bound, in the cases of checkBindings and whenever BindPodVolumes looks.
func TestUpstreamsBinderSeesTheSameBound(t *testing.T) {
	tests := make(map[string]int)
	behind := 0
	said, after := make(map[string]string), make(map[string]bool)
	for _, c := range binderCalls(t, "checkBindings") {
		if c.Given == nil {
			continue
		}
		if tests[c.Test]++; c.behind() { // then Berth does not look: the source answers when the watch has told what was written
			if behind++; c.Bound || c.Error != "" {
				t.Errorf("%s: kube-scheduler does not wait for the watch", c.Test)
			}
			continue
		}
		got, text := c.bound(t, &c.Before)
		if want, otherwise := saysOtherwise[c.Test]; otherwise && text == want && c.Error != "" {
			said[c.Test], text = text, c.Error
		}
		if got != c.Bound || text != c.Error {
			got, text = c.bound(t, &c.After)
			after[c.Test] = true
		}
		if got != c.Bound || text != c.Error {
			t.Errorf("%s: kube-scheduler says %v %q, Berth %v %q", c.Test, c.Bound, c.Error, got, text)
		}
	}
	if diff := cmp.Diff(saysOtherwise, said); diff != "" {
		t.Errorf("said otherwise (-want +got):\n%s", diff)
	}
	for test := range after {
		if !changesMeanwhile[test] {
			t.Errorf("%s: kube-scheduler says what is so when it has looked, Berth another thing before", test)
		}
	}
	t.Logf("kube-scheduler says in %d cases what is so when it has looked: %q", len(after), slices.Sorted(maps.Keys(after)))
	looks := 0
	for _, n := range tests {
		looks += n
	}
	if len(tests) != 34 {
		t.Errorf("%d cases", len(tests))
	}
	t.Logf("%d cases with %d looks, %d of them at less than had been written", len(tests), looks, behind)
}

// bound returns what Berth says of the claims in a state.
func (c *binderCall) bound(t *testing.T, s *binderState) (bound bool, text string) {
	w, _, _ := c.world(t, s, new(tally))
	bound, err := engine.VolumesBound(w.state, c.Pod.Namespace, c.Pod.Spec.NodeName, choicesOf(c.Given))
	if err != nil {
		text = err.Error()
	}
	return bound, text
}

// behind reports whether the binder knows less than it has written.
func (c *binderCall) behind() bool {
	version := func(o metav1.Object) int {
		n, err := strconv.Atoi(o.GetResourceVersion())
		if err != nil {
			return 0
		}
		return n
	}
	return slices.ContainsFunc(c.Given, func(g binderChoice) bool {
		written := version(&metav1.ObjectMeta{ResourceVersion: g.Version})
		for _, v := range c.Before.Objects.PersistentVolume {
			if g.Volume != "" && v.Name == g.Volume && version(v) < written {
				return true
			}
		}
		for _, claim := range c.Before.Objects.PersistentVolumeClaim {
			if g.Volume == "" && claim.Name == g.Claim && version(claim) < written {
				return true
			}
		}
		return false
	})
}

// goesOn are the cases that end kube-scheduler's attempt, as somebody else has written to an object meanwhile, and not Berth's: why it goes on.
var goesOn = map[string]string{
	"TestBindAPIUpdate/api-update-failed":                            "the volume has its claim already",
	"TestBindPodVolumes/bound-by-pv-controller-before-bind":          "the volume has its claim already",
	"TestBindAPIUpdate/provision-api-update-failed":                  "the claim is read again, and still waits for a node",
	"TestBindAPIUpdate/binding-succeed,_provision-api-update-failed": "the claim is read again, and still waits for a node",
}

// TestUpstreamsBinderWritesTheSame has source/kube write what is given in the cases of bindAPIUpdate, those of BindPodVolumes among them, while its watch
// has told what the binder knows. The API server must have the same volumes and claims afterwards. The cases leave out the claims that get a volume:
// they are there.
func TestUpstreamsBinderWritesTheSame(t *testing.T) {
	cases := 0
	went := make(map[string]string)
	for _, c := range binderCalls(t, "bindAPIUpdate") {
		if c.Given == nil {
			continue
		}
		cases++
		o, s := c.write(t)
		written := o.Result == source.BindDone
		if written != (c.Error == "") {
			went[c.Test] = goesOn[c.Test]
		}
		if !written && (c.Error == "" || o.Result != source.BindRefused) {
			t.Errorf("%s: kube-scheduler says %q, Berth %+v", c.Test, c.Error, o)
		}
		for _, want := range c.After.Written.PersistentVolume {
			got := new(v1.PersistentVolume)
			s.read(t, "persistentvolumes", "", want.Name, got)
			if diff := cmp.Diff(claimOf(want), claimOf(got)); diff != "" {
				t.Errorf("%s: volume %s (-kube-scheduler +Berth):\n%s", c.Test, want.Name, diff)
			}
		}
		for _, want := range c.After.Written.PersistentVolumeClaim {
			got := new(v1.PersistentVolumeClaim)
			s.read(t, "persistentvolumeclaims", want.Namespace, want.Name, got)
			node := want.Annotations[volume.AnnSelectedNode]
			if went[c.Test] == "the claim is read again, and still waits for a node" {
				node = c.Pod.Spec.NodeName
			}
			if got := got.Annotations[volume.AnnSelectedNode]; got != node {
				t.Errorf("%s: claim %s is to be provisioned for %q, want %q", c.Test, want.Name, got, node)
			}
		}
	}
	if diff := cmp.Diff(goesOn, went); diff != "" {
		t.Errorf("Berth goes on (-want +got):\n%s", diff)
	}
	if cases != 20 {
		t.Errorf("%d cases", cases)
	}
	t.Logf("%d cases", cases)
}

// claimOf is what is written to a volume: its claim, and whether a controller has written that.
func claimOf(v *v1.PersistentVolume) string {
	if v.Spec.ClaimRef == nil {
		return ""
	}
	to := v.Spec.ClaimRef
	return fmt.Sprintf("%s %s %s/%s %s, by a controller: %q", to.APIVersion, to.Kind, to.Namespace, to.Name, to.UID, v.Annotations[volume.AnnBoundByController])
}

// write has source/kube write what is given.
func (c *binderCall) write(t *testing.T) (source.Outcome, *apiServer) {
	s, kubeconfig, stop := startAPIServer(t)
	defer stop()
	known := append(c.Before.Objects.all(), defaultedAll(c.Claims)...)
	for _, o := range slices.Backward(known) { // the first of a name is what is there
		s.put(t, o)
	}
	src, err := kube.New(kube.Config{Kubeconfig: kubeconfig, SchedulerNames: []string{v1.DefaultSchedulerName}, Instance: "oracle"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	synced, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		src.Watch(ctx, func(e source.Event) {
			if e.Kind == source.Synced {
				close(synced)
			}
		})
	}()
	defer func() { cancel(); <-done }()
	<-synced
	for _, o := range c.Before.Written.all() {
		s.put(t, o)
	}
	return src.BindVolumes(t.Context(), coord.Cond{}, source.VolumeBinding{
		UID: "pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name, Node: c.Pod.Spec.NodeName, Choices: choicesOf(c.Given),
	}), s
}

func defaultedAll(claims []*v1.PersistentVolumeClaim) (out []metav1.Object) {
	for _, c := range claims {
		out = append(out, defaulted(c))
	}
	return out
}
