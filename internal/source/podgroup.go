package source

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// PreferredTopology is the annotation of a PodGroup that names label keys, from the broadest to the narrowest and with commas between, of whose domains its pods are to be in as few as they fit in: "zone,block,rack".
	PreferredTopology = "scheduling.berth.dev/preferred-topology"
	// MostTopologyKeys is how many label keys it may name, and of how many a PodGroup may want its pods in one domain each.
	MostTopologyKeys = 8
)

// ReadPreferredTopology returns the label keys that the annotation PreferredTopology names. Why says what is wrong with it, "" if nothing is.
func ReadPreferredTopology(annotations map[string]string) (keys []string, why string) {
	value := strings.TrimSpace(annotations[PreferredTopology])
	if value == "" {
		return nil, ""
	}
	bad := func(format string, args ...any) ([]string, string) {
		return nil, fmt.Sprintf(format, args...) + "; want 1 to 8 label keys, from the broadest to the narrowest, with commas between"
	}
	for key := range strings.SplitSeq(value, ",") {
		switch key = strings.TrimSpace(key); {
		case len(keys) == MostTopologyKeys:
			return bad("more than %d label keys", MostTopologyKeys)
		case key == "":
			return bad("label key %d is empty", len(keys)+1)
		case len(validation.IsQualifiedName(key)) > 0:
			return bad("%.80q is no label key", key)
		case slices.Contains(keys, key):
			return bad("%q is there twice", key)
		}
		keys = append(keys, key)
	}
	return keys, ""
}

// ReducePodGroup reads of a PodGroup what scheduling reads.
func ReducePodGroup(group *schedulingv1alpha2.PodGroup) *cluster.PodGroup {
	g := &cluster.PodGroup{Namespace: group.Namespace, Name: group.Name, UID: string(group.UID)}
	if !group.CreationTimestamp.IsZero() {
		g.Created = group.CreationTimestamp.UnixNano()
	}
	preferred, why := ReadPreferredTopology(group.Annotations)
	if why != "" { // else it would be placed otherwise than somebody has asked for, and nobody would know
		g.Untold = fmt.Sprintf("its PodGroup's metadata.annotations[%s]: %s", PreferredTopology, why)
		return g
	}
	g.Preferred = preferred
	if gang := group.Spec.SchedulingPolicy.Gang; gang != nil {
		g.Gang, g.MinCount = true, gang.MinCount
	}
	if c := group.Spec.SchedulingConstraints; c != nil {
		for _, t := range c.Topology {
			g.Topology = append(g.Topology, t.Key)
		}
	}
	if p := group.Spec.Priority; p != nil {
		g.HasPriority, g.Priority = true, *p
	}
	g.Whole = group.Spec.DisruptionMode != nil && *group.Spec.DisruptionMode == schedulingv1alpha2.DisruptionModePodGroup
	return g
}
