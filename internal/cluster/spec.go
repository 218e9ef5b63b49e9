package cluster

// NodeIndex is a node's place in the columns. It is dense, and used again after the node is removed.
type NodeIndex int32

// NoNode is the index of no node.
const NoNode NodeIndex = -1

// PodID is a pod's place in the pod table. It is dense, and used again after the pod is removed.
type PodID int32

// ClassID names a class within an epoch. It is never used again in the epoch.
type ClassID int32

// Quantity is an amount of a resource: milli-CPU for cpu, bytes for memory, the resource's own unit for others.
type Quantity struct {
	Name  string
	Value int64
}

// Label is a key with a value.
type Label struct{ Key, Value string }

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

// HostPort is a port a pod takes on its node. IP and Protocol are never empty: 0.0.0.0 and TCP are written out.
type HostPort struct {
	IP, Protocol string
	Port         int32
}

// ClassSpec is everything of a pod that filters and scores read, but its pin: pods with equal specs are of one class.
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
	// NodeName is spec.nodeName of a pod that is to be judged as if it were pending.
	NodeName string
	// Unsupported says why Berth cannot judge such a pod, and UnsupportedPlugin which plugin would have to. Empty if
	// it can. Such a pod is never placed.
	Unsupported, UnsupportedPlugin string
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
	Priority             int32
	Pin                  string   // the only node it may go to, by a metadata.name affinity; "": any
	Created              int64    // metadata.creationTimestamp in Unix nanoseconds
	Gates                []string // spec.schedulingGates
	Deleting             bool     // it has a deletionTimestamp
	NodeName             string   // the node it is bound to; "" while Pending or Assumed
	Attempt              int32    // the last attempt that was assumed
}

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
}

// Settings are what all roles must agree on; the binder says them at the start of an epoch.
type Settings struct {
	Shards   int32  // number of queue shards, at least 1
	Seed     uint64 // of the order in which nodes of equal score are preferred
	Profiles []Profile
	Source   string // where the cluster comes from: "kube" or "local"
	// InitialBackoffSeconds is how long a pod backs off after its first failed attempt; it doubles with each further one
	// up to MaxBackoffSeconds. 0 means 1 and 10.
	InitialBackoffSeconds, MaxBackoffSeconds int64
}

// DefaultProfile is kube-scheduler's default profile, of the plugins Berth has.
func DefaultProfile(schedulerName string) Profile {
	return Profile{
		SchedulerName: schedulerName,
		PreFilters:    []string{"NodeAffinity", "NodePorts", "NodeResourcesFit"},
		Filters: []string{
			"NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit",
		},
		Weights: []PluginWeight{
			{"TaintToleration", 3}, {"NodeAffinity", 2}, {"NodeResourcesFit", 1},
			{"NodeResourcesBalancedAllocation", 1}, {"ImageLocality", 1},
		},
		FitStrategy:       LeastAllocated,
		FitResources:      []PluginWeight{{"cpu", 1}, {"memory", 1}},
		BalancedResources: []string{"cpu", "memory"},
	}
}
