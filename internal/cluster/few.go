package cluster

import (
	"maps"
	"slices"
)

// few is a set that takes little room while it is small, as nearly all are, and is not slow when it is large.
type few[T comparable] struct {
	list []T       // in no order
	at   map[T]int // where each is in list; nil while there are few
}

// fewest is from how many elements on a set remembers where they are.
const fewest = 16

func (f *few[T]) find(x T) int {
	if f.at == nil {
		return slices.Index(f.list, x)
	}
	if k, ok := f.at[x]; ok {
		return k
	}
	return -1
}

// add reports whether x is new.
func (f *few[T]) add(x T) bool {
	if f.find(x) >= 0 {
		return false
	}
	f.list = append(f.list, x)
	switch {
	case f.at != nil:
		f.at[x] = len(f.list) - 1
	case len(f.list) >= fewest:
		f.at = make(map[T]int, 2*fewest)
		for k, x := range f.list {
			f.at[x] = k
		}
	}
	return true
}

// remove reports whether x was there.
func (f *few[T]) remove(x T) bool {
	k := f.find(x)
	if k < 0 {
		return false
	}
	end := len(f.list) - 1
	last := f.list[end]
	f.list[k] = last
	clear(f.list[end:])
	f.list = f.list[:end]
	if f.at != nil {
		f.at[last] = k
		delete(f.at, x)
		if end < fewest/2 {
			*f = few[T]{list: slices.Clone(f.list)}
		}
	}
	return true
}

func (f *few[T]) clone() few[T] { return few[T]{slices.Clone(f.list), maps.Clone(f.at)} }

// fews are sets by a key, of which none is empty.
type fews[K, T comparable] map[K]*few[T]

func (m fews[K, T]) add(key K, x T) {
	if m[key] == nil {
		m[key] = new(few[T])
	}
	m[key].add(x)
}

func (m fews[K, T]) remove(key K, x T) {
	if of := m[key]; of != nil && of.remove(x) && len(of.list) == 0 {
		delete(m, key)
	}
}

// of returns the elements of a key, to be read until the set changes.
func (m fews[K, T]) of(key K) []T {
	if of := m[key]; of != nil {
		return of.list
	}
	return nil
}

func (m fews[K, T]) clone() fews[K, T] {
	out := make(fews[K, T], len(m))
	for key, of := range m {
		c := of.clone()
		out[key] = &c
	}
	return out
}
