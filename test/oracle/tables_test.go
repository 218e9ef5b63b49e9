package oracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// kube-scheduler's own unit tests have tables of cases. They are in no package that can be imported, and nothing of them is copied:
// the tests are run as they are in the module, with PreFilter and Filter of a plugin wrapped, and each call tells what the plugin has
// been given and what it has said. That is then a cluster like any other, judged both ways. As nothing in the module cache can be
// overlaid, the go command is made to see the plugin's package in this module for the time of the run.

// upstreamTables are the plugins whose tests are run.
var upstreamTables = []upstreamTable{
	{
		plugin: names.VolumeRestrictions, dir: "volumerestrictions", file: "volume_restrictions.go", receiver: "VolumeRestrictions",
		tests:   "TestGCEDiskConflicts|TestAWSDiskConflicts|TestRBDDiskConflicts|TestISCSIDiskConflicts|TestAccessModeConflicts",
		objects: []string{"pl.pvcLister"}, cluster: "pl.sharedLister", atLeast: 22,
		hints: 2, hintTests: "Test_isSchedulableAfter.*", hinted: 15,
	},
	{
		plugin: names.NodeVolumeLimits, dir: "nodevolumelimits", file: "csi.go", receiver: "CSILimits", tests: "TestCSILimits",
		objects: []string{"pl.pvLister", "pl.pvcLister", "pl.scLister", "pl.vaIndexer", "pl.csiManager.(*DefaultCSIManager).csiNodeLister.csiNodeLister"},
		atLeast: 33, hints: 4, hintTests: "TestCSILimits.*QHint", hinted: 18,
	},
	{
		plugin: names.VolumeBinding, dir: "volumebinding", file: "volume_binding.go", receiver: "VolumeBinding", tests: "TestVolumeBinding",
		objects: []string{
			"pl.PVCLister", "pl.classLister", "pl.Binder.(*volumeBinder).pvCache.store", "pl.Binder.(*volumeBinder).csiNodeLister",
			"pl.Binder.(*volumeBinder).csiDriverLister", "pl.Binder.(*volumeBinder).csiStorageCapacityLister",
		},
		atLeast: 20, hints: 5, hintTests: "TestIsSchedulableAfter.*", hinted: 31,
	},
	{
		plugin: names.VolumeZone, dir: "volumezone", file: "volume_zone.go", receiver: "VolumeZone",
		tests: "TestSingleZone|TestMultiZone|TestWithBinding", objects: []string{"pl.pvLister", "pl.pvcLister", "pl.scLister"}, atLeast: 24,
		hints: 3, hintTests: "TestIsSchedulableAfter.*", hinted: 12,
	},
}

// upstreamTable says where the tests of a plugin are, and how to get at what the plugin reads.
type upstreamTable struct {
	plugin, dir, file, receiver, tests string
	objects                            []string // expressions: listers, or what else has them
	cluster                            string   // an expression: what knows all nodes; "" if the plugin asks for none
	atLeast                            int      // how many cases there are, so that a release that has others is noticed
	hints                              int      // how many of its methods are queueing hints
	hintTests                          string   // and their tests
	hinted                             int      // how many cases these have
}

// recorder is put beside the tests of a plugin. It writes a line for each call.
const recorder = `package %[1]s

import (
	"encoding/json"
	"os"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"
)

func init() {
	out, err := os.OpenFile(os.Getenv("BERTH_CALLS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	podsOf := func(node fwk.NodeInfo) (pods []*v1.Pod) {
		for _, p := range node.GetPods() {
			pods = append(pods, p.GetPod())
		}
		return pods
	}
	recordHint = func(point string, pod *v1.Pod, was, is any, hint fwk.QueueingHint) {
		call := map[string]any{"point": point, "pod": pod, "queue": hint == fwk.Queue}
		for which, o := range map[string]any{"was": was, "is": is} {
			if o != nil {
				call[which] = map[string]any{"kind": reflect.TypeOf(o).Elem().Name(), "object": o}
			}
		}
		if err := json.NewEncoder(out).Encode(call); err != nil {
			panic(err)
		}
	}
	recordCall = func(pl *%[2]s, point string, pod *v1.Pod, node fwk.NodeInfo, status *fwk.Status) {
		call := map[string]any{"point": point, "pod": pod, "code": status.Code().String()}
		if status != nil {
			call["reasons"] = status.Reasons()
		}
		objects := make(map[string][]any)
		for _, from := range []any{%[3]s} {
			for _, o := range objectsOf(from) {
				t := reflect.TypeOf(o)
				for t.Kind() == reflect.Pointer {
					t = t.Elem()
				}
				objects[t.Name()] = append(objects[t.Name()], o)
			}
		}
		call["objects"] = objects
		if node != nil {
			call["node"], call["pods"] = node.Node(), podsOf(node)
		}
		if all, ok := any(%[4]s).(fwk.SharedLister); ok && all != nil {
			nodes, err := all.NodeInfos().List()
			if err != nil {
				panic(err)
			}
			var others []map[string]any
			for _, n := range nodes {
				others = append(others, map[string]any{"node": n.Node(), "pods": podsOf(n)})
			}
			call["others"] = others
		}
		if err := json.NewEncoder(out).Encode(call); err != nil {
			panic(err)
		}
	}
}

// objectsOf returns what a list, a lister or an indexer has.
func objectsOf(from any) (out []any) {
	v := reflect.ValueOf(from)
	if !v.IsValid() {
		return nil
	}
	if v.Kind() != reflect.Slice {
		list, args := v.MethodByName("List"), []reflect.Value(nil)
		if list.Type().NumIn() > 0 {
			args = []reflect.Value{reflect.ValueOf(labels.Everything())}
		}
		v = list.Call(args)[0]
	}
	for i := range v.Len() {
		out = append(out, v.Index(i).Interface())
	}
	return out
}
`

// wrappers follow the methods of a plugin that they take the place of.
const wrappers = `
var recordHint func(point string, pod *v1.Pod, was, is any, hint fwk.QueueingHint)

var recordCall func(pl *%[1]s, point string, pod *v1.Pod, node fwk.NodeInfo, status *fwk.Status)

func (pl *%[1]s) PreFilter(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	r, s := pl.unrecordedPreFilter(ctx, cs, pod, nodes)
	if recordCall != nil {
		recordCall(pl, "PreFilter", pod, nil, s)
	}
	return r, s
}

func (pl *%[1]s) Filter(ctx context.Context, cs fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s := pl.unrecordedFilter(ctx, cs, pod, node)
	if recordCall != nil {
		recordCall(pl, "Filter", pod, node, s)
	}
	return s
}
`

// hintWrapper follows a method that is a queueing hint, and takes its place. A hint that has not known what to say has no say here.
const hintWrapper = `
func (pl *%[1]s) %[2]s(logger klog.Logger, pod *v1.Pod, was, is interface{}) (fwk.QueueingHint, error) {
	hint, err := pl.unrecorded%[2]s(logger, pod, was, is)
	if err == nil && recordHint != nil {
		recordHint("%[2]s", pod, was, is, hint)
	}
	return hint, err
}
`

// hintMethod finds these methods.
var hintMethod = regexp.MustCompile(`func \(pl \*\w+\) (isSchedulableAfter\w+)\(logger klog\.Logger, pod \*v1\.Pod, oldObj, newObj interface\{\}\)`)

// upstreamCall is a call of a plugin in one of its tests.
type upstreamCall struct {
	Point  string
	Pod    *v1.Pod
	Node   *v1.Node // nil if the test gives none
	Pods   []*v1.Pod
	Others []struct { // the nodes of the whole cluster
		Node *v1.Node
		Pods []*v1.Pod
	}
	Objects struct {
		PersistentVolume      []*v1.PersistentVolume
		PersistentVolumeClaim []*v1.PersistentVolumeClaim
		StorageClass          []*storagev1.StorageClass
		VolumeAttachment      []*storagev1.VolumeAttachment
		CSINode               []*storagev1.CSINode
		CSIDriver             []*storagev1.CSIDriver
		CSIStorageCapacity    []*storagev1.CSIStorageCapacity
	}
	Code    string
	Reasons []string
}

// buildTables builds the tests of the plugins, with recorders, and returns the folder of the binaries.
func buildTables(t *testing.T) string {
	tmp := t.TempDir()
	module := strings.TrimSpace(run(t, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"))
	write := func(name string, content []byte) string {
		path := filepath.Join(tmp, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) []byte {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	// 1. The plugins' packages, as they are, but for a recorder.
	replaced := make(map[string]string)
	var packages []string
	for _, table := range upstreamTables {
		packages = append(packages, "./upstream/"+table.dir)
		here, err := filepath.Abs(filepath.Join("upstream", table.dir))
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(module, "pkg/scheduler/framework/plugins", table.dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if replaced[filepath.Join(here, name)] = file; name == table.file {
				replaced[filepath.Join(here, name)] = write(table.file, table.wrap(t, read(file)))
			}
		}
		replaced[filepath.Join(here, "berth_recorder_test.go")] = write(table.dir+"_recorder.go",
			fmt.Appendf(nil, recorder, table.dir, table.receiver, strings.Join(table.objects, ", "), cmp.Or(table.cluster, "nil")))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	// 2. What they need. Tests of others may need modules that are not in go.mod.
	write("go.sum", read("go.sum"))
	args := []string{
		"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", tmp + "/", "-modfile=" + write("go.mod", read("go.mod")), "-mod=mod",
		"-overlay=" + write("overlay.json", overlay),
	}
	run(t, ".", nil, "go", append(args, packages...)...)
	return tmp
}

// wrap returns the text of the plugin with its methods wrapped.
func (table *upstreamTable) wrap(t *testing.T, text []byte) []byte {
	for _, method := range []string{"PreFilter", "Filter"} {
		head := fmt.Sprintf("func (pl *%s) ", table.receiver)
		if bytes.Count(text, []byte(head+method+"(")) != 1 {
			t.Fatalf("%s has no method %s to wrap", table.file, method)
		}
		text = bytes.Replace(text, []byte(head+method+"("), []byte(head+"unrecorded"+method+"("), 1)
	}
	var hints []string
	for _, found := range hintMethod.FindAllSubmatch(text, -1) {
		hints = append(hints, string(found[1]))
	}
	if len(hints) != table.hints {
		t.Fatalf("%s has the hints %v, there were %d", table.file, hints, table.hints)
	}
	text = fmt.Appendf(text, wrappers, table.receiver)
	for _, hint := range hints {
		head := fmt.Sprintf("func (pl *%s) ", table.receiver)
		text = bytes.Replace(text, []byte(head+hint+"("), []byte(head+"unrecorded"+hint+"("), 1)
		text = fmt.Appendf(text, hintWrapper, table.receiver, hint)
	}
	return text
}

// calls runs tests of a plugin and returns the calls, in order.
func calls[T any](t *testing.T, table *upstreamTable, binaries, tests string) []T {
	file := filepath.Join(t.TempDir(), "calls.json")
	run(t, binaries, []string{"BERTH_CALLS=" + file}, filepath.Join(binaries, table.dir+".test"), "-test.run=^("+tests+")$")
	lines, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	for line := range bytes.Lines(lines) {
		var call T
		if err := json.Unmarshal(line, &call); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, call)
	}
	return out
}

// run runs a command in a directory and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, &out, &failed)
	}
	return out.String()
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
	out := &scene{profiles: []config.KubeSchedulerProfile{p}, pod: c.complete(c.Pod, "judged", "")}
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
	seen := make(map[cluster.ObjectKey]bool)
	add := func(o metav1.Object) { // the first of a name is the one that a test's lister finds
		if key := reduceKept(o).Key(); !seen[key] {
			seen[key] = true
			out.kept = append(out.kept, o)
		}
	}
	for _, o := range c.Objects.PersistentVolume {
		add(o)
	}
	for _, o := range c.Objects.PersistentVolumeClaim {
		o.Namespace = cmp.Or(o.Namespace, "default")
		add(o)
	}
	for _, o := range c.Objects.StorageClass {
		add(o)
	}
	for _, o := range c.Objects.VolumeAttachment {
		add(o)
	}
	for _, o := range c.Objects.CSINode {
		add(o)
	}
	for _, o := range c.Objects.CSIDriver {
		add(o)
	}
	for _, o := range c.Objects.CSIStorageCapacity {
		add(o)
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

// TestUpstreamsTablesAreJudgedTheSame judges the cases of kube-scheduler's own tests of plugins that read volumes.
func TestUpstreamsTablesAreJudgedTheSame(t *testing.T) {
	var n tally
	binaries := buildTables(t)
	for _, table := range upstreamTables {
		t.Run(table.plugin, func(t *testing.T) {
			calls, judged := calls[upstreamCall](t, &table, binaries, table.tests), 0
			for k, c := range calls {
				if c.Point == "PreFilter" && k+1 < len(calls) && calls[k+1].Point == "Filter" {
					continue // the call of Filter has the case, and the node
				}
				judged++
				c.judge(t, k, table.plugin, &n)
			}
			if judged < table.atLeast {
				t.Errorf("%d cases, there were %d", judged, table.atLeast)
			}
			t.Logf("%d cases", judged)
		})
	}
	n.report(t)
}

// judge checks that the plugin says in the cluster what it has said in its test, and that Berth says the same.
func (c *upstreamCall) judge(t *testing.T, k int, plugin string, n *tally) {
	s := c.scene(t, plugin)
	if len(s.nodes) == 0 {
		t.Fatal("a case without a node")
	}
	w, id := s.open(t, n)
	want, difference := w.difference(id, []cluster.Range{{First: 0, End: cluster.MaxIndex}})
	if difference != "" {
		t.Errorf("case %d: %s\n%s", k, difference, s)
	}
	got, code := want.Verdicts[s.nodes[0].Name], "Success"
	switch {
	case want.failed != nil:
		code = "Error"
	case got.Plugin != "" && got.Plugin != plugin:
		t.Errorf("case %d: %s refuses the node\n%s", k, got.Plugin, s)
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
		t.Errorf("case %d: in its test %s says %s %q, here %s %q\n%s", k, plugin, c.Code, c.Reasons, code, got.Reasons, s)
	}
}
