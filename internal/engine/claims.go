package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// ClaimState is how far a claim of a pod has come. The first that holds is told, in this order.
type ClaimState uint8

// The states. Those before ClaimBound, and ClaimUnbound, keep the pod off all nodes.
const (
	ClaimMissing       ClaimState = iota // there is no such claim
	ClaimNotMade                         // likewise, but the controller of ephemeral volumes is to make it
	ClaimLost                            // its volume is gone, and it will have no other
	ClaimDeleting                        // it is being deleted
	ClaimNotOwned                        // it is to be the pod's ephemeral volume, and has been made for something else
	ClaimMissingVolume                   // it is bound to a volume that there is not
	ClaimBound                           // it is bound to Volume
	ClaimUnbound                         // it is to be bound before a pod uses it, and is not
	ClaimProvisioning                    // it waits until a volume has been provisioned for Node
	ClaimPromised                        // Volume has been chosen for it, for another pod
	ClaimWaiting                         // it waits for its first consumer
)

// Refuses reports whether the pod fits no node as long as its claim is in that state.
func (s ClaimState) Refuses() bool { return s < ClaimBound || s == ClaimUnbound }

// Claim is a claim of a pod, with what decides from where it can be used.
type Claim struct {
	Name      string
	Ephemeral bool // it is made for the pod, of an ephemeral volume
	State     ClaimState
	// Object is the claim, nil if there is none; Class its class, nil if it names none that there is. Nobody may change them.
	Object *cluster.PersistentVolumeClaim
	Class  *cluster.StorageClass
	Volume *cluster.PersistentVolume // that it is bound to, or that has been chosen for it
	Node   string                    // that its volume is provisioned for
	Driver string                    // of the CSI volume that it counts as where it is attached, "" if it does not count
	// Exclusive: only one pod can use it, and the state has others that do, of which User is one, by the least id.
	Exclusive bool
	User      cluster.PodID
}

// ClaimLack is what a Lack has to say of claims of the pod. What is set besides the names depends on the plugin and the reason.
type ClaimLack struct {
	Claims []string // whose volumes it is about, in the pod's order, each once

	// Of a claim that has a volume, or is to get that one: its name, and the conditions, ORed, of which a node must meet one.
	Volume string
	Where  []cluster.NodeSelectorTerm
	// Of a claim for which there is none: what it asks for, in bytes, and the most that is to be had on the node, -1 if there is nothing.
	// NoneMade says that its class provisions no volumes, and NotThere that it does, but not for the node. Unlike: there is a volume that is free
	// and large enough, but it is not as the claim wants it.
	Class                      string
	Wanted, Most               int64
	NoneMade, NotThere, Unlike bool
	NoRoom                     bool   // there is only too little room to provision it
	Node                       string // of a claim for which a volume is provisioned: for which node

	InUse bool // only one pod can use the claims, and another one does

	// Of a driver: how many volumes of the pod would be new on the node, how many are there, and how many can be.
	Driver               string
	New, Attached, Limit int64
}

// Where says of which nodes the labels are such that the claim's volume can be used there, "" if of all, or if it has none.
func (c *Claim) Where() string {
	v := c.Volume
	if v == nil {
		return ""
	}
	var zones zoneDemand
	zones.add(v)
	switch {
	case v.HasAffinity:
		return WhereText(v.Affinity)
	case v.Migration.Plugin != "" && v.HasMigratedAffinity:
		return WhereText(v.MigratedAffinity)
	case len(zones.wanted) > 0 && !c.Ephemeral:
		return WhereText(zones.terms())
	}
	return ""
}

// ownClaim is a claim of a pod with what is read of it.
type ownClaim struct {
	by cluster.PodClaim
	claimRead
}

func ownClaims(st *cluster.State, labels *cluster.Labels) []ownClaim {
	if labels == nil {
		return nil
	}
	out := make([]ownClaim, len(labels.Claims))
	for k, by := range labels.Claims {
		out[k] = ownClaim{by, readClaim(st, labels.Namespace, by.Name, asOfNow)}
	}
	return out
}

// state is as VolumeBinding sees it.
func (c *ownClaim) state() ClaimState {
	switch claim, class := c.claim, c.class; {
	case claim == nil && c.by.Ephemeral:
		return ClaimNotMade
	case claim == nil:
		return ClaimMissing
	case claim.Lost:
		return ClaimLost
	case claim.Deleting:
		return ClaimDeleting
	case c.by.Ephemeral && !claim.MadeFor(c.by):
		return ClaimNotOwned
	case claim.Volume != "" && claim.Bound && c.volume == nil:
		return ClaimMissingVolume
	case claim.Volume != "" && claim.Bound:
		return ClaimBound
	case class == nil || class.Mode != cluster.BindToFirstConsumer || claim.Volume != "":
		return ClaimUnbound
	case c.promisedVolume != "":
		return ClaimPromised
	case c.promisedNode != "" || claim.HasSelectedNode:
		return ClaimProvisioning
	}
	return ClaimWaiting
}

// ClaimsOf returns the claims of a pod, in its order, each once. A claim of another pod's choice is judged as it is now.
func ClaimsOf(st *cluster.State, pod cluster.PodID) []Claim {
	row := st.Pod(pod)
	if row == nil {
		return nil
	}
	labels := st.Labels(row.Labels)
	var out []Claim
	for _, own := range ownClaims(st, labels) {
		if slices.ContainsFunc(out, func(c Claim) bool { return c.Name == own.by.Name }) {
			continue
		}
		c := Claim{
			Name: own.by.Name, Ephemeral: own.by.Ephemeral, State: own.state(), Object: own.claim, Class: own.class, Driver: own.counts.Driver, User: cluster.NoPod,
		}
		switch c.State {
		case ClaimBound:
			c.Volume = own.volume
		case ClaimPromised:
			c.Volume = own.promised
		case ClaimProvisioning:
			if c.Node = own.promisedNode; c.Node == "" {
				c.Node = own.claim.SelectedNode
			}
		}
		if own.claim != nil && !own.by.Ephemeral && onlyForOnePod(own.claim) {
			for id := range st.ClaimUserIDs(labels.Namespace, own.by.Name) {
				if id != pod && (c.User == cluster.NoPod || id < c.User) {
					c.Exclusive, c.User = true, id
				}
			}
		}
		out = append(out, c)
	}
	return out
}

// claims returns the claims of the surveyed pod.
func (s *surveyor) claims() []ownClaim {
	if !s.claimsRead {
		s.own, s.claimsRead = ownClaims(s.st, s.st.Labels(s.pod.Labels)), true
	}
	return s.own
}

// again reports whether the pod has named a claim before.
func again(own []ownClaim, k int) bool {
	return slices.ContainsFunc(own[:k], func(c ownClaim) bool { return c.by.Name == own[k].by.Name })
}

// claimsThat returns the names of the surveyed pod's claims of which something holds, each once.
func (s *surveyor) claimsThat(is func(*ownClaim) bool) (names []string) {
	own := s.claims()
	for k := range own {
		if name := own[k].by.Name; is(&own[k]) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// refused says which claims are such that the pod fits nowhere, nil if none are. It is the same for all nodes.
func (s *surveyor) refused() *ClaimLack {
	if !s.refusedSet {
		s.refusedSet = true
		if names := s.claimsThat(func(c *ownClaim) bool { return c.state().Refuses() }); len(names) > 0 {
			s.refusing = &ClaimLack{Claims: names}
		}
	}
	return s.refusing
}

// of begins a text with the claims that it is about; "" if nothing is known of them.
func (c *ClaimLack) of() string {
	return plural(len(c.Claims), "claim ", "claims ") + enumerate(c.Claims)
}

// maxNamed is how many names a text says, if there are more than one more: a pod has up to 256 claims, and a text of each may be about all.
const maxNamed = 9

// enumerate writes a list as a person does.
func enumerate(names []string) string {
	if len(names) > maxNamed+1 {
		return some(names, ", ", " and ", maxNamed)
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// where says which nodes meet one of the terms.
func (c *ClaimLack) where() string { return WhereText(c.Where) }

// WhereText says of which nodes terms of a volume hold, "" of all; of many terms, and conditions of one, some. It has 1 KiB at most.
func WhereText(terms []cluster.NodeSelectorTerm) string {
	var any []string
	more := 0 // terms that are not said
	for k := range terms {
		of := terms[k].Expressions
		switch {
		case len(of) == 0 && len(terms[k].Fields) > 0:
			return "" // only labels are compared
		case len(of) == 0:
			continue
		case len(any) > maxSaid:
			more++
			continue
		}
		said, rest := of, ""
		if len(of) > maxSaid+1 {
			said, rest = of[:maxSaid], fmt.Sprintf(" and %d more conditions", len(of)-maxSaid)
		}
		var all []string
		for r := range said {
			all = append(all, RequirementText(&said[r]))
		}
		any = append(any, strings.Join(all, ", ")+rest)
	}
	if len(any) == 0 {
		return "nowhere"
	}
	if more > 0 {
		any, more = any[:maxSaid], more+1
	}
	text := "where " + strings.Join(any, " or ")
	if more > 0 {
		text += fmt.Sprintf(" or one of %d more", more)
	}
	if len(text) > maxWhere {
		text = strings.ToValidUTF8(text[:maxWhere], "") + "…"
	}
	return text
}

// maxWhere is how long what WhereText says may be, in bytes: three values of a label have some 500.
const maxWhere = 1<<10 - len("…")

// SizeText writes a size in bytes as Kubernetes does.
func SizeText(bytes int64) string { return AmountText("memory", bytes) }

// supply says why there is no volume for the claim.
func (c *ClaimLack) supply() string {
	switch {
	case c.Node != "":
		return fmt.Sprintf("%s: its volume is to be provisioned for node %s", c.of(), c.Node)
	case c.Volume != "":
		return fmt.Sprintf("%s: volume %s, which it is to get, can be reached only %s", c.of(), c.Volume, c.where())
	}
	text := fmt.Sprintf("%s: no volume of class %s with %s is free that can be reached from it", c.of(), c.Class, SizeText(c.Wanted))
	if c.Most >= 0 {
		text += "; the largest has " + SizeText(c.Most)
	}
	if c.Unlike {
		text += "; one that is large enough is not as the claim wants it"
	}
	switch {
	case c.NoneMade:
		text += "; the class provisions none"
	case c.NotThere:
		text += "; the class provisions none there"
	}
	return text
}

// storage says that there is no room to provision a volume for the claim.
func (c *ClaimLack) storage() string {
	text := fmt.Sprintf("%s: there is no room there to provision %s of class %s", c.of(), SizeText(c.Wanted), c.Class)
	if c.Most >= 0 {
		return text + "; " + SizeText(c.Most) + " at most"
	}
	return text
}
