package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is something that is done to the system under test for some time.
type Fault struct {
	Number int    `json:"number"`
	Kind   Kind   `json:"kind"`
	Phase  string `json:"phase,omitempty"` // begin, end
	// Target and Other are the parties that it is done to, as drawn. A Target that is activeBinder or standbyBinder is
	// found out when the fault begins, and is Met; so is lastCard.
	Target string        `json:"target,omitempty"`
	Other  string        `json:"other,omitempty"`
	Met    string        `json:"met,omitempty"`
	Way    string        `json:"way,omitempty"` // of what is sent between the parties: both, to, from
	Lasts  time.Duration `json:"lasts,omitempty"`
	Error  string        `json:"error,omitempty"` // why it could not be done
	// Saw is what processes say of it that nothing else shows, and Missed what one should have said and did not.
	Saw    string `json:"saw,omitempty"`
	Missed string `json:"missed,omitempty"`
}

// Phases of a fault.
const (
	phaseBegin = "begin"
	phaseEnd   = "end"
)

// Kind names a kind of fault: what is done, and to whom.
type Kind string

// Parties that are found out when a fault begins.
const (
	activeBinder  = "active binder"
	standbyBinder = "standby binder"
	lastCard      = "card given last"
)

// What is done to the processes of a role.
const (
	doKill  = "kill"
	doPause = "pause"
	doDrain = "drain"
	doAdd   = "add"
	// doReplace restarts the members one after the other, of the older binary if there is one, and later of the newer one.
	doReplace = "replace"
)

// alone is the group of kinds that nothing else is done together with.
const alone = "everything"

// The other kinds.
const (
	killAll         Kind = "kill everything"
	killActive      Kind = "kill active binder"
	killHolding     Kind = "kill binder while its binds are held up"
	killHeir        Kind = "kill binder and its heir as it takes over"
	killRefused     Kind = "kill binder with binds refused and unanswered"
	etcdIsolate     Kind = "cut etcd member from its peers"
	etcdMemberKill  Kind = "kill etcd member"
	etcdMemberPause Kind = "pause etcd member"
	etcdPause       Kind = "pause etcd"
	etcdRestart     Kind = "restart etcd"
	etcdCompact     Kind = "compact etcd under a watcher"
	leaseRevoke     Kind = "revoke binder's lease"
	cutBinderEtcd   Kind = "cut binder from etcd"
	cutEtcd         Kind = "cut role from etcd"
	cutRoles        Kind = "cut role from role"
	cutAPI          Kind = "cut binder from API server"
	delayRoles      Kind = "delay between roles"
	delayEtcd       Kind = "delay to etcd"
	resetRoles      Kind = "reset connections"
	slowFollower    Kind = "slow follower of the log"
	lostFollower    Kind = "follower too slow for the log"
	diverge         Kind = "alter what a replica is told"
	slowWorker      Kind = "slow worker"
	api429          Kind = "API server answers 429"
	api409          Kind = "API server answers 409"
	api500          Kind = "API server answers 500"
	apiMute         Kind = "API server does and never answers"
	apiLate         Kind = "API server answers too late"
	apiSlow         Kind = "API server is slow"
	apiRestart      Kind = "restart API server"
	apiPause        Kind = "pause API server"
	hookFails       Kind = "webhook fails binds of a namespace"
	hookConflicts   Kind = "webhook answers 409 to binds of a namespace"
	relistStorm     Kind = "watches expire while statuses are written"
	imageChurn      Kind = "images of nodes change"
	untoldPod       Kind = "pod that is not UTF-8"
	untoldNode      Kind = "node that is not UTF-8"
	killRecorded    Kind = "kill binder between record and volume write"
	killWritten     Kind = "kill binder after a volume write"
	killPrepared    Kind = "kill binder between volumes and bind"
	killGang        Kind = "kill binder within the binds of a gang"
	killWriting     Kind = "kill binder while its volume writes are held up"
	holdWriting     Kind = "pods go while their volume writes are held up"
	cutWriting      Kind = "cut binder from etcd while its volume writes are held up"
	deleteClaims    Kind = "claims go while they are written to"
	deleteVolumes   Kind = "volumes go while they are written to"
	writesAmiss     Kind = "volume writes are refused and unanswered"
	provisionerNo   Kind = "provisioner says no"
	provisionerMute Kind = "provisioner is silent"
	pluginKill      Kind = "kill plugin service"
	pluginPause     Kind = "pause plugin service"
	pluginLie       Kind = "plugin service lies"
	yodaKill        Kind = "kill yoda service"
	yodaPause       Kind = "pause yoda service"
	yodaCut         Kind = "cut yoda service from API server"
	yodaHolding     Kind = "kill yoda service while binds are held up"
	collectorDies   Kind = "collector dies"
	cardSick        Kind = "card falls sick"
	cardVanishes    Kind = "card vanishes"
	certRenew       Kind = "renew all certificates"
	certRotate      Kind = "replace the authority"
	certExpire      Kind = "certificate expires"
)

// Ways of a cut.
var ways = []string{"both", "to", "from"}

// traits are what the plan needs to know of a kind. Faults of one group do not overlap.
type traits struct {
	kind        Kind
	group       string
	least, most time.Duration
	draw        func(*rand.Rand, *Fault) // fills in the parties; nil: there is nothing to choose
	needs       need
}

// need is what a kind of fault cannot be done without.
type need int

const (
	needsNothing need = iota
	needsAPI          // an API server
	needsTLS
	needsPlaintext
	needsPlugins
	needsCards
	needsGangs
)

// possible reports whether a kind can be done to a system that is set up so.
func (t traits) possible(cfg config) bool {
	switch t.needs {
	case needsAPI:
		return cfg.source == sourceKube
	case needsTLS:
		return cfg.tls
	case needsPlaintext:
		return !cfg.tls
	case needsPlugins:
		return !cfg.noPlugins
	case needsCards:
		return cfg.cards()
	case needsGangs:
		return cfg.gangs()
	}
	return true
}

// kinds returns all kinds of faults against a system whose leases live for ttl.
func kinds(ttl time.Duration) []traits {
	var out []traits
	one := func(role string, n int) func(*rand.Rand, *Fault) {
		return func(rng *rand.Rand, f *Fault) {
			f.Target = memberID(role, rng.IntN(n))
			if role == roleBinder {
				f.Target = activeBinder
				if rng.IntN(4) == 0 {
					f.Target = standbyBinder
				}
			}
		}
	}
	for _, s := range size {
		out = append(out,
			traits{Kind(doKill + " " + s.role), s.role, 0, 2 * ttl, one(s.role, s.n), needsNothing},
			traits{Kind(doPause + " " + s.role), s.role, ttl / 3, 3 * ttl, one(s.role, s.n), needsNothing},
			traits{Kind(doDrain + " " + s.role), s.role, 0, 2 * ttl, one(s.role, s.n), needsNothing},
			traits{Kind(doReplace + " " + s.role), s.role, ttl, 3 * ttl, nil, needsNothing})
		if s.role != roleBinder && s.role != roleGateway {
			out = append(out, traits{Kind(doAdd + " " + s.role), s.role, ttl, 4 * ttl, func(_ *rand.Rand, f *Fault) { f.Target = memberID(s.role, s.n) }, needsNothing})
		}
	}
	anyMember := func(rng *rand.Rand) string {
		s := size[rng.IntN(len(size))]
		if s.role == roleBinder {
			return activeBinder
		}
		return memberID(s.role, rng.IntN(s.n))
	}
	member := func(rng *rand.Rand, f *Fault) { f.Target, f.Way = anyMember(rng), ways[rng.IntN(len(ways))] }
	anyParty := func(rng *rand.Rand, f *Fault) { f.Target = anyMember(rng) }
	follower := func(rng *rand.Rand, f *Fault) {
		s := size[1+rng.IntN(len(size)-1)]
		f.Target = memberID(s.role, rng.IntN(s.n))
	}
	// Who talks to whom: all follow the binder, and the queue calls everybody.
	pair := func(rng *rand.Rand, f *Fault) {
		follower(rng, f)
		f.Other, f.Way = activeBinder, ways[rng.IntN(len(ways))]
		if rng.IntN(2) == 0 {
			f.Target = memberID(roleQueue, rng.IntN(2))
			f.Other = [...]string{activeBinder, memberID(roleFilter, rng.IntN(3)), memberID(roleScore, rng.IntN(2))}[rng.IntN(3)]
		}
	}
	worker := func(rng *rand.Rand, f *Fault) {
		s := size[2+rng.IntN(2)]
		f.Target = memberID(s.role, rng.IntN(s.n))
	}
	etcdMember := func(rng *rand.Rand, f *Fault) { f.Target = etcdName(rng.IntN(etcdMembers)) }
	anyCollector := func(rng *rand.Rand, f *Fault) { f.Target = cardNode(rng.IntN(cardNodes)).Name }
	// Half of the time, it is a card of a pod that has just been placed: others are being placed there, too.
	card := func(rng *rand.Rand, f *Fault) {
		if f.Target = cardID(rng.IntN(cardNodes), rng.IntN(cardsEach)); rng.IntN(2) == 0 {
			f.Target = lastCard
		}
	}
	binder := func(_ *rand.Rand, f *Fault) { f.Target = activeBinder }
	binderWay := func(rng *rand.Rand, f *Fault) { f.Target, f.Way = activeBinder, ways[rng.IntN(len(ways))] }
	out = append(out,
		traits{killAll, alone, 0, ttl, nil, needsNothing},
		traits{killActive, alone, 0, 2 * ttl, binder, needsNothing},
		traits{diverge, alone, ttl / 3, ttl, follower, needsPlaintext},
		traits{lostFollower, alone, ttl / 3, ttl, follower, needsAPI},
		traits{etcdMemberKill, "etcd", 0, 3 * ttl, etcdMember, needsNothing},
		traits{etcdMemberPause, "etcd", ttl / 3, 3 * ttl, etcdMember, needsNothing},
		traits{etcdIsolate, "etcd", ttl / 3, 4 * ttl, etcdMember, needsNothing},
		traits{etcdPause, "etcd", ttl / 3, 3 * ttl, nil, needsNothing},
		traits{etcdRestart, "etcd", 0, 2 * ttl, nil, needsNothing},
		traits{etcdCompact, "network", ttl, 3 * ttl, member, needsNothing},
		traits{killHolding, roleBinder, ttl / 3, 3 * ttl, binder, needsNothing},
		traits{killHeir, roleBinder, 0, ttl, binder, needsNothing},
		traits{leaseRevoke, roleBinder, ttl, ttl, nil, needsNothing},
		traits{cutBinderEtcd, "network", ttl / 3, 4 * ttl, binderWay, needsNothing},
		traits{cutEtcd, "network", ttl / 3, 4 * ttl, member, needsNothing},
		traits{cutRoles, "network", ttl / 3, 4 * ttl, pair, needsNothing},
		traits{cutAPI, "network", ttl / 3, 4 * ttl, binderWay, needsAPI},
		traits{delayRoles, "network", ttl, 4 * ttl, pair, needsNothing},
		traits{delayEtcd, "network", ttl, 4 * ttl, member, needsNothing},
		traits{resetRoles, "network", ttl, 2 * ttl, pair, needsNothing},
		traits{slowFollower, "network", ttl, 4 * ttl, follower, needsNothing},
		traits{slowWorker, "network", ttl, 4 * ttl, worker, needsNothing},
		traits{api429, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{api409, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{api500, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{apiLate, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{apiMute, "api", 4 * ttl, 5 * ttl, nil, needsAPI},
		traits{apiSlow, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{apiRestart, "api", 0, ttl, nil, needsAPI},
		traits{apiPause, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{killRefused, alone, 0, ttl, binder, needsAPI},
		traits{hookFails, "api", 7 * ttl, 9 * ttl, nil, needsAPI},
		traits{hookConflicts, "api", 7 * ttl, 9 * ttl, nil, needsAPI},
		traits{relistStorm, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{imageChurn, "objects", ttl, 4 * ttl, nil, needsNothing},
		traits{untoldPod, "objects", ttl, 2 * ttl, nil, needsAPI},
		traits{untoldNode, "objects", ttl, 2 * ttl, nil, needsAPI},
		traits{killRecorded, roleBinder, 0, 2 * ttl, binder, needsAPI},
		traits{killWritten, roleBinder, 0, 2 * ttl, binder, needsNothing},
		traits{killPrepared, roleBinder, 0, 2 * ttl, binder, needsAPI},
		traits{killGang, roleBinder, 0, 2 * ttl, binder, needsGangs},
		traits{killWriting, alone, ttl, 2 * ttl, binder, needsAPI},
		traits{holdWriting, "volumes", 0, 2 * ttl, binder, needsAPI}, // Berth gives a request up after 10 s
		traits{cutWriting, alone, ttl / 3, 4 * ttl, binder, needsAPI},
		traits{deleteClaims, "volumes", ttl, 2 * ttl, nil, needsAPI},
		traits{deleteVolumes, "volumes", ttl, 2 * ttl, nil, needsAPI},
		traits{writesAmiss, "api", ttl, 4 * ttl, nil, needsAPI},
		traits{provisionerNo, "provisioner", ttl, 4 * ttl, nil, needsAPI},
		traits{provisionerMute, "provisioner", bindTimeout + ttl, bindTimeout + 4*ttl, nil, needsAPI},
		traits{pluginKill, "plugins", 0, 2 * ttl, nil, needsPlugins},
		traits{pluginPause, "plugins", ttl / 3, 2 * ttl, nil, needsPlugins},
		traits{pluginLie, "plugins", ttl / 3, 3 * ttl, nil, needsPlugins},
		traits{yodaKill, "yoda", 0, 2 * ttl, nil, needsCards},
		traits{yodaPause, "yoda", 2 * yodaTimeout, 3 * ttl, nil, needsCards},
		traits{yodaCut, "yoda", ttl / 3, 4 * ttl, func(rng *rand.Rand, f *Fault) { f.Way = ways[rng.IntN(len(ways))] }, needsCards},
		traits{yodaHolding, alone, 2 * ttl, 4 * ttl, binder, needsCards},
		traits{collectorDies, "cards", staleAfter + ttl, 2*staleAfter + 4*ttl, anyCollector, needsCards},
		traits{cardSick, "cards", 5 * ttl, 8 * ttl, card, needsCards},
		traits{cardVanishes, "cards", ttl / 3, 8 * ttl, card, needsCards},
		traits{certRenew, "certificates", 0, ttl, nil, needsTLS},
		traits{certRotate, "certificates", 0, ttl, nil, needsTLS},
		traits{certExpire, "certificates", ttl, 3 * ttl, anyParty, needsTLS},
	)
	return out
}

// Step is faults that begin together, and how long nothing is done after the last of them has ended.
type Step struct {
	Faults []Fault
	Rest   time.Duration
}

const (
	leastRest = 2 * time.Second
	mostRest  = 6 * time.Second
	// together is the part of the steps that have two faults.
	together = 0.3
)

// Plan draws the steps of a run, one after the other. Equal seeds draw equal steps.
type Plan struct {
	rng    *rand.Rand
	kinds  []traits
	deck   []traits // what is left until each kind has had its turn
	number int
}

// NewPlan returns a plan of the kinds that only names; nil stands for all. Kinds come in turns of random order, so that each
// comes as often as any other.
func NewPlan(seed uint64, ttl time.Duration, only []Kind) *Plan {
	p := &Plan{rng: rand.New(rand.NewPCG(seed, 1)), kinds: kinds(ttl)}
	if only != nil {
		p.kinds = slices.DeleteFunc(p.kinds, func(t traits) bool { return !slices.Contains(only, t.kind) })
	}
	return p
}

// Next draws the next step.
func (p *Plan) Next() Step {
	first := p.draw(func(traits) bool { return true })
	step := Step{Faults: []Fault{p.fault(first)}}
	if first.group != alone && p.rng.Float64() < together {
		other := func(t traits) bool { return t.group != first.group && t.group != alone }
		if len(p.kinds) > 1 && slices.ContainsFunc(p.deck, other) {
			step.Faults = append(step.Faults, p.fault(p.draw(other)))
		}
	}
	step.Rest = p.between(leastRest, mostRest)
	return step
}

// draw takes the first kind from the deck that will do. There must be one, unless the deck is empty.
func (p *Plan) draw(will func(traits) bool) traits {
	if len(p.deck) == 0 {
		p.deck = slices.Clone(p.kinds)
		p.rng.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
	}
	i := slices.IndexFunc(p.deck, will)
	t := p.deck[i]
	p.deck = slices.Delete(p.deck, i, i+1)
	return t
}

func (p *Plan) fault(t traits) Fault {
	p.number++
	f := Fault{Number: p.number, Kind: t.kind, Lasts: p.between(t.least, t.most)}
	if t.draw != nil {
		t.draw(p.rng, &f)
	}
	return f
}

// between draws a time, in whole milliseconds.
func (p *Plan) between(least, most time.Duration) time.Duration {
	return (least + time.Duration(p.rng.Int64N(int64(most-least)+1))).Truncate(time.Millisecond)
}

// verb returns what is done to a role's processes: kill, pause, drain, add or replace; empty if the kind is another.
func (k Kind) verb() (verb, role string) {
	verb, role, ok := strings.Cut(string(k), " ")
	if ok && slices.ContainsFunc(size, func(h headcount) bool { return h.role == role }) {
		return verb, role
	}
	return "", ""
}
