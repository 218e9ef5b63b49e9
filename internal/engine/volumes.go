package engine

import (
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// podVolumes is what the claims and disks of pods come to, as far as the plugins of their profile that read volumes care. Pods for whom that
// is the same are treated alike, whatever their claims are called. It never changes, but for what current keeps.
type podVolumes struct {
	// refusal is why a plugin refuses the pods at PreFilter, "" if none does: then nothing else is known.
	refusal, refusedBy string
	// excluded: each node is refused, as long as nobody goes: only one pod can use a claim, and another one does.
	excluded bool

	restrictions restrictionsDemand
	limits       limitsDemand
	binding      bindingDemand
	zone         zoneDemand

	// What it was read from; see current.
	unserved *cluster.Unserved // nil: all can be read
	claims   []claimRead
	drivers  []driverRead
	modified cluster.Seq // State.VolumesModified
}

// claimRead is a claim of a pod with all that is read of what it is bound to, but for what that says of nodes. Two that are equal come to
// the same: objects never change.
type claimRead struct {
	claim  *cluster.PersistentVolumeClaim // nil: there is none
	volume *cluster.PersistentVolume      // that it names; nil: there is none
	class  *cluster.StorageClass          // that it names; nil: there is none
	used   bool                           // pods on nodes use it by its name
	// Of a claim that has no volume: what has been chosen for it, what its class's driver says, and which volumes are kept for it.
	promisedVolume, promisedNode string
	promised                     *cluster.PersistentVolume // the volume; nil: there is none any more
	driver                       *cluster.CSIDriver
	kept                         string
	counts                       cluster.ClaimVolume // what it counts as where it is attached
	shared                       bool                // that is attached somewhere, or to be by pods that are nominated
}

// asOfNow is behind all seqs.
const asOfNow cluster.Seq = math.MaxInt64

// claimNameless is what kube-scheduler says of a claim that a pod names "".
const claimNameless = "PersistentVolumeClaim had no name"

// What is said of nodes for what several plugins say of a claim: claimNotFound, claimNameless, notMadeFor and bindingModeNotSet.
var (
	claimIsMissing  = because(`persistentvolumeclaim "`, `" not found`, "a claim of it does not exist")
	claimIsNameless = because(claimNameless, "", "a claim of it has no name")
	claimIsAnothers = because("PVC ", " (pod is not owner)", "a claim for an ephemeral volume of it was not made for it")
	classIsUnclear  = because("VolumeBindingMode not set ", "", "the storage class of a claim of it does not say when it is bound")
)

// readClaim reads a claim as if no volume had come into use since a seq.
func readClaim(st *cluster.State, namespace, name string, asOf cluster.Seq) (r claimRead) {
	if r.claim = st.PersistentVolumeClaim(namespace, name); r.claim == nil {
		return r
	}
	if r.claim.Volume != "" {
		r.volume = st.PersistentVolume(r.claim.Volume)
	}
	if r.claim.Class != "" {
		r.class = st.StorageClass(r.claim.Class)
	}
	if r.claim.Volume == "" && r.class != nil {
		r.readSupply(st)
	}
	r.used = st.ClaimUsers(namespace, name) > 0
	if r.counts = st.ClaimVolume(namespace, name); r.counts.Driver != "" {
		nodes, nominees, since := st.VolumeUsers(r.counts.Driver, r.counts.Handle)
		r.shared = nodes+nominees > 0 && since <= asOf
	}
	return r
}

// resolving is what a plugin finds out with what volumes come to.
type resolving struct {
	st      *cluster.State
	spec    *cluster.ClassSpec
	labels  *cluster.Labels // nil: no claims
	profile *cluster.Profile
	claims  []cluster.PodClaim
	reads   []claimRead // by claim
	out     *podVolumes
}

// resolveVolumes returns what the volumes of pods come to, and writes to key what tells signatures of the class apart. Nil: they have none.
func resolveVolumes(st *cluster.State, spec *cluster.ClassSpec, labels *cluster.Labels, profile *cluster.Profile, asOf cluster.Seq, key *signatureKey) *podVolumes {
	if len(spec.Disks) == 0 && (labels == nil || len(labels.Claims) == 0) {
		return nil
	}
	v := &podVolumes{modified: st.VolumesModified()}
	r := &resolving{st: st, spec: spec, labels: labels, profile: profile, out: v}
	if labels != nil && len(labels.Claims) > 0 {
		r.claims, r.reads = labels.Claims, make([]claimRead, len(labels.Claims))
		for k, c := range labels.Claims {
			r.reads[k] = readClaim(st, labels.Namespace, c.Name, asOf)
		}
		v.claims = r.reads
	}
	// 1. Those that run at PreFilter, up to the first that refuses the pods. What cannot be read, the first of them would have read.
	unserved := st.VolumesUnserved()
	v.unserved = unserved
	for _, name := range profile.PreFilters {
		if p := PluginOf(name); p != nil && p.resolve != nil {
			if unserved != nil {
				v.refusal = notServed(unserved)
			} else {
				v.refusal = p.resolve(r)
			}
			if v.refusal != "" {
				v.refusedBy = name
				break
			}
		}
	}
	// 2. Those that only filter.
	for _, name := range profile.Filters {
		if p := PluginOf(name); v.refusal == "" && p != nil && p.resolve != nil && !slices.Contains(profile.PreFilters, name) {
			if unserved != nil {
				v.refusal, v.refusedBy = notServed(unserved), name
			} else {
				p.resolve(r)
			}
		}
	}
	if v.refusal != "" {
		v.restrictions, v.limits, v.binding, v.zone = restrictionsDemand{}, limitsDemand{}, bindingDemand{}, zoneDemand{}
	}
	v.write(key)
	return v
}

// notServed says that what volumes are made of cannot be read.
func notServed(u *cluster.Unserved) string { return u.Name + " cannot be read: " + u.Why }

// write adds what the volumes come to, if it is anything, to a key that says other things before.
func (v *podVolumes) write(key *signatureKey) {
	var own signatureKey
	if v.refusal != "" {
		own.text(v.refusedBy)
		own.text(v.refusal)
	} else {
		v.restrictions.write(&own)
		v.limits.write(&own)
		v.binding.write(&own)
		v.zone.write(&own)
	}
	if len(own.b) == 0 {
		return
	}
	both := signatureKey{b: []byte("volumes")}
	both.text(string(key.b))
	both.b = append(both.b, own.b...)
	*key = both
}

// refuses reports whether the volumes are such that a pod fits no node.
func (v *podVolumes) refuses() bool { return v != nil && (v.refusal != "" || v.excluded) }

// current reports whether the volumes of pods with those labels still come to the same: it looks again at claims only if something has
// changed, and then at no more than whether these are what they were.
func (v *podVolumes) current(st *cluster.State, labels *cluster.Labels) bool {
	if v == nil || v.modified == st.VolumesModified() {
		return true
	}
	if v.unserved != st.VolumesUnserved() {
		return false
	}
	for k := range v.claims {
		if readClaim(st, labels.Namespace, labels.Claims[k].Name, asOfNow) != v.claims[k] {
			return false
		}
	}
	for _, was := range v.drivers {
		if st.CSIDriver(was.name) != was.is {
			return false
		}
	}
	v.modified = st.VolumesModified()
	return true
}

// volumeProgram is what a program has to know of other pods' volumes where they come to a node or go from it. Nil fields need nothing; if both
// are, so is the program's.
type volumeProgram struct {
	restrictions *restrictions
	limits       *limits
}

// movedPod is a pod that comes to a live node or goes from it. What its volumes change there is found out once, however often it moves.
type movedPod struct {
	class  *cluster.Class
	labels *cluster.Labels // may be nil

	counted    bool
	conflicts  bool  // its disks conflict
	references int32 // how often it names claims that only one pod can use
	failing    int32 // how many of its volumes cannot be counted
	uses       []movedUse
}

// movedUse is a volume that a moved pod uses.
type movedUse struct {
	driver int    // its place in limits.drivers
	handle string // of one that is not attached to the node
	there  int    // the place of one that is, among those of the driver; else -1
	n      int32  // how often the pod uses it
}

// volumeOverlay is what pods that come to a node or go from it change there for the plugins that read volumes.
type volumeOverlay struct {
	references int32 // how many more times claims are named that only one pod can use
	conflicts  int32 // how many more pods have disks that conflict
	base       int32 // how many pods of the node itself do, once that is counted
	counted    bool
	uncounted  int32              // how many more volumes cannot be counted
	there      [][]int32          // how many more uses there are of those that are attached, by places of driver and volume; nil: none
	uses       []map[string]int32 // likewise of those that are not, by place of the driver and handle
	attached   []int32            // how many more volumes are attached, by place of the driver
	// detaches: what pods use is detached when nobody does any more, whatever VolumeAttachments say. It is to be set when those have come that come, and
	// before anybody goes: what nobody of the node uses is attached already where one comes that does.
	detaches bool
	// detached: those are that no pod of the node uses as it is.
	detached bool
}

// moved returns a pod of a class and a label set, nil if its volumes change nothing wherever it comes or goes.
func (v *volumeProgram) moved(st *cluster.State, class cluster.ClassID, labels cluster.LabelsID) *movedPod {
	if v == nil {
		return nil
	}
	m := movedPod{class: st.Class(class), labels: st.Labels(labels)}
	if len(m.class.Spec.Disks) == 0 && (m.labels == nil || len(m.labels.Claims) == 0) {
		return nil
	}
	return &m
}

// count finds out what the volumes of a pod change on a node. Of a nominated pod volumes is what it would use, else nil.
func (v *volumeProgram) count(st *cluster.State, i cluster.NodeIndex, m *movedPod, volumes *cluster.PodVolumes) {
	m.counted = true
	if v.restrictions != nil {
		m.conflicts, m.references = v.restrictions.conflicts(m.class), v.restrictions.references(m.labels)
	}
	if v.limits != nil {
		v.limits.count(st, i, m, volumes)
	}
}

// move makes n pods come to a node, or go if n is negative. The overlay is one of program.overlay.
func (v *volumeProgram) move(o *overlay, st *cluster.State, i cluster.NodeIndex, m *movedPod, n int32) {
	if !m.counted {
		v.count(st, i, m, nil)
	}
	if m.conflicts {
		o.volumes.conflicts += n
	}
	if m.references > 0 {
		o.volumes.references += n * m.references
	}
	if m.failing > 0 || len(m.uses) > 0 {
		v.limits.move(o.volumes, st, i, m, n)
	}
}

// extra returns what an overlay changes, nothing if it is nil.
func (o *overlay) extra() *volumeOverlay {
	if o == nil {
		return nil
	}
	return o.volumes
}
