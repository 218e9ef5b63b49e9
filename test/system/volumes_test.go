package system

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// storage plays what binds claims and provisions volumes, as kube-controller-manager's controller of volumes and an external provisioner do.
type storage struct {
	client kubernetes.Interface
	refuse map[string]bool // nodes for which nothing can be provisioned
	twice  []string        // claims that more than one volume has named
	named  map[string]string
}

const provisioner = "csi.example.com"

// play acts every few milliseconds, until ctx ends. Objects that somebody else has written to meanwhile are looked at again the next time. Any other error
// fails the test, and is the end.
func (s *storage) play(ctx context.Context, t *testing.T) {
	s.named = make(map[string]string)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := s.act(ctx); err != nil && !apierrors.IsConflict(err) && ctx.Err() == nil {
			t.Errorf("play the controllers of volumes: %v", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *storage) act(ctx context.Context) error {
	volumes, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	claims, err := s.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	byUID := make(map[string]*corev1.PersistentVolumeClaim)
	for i := range claims.Items {
		byUID[string(claims.Items[i].UID)] = &claims.Items[i]
	}
	given := make(map[string]bool)
	for i := range volumes.Items {
		v := &volumes.Items[i]
		to := v.Spec.ClaimRef
		if to == nil {
			continue
		}
		claim := byUID[string(to.UID)]
		if claim == nil {
			continue
		}
		given[string(to.UID)] = true
		if was := s.named[string(to.UID)]; was != "" && was != v.Name {
			s.twice = append(s.twice, claim.Name)
		}
		s.named[string(to.UID)] = v.Name
		if claim.Spec.VolumeName != "" {
			continue
		}
		claim.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBindCompleted, "yes")
		if _, err := s.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for uid, claim := range byUID {
		node := claim.Annotations[volume.AnnSelectedNode]
		switch {
		case node == "" || given[uid] || claim.Spec.VolumeName != "":
		case s.refuse[node]:
			delete(claim.Annotations, volume.AnnSelectedNode)
			if _, err := s.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
				return err
			}
		default:
			v := persistentVolume("made-"+claim.Name, "made", node)
			v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
			if err := create(ctx, s.client, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// persistentVolume returns a volume of 1 GiB that can be reached from a node.
func persistentVolume(name, class, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/" + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

// create makes a volume, which is available at once.
func create(ctx context.Context, client kubernetes.Interface, v *corev1.PersistentVolume) error {
	made, err := client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Phase = corev1.VolumeAvailable
	_, err = client.CoreV1().PersistentVolumes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// TestPodsGetTheVolumesThatTheyClaim: local volumes, of which there are just enough, and ones that are provisioned, though not for all nodes.
func TestPodsGetTheVolumesThatTheyClaim(t *testing.T) {
	const nodes, each = 6, 5
	cp := kubetest.StartT(t, kubetest.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	client := cp.Client()
	name := func(i int) string { return kubetest.PlainNode(i % nodes).Name }
	if err := cp.CreateNodes(ctx, nodes, kubetest.PlainNode); err != nil {
		t.Fatal(err)
	}
	late := storagev1.VolumeBindingWaitForFirstConsumer
	for class, by := range map[string]string{"local": "kubernetes.io/no-provisioner", "made": provisioner} {
		if _, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: by, VolumeBindingMode: &late}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes * each {
		if err := create(ctx, client, persistentVolume(fmt.Sprint("local-", i), "local", name(i))); err != nil {
			t.Fatal(err)
		}
	}
	claiming := func(class string) func(int) *corev1.Pod {
		return func(i int) *corev1.Pod {
			p := kubetest.PlainPod(i)
			p.Name, p.GenerateName = fmt.Sprint(class, "-", i), ""
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.Name},
			}}}
			claim := &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: p.Name},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}
			if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
			return p
		}
	}
	s := &storage{client: client, refuse: map[string]bool{name(0): true}}
	var played sync.WaitGroup
	playing, stop := context.WithCancel(ctx)
	played.Go(func() { s.play(playing, t) })
	t.Cleanup(func() { stop(); played.Wait() })
	watcher, err := kubetest.Watch(ctx, cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	berthtest.Start(t, berthtest.Options{Kubeconfig: cp.Kubeconfig(), Shards: 2})
	if err := cp.CreatePods(ctx, nodes*each+1, claiming("local")); err != nil { // one too many
		t.Fatal(err)
	}
	if err := cp.CreatePods(ctx, 20, claiming("made")); err != nil {
		t.Fatal(err)
	}
	awaitBound(t, cp, nodes*each+20)
	stop()
	played.Wait()

	// Each is where its volume is.
	pods, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := make(map[string]string) // where the volume of a claim is
	for _, v := range volumes.Items {
		if v.Spec.ClaimRef != nil {
			at[v.Spec.ClaimRef.Name] += v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
		}
	}
	var waiting []string
	for _, p := range pods.Items {
		switch {
		case p.Spec.NodeName == "":
			waiting = append(waiting, p.Name)
		case at[p.Name] != p.Spec.NodeName:
			t.Errorf("%s is on %s, its volume on %q", p.Name, p.Spec.NodeName, at[p.Name])
		}
		if s.refuse[p.Spec.NodeName] && p.Name[:4] == "made" {
			t.Errorf("%s is on %s", p.Name, p.Spec.NodeName)
		}
	}
	if len(waiting) != 1 || at[waiting[0]] != "" {
		t.Errorf("%v wait", waiting)
	}
	if slices.Sort(s.twice); len(s.twice) > 0 {
		t.Errorf("claims of several volumes: %v", s.twice)
	}
	if twice := watcher.BoundTwice(); len(twice) > 0 {
		t.Errorf("bound twice: %v", twice)
	}
	// The one that is left says why, as kube-scheduler would.
	want := fmt.Sprintf("0/%d nodes are available: %[1]d node(s) didn't find available persistent volumes to bind. no new claims to deallocate, preemption: 0/%[1]d nodes are available: %[1]d Preemption is not helpful for scheduling.", nodes)
	berthtest.Await(t, berthtest.Patience, "its condition", func(ctx context.Context) error {
		p, err := client.CoreV1().Pods("default").Get(ctx, waiting[0], metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message == want {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, want %s", p.Status.Conditions, want)
	})
}
