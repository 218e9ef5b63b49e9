package roles

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// TestTheCheckOfTheElectionIsTheBinders, at /healthz as at /readyz, and there is none where no Lease is held.
func TestTheCheckOfTheElectionIsTheBinders(t *testing.T) {
	overdue := errors.New("failed election to renew leadership on lease kube-scheduler")
	var says error
	fine := func() error { return nil }
	o := newOperations(Common{})
	o.add(&role{role: coord.RoleQueue, ready: fine, version: func() cluster.Version { return cluster.Version{} }})
	o.add(&role{role: coord.RoleBinder, ready: fine, elects: func() error { return says }})
	elections := func() (found []rpc.Check) {
		for _, c := range append(o.elects(), o.checksInPlace(context.Background())...) {
			if c.Name == checkElection {
				found = append(found, c)
			}
		}
		return found
	}
	if got := elections(); len(got) != 0 {
		t.Errorf("without a Lease: %v", got)
	}
	o.shares = true
	for _, says = range []error{nil, overdue} {
		got := elections()
		if len(got) != 2 || !errors.Is(got[0].Err, says) || !errors.Is(got[1].Err, says) {
			t.Errorf("the binder says %v, and the checks %v; want two of them", says, got)
		}
	}
}
