package keeper

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/plugins/yoda"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func card(id string, index int32) v1alpha1.Card {
	return v1alpha1.Card{ID: "GPU-" + id, Index: index, Model: "A", Health: v1alpha1.Healthy, TotalMemoryMiB: 16000, FreeMemoryMiB: 16000}
}

func status(at time.Time, cards ...v1alpha1.Card) *v1alpha1.Status {
	return &v1alpha1.Status{Heartbeat: metav1.NewMicroTime(at), HeartbeatSeconds: 10, Cards: cards}
}

// world is a Cards of which is checked what it says.
type world struct {
	*Cards
	t   *testing.T
	now time.Time
}

// newWorld returns a world with a node "n" that has cards a and b, of which others have heard.
func newWorld(t *testing.T) *world {
	w := &world{New(), t, start}
	w.SetNode("n", yoda.Facts{})
	w.SetStatus("n", status(start, card("a", 0), card("b", 1)), start)
	w.wantTold("n", "")
	return w
}

// wantTold checks which nodes have changed, and which pods are worth trying, both as words.
func (w *world) wantTold(nodes, pods string) {
	w.t.Helper()
	told := w.Tell(w.now)
	slices.Sort(told.Pods)
	if got := strings.Join(told.Nodes, " "); got != nodes {
		w.t.Errorf("nodes %q have changed, want %q", got, nodes)
	}
	if got := strings.Join(told.Pods, " "); got != pods {
		w.t.Errorf("pods %q are worth trying, want %q", got, pods)
	}
}

// pod returns a pod that asks for one card.
func pod(uid, node string) Pod {
	return Pod{UID: types.UID(uid), Namespace: "ns", Name: uid, Node: node, Labels: map[string]string{yoda.LabelNumber: "1"}}
}

// bound returns a pod that has cards.
func bound(uid, node string, cards ...string) Pod {
	p := pod(uid, node)
	p.Annotations = grant(cards...).Annotations()
	return p
}

func grant(cards ...string) yoda.Grant {
	g := yoda.Grant{}
	for _, c := range cards {
		g.Cards = append(g.Cards, "GPU-"+c)
	}
	return g
}

var one = &yoda.Request{Number: 1}

// give gives a pod a card of node n, and returns which, "" if none.
func (w *world) give(token, uid string) string {
	g, refusal := w.Give(token, pod(uid, ""), "n", one, nil, w.now)
	if refusal != nil {
		return ""
	}
	return strings.TrimPrefix(g.Cards[0], "GPU-")
}

func (w *world) wantGiven(token, uid, want string) {
	w.t.Helper()
	if got := w.give(token, uid); got != want {
		w.t.Errorf("pod %s gets card %q, want %q", uid, got, want)
	}
}

// read answers all doubts, of which there is to be one for each of some tokens.
func (w *world) read(is Fate, want ...string) {
	w.t.Helper()
	var tokens []string
	doubts := w.Doubts(w.now, 100)
	for _, d := range doubts {
		tokens = append(tokens, d.Token.(string))
	}
	slices.Sort(tokens)
	if !slices.Equal(tokens, want) {
		w.t.Errorf("doubts %q, want %q", tokens, want)
	}
	for _, d := range doubts {
		w.Read(d, is, w.now)
	}
}

func TestACardIsNotFreeBeforeItIsKnownThatItsPodIsNotBound(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	w.wantGiven("2", "q", "b")
	w.End("1", w.now)
	w.wantGiven("3", "r", "")
	w.read(Unread, "1")
	w.wantGiven("3", "r", "")
	w.read(Waits) // not again at once
	w.now = w.now.Add(readSoon)
	w.read(Waits, "1")
	w.wantGiven("3", "r", "a")
}

// A pod may be bound though its placement was given back: its stream has ended in between. Until the word of it comes, its card is its own.
func TestAPodThatIsFoundBoundKeepsItsCardUntilItIsTold(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	w.End("1", w.now)
	w.read(Bound, "1")
	w.wantGiven("2", "q", "b")
	w.wantGiven("3", "r", "")
	w.SetPod(bound("p", "n", "a"))
	if s := w.Stats(w.now); s.Unsettled != 0 || s.Reservations != 1 {
		t.Errorf("%+v, want one reservation, and none that has ended", s)
	}
	w.RemovePod("p")
	w.wantGiven("3", "r", "a")
}

func TestAReservationIsOverWhenItsPodIsTold(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	w.wantTold("", "") // whoever has the pod placed there knows
	w.SetPod(bound("p", "n", "a"))
	w.wantTold("", "") // nothing that is given changes by it
	if s := w.Stats(w.now); s.Reservations != 0 {
		t.Errorf("%d reservations, want none", s.Reservations)
	}
	w.RemovePod("p")
	w.wantTold("n", "")
	w.wantGiven("2", "q", "a")
}

// Nobody says a word of a pod that is placed, bound, and gone before it is told here; nor of one that is told first, and reserved then.
func TestAReservationOfAPodThatIsGoneIsFoundOut(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	w.wantGiven("2", "q", "b")
	w.read(Gone)
	w.now = w.now.Add(readLive)
	w.SetStatus("n", status(w.now, card("a", 0), card("b", 1)), w.now)
	w.read(Waits, "1", "2") // they are being placed
	w.wantGiven("3", "r", "")
	w.read(Gone)
	w.now = w.now.Add(readLive)
	w.SetStatus("n", status(w.now, card("a", 0), card("b", 1)), w.now)
	w.read(Gone, "1", "2")
	w.SetPod(bound("p", "n", "a"))
	w.Stand("3", pod("p", ""), "n", grant("a"), w.now)
	w.RemovePod("p")
	w.wantGiven("4", "r", "a")
	w.wantGiven("5", "s", "b")
}

// What was read before a placement was given back says nothing of what has happened behind that.
func TestAPodIsReadBehindTheEndOfItsPlacement(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	w.wantGiven("2", "q", "b")
	w.now = w.now.Add(readLive)
	w.SetStatus("n", status(w.now, card("a", 0), card("b", 1)), w.now)
	early := w.Doubts(w.now, 100)
	w.End("1", w.now)
	for _, d := range early {
		w.Read(d, Waits, w.now)
	}
	w.wantGiven("3", "r", "")
	w.read(Waits, "1")
	w.wantGiven("3", "r", "a")
}

// A reservation of whoever has given up says nothing of which cards the pod has: another one may have placed it since.
func TestWhoHasGivenUpAPodDoesNotKnowIt(t *testing.T) {
	w := newWorld(t)
	w.wantGiven("1", "p", "a")
	know := func(want bool) {
		t.Helper()
		if _, known := w.View("n", "p"); known != want {
			t.Errorf("known: %v, want %v", known, want)
		}
	}
	know(true)
	w.End("1", w.now)
	know(false)
	w.SetPod(bound("p", "n", "b"))
	know(true)
	w.SetPod(bound("p", "m", "b"))
	know(false)
	if _, known := w.View("n"); !known {
		t.Error("a node without pods that ask for cards is not known")
	}
}

// Of two that place a pod, one has bound it elsewhere: what the other one holds is its own until it says so.
func TestAReservationStandsThoughItsPodIsToldElsewhere(t *testing.T) {
	w := newWorld(t)
	w.SetNode("m", yoda.Facts{})
	w.wantGiven("1", "p", "a")
	w.SetPod(bound("p", "m", "c"))
	w.wantGiven("2", "q", "b")
	w.wantGiven("3", "r", "")
	w.End("1", w.now)
	w.wantGiven("3", "r", "a")
}

func TestAPodThatEndsOrGoesHasNoCard(t *testing.T) {
	w := newWorld(t)
	for _, over := range []func(Pod){func(p Pod) { p.Ended = true; w.SetPod(p) }, func(p Pod) { w.RemovePod(p.UID) }} {
		w.SetPod(bound("p", "n", "a", "b"))
		w.wantGiven("1", "q", "")
		over(bound("p", "n", "a", "b"))
		w.wantGiven("1", "q", "a")
		w.End("1", w.now)
		w.read(Waits, "1")
	}
}

func TestAPodOfWhichItIsNotKnownWhichCardsItHasKeepsAll(t *testing.T) {
	w := newWorld(t)
	broken := bound("p", "n", "a")
	broken.Annotations[yoda.AnnotationCards] = "card 0"
	slip := pod("p", "n")
	slip.Labels = map[string]string{"scv/memroy": "1"}
	for name, p := range map[string]Pod{"no annotation": pod("p", "n"), "one that makes no sense": broken, "a label with a slip": slip} {
		w.SetPod(p)
		if got := w.give("1", "q"); got != "" {
			t.Errorf("%s: another pod gets card %s", name, got)
		}
		w.SetPod(Pod{UID: "p", Node: "n"}) // it asks for nothing after all
		if got := w.give("1", "q"); got != "a" {
			t.Errorf("%s: another pod gets card %q when it asks for none, want a", name, got)
		}
		w.End("1", w.now)
		w.read(Waits, "1")
	}
}

func TestPodsAreWorthTryingWhenANodeThatHadNoCardForThemHasSome(t *testing.T) {
	w := newWorld(t)
	big := pod("big", "")
	big.Labels = map[string]string{yoda.LabelNumber: "2"}
	w.SetPod(pod("small", ""))
	w.SetPod(big)
	w.SetPod(bound("p", "n", "a"))
	w.wantTold("n", "") // small could go there before
	w.SetPod(bound("q", "n", "b"))
	w.wantTold("n", "")
	w.RemovePod("q")
	w.wantTold("n", "small")
	w.RemovePod("p")
	w.wantTold("n", "big")
	w.SetPod(bound("small", "n", "a"))
	w.wantTold("n", "")
	w.RemovePod("small")
	w.wantTold("n", "big") // small waits no more
	w.RemovePod("big")
	w.SetStatus("n", status(w.now, card("a", 0)), w.now)
	w.wantTold("n", "")
	if s := w.Stats(w.now); s.Waiting != 0 {
		t.Errorf("%d pods wait, want none", s.Waiting)
	}
}

// Levels are of a profile: who is worth trying by the arguments of any is.
func TestPodsAreWorthTryingByTheArgumentsOfAnyProfile(t *testing.T) {
	w := newWorld(t)
	args, err := yoda.ParseArgs([]byte(`{"levels":[{"model":"A","level":"High"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * mostArgs {
		w.Use(args) // each time that a stream begins
	}
	if len(w.args) != 1 {
		t.Errorf("the same arguments are kept %d times", len(w.args))
	}
	p := pod("p", "")
	p.Labels = map[string]string{yoda.LabelLevel: "High"}
	w.SetPod(p)
	w.SetPod(bound("q", "n", "a", "b"))
	w.wantTold("n", "")
	w.RemovePod("q")
	w.wantTold("n", "p")
}

func TestACollectorThatGoesSilentAndComesBackIsHeard(t *testing.T) {
	w := newWorld(t)
	w.SetPod(pod("p", ""))
	w.now = start.Add(29 * time.Second)
	w.wantTold("", "")
	w.now = start.Add(30 * time.Second)
	w.wantTold("n", "")
	w.wantTold("", "")
	w.wantGiven("1", "q", "")
	w.SetStatus("n", status(w.now, card("a", 0), card("b", 1)), w.now)
	w.wantTold("n", "p") // the same cards are there as before
	w.wantGiven("1", "q", "a")
	w.wantTold("", "")
	w.now = w.now.Add(time.Second)
	w.SetStatus("n", status(w.now, card("a", 0), card("b", 1)), w.now)
	w.wantTold("", "") // a sign of life changes nothing
}

// A node is refused for a pod that somebody else has placed there: it is asked about again when the pod is told, and not before.
func TestPodsAreWorthTryingWhenAPodIsToldThatWasNotKnown(t *testing.T) {
	w := newWorld(t)
	w.SetPod(pod("p", ""))
	w.wantTold("", "")
	w.Unknown("n", "other")
	w.wantTold("", "")
	w.SetPod(bound("other", "n", "a"))
	w.wantTold("n", "p") // which can have b
	w.Unknown("n", "third")
	w.wantTold("", "")
	w.SetPod(bound("third", "n", "elsewhere")) // no card of the node changes by it
	w.wantTold("n", "p")
	w.Unknown("n", "third") // it has been told between the look at the node and this
	w.wantTold("n", "p")
	w.Unknown("n", "fourth")
	w.wantTold("", "")
	w.wantGiven("1", "fourth", "b") // it has been judged before that
	w.wantTold("n", "")
	w.Unknown("away")
	w.RemoveNode("n")
	w.Unknown("n")
	if len(w.unknown) != 0 {
		t.Errorf("%v are kept, of which there is none", w.unknown)
	}
}

func TestANodeWhoseCardsADriverGivesOutGivesNone(t *testing.T) {
	w := newWorld(t)
	w.SetPod(pod("p", ""))
	w.SetSlice("s1", "n")
	w.SetSlice("s2", "n")
	w.SetNode("n", yoda.Facts{}) // its labels change, say
	w.wantTold("n", "")
	w.wantGiven("1", "q", "")
	w.SetSlice("s1", "")
	w.wantGiven("1", "q", "")
	w.SetSlice("s2", "m") // it is another node's now
	w.wantTold("n", "p")
	w.wantGiven("1", "q", "a")
	w.SetNode("m", yoda.Facts{})
	if v, _ := w.View("m"); v.State(w.now) != yoda.DRA {
		t.Errorf("the other node is %s, want %s", v.State(w.now), yoda.DRA)
	}
}

// A card that two nodes tell of is given by none of them, and what is said of both changes.
func TestBothNodesChangeThatTellOfOneCard(t *testing.T) {
	w := newWorld(t)
	w.SetPod(pod("p", ""))
	w.SetNode("m", yoda.Facts{})
	w.wantTold("m", "")
	w.SetStatus("m", status(start, card("a", 0), card("b", 1)), start)
	w.wantTold("m n", "")
	w.wantGiven("1", "q", "")
	w.SetStatus("m", nil, w.now)
	w.wantTold("m n", "p")
}

// What stands is noted whatever else is, and made good by nobody: then pods have one card.
func TestWhatStandsIsNotedEvenIfOthersHaveIt(t *testing.T) {
	w := newWorld(t)
	w.SetPod(bound("p", "n", "a"))
	w.Stand("1", pod("q", ""), "n", grant("a"), w.now)
	if s := w.Stats(w.now); s.Conflicts != 1 || s.Cards[CardKind{"A", "disputed"}] != 1 || s.Cards[CardKind{"A", "free"}] != 1 {
		t.Errorf("%+v, want a conflict about a card, and the other one free", s)
	}
	w.RemovePod("p")
	if s := w.Stats(w.now); s.Conflicts != 0 || s.Cards[CardKind{"A", "whole"}] != 1 {
		t.Errorf("%+v, want no conflict", s)
	}
	w.Stand("2", pod("r", ""), "n", yoda.Grant{}, w.now) // which, is not known
	w.wantGiven("3", "s", "")
	if s := w.Stats(w.now); s.Nodes[string(yoda.Waits)] != 1 || s.Cards[CardKind{"A", "withheld"}] != 2 {
		t.Errorf("%+v, want a node that waits for word of a pod", s)
	}
}

// Whatever has happened, in the end nothing is left of it.
func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	w := newWorld(t)
	for _, uid := range []string{"p", "q", "r", "s"} {
		w.SetPod(pod(uid, ""))
		w.give("t"+uid, uid)
		w.End("t"+uid, w.now)
		w.End("t"+uid, w.now)
	}
	w.read(Bound, "tp", "tq") // r and s got none
	w.SetPod(bound("p", "n", "a"))
	for _, uid := range []string{"p", "q", "r", "s"} {
		w.RemovePod(types.UID(uid))
	}
	w.SetSlice("s1", "n")
	w.SetSlice("s1", "")
	w.Unknown("n", "z")
	w.RemoveNode("n")
	w.SetStatus("n", nil, w.now)
	w.Tell(w.now)
	nodes, pods, reservations := w.book.Len()
	for what, n := range map[string]int{
		"nodes": nodes, "pods": pods, "reservations": reservations, "facts": len(w.facts), "slices": len(w.slices) + len(w.sliceOf), "waiting": len(w.waiting) + len(w.asking), "holds": len(w.holds) + len(w.by),
		"changed": len(w.changed) + len(w.unknown),
	} {
		if n != 0 {
			t.Errorf("%d of %s are left", n, what)
		}
	}
}
