package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// VolumeRestrictions keeps pods apart whose volumes only one pod can use.
//
// A disk that is named in a pod's spec conflicts with the same disk of a pod on the node, unless both use it read-only. Two are the same
// if kind and ID are; of RBD also the pool and one of the monitors. A claim that has the access mode ReadWriteOncePod conflicts on every node
// with whoever uses it by its name, wherever that is. Removing pods would help against both.
//
// A claim that is named and does not exist makes the pod unschedulable at PreFilter, unresolvably.
const VolumeRestrictions = "VolumeRestrictions"

// VolumeRestrictions' reasons.
const (
	ReasonDiskConflict  = "node(s) had no available disk"
	ReasonClaimConflict = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)

// readWriteOncePod is the access mode of a claim that only one pod can use.
const readWriteOncePod = "ReadWriteOncePod"

var volumeRestrictions = Descriptor{
	Name: VolumeRestrictions, Points: []string{"preFilter", "filter"}, Needs: map[string][]string{"filter": {"preFilter"}},
	Judges: []Aspect{SharedDisks}, Predicates: []string{"NoDiskConflict"},
	hints:   hints{pod: diskGone},
	reasons: []Reason{{Text: ReasonDiskConflict}, {Text: ReasonClaimConflict}},
	refuses: true,
	resolve: func(r *resolving) string {
		d := &r.out.restrictions
		var names []string
		for k, by := range r.claims {
			claim := r.reads[k].claim
			switch {
			case by.Ephemeral:
			case claim == nil:
				return claimNotFound(by.Name)
			case slices.Contains(claim.AccessModes, readWriteOncePod):
				names = append(names, by.Name)
				if r.reads[k].used && !slices.Contains(names[:len(names)-1], by.Name) {
					d.inUse++
				}
			}
		}
		r.out.excluded = d.inUse > 0 && slices.Contains(r.profile.Filters, VolumeRestrictions)
		// As kube-scheduler does, it lets pods that are nominated to a node have such a claim, unless there is more to look at.
		if d.inUse > 0 || hasSharedDisks(r.spec) {
			slices.Sort(names)
			d.exclusive = slices.Compact(names)
		}
		return ""
	},
	compile: func(c *compiler) compiled {
		if c.volumes == nil {
			return compiled{}
		}
		p := &restrictions{code: c.plugin.code, restrictionsDemand: c.volumes.restrictions, disks: indexDisks(c.spec)}
		if p.disks == nil && p.inUse == 0 {
			return compiled{}
		}
		c.program.volumes.restrictions = p
		return compiled{filter: p.filter, survey: p.survey}
	},
	detail: func(s *surveyor, i cluster.NodeIndex, l *Lack) {
		if l.Reason == ReasonDiskConflict {
			p := restrictions{disks: indexDisks(s.spec)}
			l.Blocker = s.find(i, func(other *cluster.PodRow) bool { return p.conflicts(s.st.Class(other.Class)) })
			return
		}
		for _, own := range s.claims() {
			if l.Of == nil || !slices.Contains(l.Of.Claims, own.by.Name) {
				continue
			}
			for id := range s.st.ClaimUserIDs(s.pod.Namespace, own.by.Name) {
				if id != s.id && (l.Blocker == cluster.NoPod || id < l.Blocker) {
					l.Blocker = id
				}
			}
		}
	},
	short: byReason(
		wording{begin: ReasonDiskConflict, one: "has a disk of it in use by others", many: "have a disk of it in use by others"},
		because(ReasonClaimConflict, "", "a claim that only one pod can use is in use by another"),
		claimIsMissing,
	),
	text: func(l *Lack, by Blocker) string {
		switch {
		case l.Reason == ReasonDiskConflict:
			return "a disk of the pod is in use there by " + by.or("another pod")
		case l.Reason == ReasonClaimConflict && l.Of != nil:
			return l.Of.of() + ": only one pod can use " + plural(len(l.Of.Claims), "it", "them") + ", and " + by.or("another pod") + " does"
		case l.Reason == ReasonClaimConflict:
			return "a claim of the pod that only one pod can use is in use by another pod"
		}
		return l.Reason
	},
}

// The places of the reasons.
const (
	restrictedDisk Verdict = iota
	restrictedClaim
)

// restrictionsDemand is what the plugin has to know of a pod's claims. Its disks are in the class.
type restrictionsDemand struct {
	inUse     int32    // how many of the claims that only one pod can use are in use
	exclusive []string // the names of all of these, in alphabetical order, if they matter
}

func (d *restrictionsDemand) write(key *signatureKey) {
	if len(d.exclusive) == 0 {
		return
	}
	key.text(VolumeRestrictions)
	key.int(int(d.inUse))
	key.int(len(d.exclusive))
	for _, name := range d.exclusive {
		key.text(name)
	}
}

// claimNotFound is what kube-scheduler says of a claim that does not exist.
func claimNotFound(name string) string {
	return fmt.Sprintf("persistentvolumeclaim %q not found", name)
}

// onlyForOnePod reports whether only one pod can use a claim.
func onlyForOnePod(claim *cluster.PersistentVolumeClaim) bool {
	return slices.Contains(claim.AccessModes, readWriteOncePod)
}

func hasSharedDisks(spec *cluster.ClassSpec) bool {
	return slices.ContainsFunc(spec.Disks, func(d cluster.Disk) bool { return d.Kind != "" })
}

// restrictions is the plugin of a signature.
type restrictions struct {
	code Verdict
	restrictionsDemand
	disks map[diskName]bool // nil: none

	// known says of classes whether their disks conflict. Spans of an evaluation ask at the same time.
	known sync.Map // bool by cluster.ClassID
	count atomic.Int32
}

// mostKnownClasses bounds restrictions.known.
const mostKnownClasses = 1 << 8

// diskName is what two disks that are the same have in common. One of RBD has a name for each of its monitors.
type diskName struct{ kind, id, pool, monitor string }

// indexDisks returns the names of the disks that only one pod can use, and whether one of that name is used for more than reading. It is
// as large as the spec, however many disks are compared with it.
func indexDisks(spec *cluster.ClassSpec) map[diskName]bool {
	if !hasSharedDisks(spec) {
		return nil
	}
	out := make(map[diskName]bool)
	for k := range spec.Disks {
		d := &spec.Disks[k]
		namesOf(d, func(name diskName) bool {
			out[name] = out[name] || !d.ReadOnly
			return false
		})
	}
	return out
}

// namesOf calls f with each name of a disk that is not passed over, until it says true, and reports whether it has.
func namesOf(d *cluster.Disk, f func(diskName) bool) bool {
	switch d.Kind {
	case "":
		return false
	case cluster.DiskRBD:
		return slices.ContainsFunc(d.Monitors, func(m string) bool { return f(diskName{d.Kind, d.ID, d.Pool, m}) })
	}
	return f(diskName{kind: d.Kind, id: d.ID})
}

// conflicts reports whether disks of a class conflict with the pod's.
func (p *restrictions) conflicts(class *cluster.Class) bool {
	if p.disks == nil || len(class.Spec.Disks) == 0 {
		return false
	}
	known, found := p.known.Load(class.ID)
	is, _ := known.(bool)
	if !found {
		is = slices.ContainsFunc(class.Spec.Disks, func(d cluster.Disk) bool {
			return namesOf(&d, func(name diskName) bool {
				writes, same := p.disks[name]
				return same && (writes || !d.ReadOnly)
			})
		})
		if p.count.Add(1) >= mostKnownClasses {
			p.count.Store(0)
			p.known.Clear()
		}
		p.known.Store(class.ID, is)
	}
	return is
}

// conflicting returns how many pods of a node have disks that conflict.
func (p *restrictions) conflicting(st *cluster.State, i cluster.NodeIndex) (n int32) {
	for _, pod := range st.PodsOn(i) {
		if p.conflicts(st.Class(pod.Class)) {
			n++
		}
	}
	return n
}

func (p *restrictions) filter(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	switch {
	case p.diskInUse(st, i, h):
		return p.code + restrictedDisk
	case p.claimInUse(h):
		return p.code + restrictedClaim
	}
	return codeFeasible
}

// diskInUse reports whether a pod of a node has a disk that conflicts.
func (p *restrictions) diskInUse(st *cluster.State, i cluster.NodeIndex, h *overlay) bool {
	if p.disks == nil {
		return false
	}
	v := h.extra()
	if v == nil {
		return p.conflicting(st, i) > 0
	}
	if !v.counted {
		v.base, v.counted = p.conflicting(st, i), true
	}
	return v.base+v.conflicts > 0
}

// claimInUse reports whether a pod uses a claim that only one pod can use.
func (p *restrictions) claimInUse(h *overlay) bool {
	references := p.inUse
	if v := h.extra(); v != nil {
		references += v.references
	}
	return references > 0
}

// survey adds both reasons. What holds with the pods that are nominated to a node may not hold without them, and the other way round.
func (p *restrictions) survey(s *surveyor) surveyFunc {
	exclusive := func(c *ownClaim) bool {
		return !c.by.Ephemeral && c.claim != nil && slices.Contains(c.claim.AccessModes, readWriteOncePod)
	}
	used := s.claimsThat(func(c *ownClaim) bool { return exclusive(c) && c.used })
	if len(used) == 0 { // by nominated pods, if any
		used = s.claimsThat(exclusive)
	}
	return func(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
		if p.diskInUse(s.st, i, nominees) || nominees != nil && p.diskInUse(s.st, i, nil) {
			out = append(out, Lack{Plugin: VolumeRestrictions, Reason: ReasonDiskConflict, Relative: 1, Help: HelpNewNode})
		}
		if p.claimInUse(nominees) || nominees != nil && p.claimInUse(nil) {
			out = append(out, Lack{Plugin: VolumeRestrictions, Reason: ReasonClaimConflict, Relative: 1, Of: &ClaimLack{Claims: used, InUse: true}})
		}
		return out
	}
}

// references returns how often a pod names claims that only one can use. As in kube-scheduler a name counts whatever namespace it is of, and
// as often as a pod names it.
func (p *restrictions) references(labels *cluster.Labels) (n int32) {
	if labels == nil || len(p.exclusive) == 0 {
		return 0
	}
	for _, by := range labels.Claims {
		if _, is := slices.BinarySearch(p.exclusive, by.Name); is && !by.Ephemeral {
			n++
		}
	}
	return n
}
