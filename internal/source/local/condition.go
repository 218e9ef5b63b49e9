package local

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/source"
)

// condition is the value of a condition's key.
type condition struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Reason    string    `json:"reason"`              // "" until an attempt has placed nothing
	Message   string    `json:"message"`             // the same
	Nominated *string   `json:"nominated,omitempty"` // the nominated node, "" for none; nil: the pod's manifest says it
	Time      time.Time `json:"time"`
}

// Unschedulable writes the pod's condition, its nomination included, if it differs from what is stored, and nothing if the
// pod is gone.
func (s *Source) Unschedulable(ctx context.Context, r source.Report) error {
	return s.updateCondition(ctx, r.UID, r.Namespace, r.Name, func(c *condition, nominated string) bool {
		differs := c.Reason != r.Reason || c.Message != r.Message
		c.Reason, c.Message = r.Reason, r.Message
		if r.Nominate && r.Nominated != nominated {
			c.Nominated, differs = &r.Nominated, true
		}
		return differs
	})
}

// GroupDecided does nothing: no conditions of PodGroups are kept.
func (*Source) GroupDecided(context.Context, source.Report) error { return nil }

// Nominate writes the nominated node to the pod's condition if it is another one, and nothing if the pod is gone.
func (s *Source) Nominate(ctx context.Context, n source.Nomination) error {
	return s.updateCondition(ctx, n.UID, n.Namespace, n.Name, func(c *condition, nominated string) bool {
		c.Nominated = &n.Node
		return n.Node != nominated
	})
}

// updateCondition changes the condition of a pod. change is passed what is stored, zero if nothing is, and the node that
// the pod is nominated to; it returns false if nothing is to be written.
func (s *Source) updateCondition(ctx context.Context, uid, namespace, name string, change func(c *condition, nominated string) bool) error {
	key, pod := conditionKeys+uid, s.lookup(uid)
	for range podTries {
		// 1. What is there?
		if pod.createRevision == 0 {
			stored, err := s.read(ctx, namespace, name)
			if err != nil {
				return err
			}
			if stored == nil || stored.uid != uid {
				return nil
			}
			pod.createRevision, pod.manifest.nominated = stored.createRevision, stored.nominated
		}
		old, _, err := s.etcd.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("read condition of pod %s/%s: %w", namespace, name, err)
		}
		var c condition
		unchanged := coord.IfAbsent(key)
		if old != nil {
			unchanged = coord.IfModRevision(key, old.ModRevision)
			if err := json.Unmarshal(old.Value, &c); err != nil {
				return fmt.Errorf("decode condition of pod %s/%s: %w", namespace, name, err)
			}
		}
		nominated := pod.manifest.nominated
		if c.Nominated != nil {
			nominated = *c.Nominated
		}
		// 2. Write, if neither the pod nor the condition is another one by now.
		if !change(&c, nominated) {
			return nil
		}
		c.Namespace, c.Name, c.Time = namespace, name, s.cfg.Now().UTC()
		value, err := json.Marshal(c)
		if err != nil {
			return fmt.Errorf("encode condition of pod %s/%s: %w", namespace, name, err)
		}
		conds := []coord.Cond{coord.IfCreateRevision(podKey(namespace, name), pod.createRevision), unchanged}
		ok, _, err := s.etcd.Txn(ctx, conds, []coord.Op{coord.Put(key, value)})
		if err != nil {
			return fmt.Errorf("write condition of pod %s/%s: %w", namespace, name, err)
		}
		if ok {
			return nil
		}
		pod.createRevision = 0
	}
	return fmt.Errorf("write condition of pod %s/%s: %w", namespace, name, errChanged)
}
