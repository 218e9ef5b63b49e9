package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	scv "github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// Carded pods ask for cards of nodes, and Yoda, which is a process of its own, says which they get. Nothing else keeps them from other nodes. There are more of them, at times, than cards. Some share cards; some are more urgent than the others.
const (
	cardNodes   = 6
	cardsEach   = 4
	cardPool    = "cards"
	classCarded = "carded" // the name of their profile, too

	cardMiB     = 16384
	leastShare  = 4096 // MiB that a pod gets of each card that it shares
	otherShare  = 6144
	mostCarded  = 32
	leastCarded = 16                        // are left when some go
	finalCarded = cardNodes * cardsEach / 2 // cards that are asked for at the end: two that are free are on one node then, wherever the others are
)

// What pods and Yoda say of cards. Yoda is a module of its own, so this is said here again.
const (
	labelNumber           = "scv/number"
	annotationRequest     = "yoda.berth.dev/request"
	annotationCards       = "yoda.berth.dev/cards"
	annotationCardsMemory = "yoda.berth.dev/cards-memory"
)

const (
	yodaParty   = "yoda service"
	yodaTimeout = time.Second // for an answer

	heartbeatEach = time.Second                     // between two writes of a collector
	heartbeatSays = 2                               // seconds: what it says that is at most
	staleAfter    = 3 * heartbeatSays * time.Second // without a write its cards are given to nobody
	scvRequest    = 2 * time.Second                 // for one write
)

// cardNode returns the node with cards of number i.
func cardNode(i int) *corev1.Node {
	n := node(plainNodes + probeNodes + storageNodes + seatNodes + i)
	n.Labels[pool] = cardPool
	n.Spec.Taints = []corev1.Taint{{Key: pool, Value: cardPool, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// cardID returns the ID of a card of the node with cards of number i.
func cardID(i, card int) string { return fmt.Sprintf("GPU-%s-%d", cardNode(i).Name, card) }

// carded returns a pod that asks for some cards, or, if share is not 0, for so much of each of them, in MiB.
func carded(name string, number int, share int64) *corev1.Pod {
	p := pod(classCarded, name, 10)
	p.Labels[labelNumber] = strconv.Itoa(number)
	if share > 0 {
		p.Annotations = map[string]string{annotationRequest: fmt.Sprintf(`{"share":true,"memory":"%dMi"}`, share)}
	}
	p.Spec.SchedulerName = classCarded
	p.Spec.Tolerations = []corev1.Toleration{{Key: pool, Operator: corev1.TolerationOpExists}}
	return p
}

// drawCarded draws a carded pod.
func (w *workload) drawCarded() *corev1.Pod {
	name := fmt.Sprintf("%s-%d", classCarded, w.number)
	var p *corev1.Pod
	switch w.rng.IntN(10) {
	case 0, 1, 2, 3:
		p = carded(name, 1, 0)
	case 4, 5:
		p = carded(name, 2, 0)
	case 6, 7:
		p = carded(name, 1, leastShare)
	case 8:
		p = carded(name, 1, otherShare)
	default:
		p = carded(name, 2, leastShare)
	}
	if w.rng.IntN(10) == 0 {
		p.Spec.PriorityClassName, p.Spec.Priority = classUrgent, new(int32(urgentPriority))
	}
	return p
}

// cardsTurn is how long after one change of carded pods the next comes.
const cardsTurn = 2 * time.Second

// changeCarded has one carded pod that runs end, so that its cards are others' while it is still there, and deletes and creates others.
func (w *workload) changeCarded(ctx context.Context) {
	kube, ok := w.store.(kubeStore)
	for i := range w.live {
		if l := &w.live[i]; ok && l.class == classCarded && !l.ended && w.rng.IntN(4) == 0 {
			request, cancel := context.WithTimeout(ctx, requestMax)
			l.ended = kube.endPod(request, l.namespace, l.names[0], l.uids[0]) == nil
			cancel()
			break
		}
	}
	w.change(ctx, classCarded, leastCarded, mostCarded, w.drawCarded)
}

// errNoCards is that there is nothing to do a fault of cards to.
var errNoCards = errors.New("there are no cards")

// errNotRunning is what ends no pod.
var errNotRunning = errors.New("it does not run")

// endPod has a pod that is on a node succeed, as its kubelet would.
func (s kubeStore) endPod(ctx context.Context, namespace, name string, uid types.UID) error {
	p, err := s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if p.UID != uid || p.Spec.NodeName == "" {
		return errNotRunning
	}
	p.Status.Phase = corev1.PodSucceeded
	_, err = s.client.CoreV1().Pods(namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

// cardsAsked returns how many cards a pod asks for, whole or in part.
func cardsAsked(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Labels[labelNumber])
	if err != nil {
		return 0
	}
	return n
}

// scores are the score plugins of Yoda.
var scores = []string{"YodaBandwidth", "YodaClock", "YodaCore", "YodaPower", "YodaFreeMemory", "YodaTotalMemory", "YodaAllocate", "YodaActual"}

// yodaProfile is the profile of carded pods.
func yodaProfile() string {
	return fmt.Sprintf("- schedulerName: %s\n  plugins: {multiPoint: {enabled: [{name: Yoda}, {name: %s}]}}\n", classCarded, strings.Join(scores, "}, {name: "))
}

// yodaService is Yoda's entry in the file that says which services there are.
func yodaService(address string) string {
	return fmt.Sprintf("- {name: yoda, address: %q, timeout: %v, objects: true, annotations: [yoda.berth.dev], plugins: [{name: Yoda, points: [filter, reserve]}, {name: %s, points: [score]}]}\n",
		address, yodaTimeout, strings.Join(scores, ", points: [score]}, {name: "))
}

// newYoda returns the process of Yoda's service, and its entry in the file of services. Nothing runs yet. It reaches the API server by the proxies that Berth does: the same faults meet it.
func newYoda(cfg config, kubeconfig string, record *Recorder, network *Network) (*serviceProcess, string, error) {
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		return nil, "", err
	}
	address := "127.0.0.1:" + ports[0]
	argv := []string{cfg.yoda, "plugin", "serve", "yoda", "--listen", address, "--kubeconfig", kubeconfig}
	return &serviceProcess{party: yodaParty, dir: cfg.dir, argv: argv, record: record, network: network}, yodaService(address), nil
}

// collectors play the collectors of the nodes with cards. They reach the API server itself, not by the way that faults meet: what they are late with is what faults have them be late with. Their methods may be called concurrently.
type collectors struct {
	client dynamic.Interface
	poke   map[string]chan struct{} // by node: something has changed

	mu   sync.Mutex
	dead map[string]bool             // nodes whose collector does not run
	bad  map[string]Kind             // by the ID of a card: what is wrong with it, cardSick or cardVanishes
	used map[string]map[string]int64 // by the ID of a card, and the name of a pod: what it uses, in MiB
	last string                      // the card that was given last
}

var (
	scvResource = schema.GroupVersionResource{Group: scv.Group, Version: scv.Version, Resource: scv.Resource}
	crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// newCollectors defines the resource that collectors write, by the file of its definition. They do not write yet.
func newCollectors(ctx context.Context, kubeconfig, definition string) (*collectors, error) {
	text, err := os.ReadFile(definition)
	if err != nil {
		return nil, err
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", definition, err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if _, err := client.Resource(crdResource).Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("define %s: %w", scv.Resource, err)
	}
	c := idleCollectors()
	c.client = client
	return c, nil
}

// idleCollectors returns collectors that have nobody to write to.
func idleCollectors() *collectors {
	c := &collectors{poke: map[string]chan struct{}{}, dead: map[string]bool{}, bad: map[string]Kind{}, used: map[string]map[string]int64{}, last: cardID(0, 0)}
	for i := range cardNodes {
		c.poke[cardNode(i).Name] = make(chan struct{}, 1)
	}
	return c
}

// run writes what the cards are, each second and when something has changed, until ctx ends.
func (c *collectors) run(ctx context.Context) {
	var writers sync.WaitGroup
	for i := range cardNodes {
		writers.Go(func() {
			name := cardNode(i).Name
			for ctx.Err() == nil {
				if status := c.tell(i, time.Now()); status != nil {
					_ = c.write(ctx, name, status) // what is so then is written the next time
				}
				select {
				case <-ctx.Done():
				case <-c.poke[name]:
				case <-time.After(heartbeatEach):
				}
			}
		})
	}
	writers.Wait()
}

// tell returns what the collector of the node with cards of number i says of it; nil: it does not run.
func (c *collectors) tell(i int, now time.Time) *scv.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead[cardNode(i).Name] {
		return nil
	}
	s := &scv.Status{Heartbeat: metav1.NewMicroTime(now), HeartbeatSeconds: heartbeatSays, Driver: "chaos", Cards: []scv.Card{}}
	for k := range cardsEach {
		card := scv.Card{
			ID: cardID(i, k), Index: int32(k), Model: "card", Health: scv.Healthy, TotalMemoryMiB: cardMiB, FreeMemoryMiB: cardMiB,
			ClockMHz: int64(1500 + 100*k), CoreMHz: int64(1200 + 50*i), BandwidthMBps: 16000, PowerWatts: int64(300 + 10*i),
		}
		for _, mib := range c.used[card.ID] {
			card.FreeMemoryMiB = max(0, card.FreeMemoryMiB-mib)
		}
		switch c.bad[card.ID] {
		case cardVanishes:
			continue
		case cardSick:
			card.Health, card.Reason = scv.Unhealthy, "it has fallen sick"
		default:
			s.HealthyNumber++
			s.FreeMemoryMiB += card.FreeMemoryMiB
			s.TotalMemoryMiB += card.TotalMemoryMiB
		}
		s.Cards = append(s.Cards, card)
	}
	s.CardNumber = int32(len(s.Cards))
	return s
}

// write writes a status, and makes the object if there is none.
func (c *collectors) write(ctx context.Context, node string, status *scv.Status) error {
	ctx, cancel := context.WithTimeout(ctx, scvRequest)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	scvs := c.client.Resource(scvResource)
	_, err = scvs.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if !apierrors.IsNotFound(err) {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": scv.Group + "/" + scv.Version, "kind": scv.Kind}}
	object.SetName(node)
	if _, err = scvs.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = scvs.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// see notes what a pod uses of its cards, as its node would see: three quarters of what it was promised, and half of what it has whole.
func (c *collectors) see(o *Object) {
	if !o.ofPod() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Deleted || o.Ended {
		for _, pods := range c.used {
			delete(pods, o.Name)
		}
		return
	}
	g, err := readGrant(o)
	if err != nil || o.On == "" {
		return
	}
	uses := g.memory * 3 / 4
	if g.memory == 0 {
		uses = cardMiB / 2
	}
	for _, id := range g.cards {
		if c.used[id] == nil {
			c.used[id] = map[string]int64{}
		}
		if _, known := c.used[id][o.Name]; !known {
			c.used[id][o.Name], c.last = uses, id
		}
	}
}

// givenLast returns the card that was given last.
func (c *collectors) givenLast() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// change changes what there is to tell, and has all collectors that run tell it.
func (c *collectors) change(do func()) {
	c.mu.Lock()
	do()
	c.mu.Unlock()
	for _, poke := range c.poke {
		select {
		case poke <- struct{}{}:
		default:
		}
	}
}

// killYodaHolding kills Yoda when binds are recorded, and sent, and have not arrived, and starts it again. It has to learn from Berth which cards these pods have, for the API server does not say so yet.
func (n *nemesis) killYodaHolding(ctx context.Context, binder string) (undo func() error, err error) {
	if n.yoda == nil {
		return nil, errNoCards
	}
	heal := n.spoil(Condition{Hold: true}, Route{binder, apiParty})
	sleep(ctx, heldBinds)
	start, err := n.yoda.begin(yodaKill)
	if err == nil {
		err = start()
	}
	if err != nil {
		return nil, errors.Join(err, heal())
	}
	return heal, nil
}

// spoilCards does a fault to cards, to who tells of them or to who gives them, and returns what undoes it.
func (n *nemesis) spoilCards(f Fault, target string) (undo func() error, err error) {
	c := n.collectors
	if c == nil || n.yoda == nil {
		return nil, errNoCards
	}
	switch f.Kind {
	case yodaKill, yodaPause:
		return n.yoda.begin(f.Kind)
	case yodaCut:
		return n.spoil(Condition{Hold: true}, routes(yodaParty, f.Way, apiParty)...), nil
	case collectorDies:
		c.change(func() { c.dead[target] = true })
		return func() error { c.change(func() { delete(c.dead, target) }); return nil }, nil
	}
	c.change(func() { c.bad[target] = f.Kind })
	return func() error { c.change(func() { delete(c.bad, target) }); return nil }, nil
}
