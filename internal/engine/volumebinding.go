package engine

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// VolumeBinding keeps pods on nodes from which the volumes that their claims are bound to can be reached: those that meet the node affinity
// of each. That of an in-tree volume is the affinity of the CSI volume that it is where the node's CSINode says that its plugin is
// replaced. It fails unresolvably, as do claims that are bound to a volume that does not exist.
//
// For claims that wait for a consumer, it keeps them on nodes where there are volumes for them, or these can be provisioned; see awaiting.
//
// With the feature gate StorageCapacityScoring it scores how much of the volumes, or of the room, the claims would use: per class, what they ask for and how large the
// volumes are that they get on the node; if they get none, how much the CSIStorageCapacity says that there is where theirs are provisioned. The score is the mean over the
// classes of the profile's shape at requested·100/capacity, at 100 if there is none or less. It is not normalised.
//
// At PreFilter it refuses pods with a claim that does not exist, that is being deleted or has lost its volume, or that is to be bound at once and
// is not bound.
const VolumeBinding = "VolumeBinding"

// VolumeBinding's reasons, but for what it says of a claim.
const (
	ReasonVolumeAffinity = "node(s) didn't match PersistentVolume's node affinity"
	ReasonVolumeMissing  = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	ReasonClaimsUnbound  = "pod has unbound immediate PersistentVolumeClaims"
	ReasonNoVolume       = "node(s) didn't find available persistent volumes to bind"
	ReasonNoStorage      = "node(s) did not have enough free storage"
)

// untranslatable comes before why nobody knows where a volume is.
const untranslatable = "could not translate pv: "

var volumeBinding = Descriptor{
	Name: VolumeBinding, Points: []string{"preFilter", "filter", "reserve", "preScore", "score", "preBind"},
	Needs: map[string][]string{
		"filter": {"preFilter", "reserve", "preBind"}, // kube-scheduler would bind pods whose claims nobody binds
		"score":  {"preFilter"},
	},
	scale: ownScale, scoresIf: func(p *cluster.Profile) bool { return len(p.StorageShape) > 0 },
	Judges: []Aspect{BoundVolumes}, Predicates: []string{"CheckVolumeBinding"},
	hints: hints{volumes: bindingVolumes},
	reasons: []Reason{
		{Text: ReasonVolumeAffinity}, {Text: ReasonVolumeMissing}, {fails: true}, {Text: ReasonNoVolume}, {Text: ReasonNoStorage}, {fails: true},
	},
	refuses: true,
	resolve: func(r *resolving) string {
		if refusal := r.unusable(); refusal != "" {
			return refusal
		}
		return r.binding()
	},
	compile: func(c *compiler) compiled {
		if c.volumes == nil {
			return compiled{}
		}
		p := &binding{code: c.plugin.code, missing: c.volumes.binding.missing}
		var out compiled
		for _, v := range c.volumes.binding.affinities {
			a := reachability{plugin: v.Migration.Plugin, broken: v.Migration.Error != ""}
			a.own, a.migrated = c.volumeTerms(v.HasAffinity, v.Affinity), c.volumeTerms(v.HasMigratedAffinity, v.MigratedAffinity)
			p.migrates = p.migrates || a.plugin != ""
			p.volumes = append(p.volumes, a)
			if a.broken && out.texts == nil {
				out.texts = map[Verdict]string{p.code + bindingFailed: untranslatable + v.Migration.Error}
			}
		}
		if p.awaiting = c.awaiting(c.volumes.binding.asks); p.awaiting != nil {
			if slices.Contains(c.profile.Filters, c.plugin.Name) { // else kube-scheduler reserves nothing
				c.program.awaiting = p.awaiting
			}
			if text := p.awaiting.broken(); text != "" {
				if out.texts == nil {
					out.texts = make(map[Verdict]string)
				}
				out.texts[p.code+bindingSelector] = text
			}
			if c.program.awaiting != nil && len(c.profile.StorageShape) > 0 {
				shape := tenfold(c.profile.StorageShape)
				out.score = func(st *cluster.State, i cluster.NodeIndex) int64 { return p.awaiting.score(st, i, shape) }
			}
		}
		if len(p.volumes) > 0 || p.missing || p.awaiting != nil {
			out.filter, out.survey = p.filter, p.survey
		}
		return out
	},
	short: byReason(
		wording{begin: ReasonVolumeAffinity, one: "cannot reach its volumes", many: "cannot reach its volumes"},
		wording{begin: ReasonNoVolume, one: "has no free volume for its claims", many: "have no free volume for its claims"},
		wording{begin: ReasonNoStorage, one: "has too little storage for its claims", many: "have too little storage for its claims"},
		because(ReasonVolumeMissing, "", "the volume of a claim of it does not exist"),
		claimIsMissing, claimIsAnothers, classIsUnclear,
		because("waiting for ephemeral volume controller", "", "a claim for an ephemeral volume of it has not been made yet"),
		because(`persistentvolumeclaim "`, `" is being deleted`, "a claim of it is being deleted"),
		because(`persistentvolumeclaim "`, `"`, "a claim of it has lost its volume"),
		because(ReasonClaimsUnbound, "", "a claim of it has no volume yet"),
		because(untranslatable, "", "where a volume of it is cannot be told"),
		because(unreadableSelector, "", "what a claim of it selects cannot be read"),
	),
	text: func(l *Lack, _ Blocker) string {
		switch of := l.Of; {
		case of == nil:
		case l.Reason == ReasonVolumeAffinity && of.Volume != "":
			return fmt.Sprintf("%s: volume %s can be reached only %s", of.of(), of.Volume, of.where())
		case l.Reason == ReasonVolumeMissing && of.Volume != "":
			return fmt.Sprintf("%s: volume %s, which it is bound to, does not exist", of.of(), of.Volume)
		case l.Reason == ReasonNoVolume && (of.Class != "" || of.Node != "" || of.Volume != ""):
			return of.supply()
		case l.Reason == ReasonNoStorage && of.Class != "":
			return of.storage()
		}
		switch l.Reason {
		case ReasonVolumeAffinity:
			return "a volume that the pod claims cannot be reached from it"
		case ReasonVolumeMissing:
			return "a volume that the pod claims does not exist"
		case ReasonNoVolume:
			return "no volume that can be reached from it is free for a claim of the pod, and none can be provisioned there"
		case ReasonNoStorage:
			return "there is not enough storage there to provision a volume for a claim of the pod"
		}
		return l.Reason
	},
}

// The places of the reasons.
const (
	bindingAffinity Verdict = iota
	bindingMissing
	bindingFailed
	bindingNoVolume
	bindingNoStorage
	bindingSelector
)

// bindingDemand are the volumes that claims are bound to, as far as they say something of nodes: each affinity once, in the order of the
// claims, up to the first volume that does not exist.
type bindingDemand struct {
	affinities []*cluster.PersistentVolume
	texts      []string // what each says of nodes
	missing    bool
	asks       []ask // of those that wait for a consumer, in their order
}

// unusable returns why one of the claims cannot be used, bound or not.
func (r *resolving) unusable() string {
	for k, by := range r.claims {
		switch claim := r.reads[k].claim; {
		case claim == nil && by.Ephemeral:
			return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", by.Name)
		case claim == nil:
			return claimNotFound(by.Name)
		case claim.Lost:
			return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name, claim.Volume)
		case claim.Deleting:
			return fmt.Sprintf("persistentvolumeclaim %q is being deleted", claim.Name)
		case by.Ephemeral && !claim.MadeFor(by):
			return r.notMadeFor(by)
		}
	}
	return ""
}

// binding finds out what the claims are bound to, or why they are not.
func (r *resolving) binding() string {
	unbound := false
	d := &r.out.binding
	for k := range r.claims {
		read := &r.reads[k]
		switch claim, class := read.claim, read.class; {
		case claim.Volume != "" && claim.Bound:
			d.add(read.volume)
		case class != nil && class.Mode == "":
			return bindingModeNotSet(class.Name) // which ends the attempt in kube-scheduler
		case class == nil || class.Mode != cluster.BindToFirstConsumer || claim.Volume != "":
			unbound = true
		default:
			d.asks = append(d.asks, r.ask(read))
		}
	}
	if unbound {
		return ReasonClaimsUnbound
	}
	return ""
}

func bindingModeNotSet(class string) string {
	return fmt.Sprintf("VolumeBindingMode not set for StorageClass %q", class)
}

// add adds the volume that the next claim is bound to, nil if it does not exist.
func (d *bindingDemand) add(v *cluster.PersistentVolume) {
	if d.missing || v == nil {
		d.missing = true
		return
	}
	if !v.HasAffinity && (v.Migration.Plugin == "" || !v.HasMigratedAffinity && v.Migration.Error == "") {
		return
	}
	if slices.Contains(d.affinities, v) { // another claim's
		return
	}
	if text := placeOf(v); !slices.Contains(d.texts, text) {
		d.affinities, d.texts = append(d.affinities, v), append(d.texts, text)
	}
}

// placeOf writes from which nodes a volume can be reached.
func placeOf(v *cluster.PersistentVolume) string {
	var key signatureKey
	writeVolumeTerms(&key, v.HasAffinity, v.Affinity)
	if key.text(v.Migration.Plugin); v.Migration.Plugin != "" {
		key.text(v.Migration.Error)
		writeVolumeTerms(&key, v.HasMigratedAffinity, v.MigratedAffinity)
	}
	return string(key.b)
}

func writeVolumeTerms(key *signatureKey, has bool, terms []cluster.NodeSelectorTerm) {
	requirements := func(all []cluster.Requirement) {
		key.int(len(all))
		for _, r := range all {
			key.text(r.Key)
			key.text(r.Operator)
			key.int(len(r.Values))
			for _, value := range r.Values {
				key.text(value)
			}
		}
	}
	key.bool(has)
	key.int(len(terms))
	for k := range terms {
		requirements(terms[k].Expressions)
		requirements(terms[k].Fields)
	}
}

func (d *bindingDemand) write(key *signatureKey) {
	if len(d.texts) == 0 && !d.missing && len(d.asks) == 0 {
		return
	}
	key.text(VolumeBinding)
	key.bool(d.missing)
	key.int(len(d.texts))
	for _, text := range d.texts {
		key.text(text)
	}
	for k := range d.asks {
		d.asks[k].write(key)
	}
}

// binding is the plugin of a signature.
type binding struct {
	code     Verdict
	volumes  []reachability
	missing  bool
	migrates bool // some are in-tree volumes
	awaiting *awaiting
}

// reachability is from which nodes a volume can be reached.
type reachability struct {
	own      *volumeTerms
	plugin   string // the in-tree plugin, if a CSI driver may have replaced it
	migrated *volumeTerms
	broken   bool // where that is so, kube-scheduler's attempt ends with an error
}

// volumeTerms are terms of which a node must meet one. Nil: any node will do.
type volumeTerms struct{ terms []affinityTerm }

func (c *compiler) volumeTerms(has bool, terms []cluster.NodeSelectorTerm) *volumeTerms {
	if !has {
		return nil
	}
	out := &volumeTerms{c.affinityTerms(terms)}
	for k := range out.terms {
		out.terms[k].fields = nil // kube-scheduler compares labels only, and what it does not compare is met
	}
	return out
}

func (t *volumeTerms) admit(st *cluster.State, i cluster.NodeIndex) bool {
	return t == nil || anyMatches(t.terms, st, i)
}

func (p *binding) filter(st *cluster.State, i cluster.NodeIndex, _ *overlay) Verdict {
	v := p.reached(st, i)
	if p.awaiting == nil || v.code() == p.code+bindingFailed {
		return v
	}
	short := p.awaiting.find(st, i, nil, nil)
	w := p.code + [...]Verdict{suffices: 0, noVolume: bindingNoVolume, noStorage: bindingNoStorage, noSelector: bindingSelector}[short]
	switch {
	case short == suffices:
		return v
	case v == codeFeasible || short == noSelector:
		return w | unresolvable
	}
	return v.and(w)
}

// survey adds something for each claim whose volume cannot be reached from a node, or for which there is none.
func (p *binding) survey(s *surveyor) surveyFunc {
	own := s.claims()
	twice := make([]bool, len(own))
	for k := range own {
		twice[k] = again(own, k)
	}
	// Of volumes that can be reached from the same nodes a node is compared with the first.
	like := make([]int, len(own))
	firsts, byPlace := make(map[*cluster.PersistentVolume]int), make(map[string]int)
	for k := range own {
		v := own[k].volume
		if own[k].state() != ClaimBound {
			continue
		}
		if first, known := firsts[v]; known {
			like[k] = first
			continue
		}
		place := placeOf(v)
		if _, known := byPlace[place]; !known {
			byPlace[place] = k
		}
		like[k], firsts[v] = byPlace[place], byPlace[place]
	}
	apart := make([]bool, len(own)) // by the first: that its volume cannot be reached
	var waiting []int               // in the order of the asks, which are those of another pod of the signature, maybe
	for k := range own {
		if state := own[k].state(); state >= ClaimProvisioning {
			waiting = append(waiting, k)
		}
	}
	return func(i cluster.NodeIndex, _ *overlay, out []Lack) []Lack {
		add := func(k int, reason string, of *ClaimLack) {
			of.Claims = []string{own[k].by.Name}
			out = append(out, Lack{Plugin: VolumeBinding, Reason: reason, Unresolvable: true, Relative: of.relative(), Of: of, Help: of.help(reason)})
		}
		for k := range own {
			if twice[k] {
				continue
			}
			switch v := own[k].volume; own[k].state() {
			case ClaimMissingVolume:
				add(k, ReasonVolumeMissing, &ClaimLack{Volume: own[k].claim.Volume})
			case ClaimBound:
				has, terms, broken := affinityOn(s.st, i, v)
				if like[k] == k {
					apart[k] = has && !termsAdmit(s.st, i, terms)
				}
				switch {
				case broken != "":
					add(k, untranslatable+broken, new(ClaimLack))
				case apart[like[k]]:
					add(k, ReasonVolumeAffinity, &ClaimLack{Volume: v.Name, Where: terms})
				}
			}
		}
		if p.awaiting != nil && len(waiting) == len(p.awaiting.asks) {
			p.awaiting.shorts(s.st, i, func(k int, why shortage, taken []*cluster.PersistentVolume, known *nodeMemo) {
				reason := [...]string{noVolume: ReasonNoVolume, noStorage: ReasonNoStorage, noSelector: p.awaiting.broken()}[why]
				add(waiting[k], reason, p.awaiting.lackOf(s.st, i, k, why, taken, known))
			})
		}
		return out
	}
}

// relative is Lack.Relative of a claim for which there is no volume, or that cannot reach it.
func (c *ClaimLack) relative() float64 {
	if c.Wanted > 0 && c.Most >= 0 && c.Most < c.Wanted {
		return float64(c.Wanted-c.Most) / float64(c.Wanted)
	}
	return 1
}

// help is what can help a node that VolumeBinding refuses for that reason.
func (c *ClaimLack) help(reason string) Help {
	switch {
	case reason == ReasonNoVolume && c.Node == "" && c.Volume == "" && c.Class != "", reason == ReasonNoStorage:
		return HelpNewVolume
	case reason == ReasonVolumeAffinity, reason == ReasonNoVolume && c.Volume != "":
		return HelpNodeThere
	}
	return 0
}

// reached judges a node by the volumes that claims are bound to.
func (p *binding) reached(st *cluster.State, i cluster.NodeIndex) Verdict {
	var node *cluster.CSINode
	if p.migrates {
		node = st.CSINode(st.Nodes.Spec[i].Name)
	}
	for k := range p.volumes {
		v := &p.volumes[k]
		terms := v.own
		if v.plugin != "" && node != nil && slices.Contains(node.Migrated, v.plugin) {
			if v.broken {
				return p.code + bindingFailed | unresolvable
			}
			terms = v.migrated
		}
		if !terms.admit(st, i) {
			return p.code + bindingAffinity | unresolvable
		}
	}
	if p.missing {
		return p.code + bindingMissing | unresolvable
	}
	return codeFeasible
}
