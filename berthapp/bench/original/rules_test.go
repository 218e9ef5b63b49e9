package original

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// card returns a healthy card; b, c, k, w are its bandwidth, clock, core and power.
func card(free, total, b, c, k, w int64) v1alpha1.Card {
	return v1alpha1.Card{Health: v1alpha1.Healthy, FreeMemoryMiB: free, TotalMemoryMiB: total, BandwidthMBps: b, ClockMHz: c, CoreMHz: k, PowerWatts: w}
}

// titan is the card of the original's documentation.
func titan() v1alpha1.Card { return card(12194, 12194, 15760, 5705, 1911, 250) }

func told(cards ...v1alpha1.Card) *v1alpha1.Status {
	s := &v1alpha1.Status{Cards: cards, CardNumber: int32(len(cards))}
	for _, c := range cards {
		s.FreeMemoryMiB += c.FreeMemoryMiB
		s.TotalMemoryMiB += c.TotalMemoryMiB
	}
	return s
}

func pod(labels ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{}}}
	for pair := range slices.Chunk(labels, 2) {
		p.Labels[pair[0]] = pair[1]
	}
	return p
}

func TestFilterIsTheOriginalsWithItsDefects(t *testing.T) {
	sick := titan()
	sick.Health = v1alpha1.Unhealthy
	// The first has the memory, the second the clock.
	mixed := told(card(20000, 24000, 15760, 1000, 1500, 250), card(4000, 8000, 15760, 7000, 1500, 250))
	for name, tt := range map[string]struct {
		pod  *v1.Pod
		told *v1alpha1.Status
		want bool
	}{
		"as many cards as asked":                         {pod("scv/number", "2"), told(titan(), titan()), true},
		"one too few":                                    {pod("scv/number", "3"), told(titan(), titan()), false},
		"no label, and a card":                           {pod(), told(titan()), true},
		"no label, and no card":                          {pod(), told(), false},
		"enough cards with the memory":                   {pod("scv/number", "2", "scv/memory", "12194"), told(titan(), titan()), true},
		"a card too few with the memory":                 {pod("scv/number", "2", "scv/memory", "12194"), told(titan(), card(12193, 12194, 1, 1, 1, 1)), false},
		"exactly the clock":                              {pod("scv/clock", "5705"), told(titan()), true},
		"a clock that is higher than asked":              {pod("scv/clock", "5704"), told(titan()), false},
		"memory and clock of different cards":            {pod("scv/memory", "20000", "scv/clock", "7000"), mixed, true},
		"a card that is unhealthy, by number":            {pod("scv/number", "1"), told(sick), true},
		"a card that is unhealthy, by memory":            {pod("scv/memory", "1"), told(sick), false},
		"a number that is no number is none":             {pod("scv/number", "two"), told(titan()), true},
		"a negative number is more than any node has":    {pod("scv/number", "-1"), told(titan()), false},
		"a negative memory is more than any card has":    {pod("scv/memory", "-1"), told(titan()), false},
		"cards that others have count as if they didn't": {pod("scv/number", "1", "scv/memory", "12194"), told(titan()), true},
	} {
		if got := fits(tt.pod, tt.told); got != tt.want {
			t.Errorf("%s: fits = %v, want %v", name, got, tt.want)
		}
	}
}

func TestScoreIsTheOriginalsSum(t *testing.T) {
	small := card(4000, 8000, 7880, 2000, 1000, 100)
	for name, tt := range map[string]struct {
		pod    *v1.Pod
		told   *v1alpha1.Status
		most   []*v1alpha1.Status // besides told
		others []*v1.Pod
		want   uint64
	}{
		// 100 of bandwidth, 5705*100/15760 = 36 of the clock, 100 of core, 100 of power, 2*100 free, 100 total; 3*100 and 2*100 of the node.
		"one card": {pod(), told(titan()), nil, nil, 100 + 36 + 100 + 100 + 200 + 100 + 300 + 200},
		// All cards count, though the pod gets one.
		"two cards": {pod("scv/number", "1"), told(titan(), titan()), nil, nil, 2*636 + 300 + 200},
		// 7880*100/15760 = 50, 2000*100/15760 = 12, 1000*100/1911 = 52, 100*100/250 = 40, 2*(4000*100/12194 = 32), 8000*100/12194 = 65; free 50 % of the node.
		"beside a better node": {pod(), told(small), []*v1alpha1.Status{told(titan())}, nil, 50 + 12 + 52 + 40 + 64 + 65 + 300 + 100},
		// It does not qualify, so it is no measure: 100 + 2000*100/7880 = 25 + 100 + 100 + 200 + 100.
		"beside a better node without the clock": {pod("scv/clock", "2000"), told(small), []*v1alpha1.Status{told(titan())}, nil, 625 + 300 + 100},
		// The node does not fit, so no card counts.
		"a node with too few cards": {pod("scv/number", "2"), told(titan()), nil, nil, 300 + 200},
		// (12194-6000)*100/12194 = 50, whatever the number of the others' cards.
		"half promised":      {pod(), told(titan()), nil, []*v1.Pod{pod("scv/memory", "6000", "scv/number", "8"), pod()}, 636 + 150 + 200},
		"more than promised": {pod(), told(titan()), nil, []*v1.Pod{pod("scv/memory", "12195")}, 636 + 200},
	} {
		m := newMaxima()
		for _, s := range append(tt.most, tt.told) {
			m.add(tt.pod, s)
		}
		if got := score(m, tt.pod, tt.told, tt.others); got != tt.want {
			t.Errorf("%s: score = %d, want %d", name, got, tt.want)
		}
	}
}

func TestMaximaAreNeverZero(t *testing.T) {
	m := newMaxima()
	m.add(pod(), told(card(0, 0, 0, 0, 0, 0)))
	if *m != (maxima{1, 1, 1, 1, 1, 1}) {
		t.Errorf("maxima of a card that has nothing: %+v, want 1 each", *m)
	}
}

func TestANodeWithoutMemoryIsADivisionByZero(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	score(newMaxima(), pod(), told(card(0, 0, 1, 1, 1, 1)), nil)
}

func TestScoresAreStretchedFromTheWorstNodeToTheBest(t *testing.T) {
	for _, tt := range []struct{ of, want []int64 }{
		{[]int64{936, 1136, 1036}, []int64{0, 100, 50}},
		{[]int64{100, 103, 101}, []int64{0, 100, 33}},
		{[]int64{7, 7}, []int64{100, 100}},
		{[]int64{0}, []int64{100}},
	} {
		scores := make(fwk.NodeScoreList, len(tt.of))
		for i, s := range tt.of {
			scores[i].Score = s
		}
		if status := (&Plugin{}).NormalizeScore(t.Context(), nil, pod(), scores); !status.IsSuccess() {
			t.Fatal(status)
		}
		var got []int64
		for _, s := range scores {
			got = append(got, s.Score)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("scores of %v (-want +got):\n%s", tt.of, diff)
		}
	}
}

func TestQueueIsByTheLabelAlone(t *testing.T) {
	queued := func(labels ...string) fwk.QueuedPodInfo {
		info, err := framework.NewPodInfo(pod(labels...))
		if err != nil {
			t.Fatal(err)
		}
		return &framework.QueuedPodInfo{PodInfo: info}
	}
	five, none, wrong := queued(priorityLabel, "5"), queued(), queued(priorityLabel, "high")
	for name, tt := range map[string]struct {
		a, b fwk.QueuedPodInfo
		want bool
	}{
		"higher": {five, none, true}, "lower": {none, five, false}, "equal": {none, none, false}, "no number is 0": {five, wrong, true}, "and equal to none": {wrong, none, false},
	} {
		if got := (&Plugin{}).Less(tt.a, tt.b); got != tt.want {
			t.Errorf("%s: Less = %v, want %v", name, got, tt.want)
		}
	}
}

// What Score is told is by the maxima of all nodes: also of those that are not among the feasible.
func TestPluginGoesByTheCardsOfAllNodes(t *testing.T) {
	p := &Plugin{cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	for name, s := range map[string]*v1alpha1.Status{"small": told(card(4000, 8000, 7880, 2000, 1000, 100)), "elsewhere": told(titan())} {
		if err := p.cards.Add(&Scv{v1alpha1.Scv{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: *s}}); err != nil {
			t.Fatal(err)
		}
	}
	node := func(name string) fwk.NodeInfo {
		info := framework.NewNodeInfo()
		info.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return info
	}
	state := framework.NewCycleState()
	if status := p.PreScore(t.Context(), state, pod(), []fwk.NodeInfo{node("small")}); !status.IsSuccess() {
		t.Fatal(status)
	}
	if got, status := p.Score(t.Context(), state, pod(), node("small")); !status.IsSuccess() || got != 683 {
		t.Errorf("Score = %d, %v, want 683", got, status)
	}
	if status := p.Filter(t.Context(), state, pod(), node("small")); !status.IsSuccess() {
		t.Errorf("Filter = %v", status)
	}
	if status := p.Filter(t.Context(), state, pod("scv/number", "2"), node("small")); status.Code() != fwk.Unschedulable || status.Message() != "Node:small" {
		t.Errorf("Filter of two cards = %v, want the node's name", status)
	}
	if status := p.Filter(t.Context(), state, pod(), node("other")); status.Code() != fwk.Unschedulable {
		t.Errorf("Filter of a node that tells of no cards = %v", status)
	}
}
