package system

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/source"
)

// jqLines returns the command lines of all pages that pipe something into jq, by page.
func jqLines(t *testing.T) map[string][]string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "jq ") {
				found[filepath.Base(page)] = append(found[filepath.Base(page)], m[1])
			}
		}
	}
	return found
}

// What the page tells people to list before they switch are the pods that Berth would leave pending, or not judge by all that they ask for.
func TestThePodsToListBeforeSwitchingAreThoseThatBerthDoesNotJudge(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Fatalf("the documentation says what to do with jq, and it is not installed (on Debian: apt-get install jq): %v", err)
	}
	lines := jqLines(t)
	const page = "coming-from-kube-scheduler.md"
	if len(lines) != 1 || len(lines[page]) != 1 {
		t.Fatalf("pages have the lines with jq %q: this runs one of %s, and is to run all", lines, page)
	}
	line := lines[page][0]

	// 1. Pods of all kinds, as an API server has them.
	cp := kubetest.StartT(t, kubetest.Options{})
	client, ctx := cp.Client(), t.Context()
	if _, err := client.ResourceV1().DeviceClasses().Create(ctx, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	with := func(source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) { spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	asks := func(name string) func(*corev1.PodSpec) {
		return func(spec *corev1.PodSpec) {
			one := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
			spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		}
	}
	const byClass = "by-its-name" // which Berth takes for any extended resource
	pods := map[string]func(*corev1.PodSpec){
		"plain":     func(*corev1.PodSpec) {},
		"empty-dir": with(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		"nfs":       with(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}),
		"resource":  asks("example.com/other"),
		byClass:     asks("example.com/gpu"),
		"by-its-class": func(spec *corev1.PodSpec) {
			asks("deviceclass.resource.kubernetes.io/gpus")(spec)
			spec.InitContainers, spec.Containers = spec.Containers, []corev1.Container{{Name: "other", Image: "i"}}
		},
		"claims": func(spec *corev1.PodSpec) {
			spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}
		},
		"pvc": with(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}),
		"ephemeral": with(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}}}),
		"gce":       with(corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}),
		"aws":       with(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "d"}}),
		"iscsi":     with(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "127.0.0.1:3260", IQN: "iqn.2001-04.com.example:s", Lun: 1}}),
		"rbd":       with(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: []string{"m"}, RBDImage: "d"}}),
		"azure":     with(corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "https://blob/d.vhd"}}),
		"file":      with(corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "s", ShareName: "d"}}),
		"cinder":    with(corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{VolumeID: "d"}}),
		"vsphere":   with(corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "d"}}),
		"portworx":  with(corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "d"}}),
		"config":    with(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}),
		"host-path": with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/p"}}),
	}
	var want []string
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		pods[name](&pod.Spec)
		made, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("create pod %s: %v", name, err)
		}
		if source.ReducePod(made).Class.Unsupported != "" || name == byClass {
			want = append(want, "default/"+name)
		}
	}
	// Kube-scheduler has placed it, with a claim that it made for the pod.
	placed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "placed", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	asks("example.com/gpu")(&placed.Spec)
	placed, err := client.CoreV1().Pods("default").Create(ctx, placed, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	placed.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "r"},
	}}
	if _, err := client.CoreV1().Pods("default").UpdateStatus(ctx, placed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want = append(want, "default/placed")
	slices.Sort(want)
	if len(want) < 4 || len(want) > len(pods)-5 {
		t.Fatalf("Berth does not judge %q: the pods are not what they are meant to be", want)
	}

	// 2. What the page says, and what it says for API servers without device classes.
	programs, err := kubetest.Build(ctx, kubetest.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	listed := func(line string) []string {
		t.Helper()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+cp.Kubeconfig(), "HOME="+t.TempDir(),
			"PATH="+filepath.Dir(programs[kubetest.Kubectl])+string(os.PathListSeparator)+os.Getenv("PATH"))
		var complaints strings.Builder
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s\n%v: %s", line, err, complaints.String())
		}
		all := strings.Fields(string(out))
		slices.Sort(all)
		return all
	}
	if got := listed(line); !slices.Equal(got, want) {
		t.Errorf("the page lists\n%q, want\n%q", got, want)
	}
	const optional = "deviceclasses,"
	if strings.Count(line, optional) != 1 {
		t.Fatalf("%q has to be in the line, to be left out", optional)
	}
	want = slices.DeleteFunc(want, func(pod string) bool { return pod == "default/"+byClass })
	if got := listed(strings.Replace(line, optional, "", 1)); !slices.Equal(got, want) {
		t.Errorf("without device classes the page lists\n%q, want\n%q", got, want)
	}
}
