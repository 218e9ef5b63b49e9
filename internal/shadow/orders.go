package shadow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/source"
)

// others calls try with the state as it would be if the binds around a pod's had come in other orders, with a sentence about each, until it returns true. The state is as it was
// afterwards. Few says that only the likely ones are to be tried.
func (s *Shadow) others(b *bind, next []*told, few bool, try func(how string) bool) error {
	// 1. Which binds may have been in flight? Of one that had arrived before the pod came, or of whose pod nothing had been seen when the pod's arrived, the order is known.
	var before []*bind // the newest last
	for _, r := range s.recent {
		if b.at.Sub(r.at) <= lag && b.since.Before(r.at) {
			before = append(before, r)
		}
	}
	var behind []*bind // the next first
	for _, t := range next {
		if len(behind) == around || t.at.Sub(b.at) > lag {
			break
		}
		if is, ok := s.waits[t.event.Pod.UID]; ok && t.binds && is.since.Before(b.at) {
			behind = append(behind, &bind{is.pod, t.event, is.since, t.at, turn{is.pod.Priority, is.number}})
		}
	}
	// 2. In which orders may they have been decided? First that of kube-scheduler's queue; then such in which some were later, or sooner, than they arrived.
	sooner := slices.DeleteFunc(slices.Clone(behind), func(o *bind) bool { return !o.turn.before(b.turn) })
	later := slices.DeleteFunc(slices.Clone(before), func(o *bind) bool { return o.turn.before(b.turn) })
	orders := []struct{ without, with []*bind }{{later, sooner}, {nil, sooner}, {later, nil}}
	for k := 1; !few && k <= max(len(before), len(behind)); k *= 2 {
		if k <= len(before) {
			orders = append(orders, struct{ without, with []*bind }{before[len(before)-k:], nil})
		}
		if k <= len(behind) {
			orders = append(orders, struct{ without, with []*bind }{nil, behind[:k]})
		}
	}
	// 3. Try them.
	for _, o := range orders {
		if len(o.without)+len(o.with) == 0 {
			continue
		}
		done, err := s.as(o.without, o.with, func() bool { return try(orderText(o.without, o.with)) })
		if err != nil || done {
			return err
		}
	}
	return nil
}

// as calls try as if some pods had not been bound yet, and some had. The state is as it was afterwards.
func (s *Shadow) as(without, with []*bind, try func() bool) (done bool, err error) {
	for _, b := range without {
		if err := s.again(b.pending.UID, source.Event{Kind: source.PodSet, Pod: b.pending}); err != nil {
			return false, err
		}
	}
	was := make([]bool, len(with)) // in the state
	for i, b := range with {
		_, was[i] = s.state.PodByUID(b.pending.UID)
		if err := s.fold.Observe(b.bound); err != nil {
			return false, err
		}
	}
	done = try()
	for i, b := range with {
		e, known := s.last[b.pending.UID] // which the state had
		if !was[i] || !known {
			e = source.Event{Kind: source.PodGone, Pod: b.pending}
		}
		if err := s.again(b.pending.UID, e); err != nil {
			return false, err
		}
	}
	for _, b := range without {
		if err := s.fold.Observe(s.last[b.pending.UID]); err != nil {
			return false, err
		}
	}
	return done, nil
}

// again takes a pod out of the state, in which one that has a node never loses it, and then has an event happen.
func (s *Shadow) again(uid string, e source.Event) error {
	gone := source.Event{Kind: source.PodGone}
	gone.Pod.UID = uid
	if err := s.fold.Observe(gone); err != nil {
		return err
	}
	return s.fold.Observe(e)
}

// mostNamed is how many pods of an order are named.
const mostNamed = 5

func orderText(without, with []*bind) string {
	var parts []string
	if len(without) > 0 {
		parts = append(parts, "decided before "+podsText(without)+", whose binds arrived before")
	}
	if len(with) > 0 {
		parts = append(parts, "decided after "+podsText(with)+", whose binds arrived later")
	}
	return strings.Join(parts, ", and ")
}

func podsText(all []*bind) string {
	var names []string
	for _, b := range all[:min(len(all), mostNamed)] {
		names = append(names, b.pending.Namespace+"/"+b.pending.Name)
	}
	text := strings.Join(names, ", ")
	if more := len(all) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
