package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// binderOf returns the binder's Deployment.
func binderOf(t *testing.T, objects []*unstructured.Unstructured) appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(of(objects, "Deployment")["binder"].Object, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// profile is what is read of a profile that a binder has written with all defaults.
type profile struct {
	SchedulerName string
	Plugins       map[string]struct{ Enabled []weighed }
}

type weighed struct {
	Name   string
	Weight int
}

// yodas returns the plugins at a point that are Yoda's.
func (p profile) yodas(point string) (all []weighed) {
	for _, w := range p.Plugins[point].Enabled {
		if strings.HasPrefix(w.Name, "Yoda") {
			all = append(all, w)
		}
	}
	return all
}

// filesOf writes what the first container of a pod mounts of ConfigMaps, and returns pairs of a folder there, and here.
func filesOf(t *testing.T, objects []*unstructured.Unstructured, spec corev1.PodSpec) (pairs []string) {
	t.Helper()
	for _, m := range spec.Containers[0].VolumeMounts {
		volume := spec.Volumes[slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		if volume.ConfigMap == nil {
			continue
		}
		data, _, err := unstructured.NestedStringMap(of(objects, "ConfigMap")[volume.ConfigMap.Name].Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for file, text := range data {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pairs = append(pairs, m.MountPath+"/", dir+"/")
	}
	return pairs
}

// binderWrites runs a binder with the command line and the files of its Deployment, and returns the profiles that it would go by.
func binderWrites(t *testing.T, binary string, objects []*unstructured.Unstructured) []profile {
	t.Helper()
	written := filepath.Join(t.TempDir(), "written.yaml")
	spec := binderOf(t, objects).Spec.Template.Spec
	as := strings.NewReplacer(append(filesOf(t, objects, spec), "$(ETCD_ENDPOINTS)", "https://etcd:2379")...)
	var args []string
	for _, arg := range spec.Containers[0].Args {
		args = append(args, as.Replace(arg))
	}
	out, err := exec.CommandContext(within(t), binary, append(args, "--write-config-to="+written)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	text, err := os.ReadFile(written)
	if err != nil {
		t.Fatal(err)
	}
	var is struct{ Profiles []profile }
	if err := yaml.Unmarshal(text, &is); err != nil {
		t.Fatal(err)
	}
	return is.Profiles
}

func TestABinderTakesTheConfigurationWithYoda(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "berth")
	buildBerth(t, binary)
	for dir, name := range map[string]string{withYoda: "berth", defaultWithYoda: "default-scheduler"} {
		profiles := binderWrites(t, binary, render(t, dir))
		if len(profiles) != 1 || profiles[0].SchedulerName != name {
			t.Fatalf("%s: profiles %+v, want one of %s", dir, profiles, name)
		}
		p := profiles[0]
		if diff := cmp.Diff([]weighed{{Name: "Yoda"}}, p.Plugins["queueSort"].Enabled); diff != "" {
			t.Errorf("%s: who sorts the queue (-want +got):\n%s", dir, diff)
		}
		for _, point := range []string{"filter", "reserve"} {
			if diff := cmp.Diff([]weighed{{Name: "Yoda"}}, p.yodas(point)); diff != "" {
				t.Errorf("%s: Yoda's plugins at %s (-want +got):\n%s", dir, point, diff)
			}
		}
		want := []weighed{
			{"YodaBandwidth", 1}, {"YodaClock", 1}, {"YodaCore", 1}, {"YodaPower", 1}, {"YodaFreeMemory", 2}, {"YodaTotalMemory", 1}, {"YodaAllocate", 3}, {"YodaActual", 2},
		}
		if diff := cmp.Diff(want, p.yodas("score")); diff != "" {
			t.Errorf("%s: Yoda's scores (-want +got):\n%s", dir, diff)
		}
	}
}

// The path is in three places: where Yoda listens, where the binder looks, and what both mount.
func TestBinderAndYodaMeetAtOneSocket(t *testing.T) {
	objects := render(t, withYoda)
	spec := binderOf(t, objects).Spec.Template.Spec
	services, _, err := unstructured.NestedString(of(objects, "ConfigMap")["binder"].Object, "data", "plugin-services.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Services []struct{ Address string } }
	if err := yaml.Unmarshal([]byte(services), &file); err != nil {
		t.Fatal(err)
	}
	yoda := yodaOf(spec)
	if address := file.Services[0].Address; !slices.Contains(yoda.Args, "--listen="+address) {
		t.Errorf("the binder looks at %s, and Yoda is called with %q", address, yoda.Args)
	}
	socket := strings.TrimPrefix(file.Services[0].Address, "unix://")
	for _, c := range spec.Containers {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == filepath.Dir(socket) && m.Name == "yoda" && m.ReadOnly == (c.Name == "binder")
		}) {
			t.Errorf("%s mounts %v: want the volume yoda at %s, and only Yoda may write there", c.Name, c.VolumeMounts, filepath.Dir(socket))
		}
	}
	if !slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "yoda" && v.EmptyDir != nil }) {
		t.Errorf("volumes %v: want yoda, which goes with the pod", spec.Volumes)
	}
}

// yodaOf returns the container of Yoda in the binder's pod.
func yodaOf(spec corev1.PodSpec) corev1.Container {
	return spec.Containers[slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == "yoda" })]
}

// runYoda runs Yoda with the arguments and the account that it has in the binder's pod, but for where it listens, and waits until its metrics say that it has read the cluster.
func (c *cluster) runYoda(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	spec, dir := binderOf(t, objects).Spec.Template.Spec, t.TempDir()
	container, program := yodaOf(spec), filepath.Join(dir, "berth-yoda")
	buildIn(t, "../../plugins/yoda", "./cmd/berth-yoda", program)
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("unix:///run/yoda/", "unix://"+dir+"/", fmt.Sprintf(":%d", container.Ports[0].ContainerPort), ":"+ports[0])
	args := []string{program}
	for _, arg := range container.Args {
		args = append(args, replace.Replace(arg))
	}
	p, err := kubetest.StartProcess("yoda", filepath.Join(dir, "log"), append(args, "--kubeconfig="+c.kubeconfigOf(t, "berth", spec.ServiceAccountName))...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	defer func() {
		if t.Failed() {
			t.Logf("Yoda:\n%s", p.LogTail(4<<10))
		}
	}()
	url := "http://127.0.0.1:" + ports[0] + container.ReadinessProbe.HTTPGet.Path
	await(t, "Yoda to have read the cluster", func(ctx context.Context) error {
		select {
		case <-p.Done():
			t.Fatalf("Yoda has ended: %v", p.Err())
		default:
		}
		text, err := read(ctx, url)
		if err == nil && !strings.Contains(text, "\nyoda_synced 1\n") {
			err = fmt.Errorf("its metrics say otherwise:\n%s", text)
		}
		return err
	})
	if _, err := os.Stat(filepath.Join(dir, "yoda.sock")); err != nil {
		t.Errorf("where binders look for Yoda: %v", err)
	}
}

// read returns what is at a URL.
func read(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

const (
	cards, cardsMemory = "yoda.berth.dev/cards", "yoda.berth.dev/cards-memory"
	cardsRefused       = "are written with its binding only"
)

func TestAnAPIServerTakesYodaAndCardsAreWrittenWithTheBindingOnly(t *testing.T) {
	c := startCluster(t, kubetest.Options{Authorization: "RBAC"})
	objects := render(t, withYoda)
	c.apply(t, objects...)
	if got := c.makesPods(t, objects); got != 8 {
		t.Errorf("there are %d workloads, want etcd with its job, five roles and the collector", got)
	}
	podMonitors(t, objects)
	if t.Failed() {
		t.FailNow()
	}
	c.runYoda(t, objects)
	if err := c.CreateNodes(within(t), 1, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	pods := c.Client().CoreV1().Pods("default")
	pod := func(name string, annotations map[string]string) *corev1.Pod {
		p := kubetest.PlainPod(0)
		p.Name, p.GenerateName, p.Namespace, p.Annotations = name, "", "default", annotations
		p.Spec.SchedulerName = "berth"
		return p
	}
	create := func(ctx context.Context, p *corev1.Pod, dry bool) error {
		var o metav1.CreateOptions
		if dry {
			o.DryRun = []string{metav1.DryRunAll}
		}
		_, err := pods.Create(ctx, p, o)
		return err
	}

	// 1. Nobody creates a pod that has cards. A policy is followed some time after it has been made.
	await(t, "a refusal", func(ctx context.Context) error {
		err := create(ctx, pod("early", map[string]string{cards: "GPU-1"}), true)
		if err == nil {
			return errors.New("it may")
		}
		if !strings.Contains(err.Error(), cardsRefused) {
			t.Fatal(err)
		}
		return nil
	})
	for _, annotations := range []map[string]string{{cards: ""}, {cardsMemory: "0"}, {"a": "b", cards: "GPU-1", cardsMemory: "0"}} {
		if err := create(within(t), pod("early", annotations), true); err == nil || !strings.Contains(err.Error(), cardsRefused) {
			t.Errorf("create with %v: %v, want a refusal", annotations, err)
		}
	}
	for name, annotations := range map[string]map[string]string{"bare": nil, "asks": {"yoda.berth.dev/request": `{"number":1}`}} {
		if err := create(within(t), pod(name, annotations), false); err != nil {
			t.Fatal(err)
		}
	}

	// 2. The binding writes them.
	for _, name := range []string{"asks", "bare"} {
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-00000"}}
		if name == "asks" {
			binding.Annotations = map[string]string{cards: "GPU-1", cardsMemory: "0"}
		}
		if err := pods.Bind(within(t), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := pods.Get(within(t), "asks", metav1.GetOptions{}); err != nil || got.Annotations[cards] != "GPU-1" || got.Annotations[cardsMemory] != "0" || got.Spec.NodeName == "" {
		t.Fatalf("the pod that was bound with cards: %v, %v", got, err)
	}

	// 3. What changes them is refused, by whichever way, and nothing else.
	subresources := [][]string{nil, {"status"}}
	for name, patches := range map[string][]string{
		"asks": {
			`{"metadata":{"annotations":{"` + cards + `":"GPU-2"}}}`, `{"metadata":{"annotations":{"` + cards + `":null}}}`, `{"metadata":{"annotations":null}}`,
			`{"metadata":{"annotations":{"` + cardsMemory + `":"7"}}}`, `{"metadata":{"annotations":{"` + cardsMemory + `":null}}}`,
		},
		"bare": {`{"metadata":{"annotations":{"` + cards + `":"GPU-1"}}}`, `{"metadata":{"annotations":{"` + cardsMemory + `":"0"}}}`},
	} {
		for _, patch := range patches {
			for _, sub := range subresources {
				if _, err := pods.Patch(within(t), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...); err == nil || !strings.Contains(err.Error(), cardsRefused) {
					t.Errorf("%s of %s%v: %v, want a refusal", patch, name, sub, err)
				}
			}
		}
	}
	for _, name := range []string{"asks", "bare"} {
		for _, sub := range subresources {
			patch := `{"metadata":{"annotations":{"x` + strings.Join(sub, "") + `":"y"}}}`
			if _, err := pods.Patch(within(t), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...); err != nil {
				t.Errorf("%s of %s%v: %v", patch, name, sub, err)
			}
		}
		c.changesContainers(t, name)
	}
	got, err := pods.Get(within(t), "asks", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"yoda.berth.dev/request": `{"number":1}`, cards: "GPU-1", cardsMemory: "0", "x": "y", "xstatus": "y"}, got.Annotations); diff != "" {
		t.Errorf("annotations in the end (-want +got):\n%s", diff)
	}

	// 4. Nobody has a pod ask for cards that is on a node already.
	c.keepsWhatIsAskedFor(t)

	// 5. All go with the pod.
	for _, name := range []string{"asks", "bare"} {
		if err := pods.Delete(within(t), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	}
}

// keepsWhatIsAskedFor checks that labels which ask for cards stay as they are once a pod has a node, and only then.
func (c *cluster) keepsWhatIsAskedFor(t *testing.T) {
	t.Helper()
	pods := c.Client().CoreV1().Pods("default")
	create := func(name, node string, labels map[string]string) error {
		p := kubetest.PlainPod(0)
		p.Name, p.GenerateName, p.Namespace, p.Labels, p.Spec.NodeName = name, "", "default", labels, node
		_, err := pods.Create(within(t), p, metav1.CreateOptions{})
		return err
	}
	patch := func(name, labels string, sub ...string) error {
		_, err := pods.Patch(within(t), name, types.MergePatchType, []byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{}, sub...)
		return err
	}
	refused := func(err error, want string) bool { return err != nil && strings.Contains(err.Error(), want) }

	for _, labels := range []map[string]string{{"scv/number": "1"}, {"scv/priority": "1", "scv/slip": ""}} {
		if err := create("placed", "node-00000", labels); !refused(err, "create it without spec.nodeName") {
			t.Errorf("create on a node with labels %v: %v, want a refusal", labels, err)
		}
	}
	for name, labels := range map[string]map[string]string{"placed": {"scv/priority": "1", "app": "a"}, "static": nil} {
		if err := create(name, "node-00000", labels); err != nil {
			t.Errorf("create %s on a node with labels %v: %v", name, labels, err)
		}
	}
	if err := create("waits", "", map[string]string{"scv/number": "1", "app": "a"}); err != nil { // as a DaemonSet's: its node comes later
		t.Fatal(err)
	}
	for _, labels := range []string{`{"scv/number":"2"}`, `{"scv/memory":"7"}`, `{"scv/memory":null}`, `null`, `{"scv/number":"1","scv/priority":"1","app":"a"}`} {
		if err := patch("waits", labels); err != nil {
			t.Errorf("labels %s of a pod without a node: %v", labels, err)
		}
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "waits", Namespace: "default", Annotations: map[string]string{cards: "GPU-3"}}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-00000"},
	}
	if err := pods.Bind(within(t), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, all := range map[string][]string{
		"waits":  {`{"scv/number":"2"}`, `{"scv/number":null}`, `{"scv/memory":"7"}`, `{"scv/priority":"2"}`, `{"scv/number":null,"scv/Number":"1"}`, `null`},
		"placed": {`{"scv/number":"1"}`, `{"scv/priority":null}`},
		"static": {`{"scv/number":"1"}`, `{"app":"a","scv/priority":"1"}`},
	} {
		for _, labels := range all {
			for _, sub := range [][]string{nil, {"status"}} {
				if err := patch(name, labels, sub...); !refused(err, "stay as they are") {
					t.Errorf("labels %s of %s%v: %v, want a refusal", labels, name, sub, err)
				}
			}
		}
		for _, labels := range []string{`{"app":"b"}`, `{"scvs/number":"1","x":"y"}`, `{"app":null}`} {
			if err := patch(name, labels); err != nil {
				t.Errorf("labels %s of %s: %v", labels, name, err)
			}
		}
	}
	got, err := pods.Get(within(t), "waits", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"scv/number": "1", "scv/priority": "1", "scvs/number": "1", "x": "y", corev1.LabelTopologyZone: "zone-0"}, got.Labels); diff != "" {
		t.Errorf("labels in the end (-want +got):\n%s", diff)
	}
}

// changesContainers changes a pod by the subresources that are for that, with what it was read with, and with cards that are others.
func (c *cluster) changesContainers(t *testing.T, name string) {
	t.Helper()
	pods := c.Client().CoreV1().Pods("default")
	for _, annotation := range []string{"", "GPU-7"} {
		is, err := pods.Get(within(t), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if annotation != "" {
			is.Annotations[cards] = annotation
		}
		debugged := is.DeepCopy()
		debugged.Spec.EphemeralContainers = append(debugged.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug" + strings.ToLower(annotation), Image: "i", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}})
		_, err = pods.UpdateEphemeralContainers(within(t), name, debugged, metav1.UpdateOptions{})
		c.keepsCards(t, name, "ephemeralcontainers", annotation, err)
		if is, err = pods.Get(within(t), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if annotation != "" {
			is.Annotations[cards] = annotation
		}
		is.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("11m")
		_, err = pods.UpdateResize(within(t), name, is, metav1.UpdateOptions{})
		c.keepsCards(t, name, "resize", annotation, err)
	}
}

// keepsCards checks what has come of an update by a subresource: cards are refused, or not taken over.
func (c *cluster) keepsCards(t *testing.T, name, subresource, annotation string, err error) {
	t.Helper()
	refused := err != nil && strings.Contains(err.Error(), cardsRefused)
	if err != nil && (!refused || annotation == "") {
		t.Errorf("%s of %s: %v", subresource, name, err)
	}
	is, err := c.Client().CoreV1().Pods("default").Get(within(t), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if is.Annotations[cards] == "GPU-7" {
		t.Errorf("%s of %s: it has the cards GPU-7", subresource, name)
	}
}
