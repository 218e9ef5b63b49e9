package cluster

import "slices"

// NodeIndex is a node's place in the columns. It is dense, and used again after the node is removed.
type NodeIndex int32

// NoNode is the index of no node.
const NoNode NodeIndex = -1

// PodID is a pod's place in the pod table. It is dense, and used again after the pod is removed.
type PodID int32

// NoPod is the id of no pod.
const NoPod PodID = -1

// ClassID names a class within an epoch. It is never used again in the epoch.
type ClassID int32

// Quantity is an amount of a resource: milli-CPU for cpu, bytes for memory, the resource's own unit for others.
type Quantity struct {
	Name  string
	Value int64
}

// LabelsID names a label set within an epoch. It is never used again in the epoch.
type LabelsID int32

// NoLabels is the label set of a pod that no selector sees, and that uses no claims.
const NoLabels LabelsID = 0

// Label is a key with a value.
type Label struct{ Key, Value string }

// LabelSet is what selectors and volumes see of a pod: pods that these treat alike share one.
type LabelSet struct {
	Namespace string
	Labels    []Label // by key
	// Controller is the object that controls the pod, if it is of a kind whose selector PodTopologySpread's default
	// constraints use, else zero.
	Controller Controller
	// Claims are what its volumes are, as far as they are PersistentVolumeClaims of its namespace, in the order of its volumes. They
	// are here rather than in the class since pods that ask for the same, but each for a volume of its own, are of one class.
	Claims []PodClaim
}

// PodClaim is a PersistentVolumeClaim that a pod uses.
type PodClaim struct {
	Name string // "" if the pod names none
	// Ephemeral says that the claim is made for the pod, of an ephemeral volume: it is good only if the pod, whose UID is PodUID,
	// controls it. PodUID is "" of others.
	Ephemeral bool
	PodUID    string
}

// The kinds of objects whose selectors PodTopologySpread's default constraints use.
const (
	KindService               = "Service"
	KindReplicationController = "ReplicationController"
	KindReplicaSet            = "ReplicaSet"
	KindStatefulSet           = "StatefulSet"
)

// Controller names a pod's controller, of the pod's namespace. Kind is one of the constants, but not KindService.
type Controller struct{ Kind, Name string }

// Taint is a node's taint.
type Taint struct{ Key, Value, Effect string }

// Image is a container image on a node: all its names, and its size in bytes.
type Image struct {
	Names []string
	Size  int64
}

// Node is a Kubernetes node, reduced to what scheduling reads.
type Node struct {
	Name          string
	Labels        []Label // by key
	Taints        []Taint // in the node's order
	Unschedulable bool
	Allocatable   []Quantity // by name; "pods" included; without zeros
	Images        []Image    // in the node's order
	Features      []string   // status.declaredFeatures, in alphabetical order
	// Unsupported says why no pod is placed on the node, and what it has is not all told here; "" for all other nodes. Pods
	// that are there count.
	Unsupported string
}

// Toleration is a pod's toleration.
type Toleration struct{ Key, Operator, Value, Effect string }

// Requirement is one condition of a node selector term. Operator is In, NotIn, Exists, DoesNotExist, Gt or Lt.
type Requirement struct {
	Key, Operator string
	Values        []string
}

// NodeSelectorTerm is a conjunction of conditions on labels and on fields (metadata.name). A term without any
// matches nothing.
type NodeSelectorTerm struct {
	Expressions []Requirement
	Fields      []Requirement
}

// PreferredTerm is a weighted node selector term.
type PreferredTerm struct {
	Weight int32
	Term   NodeSelectorTerm
}

// PodTerm says which pods a pod wants near it, or not near it: those of some namespaces that Selector matches, on nodes
// with the same value of the label TopologyKey.
type PodTerm struct {
	TopologyKey string
	// Namespaces are named; a pod's own is written out if the term names none. In alphabetical order.
	Namespaces []string
	// NamespaceSelector matches further ones by their labels.
	NamespaceSelector LabelSelector
	Selector          LabelSelector
}

// WeightedPodTerm is a preferred PodTerm.
type WeightedPodTerm struct {
	Weight int32 // 1 to 100
	Term   PodTerm
}

// SpreadConstraint is a topology spread constraint: Selector counts pods of the pod's own namespace.
type SpreadConstraint struct {
	TopologyKey   string
	MaxSkew       int32
	MinDomains    int32 // at least 1
	Hard          bool  // DoNotSchedule; else ScheduleAnyway
	HonorAffinity bool  // nodes that the pod's node affinity and selector exclude do not count
	HonorTaints   bool  // nodes with taints that the pod does not tolerate do not count
	Selector      LabelSelector
}

// HostPort is a port a pod takes on its node. IP and Protocol are never empty: 0.0.0.0 and TCP are written out.
type HostPort struct {
	IP, Protocol string
	Port         int32
}

// ClassSpec is everything of a pod that filters and scores read, but its required node: pods with equal specs are of one class.
type ClassSpec struct {
	SchedulerName string
	// Requests is what the pod takes from its node. By name, without zeros.
	Requests []Quantity
	// ScoreRequests is what NodeResourcesFit scores with: without pod-level resources, and with 100m CPU and 200 MiB
	// for each container that names none. By name, without zeros.
	ScoreRequests []Quantity
	// NonZeroCPU and NonZeroMemory are what the pod adds to its node's non-zero requests, in milli-CPU and bytes.
	NonZeroCPU, NonZeroMemory int64
	Tolerations               []Toleration
	NodeSelector              []Label // by key
	// Required are the required node affinity terms, ORed, if HasRequired.
	Required    []NodeSelectorTerm
	HasRequired bool
	Preferred   []PreferredTerm
	HostPorts   []HostPort
	// Images are the normalised names of the images of init containers, containers and image volumes, in order, with
	// repetitions.
	Images []string
	// ImageContainers is the number of init containers and containers.
	ImageContainers int32
	// Affinity and AntiAffinity are the required terms of pod affinity and anti-affinity; all of them hold.
	Affinity, AntiAffinity []PodTerm
	// PreferredAffinity and PreferredAntiAffinity are the preferred ones.
	PreferredAffinity, PreferredAntiAffinity []WeightedPodTerm
	Spread                                   []SpreadConstraint
	// Features are the features that a node must declare, in alphabetical order.
	Features []string
	// NodeName is spec.nodeName of a pod that is to be judged as if it were pending.
	NodeName string
	// Unsupported says why Berth cannot judge such a pod, and UnsupportedPlugin which plugin would have to. Empty if
	// it can. Such a pod is never placed.
	Unsupported, UnsupportedPlugin string
	// Disks are its volumes that are named in its spec and not claimed, as far as it matters on which node they are.
	Disks []Disk
}

// The kinds of disks that only one pod can use at a time: what Disk.Kind may be, besides "".
const (
	DiskGCE   = "gcePersistentDisk"
	DiskEBS   = "awsElasticBlockStore"
	DiskISCSI = "iscsi"
	DiskRBD   = "rbd"
)

// Disk is a volume in the spec of a pod.
type Disk struct {
	// Kind is that of a disk that VolumeRestrictions keeps from being used twice on a node, "" of one that it passes over. Two of a
	// kind are the same if their ID is: pdName, volumeID, iqn or image; and of RBD also Pool and one of the Monitors.
	Kind, ID, Pool string
	Monitors       []string // in alphabetical order
	// ReadOnly disks can be used together. It is false of DiskEBS, which cannot in any case.
	ReadOnly bool
	// Migration is the CSI volume that NodeVolumeLimits counts, if its Plugin is not "".
	Migration Migration
}

// Phase is how far a pod has come.
type Phase uint8

// The phases of a pod.
const (
	Pending Phase = iota // not placed
	Assumed              // placed by the binder, its bind on the way
	Bound                // placed, and the API server knows
)

func (p Phase) String() string {
	switch p {
	case Pending:
		return "pending"
	case Assumed:
		return "assumed"
	case Bound:
		return "bound"
	}
	return "unknown"
}

// Pod is a Kubernetes pod, reduced to what scheduling reads.
type Pod struct {
	UID, Namespace, Name string
	Class                ClassID
	Labels               LabelsID
	Priority             int32
	// Ends says whether the pod ends by itself: NeverEnds, EndsSometime, or within how many seconds of Started it does (spec.activeDeadlineSeconds). It says nothing of a pod that is being deleted.
	Ends         int32
	RequiredNode string   // the only node it may go to, by a metadata.name affinity; "": any
	Created      int64    // metadata.creationTimestamp in Unix nanoseconds
	Gates        []string // spec.schedulingGates
	Deleting     bool     // it has a deletionTimestamp
	NodeName     string   // the node it is bound to; "" while Pending or Assumed
	// Nominated is the node it is nominated to: status.nominatedNodeName, or what PodNominated or PreemptionStarted have
	// said since.
	Nominated     string
	Attempt       int32 // the last attempt that was assumed
	Started       int64 // status.startTime in Unix nanoseconds; 0: it has not started
	NeverPreempts bool  // spec.preemptionPolicy is Never
	// Preempted says that it is deleting because a scheduler has preempted it: its condition DisruptionTarget has the
	// reason PreemptionByScheduler.
	Preempted bool
	// Group is the name of the PodGroup that it belongs to: spec.schedulingGroup.podGroupName, or a CoschedulingGroup; "": it belongs to none. It need not exist.
	Group string
}

// What Pod.Ends says, besides a number of seconds.
const (
	NeverEnds    = 0  // it runs until it is deleted, or nothing is known
	EndsSometime = -1 // its containers are not started again when they have ended: spec.restartPolicy is Never or OnFailure
)

// PluginWeight is a plugin, or a resource, with its weight.
type PluginWeight struct {
	Name   string
	Weight int64
}

// ShapePoint is a point of the function of RequestedToCapacityRatio: utilization 0 to 100, score 0 to 10.
type ShapePoint struct{ Utilization, Score int32 }

// The scoring strategies of NodeResourcesFit.
const (
	LeastAllocated           = "LeastAllocated"
	MostAllocated            = "MostAllocated"
	RequestedToCapacityRatio = "RequestedToCapacityRatio"
)

// Profile says how pods of one spec.schedulerName are filtered and scored.
type Profile struct {
	SchedulerName string
	// PreFilters and Filters are the plugins that run at these points, in order: a node's verdict is that of the first
	// filter it fails. A plugin that is absent does not run; one that Berth does not have is skipped.
	PreFilters, Filters []string
	Weights             []PluginWeight // of score plugins; one that is absent does not score
	FitStrategy         string
	FitResources        []PluginWeight
	Shape               []ShapePoint // by increasing utilization
	BalancedResources   []string
	// IgnoredResources are extended resources that NodeResourcesFit does not check, IgnoredResourceGroups what stands
	// before the slash in the names of others. Both still count where resources are scored.
	IgnoredResources, IgnoredResourceGroups []string
	// AddedRequired are node affinity terms, ORed, that all pods need besides their own, if HasAddedRequired.
	AddedRequired    []NodeSelectorTerm
	HasAddedRequired bool
	AddedPreferred   []PreferredTerm // of all pods, besides their own
	// HardPodAffinityWeight is what a required affinity term of a placed pod weighs where InterPodAffinity scores.
	HardPodAffinityWeight int32
	// IgnorePreferredTerms says that InterPodAffinity scores only pods that have preferred terms themselves.
	IgnorePreferredTerms bool
	// DefaultSpread are the constraints of pods that have none of their own; their selectors come from the pod's
	// services and controller. SystemSpread says that they are kube-scheduler's, which score nodes without the
	// topology's label too.
	DefaultSpread []SpreadConstraint
	SystemSpread  bool
	// PercentageOfNodesToScore bounds how many feasible nodes are scored, in percent of all; 0: all are.
	PercentageOfNodesToScore int32
	// PostFilters are the plugins that run at PostFilter, in order: what is tried for a pod that fits nowhere.
	PostFilters []string
	// VolumeLimitScaling is kube-scheduler's feature gate: NodeVolumeLimits keeps volumes off nodes without their CSI driver, of the drivers
	// that ask for it (CSIDriver.PreventPodSchedulingIfMissing).
	VolumeLimitScaling bool
	// RequireCSIDrivers says that it does so with the volumes of all CSI drivers.
	RequireCSIDrivers bool
	// StorageShape is by what VolumeBinding scores, by increasing utilization; empty unless kube-scheduler's feature gate
	// StorageCapacityScoring is on.
	StorageShape []ShapePoint
	// TaintComparison is kube-scheduler's feature gate TaintTolerationComparisonOperators: tolerations with the operators Lt and Gt tolerate taints whose values are lower, or greater, integers.
	TaintComparison bool
	// PreEnqueues are the plugins of others that run at PreEnqueue, in order: they say which pods may be tried.
	PreEnqueues []string
	// QueueSort is the plugin of others that sorts the queue, the same of all profiles. "": none, and pods are sorted by priority, and then by time.
	QueueSort string
}

// gated reports whether something is on that is off by default.
func (p Profile) gated() bool {
	return p.VolumeLimitScaling || p.RequireCSIDrivers || len(p.StorageShape) > 0 || p.TaintComparison
}

// Settings are what all roles must agree on; the binder says them at the start of an epoch, and again when it gains or loses
// a name.
type Settings struct {
	Shards   int32  // number of queue shards, at least 1
	Seed     uint64 // of the order in which nodes of equal score are preferred
	Profiles []Profile
	Source   string // where the cluster comes from: "kube" or "local"
	// InitialBackoffSeconds is how long a pod backs off after its first failed attempt; it doubles with each further one
	// up to MaxBackoffSeconds. 0 means 1 and 10.
	InitialBackoffSeconds, MaxBackoffSeconds int64
	// MaxUnschedulableSeconds is after how long an unschedulable pod is tried again though nothing has happened that could
	// help it. 0 means 300.
	MaxUnschedulableSeconds int64
	// PreemptionSeesVolumes: where room is looked for, volumes count as detached that only victims use. kube-scheduler counts them as long as
	// a VolumeAttachment says that they are attached.
	PreemptionSeesVolumes bool
	// Yielded are the scheduler names whose pods are left to another scheduler at the moment, in alphabetical order, and
	// YieldedTo says to whom and why, for people.
	Yielded   []string
	YieldedTo string
}

// Yields reports whether the pods of a scheduler name are left to another scheduler.
func (s *Settings) Yields(schedulerName string) bool {
	return slices.Contains(s.Yielded, schedulerName)
}

// Yielding returns the settings with other names yielded.
func (s Settings) Yielding(names []string, to string) Settings {
	s.Yielded, s.YieldedTo = names, to
	return s
}

// SystemSpread are kube-scheduler's default constraints.
func SystemSpread() []SpreadConstraint {
	return []SpreadConstraint{
		{TopologyKey: "kubernetes.io/hostname", MaxSkew: 3, MinDomains: 1, HonorAffinity: true},
		{TopologyKey: "topology.kubernetes.io/zone", MaxSkew: 5, MinDomains: 1, HonorAffinity: true},
	}
}
