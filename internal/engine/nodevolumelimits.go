package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// NodeVolumeLimits keeps pods off nodes to which no more volumes of a CSI driver can be attached: if the volumes that are attached, and those of
// the pod that no pod of the node uses, are more than the node's CSINode allows. Removing pods would help: see cluster.Settings.PreemptionSeesVolumes
// for volumes of which a VolumeAttachment tells, and detaching.
//
// With the feature gate VolumeLimitScaling it asks before whether the node's CSINode has the drivers of the pod's volumes at all, of which the
// CSIDriver says so; with Profile.RequireCSIDrivers of all. To kube-scheduler removing pods would help, too.
//
// A claim that does not exist, which another plugin says before unless the profile has none that does, fails every node, unresolvably.
//
// Where the volumes of some pod of the node cannot be counted, kube-scheduler's attempt ends with an error, on whatever nodes the pod may fit.
// Here it is that node that fails.
const NodeVolumeLimits = "NodeVolumeLimits"

// NodeVolumeLimits' reasons, but for what it says of a claim or a disk of the pod. The last four are Berth's own; of those one is of dry runs only,
// and one of whoever asks for them.
const (
	ReasonVolumeLimit      = "node(s) exceed max volume count"
	ReasonUncountedVolumes = "node(s) had pods whose volumes cannot be counted"
	ReasonUntoldLimits     = "node(s) had a CSINode that Berth could not take in"
	ReasonDetaching        = "node(s) had volumes attached that no pod uses any more"
	ReasonUndetached       = "node(s) had volumes attached of a driver that has not detached others in time"
	// ReasonNoDriver comes behind the driver's name.
	ReasonNoDriver = " CSI driver is not installed on the node"
)

var nodeVolumeLimits = Descriptor{
	Name: NodeVolumeLimits, Points: []string{"preFilter", "filter"},
	Judges: []Aspect{AttachedVolumes}, Predicates: []string{"MaxCSIVolumeCountPred"},
	hints:   hints{pod: attachedGone, volumes: attachedVolumes},
	reasons: []Reason{{Text: ReasonVolumeLimit, without: limitsExceededAlone}, {}, {fails: true}, {Text: ReasonUncountedVolumes}, {Text: ReasonUntoldLimits}, {Text: ReasonVolumeLimit, onlyWithout: true}, {}, {Text: ReasonDetaching}},
	resolve: func(r *resolving) string {
		r.out.limits = r.limits()
		r.out.limits.needs = r.needs(&r.out.limits)
		return ""
	},
	compile: func(c *compiler) compiled {
		if c.volumes == nil {
			return compiled{}
		}
		p := &limits{code: c.plugin.code, limitsDemand: c.volumes.limits}
		out := compiled{filter: p.filter, survey: p.survey}
		switch {
		case p.missing != "":
			out.texts = map[Verdict]string{p.code + limitsMissing: p.missing}
		case p.broken != "" || p.untranslated != "":
			out.texts = map[Verdict]string{p.code + limitsFailed: cmp.Or(p.broken, p.untranslated)}
		case len(p.drivers) == 0:
			return compiled{}
		}
		for _, need := range p.needs {
			out.drivers = append(out.drivers, need.driver+ReasonNoDriver)
		}
		c.program.volumes.limits = p
		return out
	},
	short: byReason(
		wording{begin: ReasonVolumeLimit, one: "has no room for its volumes", many: "have no room for its volumes"},
		wording{end: ReasonNoDriver, one: "does not have the CSI driver of its volumes", many: "do not have the CSI driver of its volumes"},
		wording{begin: ReasonUncountedVolumes, one: "has pods whose volumes cannot be counted", many: "have pods whose volumes cannot be counted"},
		wording{begin: ReasonUntoldLimits, one: "has a CSINode that is too large for Berth", many: "have CSINodes that are too large for Berth"},
		because("looking up PVC ", `" not found`, "a claim of it does not exist"),
		claimIsNameless, claimIsAnothers,
		because("", "", "a disk of it cannot be counted"), // Migration.Error
	),
	text: func(l *Lack, _ Blocker) string {
		if of := l.Of; of != nil && of.Driver != "" {
			who := "the pod"
			if len(of.Claims) > 0 {
				who = of.of()
			}
			if l.Reason == of.Driver+ReasonNoDriver {
				return fmt.Sprintf("%s: the CSI driver %s is not installed there, as far as its CSINode tells", who, of.Driver)
			}
			return fmt.Sprintf("%s: %d more %s of the driver %s would be attached to it, which takes %d and has %d", who, of.New, plural(int(of.New), "volume", "volumes"), of.Driver, of.Limit, of.Attached)
		}
		switch l.Reason {
		case ReasonVolumeLimit:
			return "so many volumes of the driver as the pod needs cannot be attached to it besides those that are"
		case ReasonUncountedVolumes:
			return "the volumes of a pod that is there cannot be counted, so nobody knows whether there is room for the pod's"
		case ReasonUntoldLimits:
			return "how many volumes can be attached to it is not known: its CSINode is too large for Berth"
		}
		return l.Reason
	},
}

// The places of the reasons.
const (
	limitsExceeded Verdict = iota
	limitsMissing
	limitsFailed
	limitsUncounted
	limitsUntold
	limitsExceededAlone // limitsExceeded, but not if the pods nominated to the node are there: they use the same volumes
	limitsNoDriver      // the verdict has which; codeNoDriver
	limitsDetaching     // of dry runs: whether somebody has to go, or how many, depends on volumes that are being detached
)

// limitsDemand is what pods want to have attached to a node that has a CSINode. On others there are no limits.
type limitsDemand struct {
	missing      string // what kube-scheduler says of a claim that does not exist, of the first if there are several
	broken       string // the error with which its attempt ends on any node
	untranslated string // likewise, on nodes that have a CSINode
	drivers      []driverDemand
	needs        []driverNeed // by driver
}

// driverNeed is that a driver has to be on a node for volumes to come there.
type driverNeed struct {
	driver string
	// migrated: of all the volumes an in-tree plugin has been replaced, so they are none of the driver's on nodes that have no CSINode.
	migrated bool
}

// driverRead is what there was of a CSIDriver when it was read; nil: nothing.
type driverRead struct {
	name string
	is   *cluster.CSIDriver
}

// driverDemand are volumes of a driver. Those that are new wherever a pod goes that uses them need no name.
type driverDemand struct {
	name    string
	handles []string // in alphabetical order
	others  int
}

// limits finds out what volumes the pods want. The volumes of one pod that are the same count once.
func (r *resolving) limits() (out limitsDemand) {
	type volume struct {
		driver, handle string
		named          bool
	}
	var all []volume
	for k, by := range r.claims {
		read := &r.reads[k]
		switch {
		case by.Name == "":
			out.broken = claimNameless
			return out
		case read.claim == nil:
			out.missing = fmt.Sprintf("looking up PVC %s/%s: %s", r.labels.Namespace, by.Name, claimNotFound(by.Name))
			return out
		case by.Ephemeral && !read.claim.MadeFor(by):
			out.broken = r.notMadeFor(by)
			return out
		case read.counts.Driver != "":
			all = append(all, volume{read.counts.Driver, read.counts.Handle, read.shared})
		}
	}
	for k := range r.spec.Disks {
		switch m := &r.spec.Disks[k].Migration; {
		case m.Error != "":
			out.untranslated = cmp.Or(out.untranslated, m.Error)
		case m.Driver != "":
			all = append(all, volume{m.Driver, m.Handle, true})
		}
	}
	slices.SortFunc(all, func(a, b volume) int {
		c := cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.handle, b.handle))
		if c == 0 && a.named != b.named {
			return map[bool]int{true: -1, false: 1}[a.named]
		}
		return c
	})
	for k, v := range all {
		if k > 0 && v.driver == all[k-1].driver && v.handle == all[k-1].handle {
			continue
		}
		if n := len(out.drivers); n == 0 || out.drivers[n-1].name != v.driver {
			out.drivers = append(out.drivers, driverDemand{name: v.driver})
		}
		d := &out.drivers[len(out.drivers)-1]
		if v.named {
			d.handles = append(d.handles, v.handle)
		} else {
			d.others++
		}
	}
	return out
}

// needs finds out which drivers a node has to have.
//
// With the gate it is those of which the CSIDriver says so, as in kube-scheduler. With Profile.RequireCSIDrivers it is all of which is known
// that they are CSI drivers: that of a volume is, and one that replaces an in-tree plugin, also on nodes that have no CSINode yet. What is to
// provision a volume may be none (NFS, local paths), and never come to a CSINode: it has to have a CSIDriver.
func (r *resolving) needs(of *limitsDemand) (out []driverNeed) {
	scales, all := r.profile.VolumeLimitScaling, r.profile.RequireCSIDrivers
	if !scales && !all || of.broken != "" || of.missing != "" {
		return nil
	}
	add := func(driver string, migrated, known bool) {
		needed := all && known
		if !needed {
			is := r.csiDriver(driver)
			needed = is != nil && (all || is.PreventPodSchedulingIfMissing)
		}
		if !needed {
			return
		}
		need := driverNeed{driver, migrated && !all}
		at, found := slices.BinarySearchFunc(out, driver, func(n driverNeed, driver string) int { return cmp.Compare(n.driver, driver) })
		if found {
			out[at].migrated = out[at].migrated && need.migrated
		} else {
			out = slices.Insert(out, at, need)
		}
	}
	for k := range r.reads {
		if read := &r.reads[k]; read.counts.Driver != "" {
			add(read.counts.Driver, read.counts.Migrated, read.volume != nil || read.counts.Migrated)
		}
	}
	for k := range r.spec.Disks {
		if m := &r.spec.Disks[k].Migration; m.Error == "" && m.Driver != "" {
			add(m.Driver, true, true)
		}
	}
	return out
}

// csiDriver returns a CSIDriver, or nil, and notes that it was read.
func (r *resolving) csiDriver(name string) *cluster.CSIDriver {
	is := r.st.CSIDriver(name)
	if read := (driverRead{name, is}); !slices.Contains(r.out.drivers, read) {
		r.out.drivers = append(r.out.drivers, read)
	}
	return is
}

// notMadeFor is what kube-scheduler says of a claim that has not been made for the pod whose ephemeral volume it is to be.
func (r *resolving) notMadeFor(by cluster.PodClaim) string {
	pod := ""
	if id, known := r.st.PodByUID(by.PodUID); known {
		pod = r.st.Pod(id).Name
	}
	return fmt.Sprintf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", r.labels.Namespace, by.Name, r.labels.Namespace, pod)
}

func (d *limitsDemand) write(key *signatureKey) {
	if d.missing == "" && d.broken == "" && d.untranslated == "" && len(d.drivers) == 0 {
		return
	}
	key.text(NodeVolumeLimits)
	key.text(d.missing)
	key.text(d.broken)
	key.text(d.untranslated)
	key.int(len(d.drivers))
	for _, of := range d.drivers {
		key.text(of.name)
		key.int(of.others)
		key.int(len(of.handles))
		for _, handle := range of.handles {
			key.text(handle)
		}
	}
	if len(d.needs) == 0 {
		return
	}
	key.text("needs")
	key.int(len(d.needs))
	for _, need := range d.needs {
		key.text(need.driver)
		key.bool(need.migrated)
	}
}

// limits is the plugin of a signature.
type limits struct {
	code Verdict
	limitsDemand
}

func (p *limits) filter(st *cluster.State, i cluster.NodeIndex, h *overlay) Verdict {
	// 1. What the pod wants, on any node, and on one that has a CSINode.
	switch {
	case p.broken != "":
		return p.code + limitsFailed | unresolvable
	case p.missing != "":
		return p.code + limitsMissing | unresolvable
	}
	node := st.CSINode(st.Nodes.Spec[i].Name)
	switch {
	case node == nil:
	case node.Untold != "":
		return p.code + limitsUntold | unresolvable
	case p.untranslated != "":
		return p.code + limitsFailed | unresolvable
	}
	for k := range p.needs {
		if !p.needs[k].metOn(node) {
			return codeNoDriver.of(k)
		}
	}
	switch {
	case node == nil:
		return codeFeasible
	case len(p.drivers) == 0 || !slices.ContainsFunc(node.Drivers, func(d cluster.NodeDriver) bool { return d.Limited }):
		return codeFeasible
	}
	// 2. What is there.
	if uncountedOn(st, i, h) {
		return p.code + limitsUncounted | unresolvable
	}
	// 3. Is there room for both?
	for k := range p.drivers {
		d := &p.drivers[k]
		if limit, limited := limitOf(node, d.name); limited && !p.fits(st, i, h.extra(), k, int64(limit)) {
			return p.code + limitsExceeded
		}
	}
	return codeFeasible
}

// uncountedOn reports whether there are volumes on a live node that cannot be counted.
func uncountedOn(st *cluster.State, i cluster.NodeIndex, h *overlay) bool {
	uncounted := st.Uncounted(i)
	if v := h.extra(); v != nil {
		uncounted += int(v.uncounted)
	}
	return uncounted > 0
}

// metOn reports whether volumes of the driver can be attached to a node, as far as its CSINode tells; nil: it has none.
func (n *driverNeed) metOn(node *cluster.CSINode) bool {
	if node == nil {
		return n.migrated
	}
	_, found := slices.BinarySearchFunc(node.Drivers, n.driver, func(d cluster.NodeDriver, name string) int { return cmp.Compare(d.Name, name) })
	return found
}

// limitOf returns how many volumes of a driver can be attached to a node. Of several that are told, the last counts.
func limitOf(node *cluster.CSINode, driver string) (limit int32, limited bool) {
	k, _ := slices.BinarySearchFunc(node.Drivers, driver, func(d cluster.NodeDriver, name string) int { return cmp.Compare(d.Name, name) })
	for ; k < len(node.Drivers) && node.Drivers[k].Name == driver; k++ {
		if node.Drivers[k].Limited {
			limit, limited = node.Drivers[k].Limit, true
		}
	}
	return limit, limited
}

// fits reports whether there is room for the volumes of a driver, by its place in p.drivers.
func (p *limits) fits(st *cluster.State, i cluster.NodeIndex, v *volumeOverlay, driver int, limit int64) bool {
	count, fresh := p.counts(st, i, v, driver)
	return fresh == 0 || count+fresh <= limit
}

// survey adds something for each driver of which so many volumes cannot be attached.
func (p *limits) survey(s *surveyor) surveyFunc {
	return func(i cluster.NodeIndex, nominees *overlay, out []Lack) []Lack {
		v := p.filter(s.st, i, nominees)
		if v == codeFeasible && nominees != nil {
			v, nominees = p.filter(s.st, i, nil), nil
		}
		switch {
		case v == codeFeasible:
			return out
		case v != p.code+limitsExceeded && v.code() != codeNoDriver:
			lack := Lack{Plugin: NodeVolumeLimits, Unresolvable: v.Unresolvable(), Relative: 1}
			switch v.code() - p.code {
			case limitsMissing:
				lack.Reason = p.missing
				lack.Of = &ClaimLack{Claims: s.claimsThat(func(c *ownClaim) bool { return c.claim == nil })}
			case limitsFailed:
				lack.Reason = cmp.Or(p.broken, p.untranslated)
			case limitsUncounted:
				lack.Reason = ReasonUncountedVolumes
			case limitsUntold:
				lack.Reason = ReasonUntoldLimits
			}
			return append(out, lack)
		}
		node := s.st.CSINode(s.st.Nodes.Spec[i].Name)
		for k := range p.needs {
			if need := &p.needs[k]; !need.metOn(node) {
				of := &ClaimLack{Driver: need.driver, Claims: s.claimsThat(func(c *ownClaim) bool { return c.counts.Driver == need.driver })}
				out = append(out, Lack{Plugin: NodeVolumeLimits, Reason: need.driver + ReasonNoDriver, Of: of, Relative: 1})
			}
		}
		switch {
		case node == nil:
			return out
		case uncountedOn(s.st, i, nominees):
			return append(out, Lack{Plugin: NodeVolumeLimits, Reason: ReasonUncountedVolumes, Unresolvable: true, Relative: 1})
		}
		for k := range p.drivers {
			d := &p.drivers[k]
			limit, limited := limitOf(node, d.name)
			if !limited || p.fits(s.st, i, nominees.extra(), k, int64(limit)) {
				continue
			}
			of := &ClaimLack{Driver: d.name, Limit: int64(limit)}
			of.Attached, of.New = p.counts(s.st, i, nominees.extra(), k)
			attached := s.st.AttachedOf(i, d.name)
			of.Claims = s.claimsThat(func(c *ownClaim) bool {
				at := find(attached, c.counts.Handle)
				return c.counts.Driver == d.name && (at < 0 || attached[at].Uses <= 0)
			})
			out = append(out, Lack{
				Plugin: NodeVolumeLimits, Reason: ReasonVolumeLimit, Of: of, Help: HelpNewNode,
				Relative: float64(of.Attached+of.New-of.Limit) / float64(of.New),
			})
		}
		return out
	}
}

// counts returns how many volumes of a driver there are on a live node, and how many of the pod would be new there.
func (p *limits) counts(st *cluster.State, i cluster.NodeIndex, v *volumeOverlay, driver int) (count, fresh int64) {
	d := &p.drivers[driver]
	attached := st.AttachedOf(i, d.name)
	count, fresh = int64(len(attached)), int64(d.others)
	if v != nil && v.attached != nil {
		count += int64(v.attached[driver])
	}
	if v != nil && v.detached {
		count -= v.unused(attached, driver)
	}
	for _, handle := range d.handles {
		there := find(attached, handle)
		uses := v.usesOf(driver, there, handle)
		if there >= 0 {
			uses += attached[there].Uses
		}
		if uses <= 0 {
			fresh++
		}
	}
	return count, fresh
}

// find returns the place of a handle among what is attached of one driver, -1 if it is not there.
func find(attached []cluster.Attachment, handle string) int {
	k, found := slices.BinarySearchFunc(attached, handle, func(a cluster.Attachment, handle string) int { return cmp.Compare(a.Handle, handle) })
	if !found {
		return -1
	}
	return k
}

// usesOf returns how many more uses there are of a volume, by the places of its driver, and of what is attached; -1 if it is not.
func (v *volumeOverlay) usesOf(driver, there int, handle string) int32 {
	switch {
	case v == nil || v.attached == nil:
		return 0
	case there >= 0 && v.there[driver] == nil:
		return 0
	case there >= 0:
		return v.there[driver][there]
	}
	return v.uses[driver][handle]
}

// count is volumeProgram.count.
func (p *limits) count(st *cluster.State, i cluster.NodeIndex, m *movedPod, volumes *cluster.PodVolumes) {
	if len(p.drivers) == 0 || st.CSINode(st.Nodes.Spec[i].Name) == nil {
		return
	}
	if volumes == nil {
		volumes = st.PodVolumes(m.class, m.labels)
	}
	m.failing = int32(volumes.Failing)
	driver, attached := -1, []cluster.Attachment(nil)
	for _, u := range volumes.Uses { // by driver
		if driver < 0 || p.drivers[driver].name != u.Driver {
			k, wanted := slices.BinarySearchFunc(p.drivers, u.Driver, func(d driverDemand, name string) int { return cmp.Compare(d.name, name) })
			if !wanted {
				continue
			}
			driver, attached = k, st.AttachedOf(i, u.Driver)
		}
		m.uses = append(m.uses, movedUse{driver, u.Handle, find(attached, u.Handle), u.Uses})
	}
}

// move is volumeProgram.move.
func (p *limits) move(v *volumeOverlay, st *cluster.State, i cluster.NodeIndex, m *movedPod, n int32) {
	v.uncounted += n * m.failing
	if len(m.uses) == 0 {
		return
	}
	if v.attached == nil {
		v.attached, v.there, v.uses = make([]int32, len(p.drivers)), make([][]int32, len(p.drivers)), make([]map[string]int32, len(p.drivers))
	}
	driver, attached := -1, []cluster.Attachment(nil)
	is := func(there bool) int32 {
		if there {
			return 1
		}
		return 0
	}
	for k := range m.uses {
		u := &m.uses[k]
		if u.driver != driver {
			driver, attached = u.driver, st.AttachedOf(i, p.drivers[u.driver].name)
		}
		if u.there < 0 {
			if v.uses[driver] == nil {
				v.uses[driver] = make(map[string]int32)
			}
			before := v.uses[driver][u.handle]
			after := before + n*u.n
			v.uses[driver][u.handle] = after
			v.attached[driver] += is(after > 0) - is(before > 0)
			continue
		}
		if v.there[driver] == nil {
			v.there[driver] = make([]int32, len(attached))
		}
		a := &attached[u.there]
		before := a.Uses + v.there[driver][u.there]
		after := before + n*u.n
		v.there[driver][u.there] += n * u.n
		if a.Attachments == 0 || v.detaches {
			v.attached[driver] += is(after > 0) - is(before > 0)
		}
	}
}

// unused reports whether volumes of the drivers that the pods want are attached to a live node which no pod there uses. The controller that
// attaches volumes detaches these, as soon as the node says that they are not mounted any more.
func (p *limits) unused(st *cluster.State, i cluster.NodeIndex) bool {
	return p != nil && slices.ContainsFunc(p.drivers, func(d driverDemand) bool { return unusedOf(st, i, d.name) })
}

// unusedOf reports whether volumes of a driver are attached to a live node which no pod there uses.
func unusedOf(st *cluster.State, i cluster.NodeIndex, driver string) bool {
	return st.CSINode(st.Nodes.Spec[i].Name) != nil &&
		slices.ContainsFunc(st.AttachedOf(i, driver), func(a cluster.Attachment) bool { return a.Uses == 0 })
}

// Undetached is why so many nodes, on which a dry run finds victims, are no candidates for whoever does not count on volumes being detached.
func Undetached(nodes int32) VerdictCount {
	return VerdictCount{Plugin: NodeVolumeLimits, Reason: ReasonUndetached, Count: nodes}
}

// LimitedDrivers returns the names of the drivers of a pending pod's volumes, as far as NodeVolumeLimits counts them, in order.
func (e *Evaluator) LimitedDrivers(st *cluster.State, pod cluster.PodID) (names []string) {
	row := st.Pod(pod)
	if row == nil {
		return nil
	}
	e.withFilters(st, SubjectOf(&row.Pod), func(c *evaluation) {
		if volumes := c.program.volumes; volumes != nil && volumes.limits != nil {
			for k := range volumes.limits.drivers {
				names = append(names, volumes.limits.drivers[k].name)
			}
		}
	})
	return names
}

// UndetachedDrivers returns those of LimitedDrivers of which volumes are attached to the node that the pod is nominated to, and no pod there uses them.
func (e *Evaluator) UndetachedDrivers(st *cluster.State, pod cluster.PodID) (names []string) {
	row := st.Pod(pod)
	if row == nil {
		return nil
	}
	node := st.Nodes.ByName(row.Nominated)
	if node == cluster.NoNode {
		return nil
	}
	return slices.DeleteFunc(e.LimitedDrivers(st, pod), func(driver string) bool { return !unusedOf(st, node, driver) })
}

// detaching is why a node is no candidate as long as volumes are attached that no pod uses any more.
func (p *limits) detaching() Verdict { return p.code + limitsDetaching }

// unused returns how many of the volumes of a driver that are attached no pod uses, nor would with those that have come.
func (v *volumeOverlay) unused(attached []cluster.Attachment, driver int) (n int64) {
	for k := range attached {
		if attached[k].Uses == 0 && (v.there == nil || v.there[driver] == nil || v.there[driver][k] <= 0) {
			n++
		}
	}
	return n
}
