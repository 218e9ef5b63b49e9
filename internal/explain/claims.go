package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// Claim is a claim of the pod: how far it has come, on how many nodes nothing is in its way, and what is on others.
type Claim struct {
	Name      string
	State     engine.ClaimState
	Ephemeral bool // it is made for the pod

	// What the claim asks for, and has: its StorageClass, "" for none; how many bytes it asks for, if HasSize; the volume that it is bound to or
	// that has been chosen for it; on which nodes' labels that depends, "" if on none; the node that its volume is provisioned for; and the CSI
	// driver by which it is attached, "" if that does not count.
	Class         string
	HasSize       bool
	Size          int64
	Volume, Where string
	Node, Driver  string
	unbindable    string // why there is nobody to bind a claim that is not bound

	Exclusive bool    // only one pod can use it, and another one does:
	User      Blocker // which has no name if that may not be told

	// Nodes is on how many nodes nothing is in the claim's way, of those that are not set aside before anybody looks. Of a claim that keeps the pod off
	// all of them, it is none, and of the others of such a pod, or of one that cannot be judged, it is -1: nobody has looked.
	Nodes     int32
	Obstacles []ClaimObstacle // those of most nodes first

	withheld bool              // what the claim asks for, and has, is not to be told
	last     cluster.NodeIndex // that has counted
	kept     int32             // how many nodes do not have Nodes
}

// ClaimObstacle is one thing that is in the way of a claim.
type ClaimObstacle struct {
	Plugin, Reason string // kube-scheduler's
	Nodes          int32
	Examples       []string    // names of the first of these nodes, by index, at most 3
	Nearest        engine.Lack // of the node, among these, that lacks least of it
	By             Blocker     // who is in the way

	last cluster.NodeIndex // that has counted
}

const maxExamples = 3

// findClaims begins to find out about the claims of a pod.
func (f *findings) findClaims(st *cluster.State, pod cluster.PodID) {
	f.byName = make(map[string]*Claim)
	for _, of := range engine.ClaimsOf(st, pod) {
		c := &Claim{Name: of.Name, State: of.State, Ephemeral: of.Ephemeral, Node: of.Node, Driver: of.Driver, Where: of.Where(), Exclusive: of.Exclusive, last: cluster.NoNode}
		if of.Object != nil {
			c.Class, c.HasSize, c.Size, c.Volume = of.Object.Class, of.Object.HasRequest, of.Object.Request, of.Object.Volume
		}
		if of.Volume != nil {
			c.Volume = of.Volume.Name
		}
		switch {
		case of.Object == nil || of.State != engine.ClaimUnbound:
		case of.Object.Class == "":
			c.unbindable = "it has no class"
		case of.Class == nil:
			c.unbindable = "there is no class " + of.Object.Class
		case of.Class.Provisioner == "" || of.Class.Provisioner == noProvisioner:
			c.unbindable = "class " + of.Object.Class + " provisions none"
		}
		if user := st.Pod(of.User); user != nil {
			c.User = Blocker{Namespace: user.Namespace, Name: user.Name, Node: user.NodeName}
		}
		f.claims, f.byName[of.Name] = append(f.claims, c), c
	}
}

const noProvisioner = "kubernetes.io/no-provisioner"

// count counts for each claim what a node has in its way.
func (f *findings) count(i cluster.NodeIndex, lacks []engine.Lack) {
	if len(f.claims) == 0 {
		return
	}
	for k := range lacks {
		l := &lacks[k]
		if l.Aside {
			f.aside++
		}
		if l.Of == nil {
			continue
		}
		for _, name := range l.Of.Claims {
			c := f.byName[name]
			if c == nil {
				continue
			}
			if c.last != i {
				c.last = i
				c.kept++
			}
			at := slices.IndexFunc(c.Obstacles, func(o ClaimObstacle) bool { return o.Plugin == l.Plugin && o.Reason == l.Reason })
			if at < 0 {
				at = len(c.Obstacles)
				c.Obstacles = append(c.Obstacles, ClaimObstacle{Plugin: l.Plugin, Reason: l.Reason, Nearest: *l, last: cluster.NoNode})
			}
			o := &c.Obstacles[at]
			if o.last != i { // else the pod names the claim twice
				o.last = i
				if o.Nodes++; len(o.Examples) < maxExamples {
					o.Examples = append(o.Examples, f.st.Nodes.Spec[i].Name)
				}
			}
			if l.Relative < o.Nearest.Relative {
				o.Nearest = *l
			}
		}
	}
}

// told returns the claims when all nodes have been counted.
func (f *findings) told(s *engine.Survey) []Claim {
	var out []Claim
	for _, c := range f.claims {
		switch c.Nodes = s.Nodes - f.aside - c.kept; {
		case c.State.Refuses():
			c.Nodes = 0
		case s.Refused:
			c.Nodes = -1
		}
		slices.SortStableFunc(c.Obstacles, func(a, b ClaimObstacle) int { return cmp.Compare(b.Nodes, a.Nodes) })
		for k := range c.Obstacles {
			if c.Exclusive && c.Obstacles[k].Nearest.Of.InUse {
				c.Obstacles[k].By = c.User
			}
		}
		out = append(out, *c)
	}
	return out
}

// WithholdClaims takes out of an explanation what its claims ask for and have: their classes, sizes and volumes. The names of the pod's claims, and how
// far they have come, are of the pod.
func (x *Explanation) WithholdClaims() {
	bare := func(l *engine.Lack) {
		if l.Of != nil {
			l.Of = &engine.ClaimLack{Claims: l.Of.Claims}
		}
	}
	for k := range x.Claims {
		c := &x.Claims[k]
		c.Class, c.HasSize, c.Size, c.Volume, c.Where, c.Node, c.Driver, c.unbindable, c.withheld = "", false, 0, "", "", "", "", "", true
		for o := range c.Obstacles {
			bare(&c.Obstacles[o].Nearest)
		}
	}
	for k := range x.Nearest {
		for l := range x.Nearest[k].Lacks {
			bare(&x.Nearest[k].Lacks[l])
		}
	}
	if x.Here != nil {
		for l := range x.Here.Miss.Lacks {
			bare(&x.Here.Miss.Lacks[l])
		}
	}
	for k := range x.Changes {
		if x.Changes[k].there {
			x.Changes[k].Labels = nil
		}
		for v := range x.Changes[k].Volumes {
			x.Changes[k].Volumes[v] = NewVolume{Claim: x.Changes[k].Volumes[v].Claim}
		}
	}
}

// Text says in plain words how far the claim has come.
func (c *Claim) Text() string {
	ask := ""
	if c.Class != "" {
		ask = " of class " + c.Class
	}
	if c.HasSize {
		ask += " with " + engine.SizeText(c.Size)
	}
	volume := "its volume"
	if c.Volume != "" {
		volume = "volume " + c.Volume
	}
	var text string
	switch c.State {
	case engine.ClaimMissing:
		text = "does not exist"
	case engine.ClaimNotMade:
		text = "does not exist yet: the controller of ephemeral volumes is to make it"
	case engine.ClaimLost:
		text = "is lost: " + volume + " is gone"
	case engine.ClaimDeleting:
		text = "is being deleted"
	case engine.ClaimNotOwned:
		text = "has not been made for this pod"
	case engine.ClaimMissingVolume:
		text = "is bound to a volume that does not exist"
		if c.Volume != "" {
			text += ", " + c.Volume
		}
	case engine.ClaimBound:
		text = "is bound"
		if !c.withheld {
			text += " to " + volume + ", which can be reached "
			if c.Where != "" {
				text += c.Where
			} else {
				text += "from any node"
			}
		}
	case engine.ClaimUnbound:
		text = "is to be bound to a volume" + ask + " before a pod can use it"
		switch {
		case c.Volume != "":
			text += ", and wants " + volume
		case c.unbindable != "":
			text += "; " + c.unbindable
		}
	case engine.ClaimProvisioning:
		text = "waits until a volume" + ask + " is provisioned"
		if c.Node != "" {
			text += " for node " + c.Node
		}
	case engine.ClaimPromised:
		text = "has been promised to another pod that uses it, with " + volume
		if c.Where != "" {
			text += ", which can be reached " + c.Where
		}
	case engine.ClaimWaiting:
		text = "waits for its first consumer, and then a volume" + ask
	}
	if c.Exclusive {
		text += "; only one pod can use it, and " + c.user() + " does"
	}
	return text
}

func (c *Claim) user() string {
	if c.User.Name == "" {
		return "another one"
	}
	return c.User.String()
}

// Detail says in plain words what is in the way of a claim, on the node that lacks least of it.
func (c *Claim) Detail(o *ClaimObstacle) string {
	return strings.TrimPrefix(o.Nearest.Text(o.By), "claim "+c.Name+": ")
}

// writeClaims writes a paragraph of each claim.
func (x *Explanation) writeClaims(b *strings.Builder) {
	fmt.Fprintln(b, "Claims:")
	for k := range x.Claims {
		c := &x.Claims[k]
		fmt.Fprintf(b, "  %s %s.", c.Name, c.Text())
		if x.Nodes > 0 && c.Nodes >= 0 {
			fmt.Fprintf(b, " Nothing is in its way on %s.", ofNodes(c.Nodes, x.Nodes))
		}
		fmt.Fprintln(b)
		for o := range c.Obstacles {
			if ob := &c.Obstacles[o]; !c.State.Refuses() {
				fmt.Fprintf(b, "    %s (%s): %s\n", nodes(ob.Nodes), list(ob.Examples), c.Detail(ob))
			}
		}
	}
}

// provide makes claims that keep the pod off all nodes such that they do not.
func (f *findings) provide(w *whatif.World, pod cluster.PodID) (Change, error) {
	c := Change{Kind: AddVolume, anywhere: true}
	st, namespace := w.State(), w.State().Pod(pod).Namespace
	for k, claim := range f.claims {
		is := &cluster.PersistentVolumeClaim{Namespace: namespace, Name: claim.Name, UID: "made", Bound: true, Volume: freshVolume(st, k)}
		switch claim.State {
		case engine.ClaimMissing, engine.ClaimLost, engine.ClaimDeleting, engine.ClaimMissingVolume:
			if claim.Ephemeral {
				return c, errNoHelp // its controller makes it
			}
			if claim.State != engine.ClaimMissing && st.ClaimUsers(namespace, claim.Name) > 0 {
				return c, errNoHelp // it stays until these pods have gone, and there can be no other
			}
			c.Kind, c.Claims = CreateClaim, append(c.Claims, claim.Name)
		case engine.ClaimUnbound:
			made := *st.PersistentVolumeClaim(namespace, claim.Name)
			labels, ok := labelsFor(&made.Selector)
			if !ok {
				return c, errNoHelp
			}
			add := newVolume(&made, labels)
			add.OrRoom = claim.unbindable == ""
			if made.Volume != "" { // it takes no other, and if there is that one, its controller will not bind them, or has yet to
				if st.PersistentVolume(made.Volume) != nil {
					return c, errNoHelp
				}
				add.Name, add.OrRoom, is.Volume = made.Volume, false, made.Volume
			}
			c.Volumes = append(c.Volumes, add)
			made.Volume, made.Bound = is.Volume, true
			is = &made
		case engine.ClaimNotMade, engine.ClaimNotOwned:
			return c, errNoHelp
		default:
			continue
		}
		v := &cluster.PersistentVolume{Name: is.Volume, Mode: "Filesystem", HasClaim: true}
		if class := st.StorageClass(claim.Class); class != nil { // by its driver it counts where it is attached
			v = class.Volume(is, is.Volume)
			v.HasAffinity, v.Affinity, v.HasMigratedAffinity, v.MigratedAffinity = false, nil, false, nil
		}
		if err := w.SetObject(v); err != nil {
			return c, err
		}
		if err := w.SetObject(is); err != nil {
			return c, err
		}
	}
	return c, nil
}

// addVolumes adds a volume for each claim that has none on a node.
func addVolumes(w *whatif.World, pod cluster.PodID, d *idea) (Change, error) {
	st, namespace := w.State(), w.State().Pod(pod).Namespace
	c := Change{Kind: AddVolume, Node: st.Nodes.Spec[d.node].Name}
	keys := make(map[string]string) // by class
	for k := range d.lacks {
		l := &d.lacks[k]
		claim := st.PersistentVolumeClaim(namespace, l.Of.Claims[0])
		labels, ok := labelsFor(&claim.Selector)
		if !ok {
			return c, errNoHelp
		}
		v := &cluster.PersistentVolume{
			Name: freshVolume(st, k), Labels: labels, Class: claim.Class, Capacity: claim.Request, AccessModes: claim.AccessModes, Mode: claim.Mode,
			AttributesClass: claim.AttributesClass, Available: true,
		}
		made := newVolume(claim, labels)
		made.OrRoom = l.Of.NoRoom
		if label, ok := placeOf(st, d.node, claim.Class, keys); ok {
			in := cluster.Requirement{Key: label.Key, Operator: "In", Values: []string{label.Value}}
			v.HasAffinity, v.Affinity = true, []cluster.NodeSelectorTerm{{Expressions: []cluster.Requirement{in}}}
			made.Where = engine.WhereText(v.Affinity)
			if label.Key == zoneLabel {
				made.Zone = label.Value
			}
		}
		if err := w.SetObject(v); err != nil {
			return c, err
		}
		c.Volumes = append(c.Volumes, made)
	}
	return c, nil
}

const zoneLabel = "topology.kubernetes.io/zone"

// placeOf returns the label of a node by which a volume of a class is to be where it is: its hostname, where volumes of the class are of one node
// each, or else its zone. Keys remembers which of them, by class. False: it has none.
func placeOf(st *cluster.State, i cluster.NodeIndex, class string, keys map[string]string) (cluster.Label, bool) {
	key, known := keys[class]
	if !known {
		key = zoneLabel
		for v := range st.PersistentVolumes() {
			if v.Class == class && slices.ContainsFunc(v.Affinity, func(t cluster.NodeSelectorTerm) bool {
				return slices.ContainsFunc(t.Expressions, func(r cluster.Requirement) bool { return r.Key == hostname })
			}) {
				key = hostname
				break
			}
		}
		keys[class] = key
	}
	labels := st.Node(i).Labels
	for _, key := range []string{key, hostname} {
		if value, ok := cluster.ValueOf(labels, key); ok {
			return cluster.Label{Key: key, Value: value}, true
		}
	}
	return cluster.Label{}, false
}

// labelsFor returns labels that a selector matches.
func labelsFor(s *cluster.LabelSelector) (out []cluster.Label, ok bool) {
	for k := range s.Requirements {
		l, ok := labelFor(&s.Requirements[k])
		if !ok {
			return nil, false
		}
		if !l.Remove {
			out = append(out, cluster.Label{Key: l.Key, Value: l.Value})
		}
	}
	slices.SortFunc(out, func(a, b cluster.Label) int { return cmp.Compare(a.Key, b.Key) })
	return out, !s.Nothing && s.Matches(out)
}

// freshVolume returns a name that no volume has.
func freshVolume(st *cluster.State, k int) string {
	name := fmt.Sprintf("new-%d", k)
	for st.PersistentVolume(name) != nil {
		name += "-new"
	}
	return name
}

// newVolume says what a volume for a claim is like.
func newVolume(claim *cluster.PersistentVolumeClaim, labels []cluster.Label) NewVolume {
	return NewVolume{Claim: claim.Name, Class: claim.Class, Size: claim.Request, Labels: labels, AccessModes: claim.AccessModes, Mode: claim.Mode, AttributesClass: claim.AttributesClass}
}

// String says in plain words which volume is to be added: of how it can be used what most volumes are not.
func (v *NewVolume) String() string {
	text := "a volume"
	if v.Name != "" {
		text = "volume " + v.Name
	}
	if v.Class != "" {
		text += fmt.Sprintf(" of class %s with at least %s", v.Class, engine.SizeText(v.Size))
	}
	if len(v.AccessModes) > 0 && !slices.Equal(v.AccessModes, []string{"ReadWriteOnce"}) {
		text += " for " + list(v.AccessModes)
	}
	if v.Mode == "Block" {
		text += " as a block device"
	}
	if v.AttributesClass != "" {
		text += " of attributes class " + v.AttributesClass
	}
	if len(v.Labels) > 0 {
		labels, more := v.Labels, len(v.Labels)-maxExamples
		if more > 1 { // a claim may select by thousands
			labels = labels[:maxExamples]
		}
		var says []string
		for _, l := range labels {
			says = append(says, l.Key+"="+l.Value)
		}
		if more > 1 {
			says = append(says, count(int32(more))+" more")
		}
		text += " labelled " + list(says)
	}
	switch {
	case v.Zone != "":
		text += " in zone " + v.Zone
	case v.Where != "":
		text += " " + v.Where
	}
	text += " for claim " + v.Claim
	if v.OrRoom {
		text += ", or room to provision it"
	}
	return text
}
