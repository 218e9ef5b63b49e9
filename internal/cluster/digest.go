package cluster

import "slices"

// The digest is the sum of one hash per thing, so that it changes in constant time and does not depend on the order
// in which things came. The numbers below keep hashes of different kinds of things apart.
const (
	kindSettings = iota + 1
	kindNamespace
	kindImage
	kindSums
	kindPod
	kindClass
	kindNode
	kindOrphan
	kindLabels
	kindSelector
	kindObject // and what follows: see ObjectKind
)

func hashSettings(settings Settings) uint64 {
	if settings.Shards == 0 {
		return 0 // not said yet
	}
	var e Encoder
	e.Int(kindSettings)
	e.Int(int64(settings.Shards))
	e.Int(int64(settings.Seed))
	list(&e, settings.Profiles, encodeProfile)
	e.Text(settings.Source)
	e.Int(settings.InitialBackoffSeconds)
	e.Int(settings.MaxBackoffSeconds)
	e.Int(settings.MaxUnschedulableSeconds)
	if len(settings.Yielded) > 0 || settings.YieldedTo != "" { // else the digest is that of versions of Berth that know of no such names
		list(&e, settings.Yielded, encodeText)
		e.Text(settings.YieldedTo)
	}
	if settings.PreemptionSeesVolumes { // likewise
		e.Text("preemption sees volumes")
	}
	if slices.ContainsFunc(settings.Profiles, Profile.gated) { // likewise
		e.Text("gates")
		list(&e, settings.Profiles, encodeGates)
	}
	if slices.ContainsFunc(settings.Profiles, func(p Profile) bool { return len(p.PreEnqueues) > 0 }) { // likewise
		e.Text("pre-enqueues")
		list(&e, settings.Profiles, func(e *Encoder, p Profile) { list(e, p.PreEnqueues, encodeText) })
	}
	if slices.ContainsFunc(settings.Profiles, func(p Profile) bool { return p.QueueSort != "" }) { // likewise
		e.Text("queue sort")
		list(&e, settings.Profiles, func(e *Encoder, p Profile) { e.Text(p.QueueSort) })
	}
	return hashBytes(e.b)
}

func hashNamespace(name string, labels []Label) uint64 {
	var e Encoder
	e.Int(kindNamespace)
	e.Text(name)
	list(&e, labels, encodeLabel)
	return hashBytes(e.b)
}

func hashImage(name string, size int64) uint64 {
	return fold(hashText(kindImage, name), size)
}

// nodeSums hashes what the pods of a node add up to. Resources of which the node has none requested do not count, so
// that it does not matter in which order resources were first seen.
func (s *State) nodeSums(i NodeIndex) uint64 {
	n := &s.Nodes
	h := fold(kindSums, int64(i), int64(n.PodCount[i]), n.NonZeroCPU[i], n.NonZeroMemory[i])
	sum := uint64(0)
	for r := range n.Requested {
		if v := n.Requested[r][i]; v != 0 {
			sum += fold(s.resourceHash[r], int64(i), v)
		}
	}
	return h + sum + n.portHash[i]
}

func (p *PodRow) digest(id PodID) uint64 {
	flags := int64(0)
	for k, flag := range []bool{p.Deleting, p.Preempted, p.Preempting, p.Victim} {
		if flag {
			flags |= 1 << k
		}
	}
	h := fold(p.hash, int64(id), int64(p.Phase), int64(p.Node), int64(p.Attempt), flags)
	if p.Node == NoNode && p.NodeName != "" {
		h += fold(hashText(kindOrphan, p.NodeName), int64(id)) // of others the index says the name
	}
	return h
}

// hashPod hashes what does not change from phase to phase.
func (s *State) hashPod(p *Pod) uint64 {
	e := Encoder{s.scratch[:0]}
	e.Int(kindPod)
	e.Text(p.UID)
	e.Text(p.Namespace)
	e.Text(p.Name)
	e.Int(int64(p.Class))
	e.Int(int64(p.Priority))
	e.Text(p.RequiredNode)
	e.Int(p.Created)
	e.Int(int64(len(p.Gates)))
	for _, gate := range p.Gates {
		e.Text(gate)
	}
	e.Int(int64(p.Labels))
	e.Text(p.Nominated)
	e.Int(p.Started)
	e.Bool(p.NeverPreempts)
	if p.Group != "" || p.Ends != 0 { // members of the release before know neither
		e.Text(p.Group)
	}
	if p.Ends != 0 {
		e.Int(int64(p.Ends))
	}
	s.scratch = e.b
	return hashBytes(e.b)
}

func (c *Class) digest() uint64 { return fold(kindClass, int64(c.ID), int64(c.Hash)) }

func (l *Labels) digest() uint64 { return fold(kindLabels, int64(l.ID), int64(l.hash)) }

func hashSelector(key selectorKey, s LabelSelector) uint64 {
	var e Encoder
	e.Int(kindSelector)
	e.Text(key.kind)
	e.Text(key.namespace)
	e.Text(key.name)
	encodeSelector(&e, s)
	return hashBytes(e.b)
}
