package engine

// domains are the counts of the domains of a hard constraint, by count.
type domains struct {
	nodes  []int32 // by domain: nodes that count
	count  int64   // of domains with such nodes
	levels []int32 // how many domains have each count
	lowest int64   // no domain has less
}

func (d *domains) enter(count int64) {
	d.levels = grow(d.levels, int(count)+1)
	d.levels[count]++
	if d.count++; d.count == 1 {
		d.lowest = count
	}
	d.lowest = min(d.lowest, count)
}

func (d *domains) leave(count int64) {
	d.levels[count]--
	d.count--
}

// least returns the least count of all domains, 0 if there is none. Asked again, it writes nothing.
func (d *domains) least() int64 {
	if d.count == 0 {
		return 0
	}
	for d.levels[d.lowest] == 0 {
		d.lowest++
	}
	return d.lowest
}

// leastIf returns what the least count would be if that of one domain were another. It may be negative.
func (d *domains) leastIf(from, to int64) int64 {
	least := d.least()
	switch {
	case to <= least:
		return to
	case from != least || d.levels[least] > 1:
		return least
	}
	for k := least + 1; k < min(to, int64(len(d.levels))); k++ {
		if d.levels[k] > 0 {
			return k
		}
	}
	return to
}
