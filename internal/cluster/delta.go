package cluster

// Delta is one change of the ledger. Each advances the version by one; a delta that Apply refuses changes nothing.
type Delta interface{ delta() }

type (
	// SettingsSet says the settings of the epoch. It comes before every other delta, and again when the names that are yielded
	// have changed.
	SettingsSet struct{ Settings Settings }
	// ClassDefined introduces a class, before the first pod of it. A class without pods is dropped.
	ClassDefined struct {
		ID   ClassID
		Spec ClassSpec
	}
	// LabelsDefined introduces a label set, before the first pod of it. One without pods is dropped.
	LabelsDefined struct {
		ID  LabelsID
		Set LabelSet
	}
	// SelectorSet is a new service or controller, or its new selector.
	SelectorSet struct {
		Kind, Namespace, Name string
		Selector              LabelSelector
	}
	// SelectorRemoved takes a service or controller away.
	SelectorRemoved struct{ Kind, Namespace, Name string }
	// NodeSet is a new node, or the new content of the node at Index (whose name never changes).
	NodeSet struct {
		Index NodeIndex
		Node  Node
	}
	// NodeRemoved takes a node away. Pods placed on it stay known, and count again if it comes back.
	NodeRemoved struct{ Index NodeIndex }
	// NodeTouched says that of a node something has changed that no plugin reads and extenders may: its annotations, or the status of a condition. The state is as it
	// was: pods wait for it.
	NodeTouched struct{ Index NodeIndex }
	// NamespaceSet is a new namespace, or its new labels.
	NamespaceSet struct {
		Name   string
		Labels []Label
	}
	// NamespaceRemoved takes a namespace away.
	NamespaceRemoved struct{ Name string }
	// PodSet is a new pod, or the new content of the pod with ID. A pod that is assumed stays so while Pod.NodeName
	// is empty; with a NodeName it is bound there, whatever it was before, whether the node is known or not.
	PodSet struct {
		ID  PodID
		Pod Pod
		// Assumed says that the pod is assumed on Pod.NodeName rather than bound; Preempting and Victim are what PodRow
		// says, and Volumes is what has been chosen for an assumed one. Only in snapshots: else the pod stays what it is.
		Assumed, Preempting, Victim bool
		Volumes                     []VolumeChoice
	}
	// PodNominated says which node a pending pod is nominated to, "" for none, before its source does.
	PodNominated struct {
		ID   PodID
		Node string
	}
	// PodActivated says that a plugin wants a pending pod tried: now, whatever it waits for, or when it has served its backoff. NoPod: all that wait for whatever happens. The state is as it was.
	PodActivated struct {
		ID           PodID
		AfterBackoff bool
	}
	// PreemptionStarted nominates a pending pod to a node, marks pods of the node as its victims, and holds the pod back
	// until PreemptionEnded.
	PreemptionStarted struct {
		ID      PodID
		Node    NodeIndex
		Victims []PodID // the most important first
	}
	// PreemptionEnded says that the victims' evictions have been asked for, or that this has failed. The spared ones stay
	// where they are.
	PreemptionEnded struct {
		ID     PodID // NoPod if the pod they were to make room for is gone or placed
		Failed bool
		Spared []PodID
	}
	// ObjectSet is a new object of one of the kinds of ObjectKind, or its new content.
	ObjectSet struct {
		Object Object
		// More is what a later release of Berth says of the object that this one cannot read, encoded as it has come: it follows
		// what Object encodes. It counts in the digest, and nobody reads it.
		More string
	}
	// ObjectRemoved takes such an object away.
	ObjectRemoved struct{ ObjectKey }
	// PodAssumed places a pending pod on a node.
	PodAssumed struct {
		ID      PodID
		Node    NodeIndex
		Attempt int32
		// Volumes is what has been chosen for its claims that wait for a consumer. It is given back when the pod is not assumed any more.
		Volumes []VolumeChoice
	}
	// PodBound says that the bind of an assumed pod succeeded.
	PodBound struct{ ID PodID }
	// PodForgotten makes an assumed pod pending again: its bind failed.
	PodForgotten struct {
		ID     PodID
		Reason string
	}
	// PodRemoved takes a pod away.
	PodRemoved struct{ ID PodID }
	// ImageSized pins the size of an image name before nodes show it; only in snapshots.
	ImageSized struct {
		Name string
		Size int64
	}
)

func (SettingsSet) delta()       {}
func (ClassDefined) delta()      {}
func (LabelsDefined) delta()     {}
func (SelectorSet) delta()       {}
func (SelectorRemoved) delta()   {}
func (NodeSet) delta()           {}
func (NodeRemoved) delta()       {}
func (NodeTouched) delta()       {}
func (NamespaceSet) delta()      {}
func (NamespaceRemoved) delta()  {}
func (PodSet) delta()            {}
func (PodAssumed) delta()        {}
func (PodBound) delta()          {}
func (PodForgotten) delta()      {}
func (PodRemoved) delta()        {}
func (PodNominated) delta()      {}
func (PodActivated) delta()      {}
func (PreemptionStarted) delta() {}
func (PreemptionEnded) delta()   {}
func (ObjectSet) delta()         {}
func (ObjectRemoved) delta()     {}
func (ImageSized) delta()        {}
