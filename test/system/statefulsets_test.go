//go:build volumes

package system

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

var (
	stateful    = flag.Int("stateful", 1000, "how many pods StatefulSets have")
	binderKills = flag.Int("binder-kills", 50, "how often the active binder is killed while they come")
	volumesSeed = flag.Uint64("volumes-seed", 1, "which seed says when that is, and how long a provisioner takes")
)

// attachLimit is how many volumes a node takes.
const attachLimit = 10

// claimTemplate returns what a StatefulSet makes the claims of its pods from, and what an ephemeral volume has.
func claimTemplate(name, class string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

// ephemeral returns a volume that lives as long as its pod.
func ephemeral(name, class string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claimTemplate("", class).Spec},
	}}}
}

// statefulSet returns a StatefulSet without pods, whose pods have a claim of a class each.
func statefulSet(name, class string, also ...corev1.Volume) *appsv1.StatefulSet {
	labels := map[string]string{"set": name}
	spec := kubetest.PlainPod(0).Spec
	spec.Volumes = also
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32), ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claimTemplate("data", class)},
		},
	}
}

// whenKilled is how many claims, of those that a binder had recorded something for, had come how far when it was killed.
type whenKilled struct{ recorded, written, bound int }

func (w *whenKilled) add(o whenKilled) {
	w.recorded, w.written, w.bound = w.recorded+o.recorded, w.written+o.written, w.bound+o.bound
}

// intended reads what a binder that is dead had recorded of claims, of pods that have no node yet: where each is to go, and how far it was.
func intended(ctx context.Context, client *coord.Client, cp *kubetest.ControlPlane) (map[types.UID]string, whenKilled, error) {
	var far whenKilled
	record, err := client.ReadRecord(ctx)
	if err != nil {
		return nil, far, err
	}
	s, err := readSupply(ctx, cp.Client())
	if err != nil {
		return nil, far, err
	}
	waits := make(map[string]bool)
	for i := range s.pods {
		waits[string(s.pods[i].UID)] = s.pods[i].Spec.NodeName == ""
	}
	meant := make(map[types.UID]string)
	for _, batch := range record.Batches {
		for _, in := range batch.Batch.Intents {
			if !waits[in.PodUID] || len(in.Volumes) == 0 {
				continue
			}
			meant[types.UID(in.PodUID)] = in.Node
			for _, v := range in.Volumes {
				claim := s.claims[in.Namespace+"/"+v.Claim]
				switch {
				case claim == nil:
					return nil, far, fmt.Errorf("an intent is about the claim %s, which does not exist", v.Claim)
				case claim.Spec.VolumeName != "":
					far.bound++
				case v.Volume == "" && len(claim.Annotations[volume.AnnSelectedNode]) > 0, v.Volume != "" && s.volumes[v.Volume].Spec.ClaimRef != nil:
					far.written++
				default:
					far.recorded++
				}
			}
		}
	}
	return meant, far, nil
}

// TestAThousandPodsOfStatefulSetsGetTheirVolumesWhileBindersAreKilled: claims whose volumes are provisioned where their pod goes, or at the third try are
// not, or before, or are local and there; and generic ephemeral volumes, on nodes that take only so many. Each time that some more pods have come, the active binder is
// killed, when the API server shows the n-th write for a claim, or bound claim, or bound pod, as the seed says. Then half of the pods go, and
// come again.
func TestAThousandPodsOfStatefulSetsGetTheirVolumesWhileBindersAreKilled(t *testing.T) {
	began := time.Now()
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	client, random := cp.Client(), rand.New(rand.NewPCG(*volumesSeed, 1))

	// 1. A cluster with room for a fifth more, and for two more local volumes for each ten.
	const late, at = storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	sets := []*appsv1.StatefulSet{
		statefulSet("late-a", "late"), statefulSet("late-b", "late"), statefulSet("scratch", "late", ephemeral("scratch", "late")),
		statefulSet("at-once", "at-once"), statefulSet("moody", "moody"), statefulSet("local", "local"),
	}
	nodes := max(*stateful*12/10/attachLimit, zones)
	createAttachable(ctx, t, cp, nodes, map[string]int32{provisioner: attachLimit})
	createClass(ctx, t, cp, "late", provisioner, late, "")
	createClass(ctx, t, cp, "at-once", provisioner, at, "")
	createClass(ctx, t, cp, "moody", provisioner, late, refuseSome)
	createClass(ctx, t, cp, "local", "kubernetes.io/no-provisioner", late, "")
	for i := range *stateful/len(sets)*12/10 + 1 {
		if _, err := client.CoreV1().PersistentVolumes().Create(ctx, persistentVolume(fmt.Sprint("local-", i), "local", kubetest.PlainNode(i%nodes).Name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range sets {
		if _, err := client.AppsV1().StatefulSets("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	scale := func(pods int) {
		t.Helper()
		for i, s := range sets {
			to := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, pods/len(sets)+min(1, max(0, pods%len(sets)-i)))
			if _, err := client.AppsV1().StatefulSets("default").Patch(ctx, s.Name, types.MergePatchType, to, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := follow(t, cp)
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	kubelet, err := kubetest.PlayKubelets(ctx, cp.Kubeconfig(), 100*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kubelet.Stop(); err != nil {
			t.Error(err)
		}
	}()
	startControllers(t, cp)
	played := playDriver(t, cp, provisioner, *volumesSeed, 300*time.Millisecond)
	crew := berthtest.Crew{Binders: 2, Queues: 2, FilterWorkers: 1, ScoreWorkers: 1, Shards: 4, Kubeconfig: cp.Kubeconfig()}
	b := berthtest.StartProcesses(t, crew)
	etcd, err := coord.Connect(coord.Config{Endpoints: b.Etcd.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()

	// 2. The pods come, and binders are killed.
	var claims, times whenKilled // how many, and in how many kills there were some
	ready, killed, meant := time.Now(), make(map[stage]int), make(map[types.UID]string)
	leader, binders := b.Leader(""), crew.Binders
	for n := range *binderKills {
		when := stage(random.IntN(int(stages)))
		far := seen.after(when, 1+random.IntN(max(1, *stateful / *binderKills / 2)))
		scale(*stateful * (n + 1) / *binderKills)
		select {
		case <-far:
		case <-time.After(berthtest.Patience):
			t.Fatalf("kill %d: nothing more is %v, with %v seen", n, when, seen.seen)
		}
		b.ByID[leader].Kill()
		killed[when]++
		nodeOf, stood, err := intended(ctx, etcd, cp)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(meant, nodeOf)
		claims.add(stood)
		times.add(whenKilled{min(stood.recorded, 1), min(stood.written, 1), min(stood.bound, 1)})
		b.Start("binder", binders)
		binders++
		leader = b.Leader(leader)
	}
	scale(*stateful)
	awaitBound(t, cp, *stateful)
	took := time.Since(ready)
	t.Logf("%d pods of %d StatefulSets on %d nodes, %d kills of the active binder (%v), in %v", *stateful, len(sets), nodes, *binderKills, killed, took.Round(time.Second))
	t.Logf("claims that dead binders had recorded something for: %d not written (in %d kills), %d written (in %d), %d bound and their pods not (in %d)",
		claims.recorded, times.recorded, claims.written, times.written, claims.bound, times.bound)

	// 3. Nothing is given twice, and each is where its volume is.
	check := func() map[string]*corev1.Pod {
		t.Helper()
		attached := checkSupply(t, cp, provisioner, attachLimit)
		seen.check(t)
		if twice := watcher.BoundTwice(); len(twice) > 0 {
			t.Errorf("bound twice: %v", twice)
		}
		var s *supply
		pods, spare := make(map[string]*corev1.Pod), 0
		berthtest.Await(t, berthtest.Patience, "as many volumes to be somebody's as there are claims", func(ctx context.Context) (err error) {
			if s, err = readSupply(ctx, client); err != nil {
				return err
			}
			spare = 0
			for _, v := range s.volumes {
				if v.Spec.ClaimRef == nil {
					spare++
				}
			}
			if len(s.volumes)-spare != len(s.claims) {
				return fmt.Errorf("%d are, and there are %d claims", len(s.volumes)-spare, len(s.claims))
			}
			return nil
		})
		for i := range s.pods {
			pods[s.pods[i].Name] = &s.pods[i]
		}
		berthtest.Await(t, berthtest.Patience, "Berth to tell the same", func(ctx context.Context) error {
			told, err := b.GetStatus(ctx, nil)
			if err != nil {
				return err
			}
			if c := told.GetPods(); int(c.GetBound()) != len(pods) || c.GetPending()+c.GetAssumed() != 0 {
				return fmt.Errorf("it tells %v, there are %d pods", c, len(pods))
			}
			return nil
		})
		for name, node := range b.Placements() {
			if p := pods[strings.TrimPrefix(name, "default/")]; p == nil || p.Spec.NodeName != node {
				t.Errorf("Berth says %s is on %s, the API server %v", name, node, p)
			}
		}
		t.Logf("%d pods, %d claims, %d volumes of which %d are nobody's, %d attached", len(pods), len(s.claims), len(s.volumes), spare, attached)
		return pods
	}
	before := check()
	refused := 0
	var other []string
	for _, p := range before {
		n := played.timesRefused(p.Namespace, "data-"+p.Name)
		refused += min(n, 1)
		if node := meant[p.UID]; n == 0 && node != "" && node != p.Spec.NodeName {
			other = append(other, fmt.Sprintf("%s on %s, not on %s", p.Name, p.Spec.NodeName, node))
		}
	}
	if len(other) > 0 {
		t.Errorf("%d pods are not where a binder that was killed had recorded them: %s …", len(other), strings.Join(other[:min(len(other), 10)], "; "))
	}
	t.Logf("%d pods went elsewhere, or came again, as the provisioner said no", refused)

	// 4. Pods that come again go where their volumes are.
	again := time.Now()
	scale(*stateful / 2)
	berthtest.Await(t, berthtest.Patience, "half of them to go", func(ctx context.Context) error {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != *stateful/2 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	scale(*stateful)
	awaitBound(t, cp, *stateful)
	returned := 0
	for name, p := range check() {
		was := before[name]
		if was == nil {
			t.Errorf("%s was not there before", name)
			continue
		}
		if was.UID != p.UID {
			returned++
		}
		if strings.HasPrefix(name, "local-") && p.Spec.NodeName != was.Spec.NodeName {
			t.Errorf("%s is on %s, and was on %s, where its volume is", name, p.Spec.NodeName, was.Spec.NodeName)
		}
	}
	if returned != *stateful-*stateful/2 {
		t.Errorf("%d pods are new, want half of them", returned)
	}
	t.Logf("%d pods went and came again in %v; all of it took %v", returned, time.Since(again).Round(time.Second), time.Since(began).Round(time.Second))
}
