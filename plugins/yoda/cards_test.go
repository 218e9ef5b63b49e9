package yoda

import (
	"strconv"
	"testing"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

func TestANodesFactsAreReadOfTheNode(t *testing.T) {
	resource := func(name string, n int64) map[string]int64 { return map[string]int64{"cpu": 8, name: n} }
	for _, test := range []struct {
		labels                map[string]string
		allocatable, capacity map[string]int64
		want                  Facts
	}{
		{want: Facts{}},
		{map[string]string{"scv/Level": "High"}, resource("nvidia.com/gpu", 4), nil, Facts{Level: High, DevicePlugin: true}},
		{map[string]string{"scv/Level": ""}, resource("amd.com/gpu", 4), resource("nvidia.com/other", 1), Facts{Level: otherLevel}},
		{nil, nil, resource("nvidia.com/gpu", 1), Facts{DevicePlugin: true}}, // all of them are unhealthy
		{nil, resource("nvidia.com/gpu", 0), nil, Facts{DevicePlugin: true}}, // its plugin is not back yet
		{nil, resource("nvidia.com/gpu.shared", 4), nil, Facts{DevicePlugin: true}},
		{nil, resource("nvidia.com/mig-1g.5gb", 7), nil, Facts{DevicePlugin: true}},
		{nil, nil, resource("nvidia.com/mig-1g.5gb", 7), Facts{DevicePlugin: true}},
	} {
		if got := FactsOf(test.labels, test.allocatable, test.capacity); got != test.want {
			t.Errorf("%v %v %v: %+v, want %+v", test.labels, test.allocatable, test.capacity, got, test.want)
		}
	}
}

func TestWhatNoHonestCollectorSaysIsOfNoUse(t *testing.T) {
	cards := []v1alpha1.Card{
		titan("a,b", 0), titan("", 1), with(titan("", 6), func(c *v1alpha1.Card) { c.ID = "MIG-1" }), with(titan("", 7), func(c *v1alpha1.Card) { c.ID = "1" }), titan("twice", 2), titan("twice", 3),
		with(titan("vast", 4), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB, c.PowerWatts = 1<<62, 1<<62, 1<<62 }),
		with(titan("less", 5), func(c *v1alpha1.Card) { c.TotalMemoryMiB, c.FreeMemoryMiB, c.ClockMHz = -1<<63, 7, -1 }),
	}
	b := bookOf(cards...)
	chosen := wantChosen(t, b, &Request{Number: 2}, "vast less")
	wantRefused(t, b, &Request{Number: 3}, ReasonHealth, true)
	if c := chosen[0]; c.TotalMemoryMiB != maxAmount || c.PowerWatts != maxAmount {
		t.Errorf("%+v: want no more than %d of anything", c, maxAmount)
	}
	if c := chosen[1]; c.TotalMemoryMiB != 0 || c.FreeMemoryMiB != 0 || c.ClockMHz != 0 {
		t.Errorf("%+v: want nothing below 0, and no more free than there is", c)
	}
	var many []v1alpha1.Card
	for i := range int32(1000) {
		many = append(many, titan("c"+strconv.Itoa(int(i)), i))
	}
	if got := len(bookOf(many...).View("n").Cards()); got != maxCardsOfNode {
		t.Errorf("%d cards are looked at, want %d", got, maxCardsOfNode)
	}
}

func TestACardThatTwoNodesTellOfIsGivenByNeither(t *testing.T) {
	b := bookOf(titan("a", 0), titan("b", 1), titan("", 2))
	b.SetNode("m", Facts{})
	b.View("n")
	b.SetStatus("m", statusOf(titan("c", 0), titan("b", 1), titan("b", 2), titan("", 3)), start)
	wantChosen(t, b, &Request{Number: 1}, "a")
	wantRefused(t, b, &Request{Number: 2}, ReasonTwice, true)
	for _, shared := range []bool{false, true} {
		if got, refusal := Choose(b.View("m"), &Request{Number: 2, MemoryMiB: 1, Share: shared}, nil, start); refusal == nil {
			t.Errorf("the other node gives %s", idsOf(got))
		}
	}
	if got := b.View("n").Cards()[1].AvailableMiB(); got != 0 {
		t.Errorf("%d MiB of it are available", got)
	}
	b.SetStatus("m", statusOf(titan("c", 0)), start)
	wantChosen(t, b, &Request{Number: 2}, "a b")
	b.SetStatus("m", statusOf(titan("b", 0)), start)
	wantRefused(t, b, &Request{Number: 2}, ReasonTwice, true)
	b.RemoveStatus("m")
	wantChosen(t, b, &Request{Number: 2}, "a b")
	b.RemoveStatus("n")
	if len(b.tellers) != 0 {
		t.Errorf("%v are still known to tell of cards", b.tellers)
	}
}
