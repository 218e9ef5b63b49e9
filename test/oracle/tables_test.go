package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// upstreamTables are the plugins whose tests are run, all of them.
var upstreamTables = []upstreamTable{
	{
		plugin: names.VolumeRestrictions, dir: "volumerestrictions", file: "volume_restrictions.go", receiver: "VolumeRestrictions",
		objects: []string{"pl.pvcLister"}, cluster: "pl.sharedLister", hints: 2, judged: 22, hinted: 15,
	},
	{
		plugin: names.NodeVolumeLimits, dir: "nodevolumelimits", file: "csi.go", receiver: "CSILimits",
		objects: []string{"pl.pvLister", "pl.pvcLister", "pl.scLister", "pl.vaIndexer", "pl.csiDriverLister", "pl.csiManager.(*DefaultCSIManager).csiNodeLister.csiNodeLister"},
		gate:    "pl.enableVolumeLimitScaling", hints: 4, judged: 38, hinted: 18,
	},
	{
		plugin: names.VolumeBinding, dir: "volumebinding", file: "volume_binding.go", receiver: "VolumeBinding",
		objects: []string{
			"pl.PVCLister", "pl.classLister", "pl.Binder.(*volumeBinder).pvCache.store", "pl.Binder.(*volumeBinder).csiNodeLister",
			"pl.Binder.(*volumeBinder).csiDriverLister", "pl.Binder.(*volumeBinder).csiStorageCapacityLister",
		},
		binds: true, hints: 5, judged: 40, hinted: 31,
	},
	{
		plugin: names.VolumeZone, dir: "volumezone", file: "volume_zone.go", receiver: "VolumeZone",
		objects: []string{"pl.pvLister", "pl.pvcLister", "pl.scLister"}, hints: 3, judged: 24, hinted: 12,
	},
}

// upstreamTable says where the tests of a plugin are, how to get at what the plugin reads, and how many cases there are, so that a release that has
// others is noticed.
type upstreamTable struct {
	plugin, dir, file, receiver string
	objects                     []string // expressions: listers, or what else has them
	cluster                     string   // an expression: what knows all nodes; "" if the plugin asks for none
	gate                        string   // an expression: whether VolumeLimitScaling is on; "": it does not matter
	binds                       bool     // it has the binder of volumes
	hints                       int      // how many of its methods are queueing hints
	judged                      int      // how many cases of the filter there are
	hinted                      int      // how many of the hints
}

// upstreamCall is a call of a plugin in one of its tests.
type upstreamCall struct {
	Test   string
	Gate   bool
	Pod    *v1.Pod
	Node   *v1.Node // nil if the test gives none
	Pods   []*v1.Pod
	Others []struct { // the nodes of the whole cluster
		Node *v1.Node
		Pods []*v1.Pod
	}
	Objects upstreamObjects
	Code    string
	Reasons []string
	// Of Score: by what VolumeBinding scores, and what it has.
	Shape []config.UtilizationShapePoint
	Score int64
}

// upstreamObjects are objects by kind.
type upstreamObjects struct {
	PersistentVolume      []*v1.PersistentVolume
	PersistentVolumeClaim []*v1.PersistentVolumeClaim
	StorageClass          []*storagev1.StorageClass
	VolumeAttachment      []*storagev1.VolumeAttachment
	CSINode               []*storagev1.CSINode
	CSIDriver             []*storagev1.CSIDriver
	CSIStorageCapacity    []*storagev1.CSIStorageCapacity
}

// all returns all of them, those of a name once: the first is the one that a test's lister finds.
func (o *upstreamObjects) all() (out []metav1.Object) {
	seen := make(map[cluster.ObjectKey]bool)
	add := func(o metav1.Object) {
		if key := reduceKept(o).Key(); !seen[key] {
			seen[key] = true
			out = append(out, o)
		}
	}
	for _, o := range o.PersistentVolume {
		add(o)
	}
	for _, o := range o.PersistentVolumeClaim {
		o.Namespace = cmp.Or(o.Namespace, "default")
		add(o)
	}
	for _, o := range o.StorageClass {
		add(o)
	}
	for _, o := range o.VolumeAttachment {
		add(o)
	}
	for _, o := range o.CSINode {
		add(o)
	}
	for _, o := range o.CSIDriver {
		add(o)
	}
	for _, o := range o.CSIStorageCapacity {
		add(o)
	}
	return out
}

// fakeNotFound are the kinds of objects as the listers of tests call them, and as they are called by those that kube-scheduler has.
var fakeNotFound = strings.NewReplacer(`persistentvolumeclaims "`, `persistentvolumeclaim "`, `persistentvolumes "`, `persistentvolume "`,
	`storageclasses.storage.k8s.io "`, `storageclass.storage.k8s.io "`)

// judgedNode is the name of a node that a test gives no name.
const judgedNode = "judged"

// scene is the cluster of a call. No other plugin that reads volumes runs, and nothing but the volumes keeps the pod from a node.
func (c *upstreamCall) scene(t failer, plugin string) *scene {
	p := defaultProfile(t)
	p.Plugins.MultiPoint.Enabled = slices.DeleteFunc(p.Plugins.MultiPoint.Enabled, func(e config.Plugin) bool {
		return e.Name != plugin && slices.Contains(volumePlugins, e.Name)
	})
	out := &scene{profiles: []config.KubeSchedulerProfile{p}, gates: gates{scaling: c.Gate, shape: c.Shape}, pod: c.complete(c.Pod, "judged", "")}
	addNode := func(node *v1.Node, pods []*v1.Pod) {
		if node == nil {
			node = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: judgedNode}}
		}
		if slices.ContainsFunc(out.nodes, func(n *v1.Node) bool { return n.Name == node.Name }) {
			return
		}
		node = node.DeepCopy()
		node.Status.Allocatable = v1.ResourceList{
			"cpu": resource.MustParse("64"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110"),
		}
		out.nodes = append(out.nodes, node)
		for _, pod := range pods {
			out.pods = append(out.pods, c.complete(pod, fmt.Sprintf("running-%d", len(out.pods)), node.Name))
		}
	}
	addNode(c.Node, c.Pods)
	for _, other := range c.Others {
		addNode(other.Node, other.Pods)
	}
	out.kept = c.Objects.all()
	for _, o := range out.kept { // as the pod has a UID now
		for k := range o.GetOwnerReferences() {
			if owner := &o.GetOwnerReferences()[k]; owner.UID == "" && owner.Name == out.pod.Name {
				owner.UID = out.pod.UID
			}
		}
	}
	return out
}

// complete gives a pod of a test what tests leave out.
func (c *upstreamCall) complete(pod *v1.Pod, name, node string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Namespace, pod.Name = cmp.Or(pod.Namespace, "default"), cmp.Or(pod.Name, name)
	pod.UID = cmp.Or(pod.UID, types.UID("uid-"+name))
	pod.Spec.SchedulerName, pod.Spec.NodeName = v1.DefaultSchedulerName, node
	return pod
}

// decisions returns the calls that are cases of the filter: those of PreFilter are, if none of Filter follows, which has the case, and the node.
func (table *upstreamTable) decisions(t *testing.T) (out []*upstreamCall) {
	told := slices.DeleteFunc(slices.Clone(table.told(t)), func(l line) bool { return l.Point != "PreFilter" && l.Point != "Filter" })
	for k, l := range told {
		if l.Point == "PreFilter" && k+1 < len(told) && told[k+1].Point == "Filter" && told[k+1].Test == l.Test {
			continue
		}
		out = append(out, read[upstreamCall](t, l))
	}
	return out
}

// TestUpstreamsTablesAreJudgedTheSame judges the cases of kube-scheduler's own tests of plugins that read volumes.
func TestUpstreamsTablesAreJudgedTheSame(t *testing.T) {
	var n tally
	for _, table := range upstreamTables {
		t.Run(table.plugin, func(t *testing.T) {
			cases := table.decisions(t)
			for _, c := range cases {
				c.judge(t, table.plugin, &n)
			}
			if len(cases) != table.judged {
				t.Errorf("%d cases, there were %d", len(cases), table.judged)
			}
			t.Logf("%d cases", len(cases))
		})
	}
	n.report(t)
}

// judge checks that the plugin says in the cluster what it has said in its test, and that Berth says the same. It returns the cluster, and the pod in it.
func (c *upstreamCall) judge(t *testing.T, plugin string, n *tally) (*world, cluster.PodID) {
	s := c.scene(t, plugin)
	if len(s.nodes) == 0 {
		t.Fatal("a case without a node")
	}
	w, id := s.open(t, n)
	want, difference := w.difference(id, []cluster.Range{{First: 0, End: cluster.MaxIndex}})
	if difference != "" {
		t.Errorf("%s: %s\n%s", c.Test, difference, s)
	}
	got, code := want.Verdicts[s.nodes[0].Name], "Success"
	switch {
	case want.failed != nil:
		code = "Error"
	case got.Plugin != "" && got.Plugin != plugin:
		t.Errorf("%s: %s refuses the node\n%s", c.Test, got.Plugin, s)
	case got.Unresolvable:
		code = "UnschedulableAndUnresolvable"
	case got.Plugin != "":
		code = "Unschedulable"
	}
	for i := range c.Reasons { // where listers of tests say it otherwise than those of informers
		c.Reasons[i] = fakeNotFound.Replace(c.Reasons[i])
	}
	said := cmp.Or(map[string]string{"Skip": "Success"}[c.Code], c.Code)
	if code != said || code != "Error" && !slices.Equal(got.Reasons, slices.Sorted(slices.Values(c.Reasons))) {
		t.Errorf("%s: in its test %s says %s %q, here %s %q\n%s", c.Test, plugin, c.Code, c.Reasons, code, got.Reasons, s)
	}
	return w, id
}

// storageScores returns the calls of VolumeBinding's Score.
func storageScores(t *testing.T) (out []*upstreamCall) {
	for k := range upstreamTables {
		for _, l := range upstreamTables[k].told(t) {
			if l.Point == "Score" {
				out = append(out, read[upstreamCall](t, l))
			}
		}
	}
	return out
}

// scoredNodes is how many nodes VolumeBinding scores in its tests.
const scoredNodes = 31

// TestStorageIsScoredTheSame has the nodes scored that VolumeBinding scores in its tests.
func TestStorageIsScoredTheSame(t *testing.T) {
	var n tally
	calls, other, refused := storageScores(t), 0, 0
	for _, c := range calls {
		s := c.scene(t, names.VolumeBinding)
		w, id := s.open(t, &n)
		want, difference := w.difference(id, []cluster.Range{{First: 0, End: cluster.MaxIndex}})
		got, feasible := want.Scores[s.nodes[0].Name]
		if !feasible && c.Score == 0 { // a test of VolumeBinding's scores nodes that it refuses
			refused++
		} else if difference != "" || !feasible || got.Weighted[names.VolumeBinding] != c.Score {
			t.Errorf("%s: in its test the score is %d, here %+v, feasible is %v; %s\n%s", c.Test, c.Score, got, feasible, difference, s)
		}
		if c.Score != 0 {
			other++
		}
	}
	if len(calls) != scoredNodes || other != 24 || refused != 6 {
		t.Errorf("%d nodes are scored, %d of them not 0, and %d refused; there were %d, 24 and 6", len(calls), other, refused, scoredNodes)
	}
	t.Logf("%d nodes are scored the same, %d of them not 0; %d are refused", len(calls), other, refused)
}
