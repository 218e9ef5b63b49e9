package engine

import (
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestPodsThatNeedWhatCannotBeReadWaitForIt(t *testing.T) {
	w, e := newStorage(t, 2), NewEvaluator(EvaluatorConfig{})
	w.bound("data", nil)
	with, without, disk := w.pod("with", "", 0, nil, claims("data")...), w.pod("without", "", 0, nil), w.pod("disk", "", 0, []cluster.Disk{{Kind: cluster.DiskGCE, ID: "v"}})
	says := func(id cluster.PodID) string { return w.says(e, id)[0] }
	for _, resource := range []string{"csidrivers", "csinodes", "csistoragecapacities", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "volumeattachments"} {
		if got := says(with) + says(without) + says(disk); got != "" {
			t.Fatalf("at first: %s", got)
		}
		w.set(&cluster.Unserved{Name: resource, Why: "nobody may list it"})
		for name, id := range map[string]cluster.PodID{"a claim": with, "a disk": disk} {
			if got := says(id); !strings.Contains(got, resource+" cannot be read: nobody may list it") {
				t.Errorf("of a pod with %s it is said %q", name, got)
			}
		}
		if got := says(without); got != "" {
			t.Errorf("a pod without volumes waits: %s", got)
		}
		w.apply(cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.UnservedKind, Name: resource}})
	}
	if got := says(with); got != "" {
		t.Errorf("in the end: %s", got)
	}
	w.set(&cluster.Unserved{Name: "services", Why: "which score only"})
	if got := says(with) + says(without); got != "" {
		t.Errorf("without services: %s", got)
	}

	if why, may := e.Preempts(w.st, without); !may {
		t.Errorf("preempts: %s", why)
	}
	w.set(&cluster.Unserved{Name: cluster.BudgetResource, Why: "nobody may list it"})
	if why, may := e.Preempts(w.st, without); may || why != "not eligible: poddisruptionbudgets cannot be read: nobody may list it" {
		t.Errorf("without budgets it preempts: %v, %q", may, why)
	}
}
