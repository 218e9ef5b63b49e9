package cluster

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// encoder writes values in one canonical, unambiguous form. Its bytes are class keys and the input of digests; they
// are never stored or sent.
type encoder struct{ b []byte }

func (e *encoder) int(v int64) { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) text(s string) {
	e.int(int64(len(s)))
	e.b = append(e.b, s...)
}
func (e *encoder) bool(v bool) {
	if v {
		e.int(1)
	} else {
		e.int(0)
	}
}

func list[T any](e *encoder, items []T, one func(*encoder, T)) {
	e.int(int64(len(items)))
	for _, it := range items {
		one(e, it)
	}
}

func encodeText(e *encoder, s string)       { e.text(s) }
func encodeLabel(e *encoder, l Label)       { e.text(l.Key); e.text(l.Value) }
func encodeQuantity(e *encoder, q Quantity) { e.text(q.Name); e.int(q.Value) }
func encodeTaint(e *encoder, t Taint)       { e.text(t.Key); e.text(t.Value); e.text(t.Effect) }
func encodeImage(e *encoder, i Image)       { list(e, i.Names, encodeText); e.int(i.Size) }
func encodeWeight(e *encoder, w PluginWeight) {
	e.text(w.Name)
	e.int(w.Weight)
}
func encodeToleration(e *encoder, t Toleration) {
	e.text(t.Key)
	e.text(t.Operator)
	e.text(t.Value)
	e.text(t.Effect)
}
func encodeRequirement(e *encoder, r Requirement) {
	e.text(r.Key)
	e.text(r.Operator)
	list(e, r.Values, encodeText)
}
func encodeTerm(e *encoder, t NodeSelectorTerm) {
	list(e, t.Expressions, encodeRequirement)
	list(e, t.Fields, encodeRequirement)
}
func encodePreferred(e *encoder, t PreferredTerm) {
	e.int(int64(t.Weight))
	encodeTerm(e, t.Term)
}
func encodeSelector(e *encoder, s LabelSelector) {
	e.bool(s.Nothing)
	list(e, s.Requirements, encodeRequirement)
}
func encodePodTerm(e *encoder, t PodTerm) {
	e.text(t.TopologyKey)
	list(e, t.Namespaces, encodeText)
	encodeSelector(e, t.NamespaceSelector)
	encodeSelector(e, t.Selector)
}
func encodeWeightedPodTerm(e *encoder, t WeightedPodTerm) {
	e.int(int64(t.Weight))
	encodePodTerm(e, t.Term)
}
func encodeSpread(e *encoder, c SpreadConstraint) {
	e.text(c.TopologyKey)
	e.int(int64(c.MaxSkew))
	e.int(int64(c.MinDomains))
	e.bool(c.Hard)
	e.bool(c.HonorAffinity)
	e.bool(c.HonorTaints)
	encodeSelector(e, c.Selector)
}
func encodePort(e *encoder, p HostPort) {
	e.text(p.IP)
	e.text(p.Protocol)
	e.int(int64(p.Port))
}
func encodePoint(e *encoder, p ShapePoint) { e.int(int64(p.Utilization)); e.int(int64(p.Score)) }
func encodeProfile(e *encoder, p Profile) {
	e.text(p.SchedulerName)
	list(e, p.PreFilters, encodeText)
	list(e, p.Filters, encodeText)
	list(e, p.Weights, encodeWeight)
	e.text(p.FitStrategy)
	list(e, p.FitResources, encodeWeight)
	list(e, p.Shape, encodePoint)
	list(e, p.BalancedResources, encodeText)
	list(e, p.IgnoredResources, encodeText)
	list(e, p.IgnoredResourceGroups, encodeText)
	list(e, p.AddedRequired, encodeTerm)
	e.bool(p.HasAddedRequired)
	list(e, p.AddedPreferred, encodePreferred)
	e.int(int64(p.HardPodAffinityWeight))
	e.bool(p.IgnorePreferredTerms)
	list(e, p.DefaultSpread, encodeSpread)
	e.bool(p.SystemSpread)
	e.int(int64(p.PercentageOfNodesToScore))
	list(e, p.PostFilters, encodeText)
}
func encodeNode(e *encoder, n *Node) {
	e.text(n.Name)
	list(e, n.Labels, encodeLabel)
	encodeShape(e, n)
}

func encodeShape(e *encoder, n *Node) {
	list(e, n.Taints, encodeTaint)
	e.bool(n.Unschedulable)
	list(e, n.Allocatable, encodeQuantity)
	list(e, n.Images, encodeImage)
	list(e, n.Features, encodeText)
	if n.Unsupported != "" { // the last of it: others hash as they did before there was this field
		e.text(n.Unsupported)
	}
}

// Key returns a string that is equal for equal specs only. Equal specs have equal keys in every process.
func (s *ClassSpec) Key() string {
	var e encoder
	e.text(s.SchedulerName)
	list(&e, s.Requests, encodeQuantity)
	list(&e, s.ScoreRequests, encodeQuantity)
	e.int(s.NonZeroCPU)
	e.int(s.NonZeroMemory)
	list(&e, s.Tolerations, encodeToleration)
	list(&e, s.NodeSelector, encodeLabel)
	list(&e, s.Required, encodeTerm)
	e.bool(s.HasRequired)
	list(&e, s.Preferred, encodePreferred)
	list(&e, s.HostPorts, encodePort)
	list(&e, s.Images, encodeText)
	e.int(int64(s.ImageContainers))
	list(&e, s.Affinity, encodePodTerm)
	list(&e, s.AntiAffinity, encodePodTerm)
	list(&e, s.PreferredAffinity, encodeWeightedPodTerm)
	list(&e, s.PreferredAntiAffinity, encodeWeightedPodTerm)
	list(&e, s.Spread, encodeSpread)
	list(&e, s.Features, encodeText)
	e.text(s.NodeName)
	e.text(s.Unsupported)
	e.text(s.UnsupportedPlugin)
	return string(e.b)
}

// Key returns a string that is equal for equal sets only. Equal sets have equal keys in every process.
func (s *LabelSet) Key() string {
	var e encoder
	e.text(s.Namespace)
	list(&e, s.Labels, encodeLabel)
	e.text(s.Controller.Kind)
	e.text(s.Controller.Name)
	return string(e.b)
}

// Hash returns a well-spread hash of the spec, the same in every process. It decides a class's queue shard.
func (s *ClassSpec) Hash() uint64 { return hashBytes([]byte(s.Key())) }

// hashBytes is FNV-1a, finished with Mix. Members of several releases compare what it returns, so it never changes.
func hashBytes(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // never fails
	return Mix(h.Sum64())
}

func hashText(kind uint64, parts ...string) uint64 {
	var e encoder
	e.int(int64(kind))
	for _, p := range parts {
		e.text(p)
	}
	return hashBytes(e.b)
}

// Mix is a bijection that spreads every bit of x over the result (SplitMix64's finalizer).
func Mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// fold hashes a sequence of numbers.
func fold(seed uint64, values ...int64) uint64 {
	h := seed
	for _, v := range values {
		h = Mix(bits.RotateLeft64(h, 25) ^ uint64(v))
	}
	return h
}
