package explain

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// An explanation ends between two nodes, of a pod that has many claims.
func TestAnExplanationEndsBetweenNodes(t *testing.T) {
	w := newTown(t, house("node-1", "a"), house("node-2", "b"), house("node-3", "b"))
	w.set(&cluster.StorageClass{Name: "local", Provisioner: noProvisioner, Mode: cluster.BindToFirstConsumer})
	var names []string
	for k := range 64 {
		names = append(names, fmt.Sprint("c", k))
		w.set(claim(names[k], "local", 1<<30))
	}
	id := w.claims(1000, names...)
	enough := errors.New("enough")
	for most := range 4 {
		paused := 0
		ctx := whatif.WithPause(t.Context(), func() error {
			if paused++; paused > most {
				return enough
			}
			return nil
		})
		if _, err := Explain(ctx, whatif.New(w.st, engine.EvaluatorConfig{}), id); !errors.Is(err, enough) {
			t.Errorf("after %d parts it ends with %v, want that others have had enough", most, err)
		}
		if paused != most+1 {
			t.Errorf("it went on for %d parts, want %d", paused, most+1)
		}
	}
}
