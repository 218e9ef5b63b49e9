package service

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/plugins/yoda"
	"github.com/berth-scheduler/berth/plugins/yoda/keeper"
)

// BenchmarkPlaced is what a pod costs that is placed: its request is read twice, to sort it and to give it cards; it is given one, and its node is asked about anew, for one kind, as it is for each kind that waits.
func BenchmarkPlaced(b *testing.B) {
	cards := keeper.New()
	const nodes = 1000
	for n := range nodes {
		name := fmt.Sprint("node-", n)
		cards.SetNode(name, yoda.Facts{})
		status := &v1alpha1.Status{Heartbeat: metav1.NowMicro(), HeartbeatSeconds: 3600}
		for i := range int32(8) {
			status.Cards = append(status.Cards, v1alpha1.Card{ID: fmt.Sprintf("GPU-%d-%d", n, i), Index: i, Model: "A", Health: v1alpha1.Healthy, TotalMemoryMiB: 16000, FreeMemoryMiB: 16000, ClockMHz: 5000})
		}
		cards.SetStatus(name, status, time.Now())
	}
	labels := map[string]string{yoda.LabelNumber: "1", yoda.LabelMemory: "8000", yoda.LabelClock: "1000"}
	now := time.Now()
	n := 0
	for b.Loop() {
		node, uid := fmt.Sprint("node-", n%nodes), types.UID(fmt.Sprint("pod-", n))
		n++
		for range 2 {
			if _, err := yoda.ParseRequest(labels, nil); err != nil {
				b.Fatal(err)
			}
		}
		r := &yoda.Request{Number: 1, MemoryMiB: 8000, ClockMHz: 1000}
		cards.Give(n, keeper.Pod{UID: uid, Name: "p"}, node, r, nil, now)
		for range yoda.NumFeatures + 1 {
			if _, err := yoda.ParseRequest(labels, nil); err != nil {
				b.Fatal(err)
			}
		}
		view, _ := cards.View(node)
		if chosen, refused := yoda.Choose(view, r, nil, now); refused == nil {
			yoda.FeaturesOf(view, chosen)
		}
		if n%(4*nodes) == 0 {
			for i := range n {
				cards.RemovePod(types.UID(fmt.Sprint("pod-", i)))
			}
		}
	}
}
