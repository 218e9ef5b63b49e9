package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// giver says who decides which cards a pod gets.
type giver int

const (
	nobodyGives       giver = iota // a pod has a node, and on it whichever cards it takes
	yodaGives                      // a pod is told by its annotations
	devicePluginGives              // the kubelet, by a device plugin: whole cards
)

// milli is a thousandth of a card. What pods have of cards is counted in it.
type milli = int64

const wholeCard milli = 1000

// gpuFigures is what came of the cards. Those that are not known are NaN.
type gpuFigures struct {
	placed float64 // pods that ask for cards and have a node
	unfit  float64 // of these, pods whose node has too few cards with what they ask for, whoever has them
	served float64 // and pods that have what they ask for, each for itself. Where nobody gives cards by name it is the most that is possible on each node
	all    milli   // of all nodes
	// backed is what pods have of cards that is theirs alone. A card that several have, who want more of it than there is, counts once. Where nobody gives cards by name it is the most that is possible on each node, too.
	backed milli
	taken  float64 // cards of which a pod has something
	twice  float64 // cards of which pods have more than there is
	// over is how many nodes have pods that ask for more cards than the node has, and beyond how much more that is.
	over   float64
	beyond milli
}

// demand is what a pod asks for.
type demand struct {
	number        int
	memory, clock int64
	share         bool
}

// demandOf returns what a pod asks for. False: no cards.
func demandOf(pod *corev1.Pod) (demand, bool) {
	number, err := strconv.Atoi(pod.Labels[numberLabel])
	if err != nil {
		return demand{}, false
	}
	d := demand{number: number}
	d.memory, _ = strconv.ParseInt(pod.Labels[memoryLabel], 10, 64)
	d.clock, _ = strconv.ParseInt(pod.Labels[clockLabel], 10, 64)
	var request struct{ Share bool }
	if text := pod.Annotations[requestAnnotation]; text != "" {
		d.share = json.Unmarshal([]byte(text), &request) == nil && request.Share
	}
	return d, true
}

// of returns what a pod asks for of each card, of a node with such cards.
func (d demand) of(c v1alpha1.Card) milli {
	if !d.share || c.TotalMemoryMiB == 0 {
		return wholeCard
	}
	return d.memory * wholeCard / c.TotalMemoryMiB
}

// metBy reports whether a card has what a pod asks for, if nobody has any part of it.
func (d demand) metBy(c v1alpha1.Card) bool {
	return c.Health == v1alpha1.Healthy && c.TotalMemoryMiB >= d.memory && c.ClockMHz >= d.clock
}

// judgeGPU reads pods and cards, and notes what came of them. It returns what must not be.
func judgeGPU(ctx context.Context, s *stage) ([]string, error) {
	client := s.plane.Client()
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	text, err := client.CoreV1().RESTClient().Get().AbsPath(scvPath).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", v1alpha1.Resource, err)
	}
	var list struct{ Items []v1alpha1.Scv }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list %s: %w", v1alpha1.Resource, err)
	}
	figures, problems := judgeCards(pods.Items, list.Items, s.contender.cards)
	s.r.gpu = &figures
	return problems, nil
}

// judgeCards judges who has which cards. Pods without a node have none.
func judgeCards(pods []corev1.Pod, told []v1alpha1.Scv, by giver) (gpuFigures, []string) {
	j := cardJudge{cards: map[string]map[string]*heldCard{}, asked: map[string]milli{}, fit: map[string][]milli{}, wrong: map[string]bool{}}
	for i := range told {
		cards := map[string]*heldCard{}
		for _, c := range told[i].Status.Cards {
			cards[c.ID] = &heldCard{Card: c}
		}
		j.cards[told[i].Name] = cards
		j.figures.all += wholeCard * milli(len(cards))
	}
	number := 0
	for i := range pods {
		d, asks := demandOf(&pods[i])
		if !asks || pods[i].Spec.NodeName == "" {
			continue
		}
		j.figures.placed++
		number += d.number
		j.ask(&pods[i], d)
		if by == yodaGives {
			j.hold(&pods[i], d)
		}
	}
	switch by {
	case yodaGives:
		j.countHeld()
	case devicePluginGives:
		j.countOnNodes()
		j.figures.taken = float64(number)
	default:
		j.countOnNodes()
		j.figures.taken, j.figures.twice = math.NaN(), math.NaN()
	}
	return j.figures, j.problems
}

// heldCard is a card and who has something of it.
type heldCard struct {
	v1alpha1.Card
	holders []string // names of pods
	whole   bool     // one of them has all of it
	memory  int64    // the others have of it
	asked   milli    // of all of them
}

// double reports whether pods have more of the card than there is.
func (c *heldCard) double() bool {
	return c.whole && len(c.holders) > 1 || c.memory > c.TotalMemoryMiB
}

// cardJudge judges who has which cards.
type cardJudge struct {
	cards    map[string]map[string]*heldCard // by node and ID
	asked    map[string]milli                // by node
	fit      map[string][]milli              // the same, of each pod that is not unfit
	figures  gpuFigures
	problems []string
	wrong    map[string]bool // names of pods that have not what they should have
}

// blame reports what is wrong with a pod's cards.
func (j *cardJudge) blame(pod *corev1.Pod, format string, args ...any) {
	j.wrong[pod.Name] = true
	j.problems = append(j.problems, "pod "+pod.Name+": "+fmt.Sprintf(format, args...))
}

// ask notes what a pod asks for of its node.
func (j *cardJudge) ask(pod *corev1.Pod, d demand) {
	node, each, good := pod.Spec.NodeName, wholeCard, 0
	for _, c := range j.cards[node] {
		each = d.of(c.Card) // all cards of a node are alike
		if d.metBy(c.Card) {
			good++
		}
	}
	j.asked[node] += each * milli(d.number)
	if good < d.number {
		j.figures.unfit++
		return
	}
	j.fit[node] = append(j.fit[node], each*milli(d.number))
}

// hold notes which cards a pod has, and reports those that it should not.
func (j *cardJudge) hold(pod *corev1.Pod, d demand) {
	text, ok := pod.Annotations[cardsAnnotation]
	if !ok {
		j.blame(pod, "on node %s without cards", pod.Spec.NodeName)
		return
	}
	ids := strings.Split(text, ",")
	slices.Sort(ids)
	different := slices.Compact(slices.Clone(ids))
	if len(ids) != d.number || len(different) != d.number {
		j.blame(pod, "has the cards %s, and asks for %d different ones", text, d.number)
	}
	want := int64(0)
	if d.share {
		want = d.memory
	}
	if got, _ := strconv.ParseInt(pod.Annotations[cardsMemoryAnnotation], 10, 64); got != want {
		j.blame(pod, "has %d MiB of each card, and asks for %d", got, want)
	}
	for _, id := range different {
		c := j.cards[pod.Spec.NodeName][id]
		if c == nil {
			j.blame(pod, "has the card %s, which is none of node %s", id, pod.Spec.NodeName)
			continue
		}
		if !d.metBy(c.Card) {
			j.blame(pod, "the card %s is %s and has %d MiB and %d MHz, and %d and %d are asked for", id, c.Health, c.TotalMemoryMiB, c.ClockMHz, d.memory, d.clock)
		}
		c.holders = append(c.holders, pod.Name)
		c.asked += d.of(c.Card)
		c.whole = c.whole || !d.share
		if d.share {
			c.memory += d.memory
		}
	}
}

// countHeld counts cards that pods have by name.
func (j *cardJudge) countHeld() {
	j.countOnNodes()
	j.figures.backed = 0
	for node, cards := range j.cards {
		for id, c := range cards {
			j.figures.backed += min(c.asked, wholeCard)
			if len(c.holders) > 0 {
				j.figures.taken++
			}
			if c.double() {
				j.figures.twice++
				slices.Sort(c.holders)
				for _, pod := range c.holders[1:] {
					j.wrong[pod] = true
				}
				j.problems = append(j.problems, fmt.Sprintf("card %s of node %s: given to %s, which is more than there is of it", id, node, strings.Join(c.holders, ", ")))
			}
		}
	}
	j.figures.served = j.figures.placed - float64(len(j.wrong))
	slices.Sort(j.problems)
}

// countOnNodes counts what is asked for on each node.
func (j *cardJudge) countOnNodes() {
	for node, asked := range j.asked {
		has := wholeCard * milli(len(j.cards[node]))
		if asked > has {
			j.figures.over++
			j.figures.beyond += asked - has
		}
		var sum milli
		slices.Sort(j.fit[node]) // who asks for least goes first: so most are served
		for _, of := range j.fit[node] {
			if sum += of; sum <= has {
				j.figures.served++
			}
		}
		j.figures.backed += mostWithin(j.fit[node], has)
	}
}

// mostWithin returns the most that some of the parts come to without being more than there is.
func mostWithin(parts []milli, has milli) milli {
	reached := make([]bool, has+1) // sums of some of the parts
	reached[0] = true
	for _, part := range parts {
		for sum := has; sum >= part; sum-- {
			reached[sum] = reached[sum] || reached[sum-part]
		}
	}
	for !reached[has] {
		has--
	}
	return has
}

// allocated returns the part of all cards that is allocated.
func (f *gpuFigures) allocated() float64 { return float64(f.backed) / float64(f.all) }

// inUse returns the part of all cards of which somebody has something.
func (f *gpuFigures) inUse() float64 { return f.taken * float64(wholeCard) / float64(f.all) }

func ofGPU(figure func(*gpuFigures) float64) func(*result) float64 {
	return func(r *result) float64 { return orNaN(r.gpu, figure) }
}

// gpuTable has what came of the cards.
var gpuTable = layout{
	has: func(r *result) bool { return r.gpu != nil },
	columns: []column{
		workloadColumn, contenderColumn,
		median("pods/s", "%.0f", (*result).perSecond),
		ratio("to original", (*result).perSecond, toOriginal),
		median("ms/pod", "%.2f", (*result).cpuPerPod),
		ratio("CPU to original", (*result).cpuPerPod, toOriginal),
		median("placed", "%.0f", ofGPU(func(f *gpuFigures) float64 { return f.placed })),
		median("unfit", "%.0f", ofGPU(func(f *gpuFigures) float64 { return f.unfit })),
		median("served", "%.0f", ofGPU(func(f *gpuFigures) float64 { return f.served })),
		median("allocated %", "%.1f", ofGPU(func(f *gpuFigures) float64 { return 100 * f.allocated() })),
		median("in use %", "%.1f", ofGPU(func(f *gpuFigures) float64 { return 100 * f.inUse() })),
		median("over nodes", "%.0f", ofGPU(func(f *gpuFigures) float64 { return f.over })),
		median("over cards", "%.0f", ofGPU(func(f *gpuFigures) float64 { return float64(f.beyond) / float64(wholeCard) })),
		median("twice", "%.0f", ofGPU(func(f *gpuFigures) float64 { return f.twice })),
	},
	legend: `
to original     pods/s to those of kube-scheduler-yoda, which has the rules of the original Yoda, in the same repetition, and
CPU to original ms/pod to its ms/pod: below 1 is less
placed          pods with a node
unfit           of these, pods on nodes with too few cards that have the memory and the clock that they ask for
served          of these, pods that have what they ask for to themselves. Where nobody gives cards, it is the most that is possible:
                who asks for least is served first, and shares of cards are put together as if they were of one
allocated %     of all cards, what pods that ask for it have to themselves. A card with several pods that want more of it than
                there is counts once; where nobody gives cards, it is the most that is possible, too
in use %        cards of which a pod has something: a device plugin gives whole cards to who asks for part of one
over nodes      nodes with pods that ask for more cards than the node has, and
over cards      how many cards these ask for beyond
twice           cards that are given to several pods who want more of it than there is
                Collectors are not played on: cards are told of once, all of their memory is free, and it stays so.
`,
}

// toOriginal is kube-scheduler with the original's rules and the same workload; nil for itself.
func toOriginal(s summary, g group) group {
	if g[0].contender == kubeYoda {
		return nil
	}
	return s.group(g[0].workload, kubeYoda)
}
