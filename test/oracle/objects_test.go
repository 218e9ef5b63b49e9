package oracle

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// deleted is when pods that terminate were told to.
var deleted = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// objects are the namespaces of a world, the services and controllers, and what Berth's ledger only keeps.
type objects struct {
	namespaces map[string]*v1.Namespace
	owners     map[string]metav1.Object // by kind, namespace and name
	kept       keptObjects
}

func newObjects() objects {
	return objects{namespaces: make(map[string]*v1.Namespace), owners: make(map[string]metav1.Object), kept: make(keptObjects)}
}

func ownerKey(o metav1.Object) string { return kindOf(o) + "/" + o.GetNamespace() + "/" + o.GetName() }

// reduceOwner reads the selector of a service or controller; false if it has none.
func reduceOwner(o metav1.Object) (source.Selector, bool) {
	switch o := o.(type) {
	case *v1.Service:
		return source.ReduceService(o)
	case *v1.ReplicationController:
		return source.ReduceReplicationController(o)
	case *appsv1.ReplicaSet:
		return source.ReduceReplicaSet(o)
	default:
		return source.ReduceStatefulSet(o.(*appsv1.StatefulSet))
	}
}

// drawObjects draws what there is at first. The default namespace always is.
func (w *world) drawObjects() {
	w.setNamespace(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceNames[0], Labels: drawLabels(w.t, namespaceLabels, 4)}})
	for range rapid.IntRange(0, 2).Draw(w.t, "namespaces") {
		w.setNamespace(drawNamespace(w.t))
	}
	for range rapid.IntRange(0, 3).Draw(w.t, "owners") {
		w.setOwner(drawOwner(w.t))
	}
	for range rapid.IntRange(0, 2).Draw(w.t, "budgets") {
		w.keep(drawBudget(w.t, w.podNames()))
	}
}

// changeObject changes one of the objects, or takes one away.
func (w *world) changeObject() {
	t := w.t
	switch kind := rapid.IntRange(0, 7).Draw(t, "object"); {
	case kind == 7 && len(w.objects.kept.keys(cluster.BudgetKind)) > 0:
		w.discard(rapid.SampledFrom(w.objects.kept.keys(cluster.BudgetKind)).Draw(t, "budget"))
	case kind >= 6:
		w.keep(drawBudget(t, w.podNames()))
	case kind == 0 && len(w.objects.namespaces) > 0:
		w.removeNamespace(rapid.SampledFrom(sortedKeys(w.objects.namespaces)).Draw(t, "namespace"))
	case kind <= 2:
		w.setNamespace(drawNamespace(t))
	case kind == 3 && len(w.objects.owners) > 0:
		w.removeOwner(rapid.SampledFrom(sortedKeys(w.objects.owners)).Draw(t, "owner"))
	default:
		w.setOwner(drawOwner(t))
	}
}

// changeStorage changes one of the objects that volumes are made of, or takes one away.
func (w *world) changeStorage() {
	if keys := w.objects.kept.storage(); len(keys) > 0 && oneIn(w.t, 4, "one goes") {
		w.discard(rapid.SampledFrom(keys).Draw(w.t, "goes"))
		return
	}
	for _, o := range drawStorageObject(w.t, w.width) {
		w.keep(o)
	}
}

func (w *world) setNamespace(n *v1.Namespace) {
	w.kube.must("set namespace", w.kube.namespaces().Update(n))
	w.objects.namespaces[n.Name] = n
	name, labels := source.ReduceNamespace(n)
	w.apply(cluster.NamespaceSet{Name: name, Labels: labels})
}

func (w *world) removeNamespace(name string) {
	w.kube.must("remove namespace", w.kube.namespaces().Delete(w.objects.namespaces[name]))
	delete(w.objects.namespaces, name)
	w.apply(cluster.NamespaceRemoved{Name: name})
}

// setOwner adds a service or a controller, or changes one.
func (w *world) setOwner(o metav1.Object) {
	w.kube.must("set owner", w.kube.owners(kindOf(o)).Update(o))
	w.objects.owners[ownerKey(o)] = o
	if s, ok := reduceOwner(o); ok {
		w.apply(cluster.SelectorSet{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, Selector: s.Selector})
	} else {
		w.forgetSelector(o)
	}
}

func (w *world) removeOwner(key string) {
	o := w.objects.owners[key]
	w.kube.must("remove owner", w.kube.owners(kindOf(o)).Delete(o))
	delete(w.objects.owners, key)
	w.forgetSelector(o)
}

// forgetSelector takes the selector of an object out of Berth's ledger, if there is one.
func (w *world) forgetSelector(o metav1.Object) {
	if _, ok := w.state.Selector(kindOf(o), o.GetNamespace(), o.GetName()); ok {
		w.apply(cluster.SelectorRemoved{Kind: kindOf(o), Namespace: o.GetNamespace(), Name: o.GetName()})
	}
}

// keep adds an object that Berth's ledger only keeps, or changes one.
func (w *world) keep(o metav1.Object) {
	w.gates.amend(o)
	reduced := reduceKept(o)
	w.kube.must("set "+reduced.Key().Kind.String(), w.kube.kept(reduced.Key().Kind).Update(o))
	w.objects.kept[reduced.Key()] = o
	w.apply(cluster.ObjectSet{Object: reduced})
}

// discard takes such an object away.
func (w *world) discard(key cluster.ObjectKey) {
	w.kube.must("remove "+key.Kind.String(), w.kube.kept(key.Kind).Delete(w.objects.kept[key]))
	delete(w.objects.kept, key)
	w.apply(cluster.ObjectRemoved{ObjectKey: key})
}

// podNames returns the names of the pods that have a node.
func (w *world) podNames() []string {
	var names []string
	for _, p := range w.pods {
		names = append(names, p.Name)
	}
	return names
}
