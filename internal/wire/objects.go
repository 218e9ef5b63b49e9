package wire

import (
	"errors"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// toObjectSet translates an object of any kind. A PodDisruptionBudget goes as members of the release before this one read it: they
// know no other form. The release after this one need not do that, since this one reads both.
func toObjectSet(d cluster.ObjectSet) (*logv1.Delta, error) {
	if d.Object == nil {
		return nil, errors.New("no object")
	}
	if b, ok := d.Object.(*cluster.Budget); ok && d.More == "" {
		return &logv1.Delta{Change: &logv1.Delta_BudgetSet{BudgetSet: &logv1.BudgetSet{
			Namespace: b.Namespace, Name: b.Name, Selector: toSelector(b.Selector), Allowed: b.Allowed, Disrupted: b.Disrupted,
		}}}, nil
	}
	key := d.Object.Key()
	return &logv1.Delta{Change: &logv1.Delta_ObjectSet{ObjectSet: &logv1.ObjectSet{
		Kind: int32(key.Kind), Namespace: key.Namespace, Name: key.Name, Body: d.Body(),
	}}}, nil
}

func toObjectRemoved(d cluster.ObjectRemoved) *logv1.Delta {
	if d.Kind == cluster.BudgetKind { // see toObjectSet
		return &logv1.Delta{Change: &logv1.Delta_BudgetRemoved{BudgetRemoved: &logv1.BudgetRemoved{Namespace: d.Namespace, Name: d.Name}}}
	}
	return &logv1.Delta{Change: &logv1.Delta_ObjectRemoved{ObjectRemoved: &logv1.ObjectRemoved{
		Kind: int32(d.Kind), Namespace: d.Namespace, Name: d.Name,
	}}}
}

func objectSet(m *logv1.ObjectSet) (cluster.ObjectSet, error) {
	set, err := cluster.DecodeObject(objectKey(m), m.GetBody())
	if err != nil {
		return set, fmt.Errorf("object_set.body: %w", err)
	}
	return set, nil
}

func objectKey(m interface {
	GetKind() int32
	GetNamespace() string
	GetName() string
}) cluster.ObjectKey {
	return cluster.ObjectKey{Kind: cluster.ObjectKind(m.GetKind()), Namespace: m.GetNamespace(), Name: m.GetName()}
}

// budget reads what toObjectSet makes of a PodDisruptionBudget.
func budget(m *logv1.BudgetSet) *cluster.Budget {
	return &cluster.Budget{
		Namespace: m.GetNamespace(), Name: m.GetName(), Selector: selector(m.GetSelector()), Allowed: m.GetAllowed(), Disrupted: m.GetDisrupted(),
	}
}
