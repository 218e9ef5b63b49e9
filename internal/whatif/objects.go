package whatif

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/ingest"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source"
)

// FromObjects returns a Sandbox of a cluster that is described by objects, in JSON or YAML, as
// "kubectl get nodes,pods,services,replicasets,… -A -o json" gives them: single objects, lists, or several documents. Kinds
// that scheduling does not read are passed over, and so are fields that are not known and pods that have ended. Pods with a
// node are bound, others are pending. A namespace that only a pod names has no labels but its name's.
func FromObjects(data []byte, settings cluster.Settings, config engine.EvaluatorConfig) (*Sandbox, error) {
	events, err := Events(data)
	if err != nil {
		return nil, err
	}
	st := cluster.New(cluster.Version{Epoch: 1})
	if err := st.Apply(cluster.SettingsSet{Settings: settings}); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	fold := ingest.New(st, st.Apply)
	for _, e := range events {
		if err := fold.Observe(e); err != nil {
			return nil, err
		}
	}
	return sandboxOf(st, config), nil
}

// Events returns what a source would tell of objects, read as FromObjects reads them: for World.Observe and World.AddPod.
// A pod that no API server has seen has the uid "object:", its namespace, "/" and its name.
func Events(data []byte) ([]source.Event, error) {
	objects, err := readObjects(data)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return eventsOf(objects), nil
}

// eventsOf returns what a source would tell of objects: pods last, since they name others.
func eventsOf(objects []manifest.Object) []source.Event {
	var others, pods []source.Event
	namespaces := make(map[string]bool)
	for _, o := range objects {
		if o.Namespace != nil {
			namespaces[o.Namespace.Name] = true
		}
	}
	for _, o := range objects {
		e, ok := eventOf(o)
		switch {
		case !ok:
		case e.Kind != source.PodSet:
			others = append(others, e)
		default:
			if ns := e.Pod.Namespace; !namespaces[ns] {
				namespaces[ns] = true
				others = append(others, newNamespace(ns))
			}
			pods = append(pods, e)
		}
	}
	return append(others, pods...)
}

// newNamespace is a namespace of which only the name is known: an API server gives it that as a label.
func newNamespace(name string) source.Event {
	labels := []cluster.Label{{Key: v1.LabelMetadataName, Value: name}}
	return source.Event{Kind: source.NamespaceSet, Namespace: name, Labels: labels}
}

// eventOf returns what a source would tell of an object. False: nothing.
func eventOf(o manifest.Object) (source.Event, bool) {
	switch {
	case o.Node != nil:
		return source.Event{Kind: source.NodeSet, Node: source.ReduceNode(o.Node)}, true
	case o.Pod != nil:
		o.Pod.UID = cmp.Or(o.Pod.UID, types.UID("object:"+o.Pod.Namespace+"/"+o.Pod.Name))
		o.Pod.Spec.SchedulerName = cmp.Or(o.Pod.Spec.SchedulerName, v1.DefaultSchedulerName)
		return source.Event{Kind: source.PodSet, Pod: source.ReducePod(o.Pod)}, !source.Terminal(o.Pod)
	case o.Namespace != nil:
		name, labels := source.ReduceNamespace(o.Namespace)
		return source.Event{Kind: source.NamespaceSet, Namespace: name, Labels: labels}, true
	}
	if r, ok := source.Reductions[o.Kind()]; ok {
		if tell := r.Reduce(o.Value()); tell != nil {
			return tell(), true
		}
	}
	return source.Event{}, false
}

// readObjects decodes the objects of the kinds that scheduling reads, leniently: an API server has checked them.
func readObjects(data []byte) ([]manifest.Object, error) {
	if len(data) > MaxInputBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are possible", ErrTooMuch, len(data), MaxInputBytes)
	}
	var objects []manifest.Object
	err := eachDocument(context.Background(), data, own, func(raw []byte) error {
		return eachObject(raw, head{}, false, func(is head, raw []byte) error {
			o, ok, err := decodeObject(is, raw)
			if ok {
				objects = append(objects, o)
			}
			return err
		})
	})
	return objects, err
}

// Nodes returns the Nodes of what somebody asks about, read as Events reads them, at most so many. Objects of other kinds are passed over
// undecoded.
func Nodes(ctx context.Context, data []byte, limit int) ([]cluster.Node, error) {
	if len(data) > manifest.MaxInputBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are possible", ErrTooMuch, len(data), manifest.MaxInputBytes)
	}
	var nodes []cluster.Node
	err := eachDocument(ctx, data, asked, func(raw []byte) error {
		return eachObject(raw, head{}, false, func(is head, raw []byte) error {
			switch {
			case is.Kind != manifest.KindNode:
				return nil
			case len(raw) > manifest.MaxObjectBytes:
				return fmt.Errorf("%s: %w: %d bytes, at most %d are possible", is.Kind, ErrTooMuch, len(raw), manifest.MaxObjectBytes)
			case len(nodes) == limit:
				return fmt.Errorf("%w: there are more than %d nodes", ErrTooMuch, limit)
			}
			o, ok, err := decodeObject(is, raw)
			if ok {
				nodes = append(nodes, source.ReduceNode(o.Node))
			}
			return err
		})
	})
	return nodes, err
}

// MaxInputBytes is how much FromObjects and Events read.
const MaxInputBytes = 1 << 30

// head says what an object is.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// eachObject visits an object, or those of a list. Listed is what an object is that does not say so itself. An item of a list is no list: each
// level would be read once more.
func eachObject(raw []byte, listed head, item bool, visit func(is head, raw []byte) error) error {
	var is struct {
		head
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &is); err != nil {
		return err
	}
	if is.Kind == "" {
		is.Kind, is.APIVersion = listed.Kind, cmp.Or(is.APIVersion, listed.APIVersion)
	}
	if of, list := strings.CutSuffix(is.Kind, "List"); list {
		if item {
			return errNestedList
		}
		for k, item := range is.Items {
			if err := eachObject(item, head{is.APIVersion, of}, true, visit); err != nil {
				return fmt.Errorf("items[%d]: %w", k, err)
			}
		}
		return nil
	}
	if is.Kind == "" {
		return errors.New("want an object with apiVersion, kind and metadata")
	}
	return visit(is.head, raw)
}

// decodeObject decodes an object. False: scheduling reads none of its kind, which may be a resource of others that is called the same.
func decodeObject(is head, raw []byte) (manifest.Object, bool, error) {
	kind := is.Kind
	o, ok := manifest.New(kind)
	if !ok || is.APIVersion != "" && !manifest.OfGroup(kind, is.APIVersion) {
		return o, false, nil
	}
	if err := manifest.Unmarshal(raw, o.Value()); err != nil {
		return o, false, fmt.Errorf("%s: %w", kind, err)
	}
	if o.Name() == "" {
		return o, false, fmt.Errorf("%s: metadata.name is missing", kind)
	}
	if manifest.Namespaced(kind) {
		o.Meta().Namespace = cmp.Or(o.Meta().Namespace, v1.NamespaceDefault)
	}
	return o, true, nil
}
