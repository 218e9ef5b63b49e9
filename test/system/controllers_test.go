//go:build volumes

package system

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/storage/volume"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// startControllers starts a kube-controller-manager with what makes and binds claims, attaches volumes, and makes pods of StatefulSets.
func startControllers(t *testing.T, cp *kubetest.ControlPlane) {
	t.Helper()
	began := time.Now()
	programs, err := kubetest.Build(t.Context(), kubetest.ControllerManager)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Logf("built kube-controller-manager in %v; it is cached now", took.Round(time.Second))
	}
	p, err := kubetest.StartProcess(kubetest.ControllerManager, filepath.Join(t.TempDir(), "log"), programs[kubetest.ControllerManager],
		"--kubeconfig", cp.Kubeconfig(), "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000",
		"--controllers", strings.Join([]string{
			"persistentvolume-binder-controller", "persistentvolume-attach-detach-controller", "persistentvolume-protection-controller",
			"persistentvolumeclaim-protection-controller", "ephemeral-volume-controller", "statefulset-controller", "garbage-collector-controller",
		}, ","))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.Done():
			t.Errorf("kube-controller-manager has ended: %v", p.Err())
		default:
		}
		p.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", p.Name(), p.LogTail(8<<10))
		}
	})
}

const (
	paramRefuse = "refuse" // of a class: the zone for which a driver says that it can provision nothing; or one of the others
	refuseAll   = "all"
	refuseSome  = "some" // each third try
)

// driver plays what comes with a CSI driver: external-provisioner, which makes volumes of a zone for claims, and removes those that are released; and
// external-attacher, which says that they are attached.
type driver struct {
	client  kubernetes.Interface
	name    string
	slow    time.Duration // what it takes at most to provision a volume
	turn    atomic.Int64  // of zones, where none is asked for
	relents atomic.Bool   // nothing is refused any more

	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister
	attach  storagelisters.VolumeAttachmentLister
	queue   workqueue.TypedRateLimitingInterface[work]

	mu      sync.Mutex
	random  *rand.Rand
	refused map[string]int // claims, by namespace/name: how often it was said that nothing can be provisioned
}

// work is an object to look at.
type work struct{ kind, namespace, name string }

// playDriver starts a driver, which ends with the test.
func playDriver(t *testing.T, cp *kubetest.ControlPlane, name string, seed uint64, slow time.Duration) *driver {
	t.Helper()
	factory := informers.NewSharedInformerFactory(cp.Client(), 0)
	core, storage := factory.Core().V1(), factory.Storage().V1()
	d := &driver{
		client: cp.Client(), name: name, slow: slow, random: rand.New(rand.NewPCG(seed, 0)), refused: make(map[string]int),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), nodes: core.Nodes().Lister(),
		classes: storage.StorageClasses().Lister(), attach: storage.VolumeAttachments().Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[work]()),
	}
	on := func(kind string, informer cache.SharedIndexInformer, after func() time.Duration) {
		see := func(obj any) {
			o := obj.(metav1.Object)
			d.queue.AddAfter(work{kind, o.GetNamespace(), o.GetName()}, after())
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }}); err != nil {
			t.Fatal(err)
		}
	}
	at := func() time.Duration { return 0 }
	on("claim", core.PersistentVolumeClaims().Informer(), func() time.Duration {
		return time.Duration(d.chance(int64(d.slow) + 1))
	})
	on("volume", core.PersistentVolumes().Informer(), at)
	on("attachment", storage.VolumeAttachments().Informer(), at)
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				w, over := d.queue.Get()
				if over {
					return
				}
				if err := d.look(ctx, w); err != nil && !apierrors.IsNotFound(err) {
					d.queue.AddRateLimited(w)
				} else {
					d.queue.Forget(w)
				}
				d.queue.Done(w)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		d.queue.ShutDown()
		workers.Wait()
		factory.Shutdown()
	})
	return d
}

// look does what an object asks for. An error means that it is to be looked at again, unless the object is gone.
func (d *driver) look(ctx context.Context, w work) error {
	switch w.kind {
	case "volume":
		v, err := d.volumes.Get(w.name)
		if err != nil {
			return err
		}
		if v.Annotations[volume.AnnDynamicallyProvisioned] == d.name && v.Status.Phase == corev1.VolumeReleased && v.DeletionTimestamp == nil {
			return d.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})
		}
		return nil
	case "attachment":
		a, err := d.attach.Get(w.name)
		if err != nil {
			return err
		}
		if a.Spec.Attacher != d.name || a.Status.Attached {
			return nil
		}
		a = a.DeepCopy()
		a.Status.Attached = true
		_, err = d.client.StorageV1().VolumeAttachments().UpdateStatus(ctx, a, metav1.UpdateOptions{})
		return err
	}
	claim, err := d.claims.PersistentVolumeClaims(w.namespace).Get(w.name)
	if err != nil {
		return err
	}
	return d.provision(ctx, claim)
}

// provision makes a volume for a claim, or says that it cannot.
func (d *driver) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := "pvc-" + string(claim.UID)
	if claim.Annotations[volume.AnnStorageProvisioner] != d.name || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return nil
	}
	if _, err := d.volumes.Get(name); err == nil {
		return nil
	}
	class, err := d.classes.Get(*claim.Spec.StorageClassName)
	if err != nil {
		return err
	}
	zone := zoneOf(int(d.turn.Add(1)))
	if *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		selected := claim.Annotations[volume.AnnSelectedNode]
		if selected == "" {
			return nil
		}
		node, err := d.nodes.Get(selected)
		if err != nil {
			return err
		}
		zone = node.Labels[corev1.LabelTopologyZone]
	}
	if refuse := class.Parameters[paramRefuse]; !d.relents.Load() && (refuse == zone || refuse == refuseAll || refuse == refuseSome && d.chance(3) == 0) {
		claim = claim.DeepCopy()
		delete(claim.Annotations, volume.AnnSelectedNode)
		if _, err := d.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return err
		}
		d.mu.Lock()
		d.refused[claim.Namespace+"/"+claim.Name]++
		d.mu.Unlock()
		_, err := d.client.EventsV1().Events(claim.Namespace).Create(ctx, &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: claim.Name + "-"}, EventTime: metav1.NowMicro(), ReportingController: d.name, ReportingInstance: "test",
			Action: "Provisioning", Reason: "ProvisioningFailed", Type: corev1.EventTypeWarning, Note: "there is no room in " + zone,
			Regarding: corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		}, metav1.CreateOptions{})
		return err
	}
	v := persistentVolume(name, class.Name, "")
	v.Annotations = map[string]string{volume.AnnDynamicallyProvisioned: d.name}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: d.name, VolumeHandle: name}}
	v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0] = corev1.NodeSelectorRequirement{
		Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone},
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	if _, err := d.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// timesRefused returns how often it was said that nothing can be provisioned for a claim.
func (d *driver) timesRefused(namespace, claim string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused[namespace+"/"+claim]
}

// chance returns a number from 0 to n-1.
func (d *driver) chance(n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.Int64N(n)
}

// zones is how many zones nodes with volumes are in.
const zones = 3

func zoneOf(i int) string { return kubetest.ZoneName(i % zones) }

// createAttachable makes n nodes to which the attach-detach controller attaches, and so many volumes of each driver at most.
func createAttachable(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, n int, limits map[string]int32) {
	t.Helper()
	err := kubetest.ForEach(ctx, n, func(ctx context.Context, i int) error {
		node := kubetest.PlainNode(i)
		node.Labels[corev1.LabelTopologyZone] = zoneOf(i)
		node.Annotations = map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
		if _, err := cp.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
		info := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			info.Spec.Drivers = append(info.Spec.Drivers, storagev1.CSINodeDriver{
				Name: name, NodeID: node.Name, TopologyKeys: []string{corev1.LabelTopologyZone}, Allocatable: &storagev1.VolumeNodeResources{Count: new(limits[name])},
			})
		}
		_, err := cp.Client().StorageV1().CSINodes().Create(ctx, info, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// createClass makes a StorageClass.
func createClass(ctx context.Context, t *testing.T, cp *kubetest.ControlPlane, name, by string, mode storagev1.VolumeBindingMode, refuse string) {
	t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: by, VolumeBindingMode: &mode}
	if refuse != "" {
		class.Parameters = map[string]string{paramRefuse: refuse}
	}
	if _, err := cp.Client().StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// stage is what becomes of a pod with a claim, one after the other.
type stage int

const (
	written  stage = iota // a claim has a node, or a volume a claim, by Berth
	provided              // the controllers have bound a claim
	placed                // a pod has a node
	stages
)

func (s stage) String() string {
	return [...]string{"written", "bound by the controllers", "pod bound"}[s]
}

// history is what the API server has shown of claims, volumes and pods, one watch of each.
type history struct {
	mu        sync.Mutex
	seen      [stages]int
	waiting   [stages]map[chan struct{}]int
	claimsOf  map[string]map[types.UID]bool // that a volume has named, by volume
	volumesOf map[types.UID]map[string]bool // that have named a claim
	moved     []string                      // claims that were given another node, and not told first that there is none
}

// follow begins a history, which ends with the test.
func follow(t *testing.T, cp *kubetest.ControlPlane) *history {
	t.Helper()
	h := &history{claimsOf: make(map[string]map[types.UID]bool), volumesOf: make(map[types.UID]map[string]bool)}
	for s := range h.waiting {
		h.waiting[s] = make(map[chan struct{}]int)
	}
	factory := informers.NewSharedInformerFactory(cp.Client(), 0)
	core := factory.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), core.Pods().Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { h.note(nil, obj) }, UpdateFunc: h.note}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	return h
}

func (h *history) note(before, obj any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		was, _ := before.(*corev1.PersistentVolumeClaim)
		if was == nil {
			was = &corev1.PersistentVolumeClaim{}
		}
		from, to := was.Annotations[volume.AnnSelectedNode], o.Annotations[volume.AnnSelectedNode]
		if from == "" && to != "" {
			h.reached(written)
		}
		if from != "" && to != "" && from != to && was.UID == o.UID {
			h.moved = append(h.moved, fmt.Sprintf("%s/%s from %s to %s", o.Namespace, o.Name, from, to))
		}
		if was.Spec.VolumeName == "" && o.Spec.VolumeName != "" {
			h.reached(provided)
		}
	case *corev1.PersistentVolume:
		if o.Spec.ClaimRef == nil || o.Spec.ClaimRef.UID == "" {
			return
		}
		uid := o.Spec.ClaimRef.UID
		if h.claimsOf[o.Name] == nil {
			h.claimsOf[o.Name] = make(map[types.UID]bool)
			if o.Spec.Local != nil {
				h.reached(written)
			}
		}
		h.claimsOf[o.Name][uid] = true
		if h.volumesOf[uid] == nil {
			h.volumesOf[uid] = make(map[string]bool)
		}
		h.volumesOf[uid][o.Name] = true
	case *corev1.Pod:
		was, _ := before.(*corev1.Pod)
		if o.Spec.NodeName != "" && (was == nil || was.Spec.NodeName == "") {
			h.reached(placed)
		}
	}
}

// reached notes that one more has come to a stage. The caller holds h.mu.
func (h *history) reached(s stage) {
	h.seen[s]++
	for ch, n := range h.waiting[s] {
		if h.seen[s] >= n {
			delete(h.waiting[s], ch)
			close(ch)
		}
	}
}

// after returns a channel that is closed when n more have come to a stage.
func (h *history) after(s stage, n int) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan struct{})
	h.waiting[s][ch] = h.seen[s] + n
	return ch
}

// check fails the test if a volume was given to several claims, or a claim several volumes, at any time, or was moved.
func (h *history) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for v, claims := range h.claimsOf {
		if len(claims) > 1 {
			t.Errorf("volume %s has been of %d claims", v, len(claims))
		}
	}
	for claim, volumes := range h.volumesOf {
		if len(volumes) > 1 {
			t.Errorf("claim %s has had the volumes %v", claim, slices.Sorted(maps.Keys(volumes)))
		}
	}
	if len(h.moved) > 0 {
		t.Errorf("claims were given another node: %v", h.moved)
	}
}

// supply is what there is of volumes at a moment.
type supply struct {
	nodes   map[string]*corev1.Node
	pods    []corev1.Pod
	claims  map[string]*corev1.PersistentVolumeClaim // by namespace/name
	volumes map[string]*corev1.PersistentVolume
}

func readSupply(ctx context.Context, client kubernetes.Interface) (*supply, error) {
	s := &supply{
		nodes: make(map[string]*corev1.Node), claims: make(map[string]*corev1.PersistentVolumeClaim), volumes: make(map[string]*corev1.PersistentVolume),
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s.pods = pods.Items
	for i := range nodes.Items {
		s.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	for i := range claims.Items {
		s.claims[claims.Items[i].Namespace+"/"+claims.Items[i].Name] = &claims.Items[i]
	}
	for i := range volumes.Items {
		s.volumes[volumes.Items[i].Name] = &volumes.Items[i]
	}
	return s, nil
}

// claimsOf returns the names of the claims of a pod: those it names, and those of its ephemeral volumes.
func claimsOf(p *corev1.Pod) []string {
	var names []string
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, p.Namespace+"/"+v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, p.Namespace+"/"+p.Name+"-"+v.Name)
		}
	}
	return names
}

// problems returns what is wrong with placed pods and their volumes, and how many volumes of the driver are on each node.
func (s *supply) problems(driver string) (wrong []string, attached map[string]map[string]bool) {
	attached = make(map[string]map[string]bool)
	of := make(map[types.UID]string) // volumes by claim
	for name, v := range s.volumes {
		if v.Spec.ClaimRef == nil {
			continue
		}
		if other, taken := of[v.Spec.ClaimRef.UID]; taken {
			wrong = append(wrong, fmt.Sprintf("%s and %s are of the claim %s", name, other, v.Spec.ClaimRef.Name))
		}
		of[v.Spec.ClaimRef.UID] = name
	}
	for i := range s.pods {
		p := &s.pods[i]
		if p.Spec.NodeName == "" {
			continue
		}
		for _, name := range claimsOf(p) {
			claim := s.claims[name]
			switch {
			case claim == nil:
				wrong = append(wrong, fmt.Sprintf("pod %s: its claim %s does not exist", p.Name, name))
				continue
			case claim.Status.Phase != corev1.ClaimBound, of[claim.UID] != claim.Spec.VolumeName:
				wrong = append(wrong, fmt.Sprintf("pod %s: its claim is %s, of the volume %q, and %q names it", p.Name, claim.Status.Phase, claim.Spec.VolumeName, of[claim.UID]))
				continue
			}
			v, node := s.volumes[claim.Spec.VolumeName], s.nodes[p.Spec.NodeName]
			need := v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
			if !slices.Contains(need.Values, node.Labels[need.Key]) {
				wrong = append(wrong, fmt.Sprintf("pod %s: on %s, its volume can be reached from %v", p.Name, node.Name, need.Values))
			}
			if v.Spec.CSI != nil && v.Spec.CSI.Driver == driver {
				if attached[node.Name] == nil {
					attached[node.Name] = make(map[string]bool)
				}
				attached[node.Name][v.Name] = true
			}
		}
	}
	return wrong, attached
}

// checkSupply waits until exactly the volumes of placed pods are attached, and fails the test if something is wrong with them, or a node has more than
// it takes.
func checkSupply(t *testing.T, cp *kubetest.ControlPlane, driver string, limit int) (placements int) {
	t.Helper()
	berthtest.Await(t, berthtest.Patience, "what is attached to be what pods use", func(ctx context.Context) error {
		s, err := readSupply(ctx, cp.Client())
		if err != nil {
			return err
		}
		list, err := cp.Client().StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		wrong, attached := s.problems(driver)
		if len(wrong) > 0 {
			t.Fatalf("%d things are wrong: %s", len(wrong), strings.Join(wrong[:min(len(wrong), 20)], "; "))
		}
		placements = 0
		for node, volumes := range attached {
			if placements += len(volumes); len(volumes) > limit {
				t.Errorf("%d volumes on %s, which takes %d", len(volumes), node, limit)
			}
		}
		really := 0
		for _, a := range list.Items {
			if a.Spec.Attacher != driver || !a.Status.Attached {
				continue
			}
			if really++; !attached[a.Spec.NodeName][*a.Spec.Source.PersistentVolumeName] {
				return fmt.Errorf("%s is still attached to %s", *a.Spec.Source.PersistentVolumeName, a.Spec.NodeName)
			}
		}
		if really != placements {
			return fmt.Errorf("%d volumes are attached, %d are used", really, placements)
		}
		return nil
	})
	return placements
}
