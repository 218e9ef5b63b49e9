package extender

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// Refusal is what an extender says of a node that it refuses.
type Refusal struct {
	Reason       string // its text, as it is
	Unresolvable bool   // no preemption would help there
}

// kept returns the nodes that an extender has left, in its order. A name has to be one of those it was asked about; an object may be any.
// Names count only of an extender that is nodeCacheCapable, objects of one that answers with no names.
func kept(url string, nodeCacheCapable bool, asked []*Node, answer *extenderv1.ExtenderFilterResult) ([]*Node, error) {
	switch {
	case nodeCacheCapable && answer.NodeNames != nil:
		byName := indexed(asked)
		out := make([]*Node, len(*answer.NodeNames))
		for i, name := range *answer.NodeNames {
			if out[i] = byName[name]; out[i] == nil {
				return nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", url, name)
			}
		}
		return out, nil
	case answer.Nodes != nil:
		out := make([]*Node, len(answer.Nodes.Items))
		for i := range answer.Nodes.Items {
			out[i] = NewNode(&answer.Nodes.Items[i])
		}
		return out, nil
	default:
		return nil, nil
	}
}

// strange returns an error if a node is left that was not asked about.
func strange(url string, asked, left []*Node) error {
	known := indexed(asked)
	for _, n := range left {
		if known[n.Name()] == nil {
			return fmt.Errorf("extender %q has left node %q, which it was not asked about", url, n.Name())
		}
	}
	return nil
}

func indexed(nodes []*Node) map[string]*Node {
	out := make(map[string]*Node, len(nodes))
	for _, n := range nodes {
		out[n.Name()] = n
	}
	return out
}

// refuse adds what an extender says of nodes that it refuses to what others have said: of one node, the last word counts. An answer may say so of
// nodes that it leaves, and of nodes that nobody knows.
func refuse(refused map[string]Refusal, answer *extenderv1.ExtenderFilterResult) {
	for name, reason := range answer.FailedNodes {
		refused[name] = Refusal{Reason: reason}
	}
	for name, reason := range answer.FailedAndUnresolvableNodes {
		refused[name] = Refusal{Reason: reason, Unresolvable: true}
	}
}

// score adds what an extender says of the nodes that it was asked about to what others have said. A score may be out of bounds, and a node may have several. What
// it says of others nobody wants to know.
func score(scores map[string]int64, weight int64, asked map[string]*Node, answer extenderv1.HostPriorityList) {
	for _, of := range answer {
		if asked[of.Host] != nil {
			scores[of.Host] += of.Score * weight
		}
	}
}

// PodsOn returns the pods that are on a node, victims or not, and whether there is such a node. Changed: an extender may have been told of others, or of the node
// when it was there.
type PodsOn func(node string) (pods []*corev1.Pod, known, changed bool)

// identified returns victims by their uids, as extenders are told of them that keep nodes themselves.
func identified(victims map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := make(map[string]*extenderv1.MetaVictims, len(victims))
	for node, v := range victims {
		meta := &extenderv1.MetaVictims{Pods: make([]*extenderv1.MetaPod, len(v.Pods)), NumPDBViolations: v.NumPDBViolations}
		for i, pod := range v.Pods {
			meta.Pods[i] = &extenderv1.MetaPod{UID: string(pod.UID)}
		}
		out[node] = meta
	}
	return out
}

// Outdated is that an extender names a node that there is not, or a victim that is not on its node, where that has changed by [PodsOn]: the extender has not failed.
type Outdated string

func (o Outdated) Error() string { return string(o) }

func unknown(changed bool, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if changed {
		return Outdated(err.Error())
	}
	return err
}

// found returns the victims that an extender names by their uids: any pods of any nodes.
func found(url string, answer map[string]*extenderv1.MetaVictims, on PodsOn) (map[string]*extenderv1.Victims, error) {
	out := make(map[string]*extenderv1.Victims, len(answer))
	for _, node := range slices.Sorted(maps.Keys(answer)) {
		pods, known, changed := on(node)
		if !known {
			return nil, unknown(changed, "nodeinfo not found for node name %q", node)
		}
		meta := answer[node]
		if meta == nil {
			return nil, fmt.Errorf("extender %q answers null for the victims on node %q: leave the node out, or name its victims", url, node)
		}
		victims := &extenderv1.Victims{Pods: []*corev1.Pod{}, NumPDBViolations: meta.NumPDBViolations}
		for _, named := range meta.Pods {
			if named == nil {
				return nil, fmt.Errorf("extender %q answers null for a victim on node %q: leave it out, or give its UID", url, node)
			}
			k := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == named.UID })
			if k < 0 {
				return nil, unknown(changed, "extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node", url, named, node)
			}
			if len(victims.Pods) == len(pods) { // the next extender is told of each
				return nil, fmt.Errorf("extender %q names more victims on node %q than it has pods: have it name each once", url, node)
			}
			victims.Pods = append(victims.Pods, pods[k])
		}
		out[node] = victims
	}
	return out, nil
}

// evictable takes nodes without victims out of an answer if the extender is ignorable; of another, one such node is an error.
func evictable(victims map[string]*extenderv1.Victims, ignorable bool) error {
	for _, node := range slices.Sorted(maps.Keys(victims)) {
		if len(victims[node].Pods) > 0 {
			continue
		}
		if !ignorable {
			return fmt.Errorf("expected at least one victim pod on node %q", node)
		}
		delete(victims, node)
	}
	return nil
}
