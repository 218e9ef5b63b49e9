package yoda

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// titan returns a card that is free: a TITAN Xp. Its ID is GPU- and id.
func titan(id string, index int32) v1alpha1.Card {
	return v1alpha1.Card{
		ID: "GPU-" + id, Index: index, Model: "NVIDIA TITAN Xp", Health: v1alpha1.Healthy, TotalMemoryMiB: 12194, FreeMemoryMiB: 12194,
		ClockMHz: 5705, CoreMHz: 1911, BandwidthMBps: 15760, PowerWatts: 250,
	}
}

// with returns a card with something changed.
func with(c v1alpha1.Card, change func(*v1alpha1.Card)) v1alpha1.Card {
	change(&c)
	return c
}

func statusOf(cards ...v1alpha1.Card) *v1alpha1.Status {
	return &v1alpha1.Status{Heartbeat: metav1.NewMicroTime(start), HeartbeatSeconds: 10, Cards: cards}
}

// bookOf returns a book with a node "n" that has the cards.
func bookOf(cards ...v1alpha1.Card) *Book {
	b := NewBook()
	b.SetNode("n", Facts{})
	b.SetStatus("n", statusOf(cards...), start)
	return b
}

// idsOf returns the IDs of cards, without GPU-.
func idsOf(cards []*Card) string {
	var ids []string
	for _, c := range cards {
		ids = append(ids, strings.TrimPrefix(c.ID, "GPU-"))
	}
	return strings.Join(ids, " ")
}

// wantChosen checks which cards of node "n" are chosen.
func wantChosen(t *testing.T, b *Book, r *Request, want string) []*Card {
	t.Helper()
	got, refusal := Choose(b.View("n"), r, nil, start)
	if refusal != nil {
		t.Fatalf("refused: %q, want cards %s", refusal.Reason, want)
	}
	if idsOf(got) != want {
		t.Fatalf("cards %s, want %s", idsOf(got), want)
	}
	return got
}

// wantRefused checks that node "n" is refused, and how.
func wantRefused(t *testing.T, b *Book, r *Request, reason string, unresolvable bool) {
	t.Helper()
	got, refusal := Choose(b.View("n"), r, nil, start)
	if refusal == nil {
		t.Fatalf("got cards %s, want refused: %q", idsOf(got), reason)
	}
	if refusal.Reason != reason || refusal.Unresolvable != unresolvable {
		t.Fatalf("refused: %q, unresolvable %v, want %q, %v", refusal.Reason, refusal.Unresolvable, reason, unresolvable)
	}
}

// gpus returns a grant of whole cards, by their IDs without GPU-.
func gpus(ids ...string) Grant { return gpuShares(0, ids...) }

// gpuShares returns a grant of parts of cards.
func gpuShares(mib int64, ids ...string) Grant {
	g := Grant{MemoryMiB: mib}
	for _, id := range ids {
		g.Cards = append(g.Cards, "GPU-"+id)
	}
	return g
}
