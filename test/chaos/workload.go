package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The cluster: nodes for the workload, in three zones, and nodes that are kept free for probes. Probes are small pods that
// always fit and come all the time, so that a gap between two binds is a pause and no lack of pods or room.
const (
	plainNodes = 12
	probeNodes = 2
	zones      = 3
	nodeCPU    = 4000 // milli-CPU
	largerCPU  = 6000 // of the first nodes, at times
	resized    = 2    // nodes whose size changes
	pool       = "pool"
	probePool  = "probe"
)

// Labels of the workload's pods.
const (
	labelClass = "class"
	labelGroup = "group" // pods that come and go together, and whose constraints are about each other
)

// The classes of pods.
const (
	classProbe  = "probe"
	classPlain  = "plain"
	classBig    = "big"
	classPort   = "port"
	classAgain  = "again" // the same names again and again
	classApart  = "apart" // required anti-affinity by host
	classSpread = "spread"
	classUrgent = "urgent" // of a higher priority than the others, which it preempts
	classHuge   = "huge"   // fits nowhere, ever
	classUntold = "untold" // cannot be told to replicas, and so must not be placed
)

// fitsNowhere reports whether a pod must stay without a node, and be told so, unless nothing is tried for it.
func fitsNowhere(p *corev1.Pod) bool {
	class := p.Labels[labelClass]
	return class == classHuge || class == classUntold || class == classUnclaimed || class == classShort
}

// How fast the workload is.
const (
	workTick   = 100 * time.Millisecond
	probeLife  = 5 * time.Second
	requestMax = 5 * time.Second // one request to the store
)

const (
	urgentPriority  = 1000
	tenantNamespace = "tenant" // a third of the plain and big pods are there, all others in the default namespace
)

// workload creates and deletes pods, and changes nodes. Its methods are for one goroutine.
type workload struct {
	store  store
	record *Recorder
	rng    *rand.Rand
	rate   float64 // pods created per second, besides probes, those with claims, seated and carded ones, and gangs
	seats  bool    // there are seated pods
	cards  bool    // there are carded pods
	gangs  bool    // there are gangs

	number int
	live   []livePod
	again  map[string]bool
	unused []string                                // claims that are to be deleted
	groups map[string]*schedulingv1alpha2.PodGroup // by namespace and name, when all were listed
}

// livePod is a pod, or all pods of a group or a gang, that the workload has created and not yet deleted.
type livePod struct {
	namespace string
	names     []string
	claims    []string // that they use
	uids      []types.UID
	cpu       int64 // requested by all of them together
	cards     int   // asked for by all of them together, when all were listed
	class     string
	gang      string // the name of their PodGroup
	urgent    bool   // of a gang: they preempt others
	waits     bool   // one of them had no node when all were listed
	expire    Micros // of probes
	ended     bool   // of a carded pod
}

func newWorkload(s store, record *Recorder, seed uint64, rate float64) *workload {
	return &workload{store: s, record: record, rng: rand.New(rand.NewPCG(seed, 2)), rate: rate, again: map[string]bool{}}
}

// node returns node number i.
func node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%02d", i)
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(nodeCPU, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%zones),
		}},
		Status: corev1.NodeStatus{
			Capacity: allocatable, Allocatable: allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if i < plainNodes {
		n.Labels[rackLabel] = rack(i)
	} else {
		n.Labels[pool] = probePool
		n.Spec.Taints = []corev1.Taint{{Key: pool, Value: probePool, Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

// pod returns a pod of a class that requests so much CPU (in milli-CPU) and half a MiB of memory for each milli-CPU.
func pod(class, name string, cpu int64) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{labelClass: class}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(cpu<<19, resource.BinarySI),
			}}}},
		},
	}
}

// start creates the nodes, what pods refer to, and the pods that fit nowhere.
func (w *workload) start(ctx context.Context) error {
	if err := w.store.prepare(ctx); err != nil {
		return fmt.Errorf("prepare the cluster: %w", err)
	}
	for i := range plainNodes + probeNodes {
		if err := w.store.createNode(ctx, node(i)); err != nil {
			return fmt.Errorf("create node: %w", err)
		}
	}
	for i := range storageNodes {
		if err := w.store.createNode(ctx, storageNode(i)); err != nil {
			return fmt.Errorf("create node: %w", err)
		}
	}
	for i := range seatNodes {
		if err := w.store.createNode(ctx, seatNode(i)); err != nil {
			return fmt.Errorf("create node: %w", err)
		}
	}
	for i := 0; w.cards && i < cardNodes; i++ {
		if err := w.store.createNode(ctx, cardNode(i)); err != nil {
			return fmt.Errorf("create node: %w", err)
		}
	}
	w.createClaimant(ctx, unclaimed())
	for i := range 3 {
		w.create(ctx, 0, pod(classHuge, fmt.Sprintf("huge-%d", i), 10*nodeCPU))
	}
	if w.gangs {
		return w.createShort(ctx)
	}
	return nil
}

// run works until ctx ends.
func (w *workload) run(ctx context.Context) {
	tick := time.NewTicker(workTick)
	defer tick.Stop()
	var owed float64
	var carded time.Time // when carded pods were changed last
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.number++
		probe := pod(classProbe, fmt.Sprintf("probe-%d", w.number), 1)
		probe.Spec.NodeSelector = map[string]string{pool: probePool}
		probe.Spec.Tolerations = []corev1.Toleration{{Key: pool, Operator: corev1.TolerationOpExists}}
		w.create(ctx, w.record.Now()+Micros(probeLife.Microseconds()), probe)
		for owed += w.rate * workTick.Seconds(); owed >= 1 && ctx.Err() == nil; owed-- {
			w.add(ctx)
		}
		w.trim(ctx)
		if w.rng.IntN(6) == 0 {
			w.addClaiming(ctx)
			w.trimClaims(ctx)
		}
		if w.rng.IntN(10) == 0 {
			w.changeNode(ctx)
		}
		if w.gangs && w.rng.IntN(8) == 0 {
			w.addGang(ctx)
		}
		if w.gangs && w.rng.IntN(30) == 0 {
			w.changeGang(ctx)
		}
		if w.seats && w.rng.IntN(20) == 0 {
			w.changeSeated(ctx)
		}
		if w.cards && time.Since(carded) > cardsTurn {
			w.changeCarded(ctx)
			carded = time.Now()
		}
	}
}

// add creates a pod, or a group, of a class that it draws.
func (w *workload) add(ctx context.Context) {
	w.number++
	name := func(class string) string { return fmt.Sprintf("%s-%d", class, w.number) }
	switch w.rng.IntN(10) {
	case 0:
		w.create(ctx, 0, urgent(name(classUrgent)))
	case 1, 2, 3:
		w.create(ctx, 0, w.housed(pod(classPlain, name(classPlain), 100+100*w.rng.Int64N(4))))
	case 4, 5:
		w.create(ctx, 0, w.housed(pod(classBig, name(classBig), 1300+100*w.rng.Int64N(6))))
	case 6:
		w.create(ctx, 0, withPort(pod(classPort, name(classPort), 50)))
	case 7:
		again := fmt.Sprintf("%s-%d", classAgain, w.rng.IntN(8))
		if !w.again[again] {
			w.again[again] = true
			w.create(ctx, 0, pod(classAgain, again, 200))
		}
	case 8:
		w.create(ctx, 0, group(2+w.rng.IntN(5), classApart, name(classApart), apart)...)
	default:
		w.create(ctx, 0, group(3+w.rng.IntN(6), classSpread, name(classSpread), spread)...)
	}
}

// housed draws the namespace of a pod.
func (w *workload) housed(p *corev1.Pod) *corev1.Pod {
	if w.rng.IntN(3) == 0 {
		p.Namespace = tenantNamespace
	}
	return p
}

// urgent returns a pod that preempts others.
func urgent(name string) *corev1.Pod {
	p := pod(classUrgent, name, 1500)
	p.Spec.PriorityClassName, p.Spec.Priority = classUrgent, new(int32(urgentPriority))
	return p
}

// withPort makes a pod use a host port.
func withPort(p *corev1.Pod) *corev1.Pod {
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP}}
	return p
}

// group returns n small pods whose constraints are about each other.
func group(n int, class, name string, constrain func(p *corev1.Pod, group string) *corev1.Pod) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pods = append(pods, constrain(pod(class, fmt.Sprintf("%s-%d", name, i), 60), name))
	}
	return pods
}

// apart keeps a pod off the nodes of others of its group.
func apart(p *corev1.Pod, group string) *corev1.Pod {
	p.Labels[labelGroup] = group
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
		{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelGroup: group}}},
	}}}
	return p
}

// spread spreads a pod with others of its group over the zones.
func spread(p *corev1.Pod, group string) *corev1.Pod {
	p.Labels[labelGroup] = group
	// The nodes of the probes do not count: the node affinity keeps the pod away from them.
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: pool, Operator: corev1.NodeSelectorOpDoesNotExist}}}},
	}}}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelGroup: group}},
	}}
	return p
}

// create creates pods that will go together, and remembers those of which it knows that they exist.
func (w *workload) create(ctx context.Context, expire Micros, pods ...*corev1.Pod) {
	made := livePod{namespace: pods[0].Namespace, class: pods[0].Labels[labelClass], expire: expire, urgent: pods[0].Spec.PriorityClassName == classUrgent}
	if gangName(pods[0]) != "" {
		made.gang = *pods[0].Spec.SchedulingGroup.PodGroupName
	}
	for _, p := range pods {
		if uid, done := w.createPod(ctx, p); done {
			made.names = append(made.names, p.Name)
			made.uids = append(made.uids, uid)
			made.cpu += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	made.claims = claimNames(pods[0])
	if made.class == classAgain && len(made.names) == 0 {
		delete(w.again, pods[0].Name)
	}
	if len(made.names) > 0 {
		w.live = append(w.live, made)
	}
}

// createPod creates a pod, and reports whether it is known that it exists.
func (w *workload) createPod(ctx context.Context, p *corev1.Pod) (uid types.UID, done bool) {
	call := &Call{Verb: verbCreate, Began: w.record.Now(), Name: p.Namespace + "/" + p.Name}
	request, cancel := context.WithTimeout(ctx, requestMax)
	uid, err := w.store.createPod(request, p)
	cancel()
	if call.Outcome = w.store.outcome(err); call.Outcome == Done {
		call.UID = string(uid)
	}
	call.Returned = w.record.Now()
	w.record.Add(Entry{Call: call})
	return uid, call.Outcome == Done
}

// trim deletes probes that have lived, and others, at random, while more is requested than the nodes have.
func (w *workload) trim(ctx context.Context) {
	now := w.record.Now()
	var cpu int64
	for i := 0; i < len(w.live); i++ {
		if l := w.live[i]; l.expire > 0 && l.expire < now {
			if !w.delete(ctx, i) {
				return // the API server does not answer
			}
			i--
		} else if l.class != classHuge {
			cpu += l.cpu
		}
	}
	const full = plainNodes * nodeCPU * 11 / 10 // a tenth more than there is room for
	for tries := 0; cpu > full && len(w.live) > 0 && tries < 20; tries++ {
		i := w.rng.IntN(len(w.live))
		if l := w.live[i]; l.class != classHuge && l.class != classShort && l.class != classProbe && len(l.claims) == 0 {
			cpu -= l.cpu
			if !w.delete(ctx, i) {
				return
			}
		}
	}
}

// delete deletes the pods of an entry of live, and forgets it if they are gone. They are removed at once: nothing runs. Their claims are left to be
// deleted.
func (w *workload) delete(ctx context.Context, i int) bool {
	l := w.live[i]
	groupFirst := l.gang != "" && w.rng.IntN(2) == 0
	if groupFirst && !w.deleteGroup(ctx, l) {
		return false
	}
	for k, name := range l.names {
		if !w.deletePod(ctx, l.namespace, name, l.uids[k]) {
			return false
		}
		if l.class == classAgain {
			delete(w.again, name)
		}
	}
	if !groupFirst && !w.deleteGroup(ctx, l) {
		return false
	}
	w.unused = append(w.unused, l.claims...)
	w.live[i] = w.live[len(w.live)-1]
	w.live = w.live[:len(w.live)-1]
	return true
}

// deletePod deletes a pod, and reports whether it is known that it has gone.
func (w *workload) deletePod(ctx context.Context, namespace, name string, uid types.UID) bool {
	call := &Call{Verb: verbDelete, Began: w.record.Now(), Name: namespace + "/" + name, UID: string(uid)}
	request, cancel := context.WithTimeout(ctx, requestMax)
	err := w.store.deletePod(request, namespace, name, uid)
	cancel()
	call.Returned, call.Outcome = w.record.Now(), w.store.outcome(err)
	w.record.Add(Entry{Call: call})
	return call.Outcome != Unknown
}

// changeNode changes one node in a way that it draws: a label that nothing selects, whether pods may come, a taint, or,
// of some nodes, the size.
func (w *workload) changeNode(ctx context.Context) {
	i := w.rng.IntN(plainNodes)
	change, cpu := w.rng.IntN(8), int64(nodeCPU)
	if w.rng.IntN(2) == 0 {
		cpu = largerCPU
	}
	w.updateNode(ctx, i, func(n *corev1.Node) {
		switch {
		case change < 3:
			n.Labels["beat"] = fmt.Sprint(w.number)
		case change < 5:
			n.Spec.Unschedulable = i >= resized && i < 2*resized && !n.Spec.Unschedulable
		case change < 6:
			if n.Spec.Taints = nil; i == 2*resized && w.number%2 == 0 {
				n.Spec.Taints = []corev1.Taint{{Key: "keep", Value: "away", Effect: corev1.TaintEffectNoSchedule}}
			}
		case i < resized:
			n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
		}
	})
}

// updateNode changes a node, its status too, and reports whether it has.
func (w *workload) updateNode(ctx context.Context, i int, change func(*corev1.Node)) bool {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	return w.store.changeNode(ctx, node(i).Name, change) == nil
}

// shrink makes room for everything that is left but what never fits: it makes the nodes as they were at first, and deletes
// pods until two fifths of the room are asked for, and fewer host ports than there are nodes. It works until ctx ends.
func (w *workload) shrink(ctx context.Context) error {
	for i := range plainNodes {
		for !w.updateNode(ctx, i, func(n *corev1.Node) {
			n.Spec.Unschedulable, n.Spec.Taints = false, nil
			n.Status.Allocatable[corev1.ResourceCPU] = *resource.NewMilliQuantity(largerOf(i), resource.DecimalSI)
		}) {
			if sleep(ctx, time.Second); ctx.Err() != nil {
				return fmt.Errorf("restore node %d: %w", i, ctx.Err())
			}
		}
	}
	// The workload does not know of pods whose creation it got no answer about.
	for {
		left, err := w.store.pods(ctx)
		gangs, failed := w.store.groups(ctx)
		if err == nil && failed == nil {
			w.groups = map[string]*schedulingv1alpha2.PodGroup{}
			for i := range gangs {
				w.groups[gangs[i].Namespace+"/"+gangs[i].Name] = &gangs[i]
			}
			w.live = w.live[:0]
			groups := map[string]int{}
			for i := range left {
				p := &left[i]
				key := p.Labels[labelGroup]
				if gang := gangName(p); gang != "" {
					key = "gang " + gang
				} else if names := claimNames(p); len(names) > 0 {
					key = p.Namespace + "/" + names[0] // those that share a claim go together
				} else if key == "" {
					key = p.Namespace + "/" + p.Name
				}
				at, ok := groups[key]
				if !ok {
					at = len(w.live)
					groups[key] = at
					w.live = append(w.live, livePod{namespace: p.Namespace, class: p.Labels[labelClass]})
				}
				l := &w.live[at]
				l.names, l.uids = append(l.names, p.Name), append(l.uids, p.UID)
				l.cpu += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
				l.cards += cardsAsked(p)
				l.claims, l.waits = claimNames(p), l.waits || p.Spec.NodeName == ""
				if gangName(p) != "" {
					l.gang = *p.Spec.SchedulingGroup.PodGroupName
				}
			}
			if w.shrinkTo(ctx, plainNodes*nodeCPU*2/5, plainNodes/2) && w.sweepClaims(ctx) {
				return nil
			}
		}
		if sleep(ctx, time.Second); ctx.Err() != nil {
			return fmt.Errorf("delete pods: %w", ctx.Err())
		}
	}
}

// largerOf returns the size that a node has at the end: those that were larger at times stay so, lest what is on them be
// too much.
func largerOf(i int) int64 {
	if i < resized {
		return largerCPU
	}
	return nodeCPU
}

func (w *workload) shrinkTo(ctx context.Context, room int64, ports int) bool {
	for {
		var cpu int64
		var shrinkable, withPort, withClaims, seated, carded, gangs, hopeless []int
		cards := 0
		for i, l := range w.live {
			if len(l.claims) > 0 { // those that wait stay, for the checker to say whether they may
				if !l.waits {
					withClaims = append(withClaims, i)
				}
				continue
			}
			switch l.class {
			case classHuge, classUntold, classShort:
				continue
			case classGang:
				if gangs = append(gangs, i); l.hopeless(w.groups) {
					hopeless = append(hopeless, i)
				}
			case classPort:
				withPort = append(withPort, i)
			case classSeated:
				seated = append(seated, i)
			case classCarded:
				carded = append(carded, i)
				cards += l.cards
			}
			cpu += l.cpu
			shrinkable = append(shrinkable, i)
		}
		if len(hopeless) > 0 {
			shrinkable = hopeless
		} else if len(withPort) > ports {
			shrinkable = withPort
		} else if len(seated) > finalSeated {
			shrinkable = seated
		} else if cards > finalCarded {
			shrinkable = carded
		} else if len(withClaims) > finalClaiming {
			shrinkable = withClaims
		} else if len(gangs) > finalGangs {
			shrinkable = gangs
		} else if cpu <= room {
			return true
		}
		if !w.delete(ctx, shrinkable[w.rng.IntN(len(shrinkable))]) {
			return false
		}
	}
}
