package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// Decode returns the delta that Encode was given. It fails, and never panics, on bytes that are no delta, on a change
// it does not know, and on numbers out of bounds.
func Decode(b []byte) (cluster.Delta, error) {
	var m logv1.Delta
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("decode delta of %d bytes: %w", len(b), err)
	}
	if err := check(&m); err != nil {
		return nil, fmt.Errorf("decode delta of %d bytes: %w", len(b), err)
	}
	return delta(&m), nil
}

// Version returns m as a version, the zero one if m is nil.
func Version(m *logv1.Version) cluster.Version {
	return cluster.Version{Epoch: cluster.Epoch(m.GetEpoch()), Seq: cluster.Seq(m.GetSeq())}
}

// delta translates a message that check has found good.
func delta(m *logv1.Delta) cluster.Delta {
	switch m := m.GetChange().(type) {
	case *logv1.Delta_Settings:
		return cluster.SettingsSet{Settings: cluster.Settings{
			Shards: m.Settings.GetShards(), Seed: m.Settings.GetSeed(), Profiles: each(m.Settings.GetProfiles(), profile), Source: m.Settings.GetSource(),
			InitialBackoffSeconds: m.Settings.GetInitialBackoffSeconds(), MaxBackoffSeconds: m.Settings.GetMaxBackoffSeconds(),
			MaxUnschedulableSeconds: m.Settings.GetMaxUnschedulableSeconds(), Yielded: m.Settings.GetYielded(), YieldedTo: m.Settings.GetYieldedTo(),
			PreemptionSeesVolumes: m.Settings.GetPreemptionSeesVolumes(),
		}}
	case *logv1.Delta_ClassDefined:
		return cluster.ClassDefined{ID: cluster.ClassID(m.ClassDefined.GetId()), Spec: classSpec(m.ClassDefined.GetSpec())}
	case *logv1.Delta_LabelsDefined:
		return cluster.LabelsDefined{ID: cluster.LabelsID(m.LabelsDefined.GetId()), Set: labelSet(m.LabelsDefined)}
	case *logv1.Delta_SelectorSet:
		return cluster.SelectorSet{
			Kind: m.SelectorSet.GetKind(), Namespace: m.SelectorSet.GetNamespace(), Name: m.SelectorSet.GetName(),
			Selector: selector(m.SelectorSet.GetSelector()),
		}
	case *logv1.Delta_SelectorRemoved:
		return cluster.SelectorRemoved{
			Kind: m.SelectorRemoved.GetKind(), Namespace: m.SelectorRemoved.GetNamespace(), Name: m.SelectorRemoved.GetName(),
		}
	case *logv1.Delta_NodeSet:
		return cluster.NodeSet{Index: cluster.NodeIndex(m.NodeSet.GetIndex()), Node: node(m.NodeSet)}
	case *logv1.Delta_NodeRemoved:
		return cluster.NodeRemoved{Index: cluster.NodeIndex(m.NodeRemoved.GetIndex())}
	case *logv1.Delta_NodeTouched:
		return cluster.NodeTouched{Index: cluster.NodeIndex(m.NodeTouched.GetIndex())}
	case *logv1.Delta_NamespaceSet:
		return cluster.NamespaceSet{Name: m.NamespaceSet.GetName(), Labels: each(m.NamespaceSet.GetLabels(), label)}
	case *logv1.Delta_NamespaceRemoved:
		return cluster.NamespaceRemoved{Name: m.NamespaceRemoved.GetName()}
	case *logv1.Delta_PodSet:
		return cluster.PodSet{
			ID: cluster.PodID(m.PodSet.GetId()), Pod: pod(m.PodSet),
			Assumed: m.PodSet.GetAssumed(), Preempting: m.PodSet.GetPreempting(), Victim: m.PodSet.GetVictim(),
			Volumes: each(m.PodSet.GetVolumes(), volumeChoice),
		}
	case *logv1.Delta_PodAssumed:
		return cluster.PodAssumed{
			ID: cluster.PodID(m.PodAssumed.GetId()), Node: cluster.NodeIndex(m.PodAssumed.GetNode()), Attempt: m.PodAssumed.GetAttempt(),
			Volumes: each(m.PodAssumed.GetVolumes(), volumeChoice),
		}
	case *logv1.Delta_PodBound:
		return cluster.PodBound{ID: cluster.PodID(m.PodBound.GetId())}
	case *logv1.Delta_PodForgotten:
		return cluster.PodForgotten{ID: cluster.PodID(m.PodForgotten.GetId()), Reason: m.PodForgotten.GetReason()}
	case *logv1.Delta_PodRemoved:
		return cluster.PodRemoved{ID: cluster.PodID(m.PodRemoved.GetId())}
	case *logv1.Delta_PodActivated:
		return cluster.PodActivated{ID: cluster.PodID(m.PodActivated.GetId()), AfterBackoff: m.PodActivated.GetAfterBackoff()}
	case *logv1.Delta_PodNominated:
		return cluster.PodNominated{ID: cluster.PodID(m.PodNominated.GetId()), Node: m.PodNominated.GetNode()}
	case *logv1.Delta_PreemptionStarted:
		d := m.PreemptionStarted
		return cluster.PreemptionStarted{
			ID: cluster.PodID(d.GetId()), Node: cluster.NodeIndex(d.GetNode()), Victims: PodIDs(d.GetVictims()),
		}
	case *logv1.Delta_PreemptionEnded:
		d := m.PreemptionEnded
		return cluster.PreemptionEnded{ID: cluster.PodID(d.GetId()), Failed: d.GetFailed(), Spared: PodIDs(d.GetSpared())}
	case *logv1.Delta_ObjectSet:
		set, _ := objectSet(m.ObjectSet) // which check has done
		return set
	case *logv1.Delta_ObjectRemoved:
		return cluster.ObjectRemoved{ObjectKey: objectKey(m.ObjectRemoved)}
	case *logv1.Delta_BudgetSet:
		return cluster.ObjectSet{Object: budget(m.BudgetSet)}
	case *logv1.Delta_BudgetRemoved:
		return cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{
			Kind: cluster.BudgetKind, Namespace: m.BudgetRemoved.GetNamespace(), Name: m.BudgetRemoved.GetName(),
		}}
	case *logv1.Delta_ImageSized:
		return cluster.ImageSized{Name: m.ImageSized.GetName(), Size: m.ImageSized.GetSize()}
	}
	return nil
}

func classSpec(m *logv1.ClassSpec) cluster.ClassSpec {
	return cluster.ClassSpec{
		SchedulerName:         m.GetSchedulerName(),
		Requests:              each(m.GetRequests(), quantity),
		ScoreRequests:         each(m.GetScoreRequests(), quantity),
		NonZeroCPU:            m.GetNonZeroCpu(),
		NonZeroMemory:         m.GetNonZeroMemory(),
		Tolerations:           each(m.GetTolerations(), toleration),
		NodeSelector:          each(m.GetNodeSelector(), label),
		Required:              each(m.GetRequired(), term),
		HasRequired:           m.GetHasRequired(),
		Preferred:             each(m.GetPreferred(), preferred),
		HostPorts:             each(m.GetHostPorts(), hostPort),
		Images:                m.GetImages(),
		ImageContainers:       m.GetImageContainers(),
		Affinity:              each(m.GetAffinity(), podTerm),
		AntiAffinity:          each(m.GetAntiAffinity(), podTerm),
		PreferredAffinity:     each(m.GetPreferredAffinity(), weightedPodTerm),
		PreferredAntiAffinity: each(m.GetPreferredAntiAffinity(), weightedPodTerm),
		Spread:                each(m.GetSpread(), spread),
		Features:              m.GetFeatures(),
		NodeName:              m.GetNodeName(),
		Unsupported:           m.GetUnsupported(),
		UnsupportedPlugin:     m.GetUnsupportedPlugin(),
		Disks:                 each(m.GetDisks(), disk),
	}
}

func node(m *logv1.NodeSet) cluster.Node {
	return cluster.Node{
		Name:          m.GetName(),
		Labels:        each(m.GetLabels(), label),
		Taints:        each(m.GetTaints(), taint),
		Unschedulable: m.GetUnschedulable(),
		Allocatable:   each(m.GetAllocatable(), quantity),
		Images:        each(m.GetImages(), image),
		Features:      m.GetFeatures(),
		Unsupported:   m.GetUnsupported(),
	}
}

func labelSet(m *logv1.LabelsDefined) cluster.LabelSet {
	return cluster.LabelSet{
		Namespace:  m.GetNamespace(),
		Labels:     each(m.GetLabels(), label),
		Controller: cluster.Controller{Kind: m.GetControllerKind(), Name: m.GetControllerName()},
		Claims:     each(m.GetClaims(), claim),
	}
}

func pod(m *logv1.PodSet) cluster.Pod {
	return cluster.Pod{
		UID:          m.GetUid(),
		Namespace:    m.GetNamespace(),
		Name:         m.GetName(),
		Class:        cluster.ClassID(m.GetClass()),
		Priority:     m.GetPriority(),
		RequiredNode: m.GetRequiredNode(),
		Created:      m.GetCreated(),
		Gates:        m.GetGates(),
		Deleting:     m.GetDeleting(),
		NodeName:     m.GetNodeName(),
		Attempt:      m.GetAttempt(),
		Labels:       cluster.LabelsID(m.GetLabels()),
		Nominated:    m.GetNominated(),

		Started:       m.GetStarted(),
		NeverPreempts: m.GetNeverPreempts(),
		Preempted:     m.GetPreempted(),
		Group:         m.GetGroup(),
		Ends:          m.GetEnds(),
	}
}

// PodIDs translates what FromPodIDs returns.
func PodIDs(ids []int32) []cluster.PodID {
	return each(ids, func(id int32) cluster.PodID { return cluster.PodID(id) })
}

func volumeChoice(m *logv1.VolumeChoice) cluster.VolumeChoice {
	return cluster.VolumeChoice{Claim: m.GetClaim(), UID: m.GetUid(), Volume: m.GetVolume()}
}

func label(m *logv1.Label) cluster.Label {
	return cluster.Label{Key: m.GetKey(), Value: m.GetValue()}
}

func quantity(m *logv1.Quantity) cluster.Quantity {
	return cluster.Quantity{Name: m.GetName(), Value: m.GetValue()}
}

func taint(m *logv1.Taint) cluster.Taint {
	return cluster.Taint{Key: m.GetKey(), Value: m.GetValue(), Effect: m.GetEffect()}
}

func image(m *logv1.Image) cluster.Image {
	return cluster.Image{Names: m.GetNames(), Size: m.GetSize()}
}

func toleration(m *logv1.Toleration) cluster.Toleration {
	return cluster.Toleration{Key: m.GetKey(), Operator: m.GetOperator(), Value: m.GetValue(), Effect: m.GetEffect()}
}

func requirement(m *logv1.Requirement) cluster.Requirement {
	return cluster.Requirement{Key: m.GetKey(), Operator: m.GetOperator(), Values: m.GetValues()}
}

func term(m *logv1.NodeSelectorTerm) cluster.NodeSelectorTerm {
	return cluster.NodeSelectorTerm{Expressions: each(m.GetExpressions(), requirement), Fields: each(m.GetFields(), requirement)}
}

func preferred(m *logv1.PreferredTerm) cluster.PreferredTerm {
	return cluster.PreferredTerm{Weight: m.GetWeight(), Term: term(m.GetTerm())}
}

func selector(m *logv1.LabelSelector) cluster.LabelSelector {
	return cluster.LabelSelector{Requirements: each(m.GetRequirements(), requirement), Nothing: m.GetNothing()}
}

func podTerm(m *logv1.PodTerm) cluster.PodTerm {
	return cluster.PodTerm{
		TopologyKey:       m.GetTopologyKey(),
		Namespaces:        m.GetNamespaces(),
		NamespaceSelector: selector(m.GetNamespaceSelector()),
		Selector:          selector(m.GetSelector()),
	}
}

func weightedPodTerm(m *logv1.WeightedPodTerm) cluster.WeightedPodTerm {
	return cluster.WeightedPodTerm{Weight: m.GetWeight(), Term: podTerm(m.GetTerm())}
}

func spread(m *logv1.SpreadConstraint) cluster.SpreadConstraint {
	return cluster.SpreadConstraint{
		TopologyKey:   m.GetTopologyKey(),
		MaxSkew:       m.GetMaxSkew(),
		MinDomains:    m.GetMinDomains(),
		Hard:          m.GetHard(),
		HonorAffinity: m.GetHonorAffinity(),
		HonorTaints:   m.GetHonorTaints(),
		Selector:      selector(m.GetSelector()),
	}
}

func disk(m *logv1.Disk) cluster.Disk {
	return cluster.Disk{
		Kind: m.GetKind(), ID: m.GetId(), Pool: m.GetPool(), Monitors: m.GetMonitors(), ReadOnly: m.GetReadOnly(),
		Migration: cluster.Migration{Plugin: m.GetPlugin(), Driver: m.GetDriver(), Handle: m.GetHandle(), Error: m.GetError()},
	}
}

func claim(m *logv1.PodClaim) cluster.PodClaim {
	return cluster.PodClaim{Name: m.GetName(), Ephemeral: m.GetEphemeral(), PodUID: m.GetPodUid()}
}

func hostPort(m *logv1.HostPort) cluster.HostPort {
	p := cluster.HostPort{IP: m.GetIp(), Protocol: m.GetProtocol(), Port: m.GetPort()}
	if p.IP == "" {
		p.IP = anyIP
	}
	if p.Protocol == "" {
		p.Protocol = defaultProtocol
	}
	return p
}

func weight(m *logv1.PluginWeight) cluster.PluginWeight {
	return cluster.PluginWeight{Name: m.GetName(), Weight: m.GetWeight()}
}

func point(m *logv1.ShapePoint) cluster.ShapePoint {
	return cluster.ShapePoint{Utilization: m.GetUtilization(), Score: m.GetScore()}
}

func profile(m *logv1.Profile) cluster.Profile {
	return cluster.Profile{
		SchedulerName:            m.GetSchedulerName(),
		PreFilters:               m.GetPreFilters(),
		Filters:                  m.GetFilters(),
		Weights:                  each(m.GetWeights(), weight),
		FitStrategy:              m.GetFitStrategy(),
		FitResources:             each(m.GetFitResources(), weight),
		Shape:                    each(m.GetShape(), point),
		BalancedResources:        m.GetBalancedResources(),
		IgnoredResources:         m.GetIgnoredResources(),
		IgnoredResourceGroups:    m.GetIgnoredResourceGroups(),
		AddedRequired:            each(m.GetAddedRequired(), term),
		HasAddedRequired:         m.GetHasAddedRequired(),
		AddedPreferred:           each(m.GetAddedPreferred(), preferred),
		HardPodAffinityWeight:    m.GetHardPodAffinityWeight(),
		IgnorePreferredTerms:     m.GetIgnorePreferredTerms(),
		DefaultSpread:            each(m.GetDefaultSpread(), spread),
		SystemSpread:             m.GetSystemSpread(),
		PercentageOfNodesToScore: m.GetPercentageOfNodesToScore(),
		PostFilters:              m.GetPostFilters(),
		PreEnqueues:              m.GetPreEnqueues(),
		QueueSort:                m.GetQueueSort(),
		VolumeLimitScaling:       m.GetVolumeLimitScaling(),
		TaintComparison:          m.GetTaintComparison(),
		RequireCSIDrivers:        m.GetRequireCsiDrivers(),
		StorageShape:             each(m.GetStorageShape(), point),
	}
}
