package cluster

import "maps"

// demand is how many volumes of a class the pods that are there may ask for at once: of those claims of one pod that exist, and are the class's, and have
// no volume. It follows from label sets and claims, and is in no digest and in no snapshot. Label sets without claims cost nothing of it.
//
// Whether the class has its claims wait for a consumer does not count: where it does not, no pod gets a volume by it.
type demand struct {
	naming fews[claimKey, LabelsID] // label sets by the claims that they name, which need not exist
	asked  map[demandKey]int        // how many of its claims a label set asks for volumes; none is 0
	// sets says by class how many label sets ask for one volume, for two, and so on. It ends with the most that one asks for.
	sets map[string][]int
}

type demandKey struct {
	labels LabelsID
	class  string
}

func newDemand() demand {
	return demand{naming: make(fews[claimKey, LabelsID]), asked: make(map[demandKey]int), sets: make(map[string][]int)}
}

func (d *demand) clone() demand {
	return demand{naming: d.naming.clone(), asked: maps.Clone(d.asked), sets: cloneSlices(d.sets)}
}

// most returns how many volumes of a class a pod may ask for, one at least.
func (d *demand) most(class string) int { return max(1, len(d.sets[class])) }

// awaits returns the class of which a claim gets a volume, "" if it gets none, or has one.
func (c *PersistentVolumeClaim) awaits() string {
	if c == nil || c.Volume != "" {
		return ""
	}
	return c.Class
}

// demandLabels takes in what pods of a label set ask for, n = 1, or that there are none any more, n = -1.
func (s *State) demandLabels(l *Labels, n int) {
	for _, by := range l.Claims {
		key := claimKey{l.Namespace, by.Name}
		if n > 0 {
			s.volumes.demand.naming.add(key, l.ID)
		} else {
			s.volumes.demand.naming.remove(key, l.ID)
		}
		s.ask(l.ID, s.PersistentVolumeClaim(l.Namespace, by.Name).awaits(), n)
	}
}

// demandClaim takes in that a claim has come to wait for a volume of another class than before; "" is none.
func (s *State) demandClaim(key claimKey, was, is string) {
	if was == is {
		return
	}
	for _, id := range s.volumes.demand.naming.of(key) {
		named := 0 // a pod that names it twice asks for two volumes
		for _, by := range s.labels[id].Claims {
			if by.Name == key.name {
				named++
			}
		}
		s.ask(id, was, -named)
		s.ask(id, is, named)
	}
}

// ask takes in that pods of a label set ask for n more volumes of a class. If it is more than any pod has asked for, what did not matter for those may
// matter for them.
func (s *State) ask(labels LabelsID, class string, n int) {
	if class == "" {
		return
	}
	d, key := &s.volumes.demand, demandKey{labels, class}
	before, was := d.most(class), d.asked[key]
	is, sets := was+n, d.sets[class]
	if was > 0 {
		sets[was-1]--
	}
	if is > 0 {
		d.asked[key] = is
		if more := is - len(sets); more > 0 {
			sets = append(sets, make([]int, more)...)
		}
		sets[is-1]++
	} else {
		delete(d.asked, key)
	}
	for len(sets) > 0 && sets[len(sets)-1] == 0 {
		sets = sets[:len(sets)-1]
	}
	if len(sets) > 0 {
		d.sets[class] = sets
	} else {
		delete(d.sets, class)
	}
	if now := d.most(class); now > before {
		s.supplyMatters(class, now)
	}
}

// supplyMatters makes those nodes count as changed for which volumes have come or gone that did not matter then, but would for a pod that asks for so many.
func (s *State) supplyMatters(class string, most int) {
	c := s.volumes.supply.classes[class]
	if c == nil || c.spared >= most {
		return
	}
	c.spared = nothingSpared
	var touched []*shelf
	for _, sh := range c.shelves {
		if sh.spared < most {
			touched = append(touched, sh)
		} else {
			c.spared = min(c.spared, sh.spared)
		}
	}
	s.touchShelves(touched)
}
