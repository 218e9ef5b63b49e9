package cluster

import "slices"

// filing keeps things that are about nodes with certain labels so that those about a node are found by its labels. Each is filed under labels
// of which every node that it is about has one. It may be found by other nodes too: whoever finds it looks closer.
type filing[T comparable] struct {
	anywhere few[T]                        // what may be about nodes with any labels
	byLabel  map[string]map[string]*few[T] // by key and value; none is empty
}

// places are the labels that something is filed under.
type places struct {
	labels   []Label
	anywhere bool // then there are none
}

// placesOf returns where to file what is about nodes that meet one of some terms: for each term under the values of one of its keys, the one
// under which least is filed.
func (f *filing[T]) placesOf(terms ...[]Requirement) (p places) {
	for _, term := range terms {
		var best *Requirement
		least := 0
		for k := range term {
			r := &term[k]
			if r.Operator != "In" {
				continue
			}
			filed := 0
			for _, value := range r.Values {
				if of := f.byLabel[r.Key][value]; of != nil {
					filed += len(of.list)
				}
			}
			if best == nil || filed < least {
				best, least = r, filed
			}
		}
		if best == nil {
			return places{anywhere: true}
		}
		for _, value := range best.Values {
			if l := (Label{best.Key, value}); !slices.Contains(p.labels, l) {
				p.labels = append(p.labels, l)
			}
		}
	}
	return p
}

func (f *filing[T]) add(p places, x T) {
	if p.anywhere {
		f.anywhere.add(x)
		return
	}
	for _, l := range p.labels {
		if f.byLabel == nil {
			f.byLabel = make(map[string]map[string]*few[T])
		}
		values := f.byLabel[l.Key]
		if values == nil {
			values = make(map[string]*few[T])
			f.byLabel[l.Key] = values
		}
		if values[l.Value] == nil {
			values[l.Value] = new(few[T])
		}
		values[l.Value].add(x)
	}
}

func (f *filing[T]) remove(p places, x T) {
	if p.anywhere {
		f.anywhere.remove(x)
		return
	}
	for _, l := range p.labels {
		values := f.byLabel[l.Key]
		of := values[l.Value]
		if of == nil || !of.remove(x) || len(of.list) > 0 {
			continue
		}
		if delete(values, l.Value); len(values) == 0 {
			delete(f.byLabel, l.Key)
		}
	}
}

// about calls visit for everything that may be about a node, until it returns false. What is filed under several labels of the node comes as often.
func (s *State) about(i NodeIndex, visit func(under *Label) bool) {
	if !visit(nil) {
		return
	}
	for _, l := range s.Nodes.Labels[i] {
		if !visit(&Label{s.Symbols.Text(l.Key), s.Symbols.Text(l.Value)}) {
			return
		}
	}
}

// of returns what is filed under a label of a node, or, if it is nil, under all.
func (f *filing[T]) of(label *Label) []T {
	if label == nil {
		return f.anywhere.list
	}
	if of := f.byLabel[label.Key][label.Value]; of != nil {
		return of.list
	}
	return nil
}
