package deploy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// chartDir is where the chart is.
var chartDir = filepath.Join(deployDir, "helm", "berth")

// helm renders the chart as the first revision of release berth in namespace berth, with values beside its defaults.
func helm(values map[string]any) ([]*unstructured.Unstructured, error) {
	return helmRevision(1, values)
}

func helmRevision(revision int, values map[string]any) ([]*unstructured.Unstructured, error) {
	r, err := helmAll(revision, values)
	return r.objects, err
}

// rendered is all that comes of the chart.
type rendered struct {
	objects []*unstructured.Unstructured
	hooks   []*unstructured.Unstructured // of helm test, which install and upgrade leave out
	notes   string
}

func helmAll(revision int, values map[string]any) (r rendered, err error) {
	return helmOn("36", revision, values)
}

// helmOn renders the chart for a release of Kubernetes, 1.minor.
func helmOn(minor string, revision int, values map[string]any) (r rendered, err error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return rendered{}, err
	}
	// As from a file, whose numbers are floats.
	if values, err = asRead(values); err != nil {
		return rendered{}, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1." + minor + ".3", Major: "1", Minor: minor}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "berth", Namespace: namespace, Revision: revision, IsInstall: revision == 1, IsUpgrade: revision > 1}, capabilities)
	if err != nil {
		return rendered{}, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return rendered{}, err
	}
	for name, text := range files {
		if path.Base(name) == "NOTES.txt" {
			r.notes = text
			continue
		}
		objects, err := parse(name, text)
		if err != nil {
			return rendered{}, err
		}
		for _, o := range objects {
			if o.GetAnnotations()["helm.sh/hook"] != "" {
				r.hooks = append(r.hooks, o)
			} else {
				r.objects = append(r.objects, o)
			}
		}
	}
	return r, nil
}

func asRead(values map[string]any) (map[string]any, error) {
	text, err := yaml.Marshal(values)
	if err != nil {
		return nil, err
	}
	return chartutil.ReadValues(text)
}

// parse returns the objects of a file of YAML.
func parse(name, text string) (objects []*unstructured.Unstructured, err error) {
	for r := yamlutil.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		content, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, document)
		}
		if string(content) == "null" {
			continue // comments
		}
		o := new(unstructured.Unstructured)
		if err := o.UnmarshalJSON(content); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, document)
		}
		objects = append(objects, o)
	}
}

// byName returns objects by kind and name. It fails if there are two of one name.
func byName(t *testing.T, objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	t.Helper()
	all := make(map[string]*unstructured.Unstructured)
	for _, o := range objects {
		name := o.GroupVersionKind().GroupKind().String() + " " + o.GetNamespace() + "/" + o.GetName()
		if all[name] != nil {
			t.Errorf("there are two of %s", name)
		}
		all[name] = o
	}
	return all
}

func TestTheChartSaysWhatTheKustomizationsSay(t *testing.T) {
	overlay := func(name string) string { return filepath.Join(deployDir, "kustomize", "overlays", name) }
	for dir, values := range map[string]map[string]any{
		overlay("second-scheduler"):  nil,
		overlay("default-scheduler"): {"schedulerName": "default-scheduler", "ownSchedulerName": "kube-scheduler"},
		monitored:                    {"podMonitor": map[string]any{"enabled": true}},
		assigned:                     {"assignNamespaces": map[string]any{"enabled": true}, "priorityClassName": "system-cluster-critical"},
		ownScheduled:                 {"schedulerName": "default-scheduler", "ownSchedulerName": "kube-scheduler", "ownSchedulerNamespaces": map[string]any{"enabled": true}},
		withYoda:                     {"podMonitor": map[string]any{"enabled": true}, "yoda": map[string]any{"enabled": true}},
		defaultWithYoda:              {"schedulerName": "default-scheduler", "ownSchedulerName": "kube-scheduler", "yoda": map[string]any{"enabled": true}},
	} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			rendered, err := helm(values)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range rendered {
				if o.GetKind() == "Job" { // kustomize knows no revisions
					o.SetName(jobName.ReplaceAllString(o.GetName(), ""))
				}
				takeHelmsOwn(t, o)
			}
			want, got := byName(t, render(t, dir)), byName(t, rendered)
			// Helm's users make the namespace by --create-namespace, and label it by hand.
			delete(want, "Namespace /"+namespace)
			if len(want) < 40 {
				t.Errorf("kustomize renders %d objects, want at least 40", len(want))
			}
			names := slices.Sorted(maps.Keys(want))
			if diff := cmp.Diff(names, slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("objects (-kustomize +helm):\n%s", diff)
			}
			for _, name := range names {
				readData(t, want[name])
				readData(t, got[name])
				if diff := cmp.Diff(want[name].Object, got[name].Object); diff != "" {
					t.Errorf("%s (-kustomize +helm):\n%s", name, diff)
				}
			}
		})
	}
}

// takeHelmsOwn takes out of an object what kustomize does not know, and fails if it is not there: what it is a version of, who manages it, and
// by which configuration a binder runs.
func takeHelmsOwn(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	labels := o.GetLabels()
	for name, want := range map[string]string{"app.kubernetes.io/version": "dev", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "berth-0.1.0"} {
		if labels[name] != want {
			t.Errorf("%s %s has label %s %q, want %q", o.GetKind(), o.GetName(), name, labels[name], want)
		}
		delete(labels, name)
	}
	o.SetLabels(labels)
	at := []string{"spec", "template", "metadata", "annotations"}
	if sum, found, _ := unstructured.NestedString(o.Object, append(at, "checksum/config")...); found && len(sum) == 64 {
		unstructured.RemoveNestedField(o.Object, at...)
	}
}

// readData puts what the files of a ConfigMap say in place of their text: the two write the same differently.
func readData(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	if o.GetKind() != "ConfigMap" {
		return
	}
	files, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	data := make(map[string]any)
	for name, text := range files {
		var content any
		if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data[name] = content
	}
	o.Object["data"] = data
}

func TestTheChartLeavesOutWhatIsSwitchedOff(t *testing.T) {
	off := map[string]any{"enabled": false}
	objects, err := helm(map[string]any{
		"etcd":            map[string]any{"enabled": false, "endpoints": []any{"https://a:2379", "https://b:2379"}},
		"certManager":     off,
		"networkPolicies": off,
		"podMonitor":      map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if strings.Contains(o.GetName(), "etcd") || strings.Contains(o.GetAPIVersion(), "cert-manager") || o.GetKind() == "NetworkPolicy" || strings.Contains(fmt.Sprint(o.Object), "yoda") {
			t.Errorf("%s %s is there", o.GetKind(), o.GetName())
		}
	}
	if monitor := of(objects, "PodMonitor")["berth"]; monitor == nil || monitor.GetLabels()["release"] != "prometheus" {
		t.Errorf("there is no PodMonitor with the labels that are given: %v", monitor)
	}
	deployments := of(objects, "Deployment")
	if len(deployments) != 5 {
		t.Errorf("there are %d Deployments, want one per role", len(deployments))
	}
	for name, d := range deployments {
		containers, _, err := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(containers); !strings.Contains(text, "value:https://a:2379,https://b:2379") {
			t.Errorf("%s does not use the etcd that is given: %s", name, text)
		}
	}
}

func TestTheChartTakesAnEtcdInPlaintextWhenItIsToldTo(t *testing.T) {
	objects, err := helm(map[string]any{"etcd": map[string]any{"enabled": false, "endpoints": []any{"http://a:2379"}, "insecurePlaintext": true}})
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range of(objects, "Deployment") {
		if text := fmt.Sprint(d.Object); !strings.Contains(text, "--etcd-insecure-plaintext") || strings.Contains(text, "--etcd-ca") {
			t.Errorf("%s: its arguments do not go with plaintext: %s", name, text)
		}
	}
}

// jobName is what the chart adds to the name of a Job: the revision, and a hash of what it runs.
var jobName = regexp.MustCompile(`-\d+-[0-9a-f]{8}$`)

// What a Job runs cannot be changed: one that is there would hold up an upgrade, or a rollback. Who renders the chart and applies that has the first revision each time.
func TestEachRevisionOfTheChartAndEachTextOfItHasAJobOfItsOwn(t *testing.T) {
	names, specs := make(map[string]bool), make(map[string]any)
	for _, text := range []string{"{}", "etcd: {resources: {requests: {memory: 1Gi}}}", "image: {tag: other}", "{image: {tag: other}, nodeSelector: {a: b}}", "podAnnotations: {a: b}"} {
		for revision := 1; revision <= 3; revision++ {
			objects, err := helmRevision(revision, values(t, text))
			if err != nil {
				t.Fatal(err)
			}
			jobs := of(objects, "Job")
			if len(jobs) != 1 {
				t.Fatalf("with %s there are %d jobs", text, len(jobs))
			}
			for name, job := range jobs {
				if !strings.HasPrefix(name, fmt.Sprintf("etcd-init-%d-", revision)) || !jobName.MatchString(name) {
					t.Errorf("the job of revision %d is called %s", revision, name)
				}
				if was, there := specs[name]; there && !cmp.Equal(was, job.Object["spec"]) {
					t.Errorf("%s is of two texts:\n%s", name, cmp.Diff(was, job.Object["spec"]))
				}
				specs[name], names[name] = job.Object["spec"], true
				// The policies know its pods by this.
				label, _, err := unstructured.NestedString(job.Object, "spec", "template", "metadata", "labels", "app.kubernetes.io/name")
				if err != nil || label != "etcd-init" {
					t.Errorf("pods of %s are labelled %q, %v, want etcd-init", name, label, err)
				}
			}
		}
	}
	if len(names) != 3*4 { // one of the values is none of its
		t.Errorf("there are %d names: %v", len(names), slices.Sorted(maps.Keys(names)))
	}
}

func TestTheChartGivesTheGatewayMoreArguments(t *testing.T) {
	more := []any{"--allowed-hosts=berth.example.com,b.example.com", "--max-connections=10", `--authentication-audiences=a: "b" # {{c}}`}
	objects, err := helm(map[string]any{"gateway": map[string]any{"extraArgs": more}})
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range of(objects, "Deployment") {
		containers, _, err := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
		if err != nil {
			t.Fatal(err)
		}
		args := containers[0].(map[string]any)["args"].([]any)
		if name != "gateway" {
			if slices.Contains(args, more[0]) {
				t.Errorf("%s has the gateway's arguments", name)
			}
			continue
		}
		if diff := cmp.Diff(more, args[len(args)-len(more):]); diff != "" {
			t.Errorf("the last arguments of the gateway (-want +got):\n%s", diff)
		}
		if !slices.Contains(args, any("--authenticate=kubernetes")) {
			t.Errorf("the gateway lacks what it has without them: %v", args)
		}
	}
}

func TestTheChartSaysWhereCollectorsRun(t *testing.T) {
	objects, err := helm(map[string]any{"yoda": map[string]any{"enabled": true, "collector": map[string]any{
		"runtimeClassName": "nvidia", "nodeSelector": map[string]any{"nvidia.com/gpu.present": "true"}, "tolerations": []any{},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	spec, _, err := unstructured.NestedMap(of(objects, "DaemonSet")["scv"].Object, "spec", "template", "spec")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{"runtimeClassName": spec["runtimeClassName"], "nodeSelector": spec["nodeSelector"], "tolerations": spec["tolerations"]}
	want := map[string]any{"runtimeClassName": "nvidia", "nodeSelector": map[string]any{"nvidia.com/gpu.present": "true"}, "tolerations": nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("where collectors run (-want +got):\n%s", diff)
	}
}
