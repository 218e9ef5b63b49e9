package placeserver

import (
	"fmt"
	"maps"
	"sync"

	"github.com/berth-scheduler/berth/internal/annotations"
)

// choice is what plugins have chosen for the pod of a placement. It is safe for concurrent use.
type choice struct {
	mu      sync.Mutex
	open    bool              // the pod is being reserved
	unheard bool              // who asks does not know of annotations
	all     map[string]string // beside what was told; nobody changes it
}

// choose has what is chosen count, from now on until [choice.chosen]. Not heard: nobody would write it.
func (c *choice) choose(heard bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.unheard = true, !heard
}

// chosen ends choose, and returns what has been chosen, beside what was told.
func (c *choice) chosen() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
	return c.all
}

// Annotate chooses an annotation for the pod, while it is reserved for the first time. An error names what is wrong, and then nothing has changed.
func (of *Placement) Annotate(name, value string) error {
	of.mu.Lock()
	defer of.mu.Unlock()
	is, told := of.Told.GetAnnotations()[name]
	if own, ok := of.all[name]; ok {
		is, told = own, true
	}
	switch {
	case told && is == value:
		return nil
	case told:
		return fmt.Errorf("annotation %q has been chosen already, with another value", name)
	case of.Told.GetStands():
		return fmt.Errorf("annotation %q: what was chosen for the pod is recorded, and nothing else is chosen", name)
	case !of.open:
		return fmt.Errorf("annotation %q: it is only chosen while the pod is reserved", name)
	case of.unheard:
		return fmt.Errorf("annotation %q: the binder is of a release that writes none", name)
	}
	all := with(of.all, map[string]string{name: value})
	if err := annotations.Check(with(of.Told.GetAnnotations(), all)); err != nil {
		return err
	}
	of.all = all
	return nil
}

// Annotations returns what has been chosen for the pod, told or not.
func (of *Placement) Annotations() map[string]string {
	of.mu.Lock()
	defer of.mu.Unlock()
	return with(of.Told.GetAnnotations(), of.all)
}

// with returns annotations and others, which count where both have one.
func with(annotations, others map[string]string) map[string]string {
	out := make(map[string]string, len(annotations)+len(others))
	maps.Copy(out, annotations)
	maps.Copy(out, others)
	return out
}
