package whatif

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/source"
)

func setObject(o cluster.Object) source.Event { return source.Event{Kind: source.ObjectSet, Object: o} }

// comesIn tells of a pod of a StatefulSet with claims of its own.
func comesIn(observe func(source.Event) error, name string, shapes []cluster.PersistentVolumeClaim) error {
	pod := aPod(name, 100)
	pod.Labels.Controller = cluster.Controller{Kind: cluster.KindStatefulSet, Name: "web"}
	for k, shape := range shapes {
		shape.Namespace, shape.Name = "default", fmt.Sprintf("claim%d-%s", k, name)
		shape.UID = "uid-" + shape.Name
		pod.Labels.Claims = append(pod.Labels.Claims, cluster.PodClaim{Name: shape.Name})
		if err := observe(setObject(&shape)); err != nil {
			return err
		}
	}
	return observe(setPod(pod))
}

// TestCapacityCountsVolumesAsIfTheyWereBound: one pod after the other comes with claims of its own, is placed, and its volumes are bound for real,
// until one fits nowhere.
func TestCapacityCountsVolumesAsIfTheyWereBound(t *testing.T) {
	stopped := make(map[string]int)
	clustertest.CheckUntil(t, clustertest.Unseen(stopped, engine.ReasonNoVolume, engine.ReasonVolumeLimit, "Insufficient cpu"), func(t *rapid.T) {
		n := func(label string, most int) int { return rapid.IntRange(0, most).Draw(t, label) }
		events := []source.Event{setObject(&cluster.StorageClass{
			Name: "late", Provisioner: rapid.SampledFrom([]string{"kubernetes.io/no-provisioner", "csi"}).Draw(t, "provisioner"), Mode: cluster.BindToFirstConsumer,
		})}
		for k := range n("nodes", 3) + 1 {
			name := fmt.Sprint("n", k)
			events = append(events, setNode(aNode(name, "z", int64(100*(1+n("cpu", 6))))))
			if n("limited", 2) > 0 {
				events = append(events, setObject(&cluster.CSINode{Name: name, Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: int32(n("limit", 8))}}}))
			}
			for v := range n("volumes", 6) {
				events = append(events, setObject(&cluster.PersistentVolume{
					Name: fmt.Sprintf("v%d-%s", v, name), Class: "late", Capacity: int64(n("capacity", 9)), Mode: "Filesystem", Available: true, Driver: "csi", Handle: fmt.Sprint(v, name),
					HasAffinity: true, Affinity: []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{name}}}}},
				}))
			}
		}
		var shapes []cluster.PersistentVolumeClaim
		for range n("claims", 1) + 1 {
			shapes = append(shapes, cluster.PersistentVolumeClaim{Class: "late", HasRequest: true, Request: int64(n("request", 9)), Mode: "Filesystem"})
		}
		// 1. One by one.
		st := cluster.New(start)
		if err := st.Apply(cluster.SettingsSet{Settings: settings()}); err != nil {
			t.Fatal(err)
		}
		fold := ingest.New(st, st.Apply)
		observe := func(e source.Event) {
			if err := fold.Observe(e); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range events {
			observe(e)
		}
		want := 0
		for ; ; want++ {
			name := fmt.Sprint("web-", want)
			if err := comesIn(fold.Observe, name, shapes); err != nil {
				t.Fatal(err)
			}
			id, _ := st.PodByUID(aPod(name, 100).UID)
			e := engine.NewEvaluator(engine.EvaluatorConfig{})
			subject := engine.SubjectOf(&st.Pod(id).Pod)
			found, _ := e.Filter(st, subject, all(st))
			if found.FeasibleCount == 0 {
				for _, v := range found.Verdicts {
					stopped[v.Reason]++
				}
				break
			}
			node := cluster.NodeIndex(0)
			for !found.Eligible.Has(node) {
				node++
			}
			choices, ok := e.ChooseVolumes(st, subject, node, nil)
			if !ok {
				t.Fatalf("no volumes are chosen for %s", name)
			}
			for _, c := range choices {
				claim := *st.PersistentVolumeClaim("default", c.Claim)
				volume := cluster.PersistentVolume{Name: "made-for-" + c.Claim, Class: "late", Driver: "csi", Handle: "made-for-" + c.Claim}
				if c.Volume != "" {
					volume = *st.PersistentVolume(c.Volume)
				}
				volume.Available, volume.HasClaim, volume.Claim = false, true, cluster.ClaimReference{Namespace: "default", Name: c.Claim, UID: c.UID}
				claim.Volume, claim.Bound = volume.Name, true
				observe(setObject(&volume))
				observe(setObject(&claim))
			}
			pod := source.Pod{Pod: st.Pod(id).Pod, Class: st.Class(st.Pod(id).Class).Spec, Labels: st.Labels(st.Pod(id).Labels).LabelSet}
			pod.NodeName = st.Node(node).Name
			observe(setPod(pod))
		}
		// 2. All that in one question, about the first of them.
		s := sandbox(t, events...)
		err := s.Try(t.Context(), func(w *World) error {
			if err := comesIn(w.Observe, "web-0", shapes); err != nil {
				return err
			}
			id, _ := w.State().PodByUID(aPod("web-0", 100).UID)
			pod, _ := w.Pod(id)
			got, err := Capacity(w, pod, 1000)
			if err == nil && (got.Pods != want || got.AtLeast) {
				t.Fatalf("%d more fit, at least %v; one by one %d did: %s", got.Pods, got.AtLeast, want, got.Message)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

const statefulSet = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: v}
spec:
  storageClassName: late
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: csi, volumeHandle: v}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [b]}]}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: late, accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /data}]}]
      volumes:
      - name: scratch
        ephemeral: {volumeClaimTemplate: {spec: {storageClassName: made, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: csi
volumeBindingMode: WaitForFirstConsumer
`

// Pods of a StatefulSet that there is not yet have the claims that would be made for them: of its templates, and of their ephemeral volumes.
func TestAStatefulSetBringsItsClaims(t *testing.T) {
	load, err := ReadWorkload(t.Context(), []byte(statefulSet), 1, 10)
	if err != nil {
		t.Fatal(err)
	}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)))
	try(t, s, func(w *World) error {
		ids, err := w.Add(load)
		if err != nil {
			return err
		}
		outcomes, err := Place(w, ids, PlaceOptions{})
		if err != nil {
			return err
		}
		if len(outcomes) != 2 || outcomes[0].Node != "b" || outcomes[1].Outcome != Unplaced {
			t.Errorf("%+v, want the first where the volume is, and the second nowhere", outcomes)
		}
		for _, name := range []string{"data-web-0", "data-web-1", "web-0-scratch", "web-1-scratch"} {
			if w.State().PersistentVolumeClaim("default", name) == nil {
				t.Errorf("there is no claim %s", name)
			}
		}
		return nil
	})
	if s.state.PersistentVolume("v") != nil || s.state.StorageClass("late") != nil {
		t.Error("what the question brought is there still")
	}
}

// outcomesOf places what manifests bring and returns where, by pod.
func outcomesOf(t *testing.T, s *Sandbox, manifests string) map[string]PodOutcome {
	t.Helper()
	load, err := ReadWorkload(t.Context(), []byte(manifests), 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]PodOutcome)
	try(t, s, func(w *World) error {
		ids, err := w.Add(load)
		if err != nil {
			return err
		}
		outcomes, err := Place(w, ids, PlaceOptions{})
		for _, o := range outcomes {
			found[o.Name] = o
		}
		return err
	})
	return found
}

// What manifests bring has what an API server, and the controller of volumes, would add: nobody writes the phase of a volume, and few when volumes of
// a class are bound.
func TestAVolumeOfAManifestIsThereToBeTaken(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)),
		setObject(&cluster.StorageClass{Name: "local", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}))
	found := outcomesOf(t, s, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: v}
spec:
  storageClassName: local
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /v}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [b]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now}
provisioner: csi
---
apiVersion: v1
kind: Pod
metadata: {name: scratch}
spec:
  containers: [{name: c, image: i}]
  volumes:
  - name: v
    ephemeral: {volumeClaimTemplate: {spec: {storageClassName: now, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
`)
	if found["db"].Node != "b" || found["scratch"].Outcome != Placed {
		t.Errorf("%+v, want db where its volume is, and scratch anywhere", found)
	}
	if _, err := ReadWorkload(t.Context(), []byte("apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: bad}\nvolumeBindingMode: Late\n"), 1, 1); err == nil {
		t.Error("a class that no API server would take is read")
	}
}

// Claims are those of their pods, and pods without claims take no room for some.
func TestPodsHaveTheirOwnClaimsOfAWorkload(t *testing.T) {
	plain := func(name string) string {
		return "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name + "}\nspec: {replicas: 2000, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}\n"
	}
	set := strings.Replace(statefulSet[strings.Index(statefulSet, "apiVersion: apps"):strings.LastIndex(statefulSet, "---")], "name: web", "name: db", 1)
	load, err := ReadWorkload(t.Context(), []byte(plain("first")+"---"+statefulSet+plain("second")+"---\n"+set), 1, 10_000)
	if err != nil || len(load.Pods) != 4004 {
		t.Fatalf("%d pods, %v", len(load.Pods), err)
	}
	for k := range load.Pods {
		var claims []*cluster.PersistentVolumeClaim
		if k < len(load.Claims) {
			claims = load.Claims[k]
		}
		own := strings.HasPrefix(load.Pods[k].Name, "web") || strings.HasPrefix(load.Pods[k].Name, "db")
		if own != (len(claims) == 2) || own && claims[0].Name != "data-"+load.Pods[k].Name {
			t.Fatalf("pod %s has claims %v", load.Pods[k].Name, claims)
		}
	}
	most := allocates(func() { load, err = ReadWorkload(t.Context(), []byte(plain("first")), 1, 10_000) })
	if each := uint64(unsafe.Sizeof(source.Pod{})); err != nil || load.Claims != nil || most > 2000*(2*each+1500) {
		t.Errorf("2,000 pods without claims: %v, %d claims, %d bytes are allocated of which a pod has %d", err, len(load.Claims), most, each)
	}
}

// podIn is a pod with a claim, of a zone.
func podIn(zone, claim string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  nodeSelector: {%s: %s}\n  containers: [{name: c, image: i}]\n  volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}]\n", zoneLabel, zone, claim)
}

func claimOf(name, class string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s}\nspec: {storageClassName: %q, accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}\n", name, class)
}

// A claim that there is, and is applied again, stays with what controllers have said of it.
func TestAClaimThatIsAppliedAgainKeepsItsVolume(t *testing.T) {
	inB := []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{{Key: zoneLabel, Operator: "In", Values: []string{"b"}}}}}
	for name, edit := range map[string]func(*cluster.PersistentVolumeClaim){
		"bound":         func(c *cluster.PersistentVolumeClaim) { c.Volume, c.Bound, c.Owner = "v", true, "o" },
		"lost":          func(c *cluster.PersistentVolumeClaim) { c.Volume, c.Lost = "gone", true },
		"deleted":       func(c *cluster.PersistentVolumeClaim) { c.Deleting = true },
		"provisioned":   func(c *cluster.PersistentVolumeClaim) { c.HasSelectedNode, c.SelectedNode = true, "b" },
		"not yet bound": func(c *cluster.PersistentVolumeClaim) { c.Class = "now" },
		"waiting":       func(*cluster.PersistentVolumeClaim) {},
	} {
		is := &cluster.PersistentVolumeClaim{Namespace: "default", Name: "data", UID: "u", Class: "late", HasRequest: true, Request: 5 << 30, Mode: "Filesystem", AccessModes: []string{"ReadWriteOnce"}}
		edit(is)
		s := sandbox(t, setNode(aNode("a", "a", 1000)), setNode(aNode("b", "b", 1000)), setObject(is),
			setObject(&cluster.StorageClass{Name: "late", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}), setObject(&cluster.StorageClass{Name: "now", Provisioner: "csi", Mode: cluster.BindImmediately}),
			setObject(&cluster.PersistentVolume{Name: "v", HasAffinity: true, Affinity: inB, HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: "data", UID: "u"}}))
		load, err := ReadWorkload(t.Context(), []byte(strings.Replace(claimOf("data", ""), "storageClassName: \"\", ", "", 1)), 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		try(t, s, func(w *World) error {
			err := w.Bring(load.Objects)
			if got := w.State().PersistentVolumeClaim("default", "data"); !reflect.DeepEqual(got, is) {
				t.Errorf("a claim that is %s is %+v when it is applied again, want %+v", name, got, is)
			}
			return err
		})
		for _, zone := range []string{"a", "b"} {
			want := Unplaced
			if name == "waiting" || zone == "b" && (name == "bound" || name == "provisioned") {
				want = Placed
			}
			for _, class := range []string{is.Class, ""} { // that was the default when the claim was made
				if got := outcomesOf(t, s, strings.Replace(claimOf("data", class), "storageClassName: \"\", ", "", 1)+podIn(zone, "data"))["p"]; got.Outcome != want {
					t.Errorf("a claim that is %s, applied again with class %q: in zone %s %v, want %v: %s", name, class, zone, got.Outcome, want, got.Message)
				}
			}
		}
	}
}

// A claim of a manifest that is to be bound at once is, as those of templates are, wherever its class stands in the manifests.
func TestAClaimOfAManifestThatIsBoundAtOnceIsBound(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "a", 1000)))
	class := "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: now}\nprovisioner: csi\n"
	for name, tt := range map[string]struct {
		manifests string
		want      Outcome
	}{
		"class first":   {class + claimOf("data", "now"), Placed},
		"class last":    {claimOf("data", "now") + class, Placed},
		"none made":     {claimOf("data", "now") + strings.Replace(class, "provisioner: csi", "provisioner: kubernetes.io/no-provisioner", 1), Unplaced},
		"wants another": {strings.Replace(claimOf("data", "now"), "spec: {", "spec: {volumeName: other, ", 1) + class, Unplaced},
		"no class":      {claimOf("data", "none"), Unplaced},
	} {
		if got := outcomesOf(t, s, tt.manifests+podIn("a", "data"))["p"]; got.Outcome != tt.want {
			t.Errorf("%s: %v, want %v: %s", name, got.Outcome, tt.want, got.Message)
		}
	}
}

// A pod that has to leave its node is made anew, and with it the claim of its ephemeral volume, which may have been bound to where it was.
func TestAnEphemeralVolumeIsMadeAnewElsewhere(t *testing.T) {
	pod := aPod("p", 100)
	pod.NodeName = "a"
	pod.Labels.Claims = []cluster.PodClaim{{Name: "p-scratch", Ephemeral: true, PodUID: pod.UID}}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)),
		setObject(&cluster.StorageClass{Name: "made", Provisioner: "csi", Mode: cluster.BindToFirstConsumer}),
		setObject(&cluster.PersistentVolume{Name: "v", Class: "made", HasAffinity: true, Affinity: []cluster.NodeSelectorTerm{
			{Expressions: []cluster.Requirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"a"}}}},
		}}),
		setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "p-scratch", UID: "u", Class: "made", Volume: "v", Bound: true, Owner: pod.UID}), setPod(pod))
	try(t, s, func(w *World) error {
		moved, _, err := Evict(w, "a")
		if err != nil {
			return err
		}
		outcomes, err := Place(w, []cluster.PodID{moved[0].Pod}, PlaceOptions{})
		if err == nil && outcomes[0].Node != "b" {
			t.Errorf("%+v, want it on b", outcomes)
		}
		return err
	})
}

// A claim of a class that is bound at once does not wait for the pod: those that are made for pods are bound, and their volumes count where they are attached.
func TestClaimsThatAreBoundAtOnceAreBound(t *testing.T) {
	set := aPod("web-0", 100)
	set.NodeName, set.Labels.Controller = "a", cluster.Controller{Kind: cluster.KindStatefulSet, Name: "web"}
	set.Labels.Claims = []cluster.PodClaim{{Name: "data-web-0"}}
	loose := aPod("p", 100)
	loose.NodeName, loose.Labels.Claims = "a", []cluster.PodClaim{{Name: "p-scratch", Ephemeral: true, PodUID: loose.UID}}
	events := []source.Event{
		setObject(&cluster.StorageClass{Name: "now", Provisioner: "kubernetes.io/aws-ebs", Mode: cluster.BindImmediately, Topologies: []cluster.NodeSelectorTerm{
			{Expressions: []cluster.Requirement{{Key: zoneLabel, Operator: "In", Values: []string{"z"}}}},
		}}),
		setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "data-web-0", UID: "u0", Class: "now", Volume: "v0", Bound: true}), setObject(&cluster.PersistentVolume{Name: "v0"}),
		setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "p-scratch", UID: "u1", Class: "now", Volume: "v1", Bound: true, Owner: loose.UID}), setObject(&cluster.PersistentVolume{Name: "v1"}),
	}
	for name, zone := range map[string]string{"a": "z", "b": "z", "far": "elsewhere"} {
		events = append(events, setNode(aNode(name, zone, 1000)),
			setObject(&cluster.CSINode{Name: name, Migrated: []string{"kubernetes.io/aws-ebs"}, Drivers: []cluster.NodeDriver{{Name: "ebs.csi.aws.com", Limited: true, Limit: 3}}}))
	}
	s := sandbox(t, append(events, setPod(set), setPod(loose))...)
	try(t, s, func(w *World) error {
		id, _ := w.State().PodByUID(set.UID)
		pod, _ := w.Pod(id)
		room, err := Capacity(w, pod, 100)
		if err == nil && room.Pods != 6 { // three volumes on each node of the zone; those that are there are not of the driver
			t.Errorf("%+v, want 6", room)
		}
		return err
	})
	try(t, s, func(w *World) error {
		id, _ := w.State().PodByUID(loose.UID)
		for round, want := range []string{"b", "a"} { // and again
			moved, _, err := Evict(w, w.State().Pod(id).NodeName)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(moved, func(m Moved) bool { return m.UID == loose.UID })
			outcomes, err := Place(w, []cluster.PodID{moved[at].Pod}, PlaceOptions{})
			if err != nil {
				return err
			}
			if outcomes[0].Node != want {
				t.Errorf("round %d: %+v, want it on %s", round, outcomes[0], want)
			}
			claim := w.State().PersistentVolumeClaim("default", "p-scratch")
			if v := w.State().PersistentVolume(claim.Volume); !claim.Bound || v == nil || v.Claim.UID != claim.UID || claim.UID == "u1" {
				t.Errorf("round %d: claim %+v, volume %+v, want that it is bound", round, claim, v)
			}
			id = moved[at].Pod
			if err := w.Cordon("a", false); err != nil {
				return err
			}
		}
		return nil
	})
}

// The claim of an ephemeral volume that is made anew is another one: the volume that was kept for the first is not kept for it.
func TestAClaimThatIsMadeAnewHasNoVolumeOfTheOther(t *testing.T) {
	pod := aPod("p", 100)
	pod.NodeName, pod.Labels.Claims = "a", []cluster.PodClaim{{Name: "p-scratch", Ephemeral: true, PodUID: pod.UID}}
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setNode(aNode("b", "z", 1000)),
		setObject(&cluster.StorageClass{Name: "local", Provisioner: "kubernetes.io/no-provisioner", Mode: cluster.BindToFirstConsumer}),
		setObject(&cluster.PersistentVolume{Name: "v", Class: "local", Capacity: 5, Mode: "Filesystem", HasClaim: true, Claim: cluster.ClaimReference{Namespace: "default", Name: "p-scratch", UID: "u"}}),
		setObject(&cluster.PersistentVolumeClaim{Namespace: "default", Name: "p-scratch", UID: "u", Class: "local", Mode: "Filesystem", HasRequest: true, Request: 5, Volume: "v", Bound: true, Owner: pod.UID}),
		setPod(pod))
	try(t, s, func(w *World) error {
		moved, _, err := Evict(w, "a")
		if err != nil {
			return err
		}
		outcomes, err := Place(w, []cluster.PodID{moved[0].Pod}, PlaceOptions{})
		if err == nil && outcomes[0].Outcome != Unplaced {
			t.Errorf("%+v, want it nowhere: there is no other volume", outcomes[0])
		}
		return err
	})
}

// A new node has no label by which another one is told from all: drivers of local volumes give such labels, beside the hostname.
func TestANodeLikeAnotherHasNoLabelOfItsName(t *testing.T) {
	node := aNode("a", "z", 1000)
	node.Labels = append(node.Labels, cluster.Label{Key: "topology.topolvm.io/node", Value: "a"})
	s := sandbox(t, setNode(node))
	try(t, s, func(w *World) error {
		like, _ := w.Node("a")
		if err := w.AddNodesLike(like, 2); err != nil {
			return err
		}
		for _, name := range []string{"a-what-if-0", "a-what-if-1"} {
			n, _ := w.Node(name)
			for key, want := range map[string]string{"topology.topolvm.io/node": name, "kubernetes.io/hostname": name, zoneLabel: "z"} {
				if got, _ := cluster.ValueOf(n.Labels, key); got != want {
					t.Errorf("%s: label %s is %q, want %q", name, key, got, want)
				}
			}
		}
		if was, _ := w.Node("a"); !slices.Equal(was.Labels, like.Labels) {
			t.Errorf("the other one has labels %v, had %v", was.Labels, like.Labels)
		}
		return nil
	})
}

// A pool may have the name of one of its nodes: a new node is of the same pool.
func TestANodeLikeAnotherIsOfItsPool(t *testing.T) {
	var events []source.Event
	for name, pool := range map[string]string{"gpu": "gpu", "gpu-2": "gpu", "web": "web"} {
		n := aNode(name, "z", 1000)
		n.Labels[0].Value = name + ".example" // its hostname
		n.Labels = append(n.Labels, cluster.Label{Key: "own", Value: name}, cluster.Label{Key: "pool", Value: pool}, cluster.Label{Key: "host", Value: name + ".example"})
		slices.SortFunc(n.Labels, func(a, b cluster.Label) int { return strings.Compare(a.Key, b.Key) })
		events = append(events, setNode(n))
	}
	try(t, sandbox(t, events...), func(w *World) error {
		like, _ := w.Node("gpu")
		if err := w.AddNodesLike(like, 2); err != nil {
			return err
		}
		n, _ := w.Node("gpu-what-if-1")
		for key, want := range map[string]string{"pool": "gpu", "own": n.Name, "host": n.Name, "kubernetes.io/hostname": n.Name} {
			if got, _ := cluster.ValueOf(n.Labels, key); got != want {
				t.Errorf("label %s is %q, want %q", key, got, want)
			}
		}
		return nil
	})
}

// A node like another one has its drivers, and so its limits.
func TestANodeLikeAnotherHasItsLimits(t *testing.T) {
	s := sandbox(t, setNode(aNode("a", "z", 1000)), setObject(&cluster.CSINode{Name: "a", Drivers: []cluster.NodeDriver{{Name: "csi", Limited: true, Limit: 3}}}))
	try(t, s, func(w *World) error {
		node, _ := w.Node("a")
		if err := w.AddNodesLike(node, 2); err != nil {
			return err
		}
		if of := w.State().CSINode("a-what-if-1"); of == nil || of.Drivers[0].Limit != 3 {
			t.Errorf("the CSINode of the second is %+v", of)
		}
		return nil
	})
}
