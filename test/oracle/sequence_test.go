package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// sequenceLength is how many pods a sequence places.
const sequenceLength = 500

// plan is what happens in one sequence.
type plan struct {
	profiles []config.KubeSchedulerProfile
	gates    gates
	settings cluster.Settings
	crew     crew
	apart    int             // node indexes per node
	crowded  bool            // the nodes are small, and pods preempt each other
	storing  bool            // most pods have volumes
	controls bool            // the controller of volumes looks at all claims
	refuse   int             // how many pods' first bindings are refused
	before   []func(*script) // the cluster without the pods to be placed
	after    []stage         // pods, and what else happens meanwhile
}

// stage is a part of a sequence.
type stage struct {
	pods   []*v1.Pod
	change func(*script) // after the pods are there, while they are placed
	settle bool          // what comes next waits until Berth has nothing more to do
}

// drawPlan draws a sequence: a fleet with pods, then more pods in portions, among changes.
func drawPlan(t *rapid.T) *plan {
	p := &plan{profiles: drawProfiles(t)}
	p.settings = cluster.Settings{Shards: evenly(t, "shards", [8]int32{1, 2, 3, 4, 2, 3, 4, 1}), Seed: rapid.Uint64().Draw(t, "seed")}
	if p.storing = rapid.Bool().Draw(t, "storage"); p.storing {
		p.controls = rapid.Bool().Draw(t, "claims are bound")
		p.gates = gates{scaling: drawGates(t).scaling} // what storage is scored by would have to be amended
	}
	for i := range p.profiles {
		p.settings.Profiles = append(p.settings.Profiles, p.gates.profile(&p.profiles[i]))
	}
	p.crew = crew{
		queues:  evenly(t, "queues", [8]int{1, 2, 3, 1, 2, 3, 1, 2}),
		filters: evenly(t, "filter-workers", [8]int{1, 2, 3, 1, 2, 3, 3, 2}),
		scores:  evenly(t, "score-workers", [8]int{1, 2, 3, 1, 2, 3, 3, 2}),
		batch:   evenly(t, "batch", [8]int{1, 8, 16, 64, 64, 100, 256, 256}),
	}
	if oneIn(t, 8, "refusals") {
		p.refuse = 3
	}
	width := evenly(t, "width", [8]int{6, 8, 12, 16, 20, 30, 40, 60})
	p.crowded = rapid.Bool().Draw(t, "crowded")
	p.drawCluster(t, width)
	var templates []*v1.Pod
	for range rapid.IntRange(2, 10).Draw(t, "kinds of pods") {
		pod := p.drawPod(t, width)
		if !oneIn(t, 5, "wild") {
			tame(pod)
		}
		templates = append(templates, pod)
	}
	portion := evenly(t, "portion", [8]int{500, 500, 250, 100, 50, 25, 25, 10})
	for n := 0; n < sequenceLength; {
		var s stage
		for ; len(s.pods) < portion && n < sequenceLength; n++ {
			pod := named(rapid.SampledFrom(templates).Draw(t, "kind"), fmt.Sprintf("p%d", n))
			if oneIn(t, 4, "labels of its own") {
				pod.Labels = drawLabels(t, podLabels, 3)
			}
			if oneIn(t, 8, "nominated") {
				pod.Status.NominatedNodeName = drawNomination(t, pod, width)
			}
			if p.crowded {
				pod.Spec.Priority = drawPriority(t)
			}
			if p.storing {
				p.drawOwnClaim(t, pod)
			}
			s.pods = append(s.pods, pod)
			for _, o := range drawEphemeralClaims(t, pod) {
				p.before = append(p.before, func(s *script) { s.keep(o) })
			}
		}
		if rapid.Bool().Draw(t, "something happens") {
			s.change = p.drawChange(t, width)
		}
		s.settle = oneIn(t, 4, "settle")
		p.after = append(p.after, s)
	}
	return p
}

// tame takes from a pod what few nodes have, so that many such pods can be placed: what it wants of other pods stays.
func tame(pod *v1.Pod) {
	s := &pod.Spec
	s.NodeSelector, s.Resources = nil, nil
	if a := s.Affinity.NodeAffinity; a != nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
	for _, containers := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Ports, c.RestartPolicyRules = nil, nil
			maps.DeleteFunc(c.Resources.Requests, func(name v1.ResourceName, q resource.Quantity) bool {
				return name != v1.ResourceCPU && name != v1.ResourceMemory || q.Cmp(resource.MustParse("6Gi")) > 0
			})
			c.Resources.Limits = nil
		}
	}
}

// fillers is how many nodes there are for a while, so that those that stay lie far apart and are in several ranges.
const fillers = 1600

// drawCluster draws nodes, namespaces, services and controllers, and pods that have their nodes.
func (p *plan) drawCluster(t *rapid.T, width int) {
	tell := func(what func(*script)) { p.before = append(p.before, what) }
	if p.apart = 1; rapid.Bool().Draw(t, "several ranges") {
		p.apart = fillers / width
	}
	var filling []string
	for i, node := range drawFleet(t, width) {
		if p.crowded {
			maps.Copy(node.Status.Allocatable, v1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi")})
		}
		tell(func(s *script) { s.setNode(node) })
		for k := range p.apart - 1 {
			filler := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("filler-%d-%d", i, k)}}
			filling = append(filling, filler.Name)
			tell(func(s *script) { s.setNode(filler) })
		}
	}
	for _, name := range filling {
		tell(func(s *script) { s.removeNode(name) })
	}
	first := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceNames[0], Labels: drawLabels(t, namespaceLabels, 4)}}
	tell(func(s *script) { s.setNamespace(first) })
	for range rapid.IntRange(0, 2).Draw(t, "namespaces") {
		n := drawNamespace(t)
		tell(func(s *script) { s.setNamespace(n) })
	}
	for range rapid.IntRange(0, 4).Draw(t, "owners") {
		o := drawOwner(t)
		tell(func(s *script) { s.setOwner(o) })
	}
	for range rapid.IntRange(0, 2).Draw(t, "budgets") {
		b := drawBudget(t, nil)
		tell(func(s *script) { s.keep(b) })
	}
	if p.storing {
		for _, o := range slices.Concat(drawStorage(t, width), drawPool(t)) {
			tell(func(s *script) { s.keep(o) })
		}
	}
	for i := range evenly(t, "pods", [8]int{0, 2, 4, 8, 16, 32, 48, 64}) {
		pod := p.drawRunning(t, fmt.Sprintf("running-%d", i), width)
		for _, o := range drawEphemeralClaims(t, pod) {
			tell(func(s *script) { s.keep(o) })
		}
		tell(func(s *script) { s.setPod(pod, nil) })
	}
}

// drawOwnClaim gives a pod a claim of its own that waits for it, as those of a StatefulSet have, mostly instead of other volumes; or leaves it.
func (p *plan) drawOwnClaim(t *rapid.T, pod *v1.Pod) {
	if !rapid.Bool().Draw(t, "a claim of its own") {
		return
	}
	claim := drawWaitingClaim(t, pod.Namespace, "data-"+pod.Name)
	if delete(claim.Annotations, volume.AnnSelectedNode); rapid.Bool().Draw(t, "plain") {
		claim.Spec.Selector, claim.Spec.VolumeMode, claim.Spec.VolumeAttributesClassName = nil, nil, nil
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	p.before = append(p.before, func(s *script) { s.keep(claim) })
	if !oneIn(t, 4, "among others") {
		pod.Spec.Volumes = nil
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}})
}

// drawPool draws many volumes that claims which wait can get, and their classes.
func drawPool(t *rapid.T) (out []metav1.Object) {
	for _, class := range waitingClasses {
		out = append(out, drawClass(t, class))
	}
	for k := range evenly(t, "pool", [8]int{0, 4, 16, 32, 48, 64, 96, 128}) {
		v := drawVolume(t, fmt.Sprintf("pool-%d", k))
		if !oneIn(t, 4, "as it is") {
			v.DeletionTimestamp, v.Spec.ClaimRef, v.Status.Phase = nil, nil, v1.VolumeAvailable
		}
		out = append(out, v)
	}
	return out
}

// drawPod draws a pod of the sequence.
func (p *plan) drawPod(t *rapid.T, width int) *v1.Pod {
	pod := drawPod(t, width)
	if p.storing && len(pod.Spec.Volumes) == 0 && rapid.Bool().Draw(t, "volumes") {
		pod.Spec.Volumes = drawPodVolumes(t)
	}
	return pod
}

// drawRunning draws a pod that has its node, without ports: see the package's comment.
func (p *plan) drawRunning(t *rapid.T, name string, width int) *v1.Pod {
	pod := named(p.drawPod(t, width), name)
	pod = onNode(pod, nodeName(rapid.IntRange(0, width).Draw(t, "node")), drawStatus(t, pod))
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Ports = nil
		}
	}
	if oneIn(t, 6, "terminating") {
		pod = terminate(t, pod)
	}
	return pod
}

// drawChange draws what happens while pods are placed. Which pod it happens to is decided when it does.
func (p *plan) drawChange(t *rapid.T, width int) func(*script) {
	if p.storing && oneIn(t, 3, "of storage") {
		objects := drawStorageObject(t, width)
		gone := oneIn(t, 4, "gone")
		return func(s *script) {
			for _, o := range objects {
				if gone {
					s.discard(o)
				} else {
					s.keep(o)
				}
			}
		}
	}
	which := rapid.IntRange(0, sequenceLength).Draw(t, "which")
	one := func(s *script, of []*v1.Pod, what func(*v1.Pod)) {
		if len(of) > 0 {
			what(of[which%len(of)])
		}
	}
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0:
		node := drawNode(t, nodeName(rapid.IntRange(0, width-1).Draw(t, "node")))
		return func(s *script) { s.setNode(node) }
	case 1:
		name := nodeName(rapid.IntRange(0, width-1).Draw(t, "node"))
		return func(s *script) { s.removeNode(name) }
	case 2:
		n := drawNamespace(t)
		return func(s *script) { s.setNamespace(n) }
	case 3:
		o := drawOwner(t)
		return func(s *script) { s.setOwner(o) }
	case 4:
		o := drawOwner(t)
		return func(s *script) { s.removeOwner(o) }
	case 5:
		return func(s *script) { one(s, s.running(), s.removePod) }
	case 6:
		labels := drawLabels(t, podLabels, 3)
		return func(s *script) {
			one(s, s.running(), func(p *v1.Pod) { s.setPod(p, func(p *v1.Pod) { p.Labels = labels }) })
		}
	case 7:
		return func(s *script) {
			one(s, s.running(), func(p *v1.Pod) { s.setPod(p, func(p *v1.Pod) { p.DeletionTimestamp = &deleted }) })
		}
	case 8:
		b := drawBudget(t, nil)
		if rapid.Bool().Draw(t, "removed") {
			return func(s *script) { s.discard(b) }
		}
		return func(s *script) { s.keep(b) }
	}
	pod := p.drawRunning(t, "late-"+strconv.Itoa(rapid.Int().Draw(t, "name")), width)
	return func(s *script) { s.setPod(pod, nil) }
}

// runSequence has Berth place the pods of a plan, and returns the log.
func runSequence(t *testing.T, endpoints []string, prefix string, plan *plan) (*script, []cluster.Delta) {
	p := startPipeline(t, endpoints, prefix, plan.settings, plan.crew)
	p.source.refuse, p.source.controls = plan.refuse, plan.controls
	for _, tell := range plan.before {
		tell(p.source)
	}
	for _, s := range plan.after {
		for _, pod := range s.pods {
			p.source.setPod(pod, nil)
		}
		if s.change != nil {
			s.change(p.source)
		}
		if s.settle {
			p.await(t, "the pods to be bound or unschedulable", p.settled)
		}
	}
	p.await(t, "the pods to be bound or unschedulable", p.settled)
	p.stop(t)
	log, err := p.record.all()
	if err != nil {
		t.Fatal(err)
	}
	return p.source, log
}

// TestEachPlacementOfAWholeBerthIsOneOfTheBest has whole Berths, of several workers, ranges and shards, place pods, and
// asks kube-scheduler about each placement on the state before it, in the order of the log. In the end what is not
// placed has nowhere to go.
func TestEachPlacementOfAWholeBerthIsOneOfTheBest(t *testing.T) {
	var n tally
	endpoints := startEtcd(t)
	for i := range *sequences {
		seed := *firstSequence + i
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			defer n.explain(t)
			defer func() {
				if t.Failed() {
					sum.note(t, fmt.Sprintf("-sequence=%d -sequences=1", seed))
				}
			}()
			plan := rapid.Custom(drawPlan).Example(seed)
			script, log := runSequence(t, endpoints, fmt.Sprintf("/%d/", seed), plan)
			r := newReplay(t, &n, script, plan.profiles, plan.gates)
			for _, d := range log {
				r.play(d)
			}
			r.end()
			n.sequences++
			for what, times := range script.looks {
				n.looks = increment(n.looks, what, times)
			}
			if plan.settings.Shards > 1 {
				n.severalShards++
			}
			if plan.apart > 1 && plan.crew.filters > 1 {
				n.severalRanges++
			}
		})
	}
	n.report(t)
}
