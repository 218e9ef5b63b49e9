//go:build volumes

package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// The namespaces of pods that Berth places, and of those that kube-scheduler does, which are alike.
var judged = []string{ours, theirs}

// stuck is a cluster in which pods wait for their volumes, once by Berth and once by kube-scheduler.
type stuck struct {
	t   *testing.T
	ctx context.Context
	cp  *kubetest.ControlPlane
}

func (s *stuck) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// claim makes a claim, of a class, in both namespaces.
func (s *stuck) claim(name, class string, finalizers ...string) {
	s.t.Helper()
	for _, ns := range judged {
		c := claimTemplate(name, class)
		c.Finalizers = finalizers
		_, err := s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Create(s.ctx, &c, metav1.CreateOptions{})
		s.must(err)
	}
}

// removeClaim deletes a claim in both namespaces, and waits until it is gone, or told to go if something holds it.
func (s *stuck) removeClaim(name string, held bool) {
	s.t.Helper()
	for _, ns := range judged {
		was, err := s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		s.must(s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Delete(s.ctx, name, metav1.DeleteOptions{}))
		if !held {
			s.awaitGone(ns, was)
		}
	}
}

// awaitGone waits until a claim is gone. Another of its name may be there.
func (s *stuck) awaitGone(ns string, was *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	berthtest.Await(s.t, berthtest.Patience, ns+"/"+was.Name+" to go", func(ctx context.Context) error {
		is, err := s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Get(ctx, was.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil && is.UID == was.UID:
			return fmt.Errorf("it is there, with %v", is.Finalizers)
		}
		return err
	})
}

// awaitClaims waits until a claim of both namespaces is as it should be.
func (s *stuck) awaitClaims(name, what string, is func(*corev1.PersistentVolumeClaim) bool) {
	s.t.Helper()
	for _, ns := range judged {
		berthtest.Await(s.t, berthtest.Patience, ns+"/"+name+" "+what, func(ctx context.Context) error {
			c, err := s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Get(ctx, name, metav1.GetOptions{})
			if err == nil && !is(c) {
				err = fmt.Errorf("it is %v, %v, %v", c.Status, c.Spec.VolumeName, c.Annotations)
			}
			return err
		})
	}
}

// denies is the name of a policy that denies every claim a node.
const denies = "no-claim-gets-a-node"

// deny has every write denied that gives a claim a node, and waits until that is so for a claim of both namespaces.
func (s *stuck) deny(name string) {
	s.t.Helper()
	admission := s.cp.Client().AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(s.ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: denies},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumeclaims"}},
			}}}},
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("!has(object.metadata.annotations) || !(%q in object.metadata.annotations)", volume.AnnSelectedNode), Message: "no claim gets a node",
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(s.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: denies},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: denies, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	s.must(err)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"anywhere"}}}`, volume.AnnSelectedNode)
	for _, ns := range judged {
		berthtest.Await(s.t, berthtest.Patience, "writes to claims to be denied", func(ctx context.Context) error {
			_, err := s.cp.Client().CoreV1().PersistentVolumeClaims(ns).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil {
				return errors.New("one is not")
			}
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				return nil
			}
			return err
		})
	}
}

// allow takes back what deny has done.
func (s *stuck) allow() {
	s.t.Helper()
	admission := s.cp.Client().AdmissionregistrationV1()
	s.must(admission.ValidatingAdmissionPolicyBindings().Delete(s.ctx, denies, metav1.DeleteOptions{}))
	s.must(admission.ValidatingAdmissionPolicies().Delete(s.ctx, denies, metav1.DeleteOptions{}))
}

func bound(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound }

// pod makes a pod in both namespaces.
func (s *stuck) pod(name string, claim string, also func(*corev1.Pod)) {
	s.t.Helper()
	for _, ns := range judged {
		p := kubetest.PlainPod(0)
		p.Name, p.Namespace = name, ns
		if ns == theirs {
			p.Spec.SchedulerName = theirs
		}
		if claim != "" {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		}
		if also != nil {
			also(p)
		}
		_, err := s.cp.Client().CoreV1().Pods(ns).Create(s.ctx, p, metav1.CreateOptions{})
		s.must(err)
	}
}

func (s *stuck) volume(v *corev1.PersistentVolume) {
	s.t.Helper()
	_, err := s.cp.Client().CoreV1().PersistentVolumes().Create(s.ctx, v, metav1.CreateOptions{})
	s.must(err)
}

// Of a pod that a plugin refuses at PreFilter, kube-scheduler's text ends with unread, as DynamicResources was not asked then and PostFilter misses
// what it would have left; Berth's with what PostFilter says of all others (test/oracle, doc.go).
const (
	unread = ". not found"
	read   = ". no new claims to deallocate, preemption: 0/6 nodes are available: 6 Preemption is not helpful for scheduling."
)

// same waits until the pod of each namespace says why it is not placed, in its condition and an event, with the same reason, and text but for the
// names of namespaces, and the text has something in it; and both are nominated to a node, or none is. To which one does not count: either takes any that
// is good.
func (s *stuck) same(name, text string) {
	s.t.Helper()
	berthtest.Await(s.t, berthtest.Patience, "both to say "+text, func(ctx context.Context) error {
		var said []string
		for _, ns := range judged {
			p, err := s.cp.Client().CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
			if i < 0 {
				return fmt.Errorf("%s has no condition yet", ns)
			}
			c := p.Status.Conditions[i]
			events, err := s.cp.Client().EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			told := false
			for _, e := range events.Items {
				told = told || e.Regarding.UID == p.UID && e.Reason == "FailedScheduling" && e.Type == corev1.EventTypeWarning && e.Note == c.Message
			}
			said = append(said, strings.ReplaceAll(fmt.Sprintf("%s %s, told by an event: %t, nominated: %t: %s",
				c.Status, c.Reason, told, p.Status.NominatedNodeName != "", c.Message), ns, "NAMESPACE"))
			if !told || c.Status != corev1.ConditionFalse || !strings.Contains(said[len(said)-1], text) {
				return fmt.Errorf("%s says %s", ns, said[len(said)-1])
			}
		}
		if said[0] != strings.Replace(said[1], unread, read, 1) {
			return fmt.Errorf("Berth says %s; kube-scheduler %s", said[0], said[1])
		}
		return nil
	})
}

// told waits until an event says of the pod of each namespace, but for the names of namespaces, that it was not scheduled, for exactly this.
func (s *stuck) told(name, text string) {
	s.t.Helper()
	for _, ns := range judged {
		berthtest.Await(s.t, berthtest.Patience, "an event that says "+text, func(ctx context.Context) error {
			events, err := s.cp.Client().EventsV1().Events(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var notes []string
			for _, e := range events.Items {
				if e.Regarding.Name != name || e.Reason != "FailedScheduling" {
					continue
				}
				if e.Note == strings.ReplaceAll(text, "NAMESPACE", ns) {
					return nil
				}
				notes = append(notes, e.Note)
			}
			return fmt.Errorf("%s has %q", ns, notes)
		})
	}
}

// sooner is less than the five minutes after which unschedulable pods are tried again though nothing has woken them.
const sooner = 4 * time.Minute

// placed waits until the pods are.
func (s *stuck) placed(name string, namespaces ...string) (nodes []string) {
	s.t.Helper()
	for _, ns := range namespaces {
		berthtest.Await(s.t, sooner, ns+"/"+name+" to be placed", func(ctx context.Context) error {
			p, err := s.cp.Client().CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p.Spec.NodeName == "" {
				return fmt.Errorf("conditions %v", p.Status.Conditions)
			}
			nodes = append(nodes, p.Spec.NodeName)
			return nil
		})
	}
	return nodes
}

// TestPodsWithoutTheirVolumesSayWhyAsKubeSchedulerDoesAndAreNotStuck: of each thing that may be wrong with a claim, Berth and a kube-scheduler beside
// it say the same of a pod that is alike, and when it is put right, both place theirs.
func TestPodsWithoutTheirVolumesSayWhyAsKubeSchedulerDoesAndAreNotStuck(t *testing.T) {
	const nodes, tight, hold = 6, "tight.example.com", "example.com/hold"
	const late, at = storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	client := cp.Client()
	createAttachable(ctx, t, cp, nodes, map[string]int32{provisioner: 100, tight: 1})
	for name, by := range map[string]string{"made": provisioner, "silent": "nobody.example.com", "local": "kubernetes.io/no-provisioner", "tight": tight} {
		createClass(ctx, t, cp, name, by, late, "")
	}
	createClass(ctx, t, cp, "at-once", provisioner, at, "")
	createClass(ctx, t, cp, "silent-at-once", "nobody.example.com", at, "")
	createClass(ctx, t, cp, "refused", provisioner, late, refuseAll)
	createClass(ctx, t, cp, "not-in-zone-0", provisioner, late, kubetest.ZoneName(0))
	for _, ns := range judged {
		if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kubelet, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kubelet.Stop(); err != nil {
			t.Error(err)
		}
	}()
	startControllers(t, cp)
	made := playDriver(t, cp, provisioner, *volumesSeed, 0)
	playDriver(t, cp, tight, *volumesSeed, 0)
	startTheirs(t, cp)
	berthtest.StartProcesses(t, berthtest.Crew{Binders: 1, Queues: 1, FilterWorkers: 1, ScoreWorkers: 1, Kubeconfig: cp.Kubeconfig()})
	volumeOf := func(ns, class string) *corev1.PersistentVolume { // of nobody
		return persistentVolume(class+"-"+ns, class, kubetest.PlainNode(1).Name)
	}

	for _, tt := range []struct {
		name string
		wait func(s *stuck) // makes the pods "p"
		text string         // part of what they say
		cure func(s *stuck)
	}{
		{"a claim that does not exist", func(s *stuck) {
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: persistentvolumeclaim "c" not found.`, func(s *stuck) {
			s.claim("c", "made")
		}},
		{"a claim of a class that does not exist", func(s *stuck) {
			s.claim("c", "unknown")
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims.`, func(s *stuck) {
			createClass(ctx, s.t, cp, "unknown", provisioner, at, "")
		}},
		{"a class without a provisioner, and no volume", func(s *stuck) {
			s.claim("c", "local")
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: 6 node(s) didn't find available persistent volumes to bind.`, func(s *stuck) {
			for _, ns := range judged {
				s.volume(volumeOf(ns, "local"))
			}
		}},
		{"a claim that should have been bound before", func(s *stuck) {
			s.claim("c", "silent-at-once")
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims.`, func(s *stuck) {
			for _, ns := range judged {
				s.volume(volumeOf(ns, "silent-at-once"))
			}
		}},
		{"a volume that vanishes", func(s *stuck) {
			for _, ns := range judged {
				v := persistentVolume("gone-"+ns, "gone", kubetest.PlainNode(1).Name)
				v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ns, Name: "c"}
				s.volume(v)
			}
			s.claim("c", "gone")
			s.awaitClaims("c", "to be bound", bound)
			for _, ns := range judged {
				s.must(client.CoreV1().PersistentVolumes().Delete(ctx, "gone-"+ns, metav1.DeleteOptions{}))
				_, err := client.CoreV1().PersistentVolumes().Patch(ctx, "gone-"+ns, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				s.must(err)
			}
			s.awaitClaims("c", "to be lost", func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimLost })
			s.pod("p", "c", nil)
		}, `persistentvolumeclaim "c" bound to non-existent persistentvolume "gone-NAMESPACE"`, func(s *stuck) {
			s.removeClaim("c", false)
			s.claim("c", "made")
		}},
		{"a claim that is being deleted", func(s *stuck) {
			s.claim("c", "made", hold)
			s.removeClaim("c", true)
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: persistentvolumeclaim "c" is being deleted.`, func(s *stuck) {
			for _, ns := range judged {
				last, err := client.CoreV1().PersistentVolumeClaims(ns).Patch(ctx, "c", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				s.must(err)
				s.awaitGone(ns, last)
			}
			s.claim("c", "made")
		}},
		{"a claim that goes while its pod waits for a provisioner", func(s *stuck) {
			s.claim("c", "silent")
			s.pod("p", "c", nil)
			s.awaitClaims("c", "to have a node", func(c *corev1.PersistentVolumeClaim) bool { return c.Annotations[volume.AnnSelectedNode] != "" })
			s.removeClaim("c", false)
			s.told("p", `running PreBind plugin "VolumeBinding": binding volumes: failed to check provisioning pvc: persistentvolumeclaims "NAMESPACE/c" not found`)
		}, `0/6 nodes are available: persistentvolumeclaim "c" not found.`, func(s *stuck) {
			s.claim("c", "made")
		}},
		{"a provisioner that says no", func(s *stuck) {
			made.relents.Store(false)
			s.claim("c", "refused")
			s.pod("p", "c", nil)
		}, `running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "c"`, func(s *stuck) {
			made.relents.Store(true)
		}},
		{"a write to a claim that is denied", func(s *stuck) {
			s.claim("c", "made")
			s.deny("c")
			s.pod("p", "c", nil)
		}, `running PreBind plugin "VolumeBinding": persistentvolumeclaims "c" is forbidden: `, func(s *stuck) {
			s.allow()
		}},
		{"an ephemeral volume whose claim is not the pod's", func(s *stuck) {
			s.claim("p-v", "made")
			s.pod("p", "", func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{ephemeral("v", "made")} })
		}, `PVC NAMESPACE/p-v was not created for pod NAMESPACE/p (pod is not owner)`, func(s *stuck) {
			s.removeClaim("p-v", false)
		}},
		{"a node that takes no more volumes", func(s *stuck) {
			there := func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: kubetest.PlainNode(2).Name}
			}
			first, p := claimTemplate("first", "tight"), kubetest.PlainPod(0)
			p.Name, p.Namespace, p.Spec.NodeName = "first", ours, kubetest.PlainNode(2).Name
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "first"}}}}
			first.Annotations = map[string]string{volume.AnnSelectedNode: p.Spec.NodeName}
			_, err := client.CoreV1().PersistentVolumeClaims(ours).Create(ctx, &first, metav1.CreateOptions{})
			s.must(err)
			_, err = client.CoreV1().Pods(ours).Create(ctx, p, metav1.CreateOptions{})
			s.must(err)
			s.claim("c", "tight")
			s.pod("p", "c", there)
		}, `1 node(s) exceed max volume count, 5 node(s) didn't match Pod's node affinity/selector`, func(s *stuck) {
			info, err := client.StorageV1().CSINodes().Get(ctx, kubetest.PlainNode(2).Name, metav1.GetOptions{})
			s.must(err)
			for i := range info.Spec.Drivers {
				info.Spec.Drivers[i].Allocatable.Count = new(int32(3))
			}
			_, err = client.StorageV1().CSINodes().Update(ctx, info, metav1.UpdateOptions{})
			s.must(err)
		}},
		{"a volume that no node reaches", func(s *stuck) {
			for _, ns := range judged {
				s.volume(persistentVolume("far-"+ns, "far", "elsewhere"))
			}
			s.claim("c", "far")
			s.awaitClaims("c", "to be bound", bound)
			s.pod("p", "c", nil)
		}, `0/6 nodes are available: 6 node(s) didn't match PersistentVolume's node affinity.`, func(s *stuck) {
			node := kubetest.PlainNode(nodes)
			node.Labels[corev1.LabelHostname] = "elsewhere"
			_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			s.must(err)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &stuck{t, ctx, cp}
			tt.wait(s)
			s.same("p", tt.text)
			tt.cure(s)
			s.placed("p", judged...)
			for _, ns := range judged {
				s.must(client.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
				s.must(client.CoreV1().PersistentVolumeClaims(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
			}
			berthtest.Await(t, berthtest.Patience, "them to go", func(ctx context.Context) error {
				all, err := readSupply(ctx, client)
				if err == nil && len(all.pods)+len(all.claims) > 0 {
					err = fmt.Errorf("%d pods and %d claims are left", len(all.pods), len(all.claims))
				}
				return err
			})
		})
	}

	// kube-scheduler may try the same node for ever.
	t.Run("a provisioner that says no for a zone: the pod goes to another", func(t *testing.T) {
		s := &stuck{t, ctx, cp}
		made.relents.Store(false)
		claim, p := claimTemplate("c", "not-in-zone-0"), kubetest.PlainPod(0)
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{kubetest.ZoneName(0)},
			}}},
		}}}}
		_, err := client.CoreV1().PersistentVolumeClaims(ours).Create(ctx, &claim, metav1.CreateOptions{})
		s.must(err)
		_, err = client.CoreV1().Pods(ours).Create(ctx, p, metav1.CreateOptions{})
		s.must(err)
		node, err := client.CoreV1().Nodes().Get(ctx, s.placed(p.Name, ours)[0], metav1.GetOptions{})
		s.must(err)
		if zone := node.Labels[corev1.LabelTopologyZone]; zone == kubetest.ZoneName(0) {
			t.Errorf("it is in %s", zone)
		}
		if n := made.timesRefused(ours, "c"); n == 0 {
			t.Error("the zone that it prefers was never refused")
		}
	})
}

// startTheirs starts a kube-scheduler for pods that name it.
func startTheirs(t *testing.T, cp *kubetest.ControlPlane) {
	t.Helper()
	programs, err := kubetest.Build(t.Context(), kubetest.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	err = os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: %s}]
`, cp.Kubeconfig(), theirs), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kubetest.StartProcess(theirs, filepath.Join(dir, "log"), programs[kubetest.KubeScheduler], "--config", config, "--secure-port", "0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", p.Name(), p.LogTail(8<<10))
		}
	})
}
