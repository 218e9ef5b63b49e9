package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/source/local"
)

// Where the local source keeps what, as its package comment says.
const (
	nodeKeys      = "local/nodes/"
	podKeys       = "local/pods/"
	placementKeys = "local/placements/"
	otherKeys     = "unread/nodes/" // not Berth's: what is written there is read by nobody
)

// placement is the value of a placement's key, which ends with the pod's uid.
type placement struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Node      string    `json:"node"`
	Time      time.Time `json:"time"`
}

// fill writes the nodes of a workload, its placed pods and, unless they come one by one, those that wait.
func (w workload) fill(ctx context.Context, etcd *coord.Client) error {
	store := local.NewStore(etcd, local.Config{})
	apply := func(objects []manifest.Object, err error) error {
		if err == nil && len(objects) > 0 {
			_, err = store.Apply(ctx, objects, false)
		}
		return err
	}
	if err := apply(w.nodeObjects()); err != nil {
		return err
	}
	if w.gang {
		if err := apply(w.podGroup()); err != nil {
			return err
		}
	}
	if w.placed > 0 {
		if err := apply(w.podObjects(0, w.placed)); err != nil {
			return err
		}
		if err := place(ctx, etcd, w.nodes); err != nil {
			return err
		}
	}
	if w.oneByOne {
		return nil
	}
	return apply(w.podObjects(w.placed, w.pods))
}

// place places all stored pods on the nodes in turn, as a binder did it in the past.
func place(ctx context.Context, etcd *coord.Client, nodes int) error {
	kvs, _, err := etcd.List(ctx, podKeys)
	if err != nil {
		return err
	}
	ops := make([]coord.Op, len(kvs))
	for i, kv := range kvs {
		var pod corev1.Pod
		if err := json.Unmarshal(kv.Value, &pod); err != nil {
			return fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		value, err := json.Marshal(placement{pod.Namespace, pod.Name, nodeName(i % nodes), time.Now().UTC()})
		if err != nil {
			return fmt.Errorf("encode placement of %s: %w", kv.Key, err)
		}
		ops[i] = coord.Put(placementKeys+string(pod.UID), value)
	}
	for batch := range slices.Chunk(ops, coord.MaxTxnOps) {
		if _, _, err := etcd.Txn(ctx, nil, batch); err != nil {
			return err
		}
	}
	return nil
}

// stored is what etcd holds after a run.
type stored struct {
	nodes      []corev1.Node
	pods       []corev1.Pod
	placements map[string]placement // by the pod's uid
}

// readStored reads it.
func readStored(ctx context.Context, etcd *coord.Client) (stored, error) {
	s := stored{placements: map[string]placement{}}
	err := list(ctx, etcd, nodeKeys, func(_ string, node corev1.Node) { s.nodes = append(s.nodes, node) })
	if err == nil {
		err = list(ctx, etcd, podKeys, func(_ string, pod corev1.Pod) { s.pods = append(s.pods, pod) })
	}
	if err == nil {
		err = list(ctx, etcd, placementKeys, func(uid string, p placement) { s.placements[uid] = p })
	}
	return s, err
}

// sentAfter returns when the placements were sent to etcd that are not older than a time: how long after it.
func (s stored) sentAfter(start time.Time) []time.Duration {
	var sent []time.Duration
	for _, p := range s.placements {
		if d := p.Time.Sub(start); d >= 0 {
			sent = append(sent, d)
		}
	}
	return sent
}

// list calls take with each value below a prefix, and what its key has besides the prefix.
func list[T any](ctx context.Context, etcd *coord.Client, prefix string, take func(rest string, value T)) error {
	kvs, _, err := etcd.List(ctx, prefix)
	if err != nil {
		return err
	}
	for _, kv := range kvs {
		var value T
		if err := json.Unmarshal(kv.Value, &value); err != nil {
			return fmt.Errorf("decode %s: %w", kv.Key, err)
		}
		take(strings.TrimPrefix(kv.Key, prefix), value)
	}
	return nil
}
