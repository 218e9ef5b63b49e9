package cluster

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// Encoder writes values in one canonical, unambiguous form. Its bytes are class keys and the input of digests; of objects they
// are what the log carries too.
type Encoder struct{ b []byte }

// Int writes a number.
func (e *Encoder) Int(v int64) { e.b = binary.AppendVarint(e.b, v) }

// Text writes a text.
func (e *Encoder) Text(s string) {
	e.Int(int64(len(s)))
	e.b = append(e.b, s...)
}

// Texts writes a list of texts.
func (e *Encoder) Texts(texts []string) { list(e, texts, encodeText) }

// Bool writes whether something is so.
func (e *Encoder) Bool(v bool) {
	if v {
		e.Int(1)
	} else {
		e.Int(0)
	}
}

func list[T any](e *Encoder, items []T, one func(*Encoder, T)) {
	e.Int(int64(len(items)))
	for _, it := range items {
		one(e, it)
	}
}

func encodeText(e *Encoder, s string)       { e.Text(s) }
func encodeLabel(e *Encoder, l Label)       { e.Text(l.Key); e.Text(l.Value) }
func encodeQuantity(e *Encoder, q Quantity) { e.Text(q.Name); e.Int(q.Value) }
func encodeTaint(e *Encoder, t Taint)       { e.Text(t.Key); e.Text(t.Value); e.Text(t.Effect) }
func encodeImage(e *Encoder, i Image)       { list(e, i.Names, encodeText); e.Int(i.Size) }
func encodeWeight(e *Encoder, w PluginWeight) {
	e.Text(w.Name)
	e.Int(w.Weight)
}
func encodeToleration(e *Encoder, t Toleration) {
	e.Text(t.Key)
	e.Text(t.Operator)
	e.Text(t.Value)
	e.Text(t.Effect)
}
func encodeRequirement(e *Encoder, r Requirement) {
	e.Text(r.Key)
	e.Text(r.Operator)
	list(e, r.Values, encodeText)
}
func encodeTerm(e *Encoder, t NodeSelectorTerm) {
	list(e, t.Expressions, encodeRequirement)
	list(e, t.Fields, encodeRequirement)
}
func encodePreferred(e *Encoder, t PreferredTerm) {
	e.Int(int64(t.Weight))
	encodeTerm(e, t.Term)
}
func encodeSelector(e *Encoder, s LabelSelector) {
	e.Bool(s.Nothing)
	list(e, s.Requirements, encodeRequirement)
}
func encodePodTerm(e *Encoder, t PodTerm) {
	e.Text(t.TopologyKey)
	list(e, t.Namespaces, encodeText)
	encodeSelector(e, t.NamespaceSelector)
	encodeSelector(e, t.Selector)
}
func encodeWeightedPodTerm(e *Encoder, t WeightedPodTerm) {
	e.Int(int64(t.Weight))
	encodePodTerm(e, t.Term)
}
func encodeSpread(e *Encoder, c SpreadConstraint) {
	e.Text(c.TopologyKey)
	e.Int(int64(c.MaxSkew))
	e.Int(int64(c.MinDomains))
	e.Bool(c.Hard)
	e.Bool(c.HonorAffinity)
	e.Bool(c.HonorTaints)
	encodeSelector(e, c.Selector)
}
func encodeMigration(e *Encoder, m Migration) {
	e.Text(m.Plugin)
	e.Text(m.Driver)
	e.Text(m.Handle)
	e.Text(m.Error)
}
func encodeDisk(e *Encoder, d Disk) {
	e.Text(d.Kind)
	e.Text(d.ID)
	e.Text(d.Pool)
	e.Texts(d.Monitors)
	e.Bool(d.ReadOnly)
	encodeMigration(e, d.Migration)
}
func encodeClaim(e *Encoder, c PodClaim) {
	e.Text(c.Name)
	e.Bool(c.Ephemeral)
	e.Text(c.PodUID)
}
func encodePort(e *Encoder, p HostPort) {
	e.Text(p.IP)
	e.Text(p.Protocol)
	e.Int(int64(p.Port))
}
func encodePoint(e *Encoder, p ShapePoint) { e.Int(int64(p.Utilization)); e.Int(int64(p.Score)) }
func encodeProfile(e *Encoder, p Profile) {
	e.Text(p.SchedulerName)
	list(e, p.PreFilters, encodeText)
	list(e, p.Filters, encodeText)
	list(e, p.Weights, encodeWeight)
	e.Text(p.FitStrategy)
	list(e, p.FitResources, encodeWeight)
	list(e, p.Shape, encodePoint)
	list(e, p.BalancedResources, encodeText)
	list(e, p.IgnoredResources, encodeText)
	list(e, p.IgnoredResourceGroups, encodeText)
	list(e, p.AddedRequired, encodeTerm)
	e.Bool(p.HasAddedRequired)
	list(e, p.AddedPreferred, encodePreferred)
	e.Int(int64(p.HardPodAffinityWeight))
	e.Bool(p.IgnorePreferredTerms)
	list(e, p.DefaultSpread, encodeSpread)
	e.Bool(p.SystemSpread)
	e.Int(int64(p.PercentageOfNodesToScore))
	list(e, p.PostFilters, encodeText)
}

// encodeGates writes what encodeProfile does not: members that do not know of it write none, either.
func encodeGates(e *Encoder, p Profile) {
	e.Bool(p.VolumeLimitScaling)
	e.Bool(p.RequireCSIDrivers)
	list(e, p.StorageShape, encodePoint)
	if p.TaintComparison { // the last of it: others hash as they did before there was this field
		e.Bool(true)
	}
}
func encodeNode(e *Encoder, n *Node) {
	e.Text(n.Name)
	list(e, n.Labels, encodeLabel)
	encodeShape(e, n)
}

func encodeShape(e *Encoder, n *Node) {
	list(e, n.Taints, encodeTaint)
	e.Bool(n.Unschedulable)
	list(e, n.Allocatable, encodeQuantity)
	list(e, n.Images, encodeImage)
	list(e, n.Features, encodeText)
	if n.Unsupported != "" { // the last of it: others hash as they did before there was this field
		e.Text(n.Unsupported)
	}
}

// Key returns a string that is equal for equal specs only. Equal specs have equal keys in every process.
func (s *ClassSpec) Key() string {
	var e Encoder
	e.Text(s.SchedulerName)
	list(&e, s.Requests, encodeQuantity)
	list(&e, s.ScoreRequests, encodeQuantity)
	e.Int(s.NonZeroCPU)
	e.Int(s.NonZeroMemory)
	list(&e, s.Tolerations, encodeToleration)
	list(&e, s.NodeSelector, encodeLabel)
	list(&e, s.Required, encodeTerm)
	e.Bool(s.HasRequired)
	list(&e, s.Preferred, encodePreferred)
	list(&e, s.HostPorts, encodePort)
	list(&e, s.Images, encodeText)
	e.Int(int64(s.ImageContainers))
	list(&e, s.Affinity, encodePodTerm)
	list(&e, s.AntiAffinity, encodePodTerm)
	list(&e, s.PreferredAffinity, encodeWeightedPodTerm)
	list(&e, s.PreferredAntiAffinity, encodeWeightedPodTerm)
	list(&e, s.Spread, encodeSpread)
	list(&e, s.Features, encodeText)
	e.Text(s.NodeName)
	e.Text(s.Unsupported)
	e.Text(s.UnsupportedPlugin)
	if len(s.Disks) > 0 { // the last of it: others have the keys that they had before there was this field
		list(&e, s.Disks, encodeDisk)
	}
	return string(e.b)
}

// Key returns a string that is equal for equal sets only. Equal sets have equal keys in every process.
func (s *LabelSet) Key() string {
	var e Encoder
	e.Text(s.Namespace)
	list(&e, s.Labels, encodeLabel)
	e.Text(s.Controller.Kind)
	e.Text(s.Controller.Name)
	if len(s.Claims) > 0 { // as with ClassSpec.Disks
		list(&e, s.Claims, encodeClaim)
	}
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
	var e Encoder
	e.Int(int64(kind))
	for _, p := range parts {
		e.Text(p)
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
