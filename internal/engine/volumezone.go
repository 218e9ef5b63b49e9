package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// VolumeZone keeps pods in the zones and regions that the labels of the volumes name which their claims are bound to. A node that has no
// label of a zone or a region is in all of them. It fails unresolvably.
//
// It looks at claims that pods name, not at those of ephemeral volumes. At PreFilter it refuses pods with one that does not exist, or that is bound to
// no volume that exists, unless it waits for a consumer.
const VolumeZone = "VolumeZone"

// ReasonVolumeZone is VolumeZone's reason, but for what it says of a claim.
const ReasonVolumeZone = "node(s) had no available volume zone"

// What it says of a claim that has no volume.
const (
	zoneUnbound   = "PersistentVolume had no name"
	zoneUnclassed = "PersistentVolumeClaim had no pv name and storageClass name"
)

// The labels of zones and regions, as they were called once and as they are called, in the order in which they are looked at.
var (
	zoneLabels  = []string{"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
	zoneRenamed = map[string]string{zoneLabels[0]: zoneLabels[2], zoneLabels[1]: zoneLabels[3]}
)

// zoneDelimiter stands between the zones of a volume that is in several.
const zoneDelimiter = "__"

var volumeZone = Descriptor{
	Name: VolumeZone, Points: []string{"preFilter", "filter"}, Needs: map[string][]string{"filter": {"preFilter"}},
	Predicates: []string{"NoVolumeZoneConflict"},
	reasons:    []Reason{{Text: ReasonVolumeZone}},
	refuses:    true,
	resolve:    func(r *resolving) string { return r.zones() },
	compile: func(c *compiler) compiled {
		if c.volumes == nil || len(c.volumes.zone.wanted) == 0 {
			return compiled{}
		}
		p := zonesOf(c.volumes.zone.wanted, c.plugin.code, c.symbol)
		return compiled{filter: p.filter, survey: p.survey}
	},
	short: byReason(
		wording{begin: ReasonVolumeZone, one: "is not in the zone of its volumes", many: "are not in the zone of its volumes"},
		claimIsMissing, claimIsNameless, classIsUnclear,
		because(`persistentvolume "`, `" not found`, "the volume of a claim of it does not exist"),
		because(`storageclass.storage.k8s.io "`, `" not found`, "the storage class of a claim of it does not exist"),
		because(zoneUnbound, "", "a claim of it has no volume yet"),
		because(zoneUnclassed, "", "a claim of it has no volume and no storage class"),
	),
	text: func(l *Lack, _ Blocker) string {
		if l.Reason == ReasonVolumeZone && l.Of != nil && l.Of.Volume != "" {
			return l.Of.of() + ": volume " + l.Of.Volume + " is only " + l.Of.where()
		}
		if l.Reason == ReasonVolumeZone {
			return "a volume that the pod claims is in another zone or region"
		}
		return l.Reason
	},
}

// zoneDemand are the zones and regions of volumes.
type zoneDemand struct{ wanted []wantedZone }

// wantedZone says which values a label of a node may have. They are in alphabetical order.
type wantedZone struct {
	label  string
	values []string
}

func (w *wantedZone) compare(o *wantedZone) int {
	return cmp.Or(cmp.Compare(w.label, o.label), slices.Compare(w.values, o.values))
}

// zones finds out where the volumes are, or why they are nowhere.
func (r *resolving) zones() string {
	d := &r.out.zone
	for k, by := range r.claims {
		read := &r.reads[k]
		switch claim, class := read.claim, read.class; {
		case by.Ephemeral:
		case by.Name == "":
			return claimNameless
		case claim == nil:
			return claimNotFound(by.Name)
		case claim.Volume != "" && read.volume == nil:
			return `persistentvolume "` + claim.Volume + `" not found`
		case claim.Volume != "":
			d.add(read.volume)
		case claim.Class == "":
			return zoneUnclassed
		case class == nil:
			return `storageclass.storage.k8s.io "` + claim.Class + `" not found`
		case class.Mode == "":
			return bindingModeNotSet(class.Name)
		case class.Mode != cluster.BindToFirstConsumer:
			return zoneUnbound
		}
	}
	slices.SortFunc(d.wanted, func(a, b wantedZone) int { return a.compare(&b) })
	d.wanted = slices.CompactFunc(d.wanted, func(a, b wantedZone) bool { return a.compare(&b) == 0 })
	return ""
}

// add adds the zones and regions of a volume. A label that names none is passed over.
func (d *zoneDemand) add(v *cluster.PersistentVolume) {
	for _, label := range zoneLabels {
		value, has := cluster.ValueOf(v.Labels, label)
		if !has {
			continue
		}
		values := strings.Split(value, zoneDelimiter)
		for k := range values {
			values[k] = strings.TrimSpace(values[k])
		}
		if slices.Contains(values, "") {
			continue
		}
		slices.Sort(values)
		d.wanted = append(d.wanted, wantedZone{label, slices.Compact(values)})
	}
}

func (d *zoneDemand) write(key *signatureKey) {
	if len(d.wanted) == 0 {
		return
	}
	key.text(VolumeZone)
	key.int(len(d.wanted))
	for _, w := range d.wanted {
		key.text(w.label)
		key.int(len(w.values))
		for _, value := range w.values {
			key.text(value)
		}
	}
}

// nodeZones is the plugin of a signature.
type nodeZones struct {
	code   Verdict
	labels []cluster.Symbol // of zones and regions
	wanted []zone
}

type zone struct {
	key, renamed cluster.Symbol
	values       []cluster.Symbol
}

// terms says the zones and regions as terms of a node's affinity, by the names that the labels have today.
func (d *zoneDemand) terms() []cluster.NodeSelectorTerm {
	var all []cluster.Requirement
	for _, w := range d.wanted {
		all = append(all, cluster.Requirement{Key: cmp.Or(zoneRenamed[w.label], w.label), Operator: "In", Values: w.values})
	}
	return []cluster.NodeSelectorTerm{{Expressions: all}}
}

func zonesOf(wanted []wantedZone, code Verdict, symbol func(string) cluster.Symbol) *nodeZones {
	p := &nodeZones{code: code}
	for _, label := range zoneLabels {
		p.labels = append(p.labels, symbol(label))
	}
	for _, w := range wanted {
		one := zone{key: symbol(w.label), renamed: symbol(cmp.Or(zoneRenamed[w.label], w.label))}
		for _, value := range w.values {
			if symbol := symbol(value); symbol != cluster.NoSymbol {
				one.values = append(one.values, symbol)
			}
		}
		p.wanted = append(p.wanted, one)
	}
	return p
}

// survey adds something for each claim whose volume is in other zones than a node.
func (p *nodeZones) survey(s *surveyor) surveyFunc {
	type placed struct {
		zones *nodeZones
		of    *ClaimLack
	}
	var all []placed
	for k, own := range s.claims() {
		if again(s.claims(), k) || own.by.Ephemeral || own.claim == nil || own.claim.Volume == "" || own.volume == nil {
			continue
		}
		var d zoneDemand
		d.add(own.volume)
		if len(d.wanted) == 0 {
			continue
		}
		of := &ClaimLack{Claims: []string{own.by.Name}, Volume: own.volume.Name, Where: d.terms()}
		all = append(all, placed{zonesOf(d.wanted, p.code, s.st.Symbols.Lookup), of})
	}
	return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
		for _, one := range all {
			if one.zones.filter(s.st, i, nil) != codeFeasible {
				out = append(out, Lack{Plugin: VolumeZone, Reason: ReasonVolumeZone, Unresolvable: true, Relative: 1, Of: one.of, Help: HelpNodeThere})
			}
		}
		return out
	}
}

func (p *nodeZones) filter(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
	labels := st.Nodes.Labels[i]
	has := func(key cluster.Symbol) bool {
		_, ok := labelOf(labels, key)
		return ok
	}
	if !slices.ContainsFunc(p.labels, has) {
		return codeFeasible
	}
	for k := range p.wanted {
		w := &p.wanted[k]
		value, ok := labelOf(labels, w.key)
		if !ok {
			value, ok = labelOf(labels, w.renamed)
		}
		if !ok || !slices.Contains(w.values, value) {
			return p.code | unresolvable
		}
	}
	return codeFeasible
}
