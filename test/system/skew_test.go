//go:build skew

package system

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// skewed are the API servers that docs/support.md promises, by release.
var skewed = map[string]string{"1.34": kubetest.APIServer134, "1.35": kubetest.APIServer135, "1.36": kubetest.APIServer}

// skew is a cluster of one release with Berth in kube-scheduler's place.
type skew struct {
	*testing.T
	ctx context.Context
	cp  *kubetest.ControlPlane
}

// must fails the test unless something went well.
func (s *skew) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// pod creates a pod that also has changed.
func (s *skew) pod(name string, also func(*corev1.Pod)) {
	s.Helper()
	p := kubetest.PlainPod(0)
	p.Name = name
	if also != nil {
		also(p)
	}
	berthtest.Await(s, berthtest.Patience, "pod "+name+" to be made", func(ctx context.Context) error {
		_, err := s.cp.Client().CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, p, metav1.CreateOptions{})
		if err != nil && !apierrors.IsForbidden(err) { // the API server may not have seen the class of its priority yet
			s.Fatal(err)
		}
		return err
	})
}

// get returns a pod.
func (s *skew) get(name string) *corev1.Pod {
	s.Helper()
	p, err := s.cp.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return p
}

// awaitNodes waits until pods are bound and returns their nodes.
func (s *skew) awaitNodes(names ...string) (nodes []string) {
	s.Helper()
	for _, name := range names {
		berthtest.Await(s, berthtest.Patience, "pod "+name+" to be bound", func(context.Context) error {
			p := s.get(name)
			if p.Spec.NodeName == "" {
				return fmt.Errorf("conditions %+v", p.Status.Conditions)
			}
			nodes = append(nodes, p.Spec.NodeName)
			return nil
		})
	}
	return nodes
}

// awaitCondition waits until a pod has a condition with a text in its message.
func (s *skew) awaitCondition(name string, kind corev1.PodConditionType, status corev1.ConditionStatus, reason, text string) {
	s.Helper()
	berthtest.Await(s, berthtest.Patience, fmt.Sprintf("pod %s to have %s %s", name, kind, status), func(context.Context) error {
		p := s.get(name)
		for _, c := range p.Status.Conditions {
			if c.Type == kind && c.Status == status && c.Reason == reason && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", p.Status.Conditions)
	})
}

// awaitEvent waits until there is an event about a pod with a text in its note.
func (s *skew) awaitEvent(name, reason, text string) {
	s.Helper()
	berthtest.Await(s, berthtest.Patience, fmt.Sprintf("an event %s of pod %s", reason, name), func(ctx context.Context) error {
		events, err := s.cp.Client().EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name == name {
				if e.Reason == reason && strings.Contains(e.Note, text) {
					return nil
				}
				notes = append(notes, e.Reason+": "+e.Note)
			}
		}
		return fmt.Errorf("there are %q", notes)
	})
}

// TestBerthSchedulesOnOlderAPIServers has Berth in kube-scheduler's place, with the rights that each release gives kube-scheduler, and pods of several
// kinds, each of which shows another part of what is read or written.
func TestBerthSchedulesOnOlderAPIServers(t *testing.T) {
	versions, err := kubetest.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range slices.Sorted(maps.Keys(skewed)) {
		t.Run(release, func(t *testing.T) { schedulesOn(t, release, versions[skewed[release]]) })
	}
}

func schedulesOn(t *testing.T, release, version string) {
	k := newKubeadm(t)
	options := k.plane()
	options.Program = skewed[release]
	// As kubeadm has it: without an authority for callers of callers, who looks for one complains.
	options.APIServerFlags = append(options.APIServerFlags, "--requestheader-client-ca-file="+k.path("pki/ca.crt"), "--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User")
	cp := kubetest.StartT(t, options)
	k.kubeconfig(cp)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	s := &skew{T: t, ctx: ctx, cp: cp}
	client := cp.Client()

	// 1. The API server is the one that is meant, and the doctor sees nothing in the way.
	is, err := client.Discovery().ServerVersion()
	s.must(err)
	if is.Major+"."+is.Minor != release || !strings.HasPrefix(version, "v"+release+".") { // what is built from a module does not know its patch
		t.Fatalf("the API server is of %s.%s and built from %s, want %s", is.Major, is.Minor, version, release)
	}
	findings, code, text := diagnose(t, "--kubeconfig", k.path("scheduler.conf"))
	if code != 0 || !slices.ContainsFunc(findings, func(f finding) bool {
		return f.Check == "versions" && f.Level == "ok" && strings.Contains(f.What, "Kubernetes "+release)
	}) || !slices.ContainsFunc(findings, func(f finding) bool { return f.Check == "rights" && f.Level == "ok" }) {
		t.Errorf("the doctor ends with %d, and says:\n%s", code, text)
	}

	// 2. Six nodes in three zones, of which one has a taint and one a label; classes of priorities and of storage.
	s.must(cp.CreateNodes(ctx, 6, func(i int) *corev1.Node {
		n := kubetest.PlainNode(i)
		n.Labels[corev1.LabelTopologyZone] = kubetest.ZoneName(i % 3)
		switch i {
		case 1:
			n.Labels["disk"] = "ssd"
		case 5:
			n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
		}
		return n
	}))
	_, err = client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, metav1.CreateOptions{})
	s.must(err)
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: provisioner, VolumeBindingMode: &waits}, metav1.CreateOptions{})
	s.must(err)
	controller, err := kubetest.PlayVolumeController(ctx, cp.Kubeconfig(), provisioner)
	s.must(err)
	defer func() { s.must(controller.Stop()) }()
	kubelets, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 0, nil)
	s.must(err)
	defer func() {
		if err := kubelets.Stop(); err != nil {
			t.Error(err)
		}
	}()
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	s.must(err)
	defer watcher.Stop()

	// 3. Berth is ready, however few kinds there are.
	berth := startInPlace(t, "--kubeconfig="+k.path("scheduler.conf"), "--authentication-kubeconfig="+k.path("scheduler.conf"), "--authorization-kubeconfig="+k.path("scheduler.conf"))
	berthtest.Await(t, berthtest.Patience, "Berth to be ready", func(ctx context.Context) error {
		response, text, err := berth.get(ctx, "/readyz", nil)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, text)
		}
		return err
	})

	// 4. Pods of several kinds.
	var all []string
	create := func(name string, also func(*corev1.Pod)) {
		t.Helper()
		s.pod(name, also)
		all = append(all, name)
	}
	labelled := func(app string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Labels["app"] = app } }
	selects := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	for i := range 6 {
		create(fmt.Sprintf("plain-%d", i), nil)
	}
	create("tolerates", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-00005"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	})
	create("near-disk", func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}}}}}}}}
	})
	for i := range 3 {
		create(fmt.Sprintf("spread-%d", i), func(p *corev1.Pod) {
			labelled("spread")(p)
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selects("spread"),
			}}
		})
		create(fmt.Sprintf("apart-%d", i), func(p *corev1.Pod) {
			labelled("apart")(p)
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: corev1.LabelHostname, LabelSelector: selects("apart")},
			}}}
		})
	}
	for i := range 2 {
		name := fmt.Sprintf("claims-%d", i)
		_, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: new("made"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}, metav1.CreateOptions{})
		s.must(err)
		create(name, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		})
	}
	nodes := func(prefix string, n int) []string {
		t.Helper()
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("%s-%d", prefix, i))
		}
		return s.awaitNodes(names...)
	}
	nodes("plain", 6)
	if got := s.awaitNodes("tolerates", "near-disk"); !slices.Equal(got, []string{"node-00005", "node-00001"}) {
		t.Errorf("the pod that tolerates and the one near the disk are on %v", got)
	}
	zones := make(map[byte]bool)
	for _, node := range nodes("spread", 3) {
		zones[(node[len(node)-1]-'0')%3] = true
	}
	if len(zones) != 3 {
		t.Errorf("three pods that are spread over zones are in %d", len(zones))
	}
	if got := nodes("apart", 3); got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
		t.Errorf("pods that keep apart are on %v", got)
	}
	nodes("claims", 2)
	for i := range 2 {
		claim, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Get(ctx, fmt.Sprintf("claims-%d", i), metav1.GetOptions{})
		s.must(err)
		if claim.Spec.VolumeName == "" {
			t.Errorf("the claim %s has no volume, and its pod a node", claim.Name)
		}
	}

	// 5. One that fits nowhere says why; one with a gate waits for that.
	s.pod("nowhere", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-00005"} })
	const untolerated = "1 node(s) had untolerated taint(s)"
	s.awaitCondition("nowhere", corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, untolerated)
	s.awaitEvent("nowhere", "FailedScheduling", untolerated)
	s.pod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} })
	create("behind-the-gated", nil)
	s.awaitNodes("behind-the-gated")
	gated := s.get("gated")
	if gated.Spec.NodeName != "" {
		t.Errorf("the gated pod is on %s", gated.Spec.NodeName)
	}
	gated.Spec.SchedulingGates = nil
	_, err = client.CoreV1().Pods(metav1.NamespaceDefault).Update(ctx, gated, metav1.UpdateOptions{})
	s.must(err)
	s.awaitNodes("gated")
	all = append(all, "gated")

	// 6. One of a high priority takes the place of one that no budget protects.
	onlyAt := func(node, cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
	}
	_, err = client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selects("kept"), MinAvailable: new(intstr.FromInt32(1))},
	}, metav1.CreateOptions{})
	s.must(err)
	create("kept", func(p *corev1.Pod) { onlyAt("node-00005", "1800m")(p); labelled("kept")(p) })
	s.pod("victim", onlyAt("node-00005", "1800m"))
	s.awaitNodes("kept", "victim")
	create("preemptor", func(p *corev1.Pod) { onlyAt("node-00005", "1800m")(p); p.Spec.PriorityClassName = "high" })
	s.awaitNodes("preemptor")
	s.awaitEvent("victim", "Preempted", "Preempted by pod "+string(s.get("preemptor").UID)+" on node node-00005")
	gone := kubelets.Evicted()
	if len(gone) != 1 || gone[0].Name != "victim" {
		t.Errorf("%d pods had to go, want the victim alone", len(gone))
	} else if !slices.ContainsFunc(gone[0].Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	}) {
		t.Errorf("the victim was not told why: %+v", gone[0].Status.Conditions)
	}

	// 7. Each has its event and condition, and all is as it has to be.
	for _, name := range all {
		s.awaitEvent(name, "Scheduled", "Successfully assigned default/"+name+" to ")
		s.awaitCondition(name, corev1.PodScheduled, corev1.ConditionTrue, "", "")
	}
	awaitBound(t, cp, len(all))
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}

	// 8. The log complains of nothing but of what any start has: an etcd within the process, and calls of roles that are up before the binder is.
	berth.proc.Stop()
	logged := berth.proc.LogTail(16 << 20)
	if !slices.ContainsFunc(slices.Collect(strings.Lines(logged)), func(line string) bool { return severity(line) == 'I' }) {
		t.Errorf("Berth's log has no line that is known as such:\n%s", logged)
	}
	for line := range strings.Lines(logged) {
		expected := strings.Contains(line, `"etcd: failed to update storage version"`) // it is new, and has none yet
		switch severity(line) {
		case 'W':
			expected = strings.Contains(line, `"etcd: `) || strings.Contains(line, `grpc.code="Unavailable"`)
		case 'I', 0:
			expected = true
		}
		if !expected {
			t.Errorf("Berth's log says: %s", line)
		}
	}
	t.Logf("Kubernetes %s: %d pods bound, 1 preempted, 1 unschedulable", version, len(all))
}

// logLine begins a line of klog's, as kube-scheduler's place has it: the severity, the day and the time.
var logLine = regexp.MustCompile(`^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} `)

// severity returns that of a line of a log, 0 if it is none's beginning.
func severity(line string) byte {
	if !logLine.MatchString(line) {
		return 0
	}
	return line[0]
}
