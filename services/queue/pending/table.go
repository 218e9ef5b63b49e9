package pending

import "github.com/berth-scheduler/berth/internal/cluster"

// few is how many rows of a table are found by going through them.
const few = 8

// table keeps values by key, in no order. They can be gone through in parts while some come and go, in one walk at a time: it meets once each
// that was there when it began and still is, and what has been put since: whoever walks sees to it that it ends. All that it does takes constant time.
// The zero value is empty.
type table[K comparable, V any] struct {
	rows []row[K, V]
	at   map[K]int // where each is in rows; nil while there are few
	met  int       // how many of rows, from the first, the walk has met
}

type row[K comparable, V any] struct {
	key   K
	value V
}

func (t *table[K, V]) len() int { return len(t.rows) }

func (t *table[K, V]) find(key K) (at int, ok bool) {
	if t.at != nil {
		at, ok = t.at[key]
		return at, ok
	}
	for k := range t.rows {
		if t.rows[k].key == key {
			return k, true
		}
	}
	return 0, false
}

// get returns the value of a key, or zero.
func (t *table[K, V]) get(key K) (value V) {
	if at, ok := t.find(key); ok {
		value = t.rows[at].value
	}
	return value
}

// last returns one of the values, or zero if there is none.
func (t *table[K, V]) last() (value V) {
	if len(t.rows) > 0 {
		value = t.rows[len(t.rows)-1].value
	}
	return value
}

// put sets the value of a key. The walk will meet it, again if it has met it before.
func (t *table[K, V]) put(key K, value V) {
	t.remove(key)
	t.rows = append(t.rows, row[K, V]{})
	t.set(len(t.rows)-1, row[K, V]{key, value})
	if t.at == nil && len(t.rows) > few {
		t.at = make(map[K]int, 2*few)
		for k := range t.rows {
			t.at[t.rows[k].key] = k
		}
	}
}

func (t *table[K, V]) set(at int, r row[K, V]) {
	t.rows[at] = r
	if t.at != nil {
		t.at[r.key] = at
	}
}

// remove removes a key, if it is there. What has been met stays in front of what has not.
func (t *table[K, V]) remove(key K) {
	at, ok := t.find(key)
	if !ok {
		return
	}
	if t.at != nil {
		delete(t.at, key)
	}
	if at < t.met {
		t.met--
		if at != t.met {
			t.set(at, t.rows[t.met])
		}
		at = t.met
	}
	end := len(t.rows) - 1
	if at != end {
		t.set(at, t.rows[end])
	}
	t.rows[end] = row[K, V]{}
	if t.rows = t.rows[:end]; end == 0 {
		t.rows, t.at = nil, nil
	}
}

// begin begins a walk.
func (t *table[K, V]) begin() { t.met = 0 }

// next returns a value that the walk has not met. False: it has met all.
func (t *table[K, V]) next() (value V, ok bool) {
	if t.met == len(t.rows) {
		return value, false
	}
	t.met++
	return t.rows[t.met-1].value, true
}

// pods are pods by their ids.
type pods = table[cluster.PodID, *entry]

// named are pods by a name.
type named struct{ table[string, *pods] }

func (n *named) put(name string, e *entry) {
	ps := n.get(name)
	if ps == nil {
		ps = new(pods)
		n.table.put(name, ps)
	}
	ps.put(e.id, e)
}

func (n *named) take(name string, e *entry) {
	if ps := n.get(name); ps != nil {
		if ps.remove(e.id); ps.len() == 0 {
			n.remove(name)
		}
	}
}
