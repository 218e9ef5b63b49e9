package engine

import (
	"maps"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// podVolumes is what the claims and disks of pods come to, as far as the plugins of their profile that read volumes care. Pods for whom that
// is the same are treated alike, whatever their claims are called. It never changes, but for what current keeps.
type podVolumes struct {
	// refusal is why a plugin refuses the pods at PreFilter, "" if none does: then nothing else is known.
	refusal, refusedBy string

	restrictions restrictionsDemand
	limits       limitsDemand
	binding      bindingDemand
	zone         zoneDemand

	// What it was read from; see current.
	claims   []claimRead
	modified cluster.Seq // State.VolumesModified
	nominees uint64      // nomineeVolumes.changes
}

// claimRead is a claim of a pod with all that is read of what it is bound to, but for what that says of nodes. Two that are equal come to
// the same: objects never change.
type claimRead struct {
	claim  *cluster.PersistentVolumeClaim // nil: there is none
	volume *cluster.PersistentVolume      // that it names; nil: there is none
	class  *cluster.StorageClass          // that it names; nil: there is none
	used   bool                           // pods on nodes use it by its name
	counts cluster.ClaimVolume            // what it counts as where it is attached
	shared bool                           // that is attached somewhere, or to be
}

func readClaim(st *cluster.State, namespace, name string, nominees *nomineeVolumes) (r claimRead) {
	if r.claim = st.PersistentVolumeClaim(namespace, name); r.claim == nil {
		return r
	}
	if r.claim.Volume != "" {
		r.volume = st.PersistentVolume(r.claim.Volume)
	}
	if r.claim.Class != "" {
		r.class = st.StorageClass(r.claim.Class)
	}
	r.used = st.ClaimUsers(namespace, name) > 0
	if r.counts = st.ClaimVolume(namespace, name); r.counts.Driver != "" {
		r.shared = st.AttachedAnywhere(r.counts.Driver, r.counts.Handle) > 0 || nominees.has(r.counts.Driver, r.counts.Handle)
	}
	return r
}

// resolving is what a plugin finds out with what volumes come to.
type resolving struct {
	st     *cluster.State
	spec   *cluster.ClassSpec
	labels *cluster.Labels // nil: no claims
	claims []cluster.PodClaim
	reads  []claimRead // by claim
	out    *podVolumes
}

// resolveVolumes returns what the volumes of pods come to, and writes to key what tells signatures of the class apart. Nil: they have none.
func resolveVolumes(st *cluster.State, spec *cluster.ClassSpec, labels *cluster.Labels, profile *cluster.Profile, nominees func() *nomineeVolumes, key *signatureKey) *podVolumes {
	if len(spec.Disks) == 0 && (labels == nil || len(labels.Claims) == 0) {
		return nil
	}
	v := &podVolumes{modified: st.VolumesModified()}
	r := &resolving{st: st, spec: spec, labels: labels, out: v}
	if labels != nil && len(labels.Claims) > 0 {
		known := nominees()
		v.nominees = known.changed()
		r.claims, r.reads = labels.Claims, make([]claimRead, len(labels.Claims))
		for k, c := range labels.Claims {
			r.reads[k] = readClaim(st, labels.Namespace, c.Name, known)
		}
		v.claims = r.reads
	}
	// 1. Those that run at PreFilter, up to the first that refuses the pods.
	for _, name := range profile.PreFilters {
		if p := PluginOf(name); p != nil && p.resolve != nil {
			if v.refusal = p.resolve(r); v.refusal != "" {
				v.refusedBy = name
				break
			}
		}
	}
	// 2. Those that only filter.
	for _, name := range profile.Filters {
		if p := PluginOf(name); v.refusal == "" && p != nil && p.resolve != nil && !slices.Contains(profile.PreFilters, name) {
			p.resolve(r)
		}
	}
	if v.refusal != "" {
		v.restrictions, v.limits, v.binding, v.zone = restrictionsDemand{}, limitsDemand{}, bindingDemand{}, zoneDemand{}
	}
	v.write(key)
	return v
}

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

// current reports whether the volumes of pods with those labels still come to the same: it looks again at claims only if something has
// changed, and then at no more than whether these are what they were.
func (v *podVolumes) current(st *cluster.State, labels *cluster.Labels, nominees func() *nomineeVolumes) bool {
	if v == nil || len(v.claims) == 0 {
		return true
	}
	known, modified := nominees(), st.VolumesModified()
	if v.modified == modified && v.nominees == known.changed() {
		return true
	}
	for k, c := range labels.Claims {
		if readClaim(st, labels.Namespace, c.Name, known) != v.claims[k] {
			return false
		}
	}
	v.modified, v.nominees = modified, known.changed()
	return true
}

// mostNomineeClaims is how many claims of nominated pods are looked at to find out which volumes they use. If they have more, any volume is
// taken to be one of theirs: pods whose volumes are not the same are then of signatures of their own.
const mostNomineeClaims = 4096

// nomineeVolumes is what pods use that are nominated to nodes, by driver and handle.
type nomineeVolumes struct {
	all      map[[2]string]struct{}
	any      bool   // too many to tell
	changes  uint64 // grows when it is another set
	made     bool
	objects  cluster.Seq // State.VolumeObjectsModified
	nominees cluster.Seq // State.VolumeNomineesModified
}

func (n *nomineeVolumes) has(driver, handle string) bool {
	if n == nil {
		return false
	}
	_, found := n.all[[2]string{driver, handle}]
	return n.any || found
}

// changed returns a number that is another one when it is another set.
func (n *nomineeVolumes) changed() uint64 {
	if n == nil {
		return 0
	}
	return n.changes
}

// nomineeVolumes returns what nominated pods use now, nil if nothing. The lock is held.
func (e *Evaluator) nomineeVolumes(st *cluster.State) *nomineeVolumes {
	n := &e.nominees
	if st.VolumeNomineeCount() == 0 && len(n.all) == 0 && !n.any {
		return n
	}
	objects, nominees := st.VolumeObjectsModified(), st.VolumeNomineesModified()
	if n.made && n.objects == objects && n.nominees == nominees {
		return n
	}
	n.made, n.objects, n.nominees = true, objects, nominees
	all, claims := make(map[[2]string]struct{}), 0
	for id := range st.VolumeNominees() {
		row := st.Pod(id)
		class, labels := st.Class(row.Class), st.Labels(row.Labels)
		if claims += len(class.Spec.Disks); labels != nil {
			claims += len(labels.Claims)
		}
		if claims > mostNomineeClaims {
			break
		}
		uses, _ := st.Uses(class, labels, true)
		for _, u := range uses {
			all[[2]string{u.Driver, u.Handle}] = struct{}{}
		}
	}
	any := claims > mostNomineeClaims
	if any {
		all = nil
	}
	if any != n.any || !maps.Equal(all, n.all) {
		n.all, n.any = all, any
		n.changes++
	}
	return n
}

// volumeProgram is what a program has to know of other pods' volumes where they come to a node or go from it. Nil fields need nothing.
type volumeProgram struct {
	restrictions *restrictions
	limits       *limits
}

// nomineesChangedSince calls visit for each node where pods that are nominated to it may use other volumes than at a seq. What their claims
// come to changes no node.
func (p *program) nomineesChangedSince(st *cluster.State, seq cluster.Seq, visit func(cluster.NodeIndex)) {
	if p.volumes == nil || p.volumes.limits == nil || st.VolumeObjectsModified() <= seq {
		return
	}
	for id := range st.VolumeNominees() {
		if i := st.Nodes.ByName(st.Pod(id).Nominated); i != cluster.NoNode {
			visit(i)
		}
	}
}

// volumeOverlay is what pods that come to a node or go from it change there for the plugins that read volumes.
type volumeOverlay struct {
	references int32 // how many more times claims are named that only one pod can use
	conflicts  int32 // how many more pods have disks that conflict
	base       int32 // how many pods of the node itself do, once that is counted
	counted    bool
	uncounted  int32               // how many more volumes cannot be counted
	uses       map[[2]string]int32 // how many more uses there are of volumes, by driver and handle
	attached   []int32             // how many more volumes are attached, by place in limits.drivers
}

// move makes n pods come to a node, or go if n is negative. The overlay is one of program.overlay.
func (v *volumeProgram) move(o *overlay, st *cluster.State, i cluster.NodeIndex, class *cluster.Class, labels *cluster.Labels, n int32) {
	if v == nil || len(class.Spec.Disks) == 0 && (labels == nil || len(labels.Claims) == 0) {
		return
	}
	if v.restrictions != nil {
		v.restrictions.move(o.volumes, class, labels, n)
	}
	if v.limits != nil {
		v.limits.move(o.volumes, st, i, class, labels, n)
	}
}

// extra returns what an overlay changes, nothing if it is nil.
func (o *overlay) extra() *volumeOverlay {
	if o == nil {
		return nil
	}
	return o.volumes
}
