package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
)

// What a host port is on when it does not say. The wire leaves these out.
const (
	anyIP           = "0.0.0.0"
	defaultProtocol = "TCP"
)

// Encode returns d as an encoded berth.log.v1.Delta. It fails on what Decode would not take: a nil or unknown d, a
// number out of bounds, a host port without its IP or protocol, a string that is not valid UTF-8.
func Encode(d cluster.Delta) ([]byte, error) {
	m, err := toDelta(d)
	if err != nil {
		return nil, fmt.Errorf("encode delta %T: %w", d, err)
	}
	if err := check(m); err != nil {
		return nil, fmt.Errorf("encode delta %T: %w", d, err)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode delta %T: %w", d, err)
	}
	return b, nil
}

// ToVersion returns v as a message, nil if v is zero.
func ToVersion(v cluster.Version) *logv1.Version {
	if v.IsZero() {
		return nil
	}
	return &logv1.Version{Epoch: int64(v.Epoch), Seq: int64(v.Seq)}
}

func toDelta(d cluster.Delta) (*logv1.Delta, error) {
	switch d := d.(type) {
	case cluster.SettingsSet:
		return &logv1.Delta{Change: &logv1.Delta_Settings{Settings: &logv1.Settings{
			Shards: d.Settings.Shards, Seed: d.Settings.Seed, Profiles: each(d.Settings.Profiles, toProfile), Source: d.Settings.Source,
			InitialBackoffSeconds: d.Settings.InitialBackoffSeconds, MaxBackoffSeconds: d.Settings.MaxBackoffSeconds,
			MaxUnschedulableSeconds: d.Settings.MaxUnschedulableSeconds, Yielded: d.Settings.Yielded, YieldedTo: d.Settings.YieldedTo,
			PreemptionSeesVolumes: d.Settings.PreemptionSeesVolumes,
		}}}, nil
	case cluster.ClassDefined:
		spec, err := toClassSpec(&d.Spec)
		if err != nil {
			return nil, fmt.Errorf("class %d: %w", d.ID, err)
		}
		return &logv1.Delta{Change: &logv1.Delta_ClassDefined{ClassDefined: &logv1.ClassDefined{Id: int32(d.ID), Spec: spec}}}, nil
	case cluster.LabelsDefined:
		return &logv1.Delta{Change: &logv1.Delta_LabelsDefined{LabelsDefined: &logv1.LabelsDefined{
			Id:             int32(d.ID),
			Namespace:      d.Set.Namespace,
			Labels:         each(d.Set.Labels, toLabel),
			ControllerKind: d.Set.Controller.Kind,
			ControllerName: d.Set.Controller.Name,
			Claims:         each(d.Set.Claims, toClaim),
		}}}, nil
	case cluster.SelectorSet:
		return &logv1.Delta{Change: &logv1.Delta_SelectorSet{SelectorSet: &logv1.SelectorSet{
			Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, Selector: toSelector(d.Selector),
		}}}, nil
	case cluster.SelectorRemoved:
		return &logv1.Delta{Change: &logv1.Delta_SelectorRemoved{SelectorRemoved: &logv1.SelectorRemoved{
			Kind: d.Kind, Namespace: d.Namespace, Name: d.Name,
		}}}, nil
	case cluster.NodeSet:
		return &logv1.Delta{Change: &logv1.Delta_NodeSet{NodeSet: &logv1.NodeSet{
			Index:         int32(d.Index),
			Name:          d.Node.Name,
			Labels:        each(d.Node.Labels, toLabel),
			Taints:        each(d.Node.Taints, toTaint),
			Unschedulable: d.Node.Unschedulable,
			Allocatable:   each(d.Node.Allocatable, toQuantity),
			Images:        each(d.Node.Images, toImage),
			Features:      d.Node.Features,
			Unsupported:   d.Node.Unsupported,
		}}}, nil
	case cluster.NodeRemoved:
		return &logv1.Delta{Change: &logv1.Delta_NodeRemoved{NodeRemoved: &logv1.NodeRemoved{Index: int32(d.Index)}}}, nil
	case cluster.NodeTouched:
		return &logv1.Delta{Change: &logv1.Delta_NodeTouched{NodeTouched: &logv1.NodeTouched{Index: int32(d.Index)}}}, nil
	case cluster.NamespaceSet:
		return &logv1.Delta{Change: &logv1.Delta_NamespaceSet{NamespaceSet: &logv1.NamespaceSet{
			Name: d.Name, Labels: each(d.Labels, toLabel),
		}}}, nil
	case cluster.NamespaceRemoved:
		return &logv1.Delta{Change: &logv1.Delta_NamespaceRemoved{NamespaceRemoved: &logv1.NamespaceRemoved{Name: d.Name}}}, nil
	case cluster.PodSet:
		return &logv1.Delta{Change: &logv1.Delta_PodSet{PodSet: &logv1.PodSet{
			Id:            int32(d.ID),
			Uid:           d.Pod.UID,
			Namespace:     d.Pod.Namespace,
			Name:          d.Pod.Name,
			Class:         int32(d.Pod.Class),
			Priority:      d.Pod.Priority,
			RequiredNode:  d.Pod.RequiredNode,
			Created:       d.Pod.Created,
			Gates:         d.Pod.Gates,
			Deleting:      d.Pod.Deleting,
			NodeName:      d.Pod.NodeName,
			Assumed:       d.Assumed,
			Attempt:       d.Pod.Attempt,
			Labels:        int32(d.Pod.Labels),
			Nominated:     d.Pod.Nominated,
			Started:       d.Pod.Started,
			NeverPreempts: d.Pod.NeverPreempts,
			Preempted:     d.Pod.Preempted,
			Preempting:    d.Preempting,
			Victim:        d.Victim,
			Volumes:       each(d.Volumes, toVolumeChoice),
			Group:         d.Pod.Group,
			Ends:          d.Pod.Ends,
		}}}, nil
	case cluster.PodAssumed:
		return &logv1.Delta{Change: &logv1.Delta_PodAssumed{PodAssumed: &logv1.PodAssumed{
			Id: int32(d.ID), Node: int32(d.Node), Attempt: d.Attempt, Volumes: each(d.Volumes, toVolumeChoice),
		}}}, nil
	case cluster.PodBound:
		return &logv1.Delta{Change: &logv1.Delta_PodBound{PodBound: &logv1.PodBound{Id: int32(d.ID)}}}, nil
	case cluster.PodForgotten:
		return &logv1.Delta{Change: &logv1.Delta_PodForgotten{PodForgotten: &logv1.PodForgotten{Id: int32(d.ID), Reason: d.Reason}}}, nil
	case cluster.PodRemoved:
		return &logv1.Delta{Change: &logv1.Delta_PodRemoved{PodRemoved: &logv1.PodRemoved{Id: int32(d.ID)}}}, nil
	case cluster.PodActivated:
		return &logv1.Delta{Change: &logv1.Delta_PodActivated{PodActivated: &logv1.PodActivated{Id: int32(d.ID), AfterBackoff: d.AfterBackoff}}}, nil
	case cluster.PodNominated:
		return &logv1.Delta{Change: &logv1.Delta_PodNominated{PodNominated: &logv1.PodNominated{Id: int32(d.ID), Node: d.Node}}}, nil
	case cluster.PreemptionStarted:
		return &logv1.Delta{Change: &logv1.Delta_PreemptionStarted{PreemptionStarted: &logv1.PreemptionStarted{
			Id: int32(d.ID), Node: int32(d.Node), Victims: FromPodIDs(d.Victims),
		}}}, nil
	case cluster.PreemptionEnded:
		return &logv1.Delta{Change: &logv1.Delta_PreemptionEnded{PreemptionEnded: &logv1.PreemptionEnded{
			Id: int32(d.ID), Failed: d.Failed, Spared: FromPodIDs(d.Spared),
		}}}, nil
	case cluster.ObjectSet:
		return toObjectSet(d)
	case cluster.ObjectRemoved:
		return toObjectRemoved(d), nil
	case cluster.ImageSized:
		return &logv1.Delta{Change: &logv1.Delta_ImageSized{ImageSized: &logv1.ImageSized{Name: d.Name, Size: d.Size}}}, nil
	}
	return nil, errors.New("unknown type")
}

func toClassSpec(s *cluster.ClassSpec) (*logv1.ClassSpec, error) {
	for i, p := range s.HostPorts {
		if p.IP == "" || p.Protocol == "" {
			return nil, fmt.Errorf("host port %d: IP %q and protocol %q must be written out", i, p.IP, p.Protocol)
		}
	}
	return &logv1.ClassSpec{
		SchedulerName:         s.SchedulerName,
		Requests:              each(s.Requests, toQuantity),
		ScoreRequests:         each(s.ScoreRequests, toQuantity),
		NonZeroCpu:            s.NonZeroCPU,
		NonZeroMemory:         s.NonZeroMemory,
		Tolerations:           each(s.Tolerations, toToleration),
		NodeSelector:          each(s.NodeSelector, toLabel),
		Required:              each(s.Required, toTerm),
		HasRequired:           s.HasRequired,
		Preferred:             each(s.Preferred, toPreferred),
		HostPorts:             each(s.HostPorts, toHostPort),
		Images:                s.Images,
		ImageContainers:       s.ImageContainers,
		Affinity:              each(s.Affinity, toPodTerm),
		AntiAffinity:          each(s.AntiAffinity, toPodTerm),
		PreferredAffinity:     each(s.PreferredAffinity, toWeightedPodTerm),
		PreferredAntiAffinity: each(s.PreferredAntiAffinity, toWeightedPodTerm),
		Spread:                each(s.Spread, toSpread),
		Features:              s.Features,
		NodeName:              s.NodeName,
		Unsupported:           s.Unsupported,
		UnsupportedPlugin:     s.UnsupportedPlugin,
		Disks:                 each(s.Disks, toDisk),
	}, nil
}

// FromPodIDs and PodIDs translate lists of pods' ids.
func FromPodIDs(ids []cluster.PodID) []int32 {
	return each(ids, func(id cluster.PodID) int32 { return int32(id) })
}

// each translates a list. An empty one becomes nil.
func each[From, To any](items []From, one func(From) To) []To {
	if len(items) == 0 {
		return nil
	}
	out := make([]To, len(items))
	for i, it := range items {
		out[i] = one(it)
	}
	return out
}

func toVolumeChoice(c cluster.VolumeChoice) *logv1.VolumeChoice {
	return &logv1.VolumeChoice{Claim: c.Claim, Uid: c.UID, Volume: c.Volume}
}

func toLabel(l cluster.Label) *logv1.Label { return &logv1.Label{Key: l.Key, Value: l.Value} }

func toQuantity(q cluster.Quantity) *logv1.Quantity {
	return &logv1.Quantity{Name: q.Name, Value: q.Value}
}

func toTaint(t cluster.Taint) *logv1.Taint {
	return &logv1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
}

func toImage(i cluster.Image) *logv1.Image { return &logv1.Image{Names: i.Names, Size: i.Size} }

func toToleration(t cluster.Toleration) *logv1.Toleration {
	return &logv1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
}

func toRequirement(r cluster.Requirement) *logv1.Requirement {
	return &logv1.Requirement{Key: r.Key, Operator: r.Operator, Values: r.Values}
}

func toTerm(t cluster.NodeSelectorTerm) *logv1.NodeSelectorTerm {
	return &logv1.NodeSelectorTerm{Expressions: each(t.Expressions, toRequirement), Fields: each(t.Fields, toRequirement)}
}

func toPreferred(t cluster.PreferredTerm) *logv1.PreferredTerm {
	return &logv1.PreferredTerm{Weight: t.Weight, Term: toTerm(t.Term)}
}

func toSelector(s cluster.LabelSelector) *logv1.LabelSelector {
	return &logv1.LabelSelector{Requirements: each(s.Requirements, toRequirement), Nothing: s.Nothing}
}

func toPodTerm(t cluster.PodTerm) *logv1.PodTerm {
	return &logv1.PodTerm{
		TopologyKey:       t.TopologyKey,
		Namespaces:        t.Namespaces,
		NamespaceSelector: toSelector(t.NamespaceSelector),
		Selector:          toSelector(t.Selector),
	}
}

func toWeightedPodTerm(t cluster.WeightedPodTerm) *logv1.WeightedPodTerm {
	return &logv1.WeightedPodTerm{Weight: t.Weight, Term: toPodTerm(t.Term)}
}

func toSpread(c cluster.SpreadConstraint) *logv1.SpreadConstraint {
	return &logv1.SpreadConstraint{
		TopologyKey:   c.TopologyKey,
		MaxSkew:       c.MaxSkew,
		MinDomains:    c.MinDomains,
		Hard:          c.Hard,
		HonorAffinity: c.HonorAffinity,
		HonorTaints:   c.HonorTaints,
		Selector:      toSelector(c.Selector),
	}
}

func toDisk(d cluster.Disk) *logv1.Disk {
	return &logv1.Disk{
		Kind: d.Kind, Id: d.ID, Pool: d.Pool, Monitors: d.Monitors, ReadOnly: d.ReadOnly,
		Plugin: d.Migration.Plugin, Driver: d.Migration.Driver, Handle: d.Migration.Handle, Error: d.Migration.Error,
	}
}

func toClaim(c cluster.PodClaim) *logv1.PodClaim {
	return &logv1.PodClaim{Name: c.Name, Ephemeral: c.Ephemeral, PodUid: c.PodUID}
}

func toHostPort(p cluster.HostPort) *logv1.HostPort {
	out := &logv1.HostPort{Port: p.Port}
	if p.IP != anyIP {
		out.Ip = p.IP
	}
	if p.Protocol != defaultProtocol {
		out.Protocol = p.Protocol
	}
	return out
}

func toWeight(w cluster.PluginWeight) *logv1.PluginWeight {
	return &logv1.PluginWeight{Name: w.Name, Weight: w.Weight}
}

func toPoint(p cluster.ShapePoint) *logv1.ShapePoint {
	return &logv1.ShapePoint{Utilization: p.Utilization, Score: p.Score}
}

func toProfile(p cluster.Profile) *logv1.Profile {
	return &logv1.Profile{
		SchedulerName:            p.SchedulerName,
		PreFilters:               p.PreFilters,
		Filters:                  p.Filters,
		Weights:                  each(p.Weights, toWeight),
		FitStrategy:              p.FitStrategy,
		FitResources:             each(p.FitResources, toWeight),
		Shape:                    each(p.Shape, toPoint),
		BalancedResources:        p.BalancedResources,
		IgnoredResources:         p.IgnoredResources,
		IgnoredResourceGroups:    p.IgnoredResourceGroups,
		AddedRequired:            each(p.AddedRequired, toTerm),
		HasAddedRequired:         p.HasAddedRequired,
		AddedPreferred:           each(p.AddedPreferred, toPreferred),
		HardPodAffinityWeight:    p.HardPodAffinityWeight,
		IgnorePreferredTerms:     p.IgnorePreferredTerms,
		DefaultSpread:            each(p.DefaultSpread, toSpread),
		SystemSpread:             p.SystemSpread,
		PercentageOfNodesToScore: p.PercentageOfNodesToScore,
		PostFilters:              p.PostFilters,
		PreEnqueues:              p.PreEnqueues,
		QueueSort:                p.QueueSort,
		VolumeLimitScaling:       p.VolumeLimitScaling,
		TaintComparison:          p.TaintComparison,
		RequireCsiDrivers:        p.RequireCSIDrivers,
		StorageShape:             each(p.StorageShape, toPoint),
	}
}
