package cluster

import "slices"

// DemandOf is what a state knows of what pods ask for: how many label sets ask for one volume, for two and so on, by class; how many volumes of a class
// each asks for; and which name a claim.
func DemandOf(s *State) (sets map[string][]int, asked map[string]map[LabelsID]int, naming map[[2]string][]LabelsID) {
	d := &s.volumes.demand
	asked, naming = make(map[string]map[LabelsID]int), make(map[[2]string][]LabelsID)
	for key, n := range d.asked {
		if asked[key.class] == nil {
			asked[key.class] = make(map[LabelsID]int)
		}
		asked[key.class][key.labels] = n
	}
	for key, of := range d.naming {
		naming[[2]string{key.namespace, key.name}] = slices.Sorted(slices.Values(of.list))
	}
	return d.sets, asked, naming
}
