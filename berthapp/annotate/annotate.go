// Package annotate is for plugins that are written for kube-scheduler, are compiled into Berth, and choose something for a pod that the pod is to be told: which cards of its node are its own, say. kube-scheduler has nothing like it: there, a plugin writes to
// the pod in a request of its own, before it is bound or behind that.
package annotate

import (
	"errors"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-scheduler/berth/internal/placeserver"
)

// ErrNotBerth is that a plugin runs in a scheduler that is not Berth, or not in a step of a placement.
var ErrNotBerth = errors.New("annotations of the bind are chosen in Reserve, and in Berth")

const key fwk.StateKey = "berth.dev/annotate"

// placement is what is in the state of an attempt.
type placement struct{ *placeserver.Placement }

func (p placement) Clone() fwk.StateData { return p }

// With has plugins choose annotations for the pod of a placement, which goes on with a state. Berth calls it.
func With(state fwk.CycleState, of *placeserver.Placement) { state.Write(key, placement{of}) }

func of(state fwk.CycleState) (placement, error) {
	data, err := state.Read(key)
	if err != nil {
		return placement{}, ErrNotBerth
	}
	return data.(placement), nil
}

// Annotate chooses an annotation for the pod, in Reserve. Berth records it before anything is written to the API server, tells it again when the placement is reserved anew, and writes it to the pod in the request that binds it.
//
// An error names what is wrong, and then nothing has changed: the name is none of an annotation, has no prefix, or one of Kubernetes' own; or there are more than 64, or more than 4096 bytes in all; or it has been chosen with another value, also by another
// plugin; or the placement [Stands]; or Reserve has returned; or the scheduler is not Berth, which is [ErrNotBerth].
func Annotate(state fwk.CycleState, name, value string) error {
	p, err := of(state)
	if err != nil {
		return err
	}
	return p.Annotate(name, value)
}

// Annotations returns what has been chosen for the pod so far, by all plugins: from Reserve on, also in Unreserve.
func Annotations(state fwk.CycleState) map[string]string {
	p, err := of(state)
	if err != nil {
		return nil
	}
	return p.Annotations()
}

// Stands reports whether the pod was reserved before, in this process or another one, and what was chosen for it then is recorded: Reserve notes what [Annotations] says, and chooses nothing.
func Stands(state fwk.CycleState) bool {
	p, err := of(state)
	return err == nil && p.Told.GetStands()
}
