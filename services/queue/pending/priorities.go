package pending

// priorities counts pods by priority. The zero value has none.
type priorities struct {
	counts map[int32]int
	most   int32 // the highest, if known
	known  bool
}

func (p *priorities) add(priority int32) {
	if p.counts == nil {
		p.counts = make(map[int32]int)
	}
	p.counts[priority]++
	p.most = max(p.most, priority)
	if len(p.counts) == 1 {
		p.most, p.known = priority, true
	}
}

func (p *priorities) remove(priority int32) {
	if p.counts[priority]--; p.counts[priority] > 0 {
		return
	}
	delete(p.counts, priority)
	p.known = p.known && priority != p.most
}

// highest returns the highest priority, and false if there is no pod.
func (p *priorities) highest() (int32, bool) {
	if len(p.counts) == 0 {
		return 0, false
	}
	if !p.known {
		first := true
		for priority := range p.counts {
			if first || priority > p.most {
				p.most, first = priority, false
			}
		}
		p.known = true
	}
	return p.most, true
}
