package yoda

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Annotations that say which cards a pod has got.
const (
	AnnotationCards       = "yoda.berth.dev/cards"        // their IDs, joined with commas: what CUDA_VISIBLE_DEVICES takes
	AnnotationCardsMemory = "yoda.berth.dev/cards-memory" // MiB of each of them that is shared; 0: all of them are whole
)

// maxID is how many bytes an ID of a card has at most.
const maxID = 128

// Grant is what a pod has got.
type Grant struct {
	// Cards are the IDs of the cards, all of one node, and all different.
	Cards []string
	// MemoryMiB is how much it has of each of them. 0: all of each, and nobody else has any part.
	MemoryMiB int64
}

// Equal reports whether two grants are the same, in the same order.
func (g Grant) Equal(h Grant) bool {
	return g.MemoryMiB == h.MemoryMiB && slices.Equal(g.Cards, h.Cards)
}

// Grant returns the grant of cards that were chosen for the request.
func (r *Request) Grant(cards []*Card) Grant {
	g := Grant{Cards: make([]string, len(cards))}
	for i, c := range cards {
		g.Cards[i] = c.ID
	}
	if r.Share {
		g.MemoryMiB = r.MemoryMiB
	}
	return g
}

// clone returns a grant that has nothing in common with g.
func (g Grant) clone() Grant { return Grant{slices.Clone(g.Cards), g.MemoryMiB} }

// Annotations returns the annotations that say so. [GrantOf] makes an equal grant of them. They are merged into those that the pod has, so both are there always: else whole cards would be had by the memory that the pod says it has already.
func (g Grant) Annotations() map[string]string {
	return map[string]string{AnnotationCards: strings.Join(g.Cards, ","), AnnotationCardsMemory: strconv.FormatInt(g.MemoryMiB, 10)}
}

// GrantOf returns the grant that a pod's annotations tell of. False: they tell of none. Without AnnotationCardsMemory the cards are whole, as with 0. An error names the annotation that is wrong, and has less than 1 KiB.
func GrantOf(annotations map[string]string) (Grant, bool, error) {
	text, there := annotations[AnnotationCards]
	memory, shared := annotations[AnnotationCardsMemory]
	if !there {
		if shared {
			return Grant{}, false, fmt.Errorf("annotation %q is there without %q: want both, or neither", AnnotationCardsMemory, AnnotationCards)
		}
		return Grant{}, false, nil
	}
	if n := strings.Count(text, ",") + 1; n > MaxCards {
		return Grant{}, false, fmt.Errorf("annotation %q has %d IDs: want at most %d", AnnotationCards, n, MaxCards)
	}
	g := Grant{Cards: strings.Split(text, ",")}
	for i, id := range g.Cards {
		if !validID(id) {
			return Grant{}, false, fmt.Errorf("annotation %q has the ID %s: want a UUID of a card, GPU-…, of at most %d letters, digits and ._:/-", AnnotationCards, quote(id), maxID)
		}
		if slices.Contains(g.Cards[:i], id) {
			return Grant{}, false, fmt.Errorf("annotation %q has the ID %s twice: want it once", AnnotationCards, quote(id))
		}
	}
	if shared {
		mib, ok := parseWhole(memory, maxAmount)
		if !ok {
			return Grant{}, false, fmt.Errorf("annotation %q is %s: want MiB, a whole number from 0 to 2147483647, in digits only", AnnotationCardsMemory, quote(memory))
		}
		g.MemoryMiB = mib
	}
	return g, true, nil
}

// validID reports whether an ID can be told in AnnotationCards: it is one that NVML gives to a whole card. Parts of cards (MIG-…) are not given out.
func validID(id string) bool {
	if !strings.HasPrefix(id, "GPU-") || id == "GPU-" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("._:/-", c) >= 0:
		default:
			return false
		}
	}
	return true
}
