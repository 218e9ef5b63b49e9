package binder

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/trace"
)

// placement is a pod that was given a node, from then on until it is bound there or has given back what it was given. It begins as assumed,
// by a commit, or, where an earlier epoch has recorded it, as recorded.
//
// Who it is of, what was chosen for it, and how it is traced never change, and anybody may read that. All else belongs to its owner, who is
// alone in changing it, and hands it on with the state: the recorder has those that are assumed or releasing, a worker of the bind lane
// those that it has taken, the lane the other recorded and withdrawing ones, in its queue or where they wait for a place, names those that
// are aside.
type placement struct {
	UID, Namespace, Name string // of the pod
	choice
	binders     extender.Interest // which extenders and plugin services bind it; 0: the source does
	attempt     *trace.Attempt    // nil: it is not traced, or was taken over
	preparation *preparation      // nil: nothing has been chosen for claims
	progress    *progress         // nil: plugin services have nothing to do with it

	state   placementState
	batch   int64     // to which its record belongs, from the record on
	index   int       // in the batch
	unit    int64     // those of one unit are recorded whole or not at all; 0: it is one by itself
	tries   int       // binds with an unknown outcome; one that was taken over begins with the other binder's
	changed int       // of ours, those that found that the pod had changed
	failed  int       // of ours, the others
	failing time.Time // when the first of those was; zero for none
	misfit  error     // why it is only to be withdrawn; nil if it is to be bound
	waits   time.Time // since when it waits for a place among the calls under way, if it does
	place   *place    // its place, from when it has one until its turn has come
	absent  bool      // its node is not known: it is a misfit that is not assumed
	unfit   bool      // another intent contradicts it, and it stays a misfit
	shared  bool      // the pod's scheduler name is shared
	stint   int64     // in which it was judged, if it is; 0: not in this term
	sent    bool      // a bind may have left, if it is
	stuck   bool      // as long as it counts in term.unbound, it does so as stuck
}

// choice is what was chosen for a placement. It is recorded whole before anything of it is written anywhere, is never chosen differently
// by another binder, and is given back whole.
type choice struct {
	Node    string
	Volumes []cluster.VolumeChoice // for claims

	// annotations are what plugins have chosen for the pod when it was reserved; nil: nothing. Recorded is about how many bytes these are in the record.
	annotations map[string]string
	recorded    int
}

// with returns with whose binds those of a placement go: those of its namespace, as far as the same extenders and plugin services bind them.
func (p *placement) with() string { return bindsWith(p.Namespace, p.binders) }

// bindsWith returns with whose binds those go of a pod of a namespace that some extenders bind, or none: with those of its namespace, and, if extenders do, only with those that
// the same ones bind. What is said of a namespace in windows, flights, turns and of shares of the unbound pods is said of these. So an extender that is slow, or fails, holds up no
// pod that it does not bind. No namespace has such a name.
func bindsWith(namespace string, binders extender.Interest) string {
	if binders == 0 {
		return namespace
	}
	return namespace + "/" + strconv.FormatUint(uint64(binders), 16)
}

// binding returns what a source is asked to write.
func (p *placement) binding() source.Binding {
	return source.Binding{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: p.Node, Annotations: p.annotations}
}

// intent returns what is recorded.
func (p *placement) intent() coord.Intent {
	in := coord.Intent{PodUID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: p.Node, Annotations: p.annotations}
	for _, v := range p.Volumes {
		in.Volumes = append(in.Volumes, coord.VolumeIntent{Claim: v.Claim, ClaimUID: v.UID, Volume: v.Volume})
	}
	if p.preparation != nil {
		in.Scheduler = p.preparation.scheduler
	}
	return in
}

// placementState is how far a placement is. In all states but the last two its pod keeps its room in the ledger, unless it is absent.
//
// The source may tell at any time what became of the pod. That is looked at before anything is written, of a placement in its turn or
// put aside. One that is told is bound, or released, at once: nothing is written and nothing taken back, for the ledger has given
// the room back as it was told.
type placementState uint8

const (
	// stateAssumed: the ledger has it, and nothing outside of this process knows of it. It waits for the record.
	stateAssumed placementState = iota
	// statePermitting: plugin services have not said yet whether it may be. Nothing outside of this process and of these services knows of it. It does not count as unbound, but by itself: see stepping.
	statePermitting
	// stateRecorded: its intent is in etcd, or it needs none (source.Source.Fenced). It waits for its turn in the lane. Binds of it may have
	// been sent, by this binder or an earlier one, and may still happen.
	stateRecorded
	// statePreparing: what has been chosen for its claims is being carried out. No bind of it is sent by this binder. It does not count as unbound,
	// but by itself: see preparing.
	statePreparing
	// statePreBinding: plugin services do what they do before its bind. No bind of it is sent by this binder. It does not count as unbound, but by itself.
	statePreBinding
	// stateBinding: a bind of it is under way.
	stateBinding
	// stateWithdrawing: no bind of it is sent. A write to its pod is to make sure that none which was sent can happen any more. Where the
	// outcome of that is not known, one that fits is bound again, and a misfit stays to be withdrawn.
	stateWithdrawing
	// stateAside: another scheduler has its name. Its room and its record stay, nothing is written to its pod, and nobody waits for it: it does
	// not count as unbound. In the next stint it is judged again.
	stateAside
	// stateReleasing: it does not come about. No bind of it was sent, or none can happen any more. Its intent is leaving the record; until
	// it has, another binder could find it, so the room stays taken. Then plugin services take back what they have reserved, and chosen, before the room is others'.
	stateReleasing
	// stateBound: its pod is bound where it was to be.
	stateBound
	// stateReleased: what it was given is others' to take, or its pod is another's to place.
	stateReleased
	states
)

func (s placementState) String() string {
	return [states]string{"assumed", "permitting", "recorded", "preparing", "prebinding", "binding", "withdrawing", "aside", "releasing", "bound", "released"}[s]
}

// final reports whether nothing comes behind a state.
func (s placementState) final() bool { return s == stateBound || s == stateReleased }

// unbound reports whether placements in a state count against Config.MaxUnbound.
func (s placementState) unbound() bool {
	return !s.final() && s != stateAside && s != statePreparing && s != statePermitting && s != statePreBinding
}

// transitions are all that there are, by the state that they lead from.
var transitions = [states][]placementState{
	stateAssumed: {
		stateRecorded,   // the record is written, or it needs none
		statePermitting, // plugin services have to say first whether it may be
		stateReleasing,  // they have said that it may not
	},
	statePermitting: {
		stateAssumed,   // it may be
		stateReleasing, // it may not, or plugin services have failed
		stateBound,     // the source has told: somebody else has bound it there
		stateReleased,  // it is gone, or elsewhere
	},
	stateRecorded: {
		statePreparing,   // claims are to be bound first
		statePreBinding,  // plugin services have something to do first
		stateBinding,     // it is its turn
		stateWithdrawing, // taken over, it does not fit any more; or a bind was sent, and it has found no place for the next
		stateAside,       // its stint is over
		stateReleasing,   // it has found no place among the binds under way, and no bind was sent
		stateBound,       // the source has told
		stateReleased,    // the same: it is gone, or elsewhere
	},
	statePreparing: {
		stateRecorded,    // its claims are bound
		stateWithdrawing, // they will not be, or, taken over, it does not fit any more; a bind may have been sent
		stateAside,       // its stint is over
		stateReleasing,   // they will not be, and no bind was sent
		stateBound,       // the source has told
		stateReleased,    // the same: it is gone, or elsewhere
	},
	statePreBinding: {
		stateRecorded,    // plugin services have done what they do before it
		stateWithdrawing, // they could not; a bind may have been sent
		stateAside,       // its stint is over
		stateReleasing,   // they could not, and no bind was sent
		stateBound,       // the source has told
		stateReleased,    // the same: it is gone, or elsewhere
	},
	stateBinding: {
		stateRecorded,    // what became of it is not known
		stateWithdrawing, // it keeps failing, or it was refused and an earlier bind may still happen
		stateReleasing,   // it was refused, or its pod is gone
		stateBound,
		stateReleased, // it is elsewhere
	},
	stateWithdrawing: {
		stateRecorded,  // what became of that is not known, and it fits
		stateAside,     // its stint is over
		stateReleasing, // it is withdrawn, or its pod is gone
		stateBound,     // an earlier bind has happened
		stateReleased,  // it is elsewhere
	},
	stateAside: {
		stateRecorded,    // in the next stint it fits
		stateWithdrawing, // it does not
		stateReleasing,   // the source has told that it is gone, or elsewhere, and it has claims
		stateBound,       // the source has told
		stateReleased,    // the same: it is gone, or elsewhere
	},
	stateReleasing: {
		stateReleased, // its intent has left the record
	},
	stateBound: nil, stateReleased: nil,
}

// to brings a placement into a state. An error says that there is no such transition, and nothing has changed.
func (p *placement) to(next placementState) error {
	if !slices.Contains(transitions[p.state], next) {
		return fmt.Errorf("a placement that is %v cannot be %v", p.state, next)
	}
	p.state = next
	return nil
}

// move brings a placement, of which the caller is the owner, into a state, and counts it there. False: there is no such transition. Then
// the program is wrong. That is logged and counted, and the caller lets the placement be: it has another owner, who goes on with
// it, or its room stays taken until the term ends, and the next one finds it in the record.
func (b *backlog) move(p *placement, next placementState) bool {
	was := p.state
	if err := p.to(next); err != nil {
		b.metrics.transitionsRefused.Inc()
		b.log.Error("placement not moved", "pod", p.Namespace+"/"+p.Name, "node", p.Node, "err", err)
		return false
	}
	switch {
	case was.unbound() && !next.unbound():
		if p.stuck {
			b.unbound.addStuck(-1)
		}
		b.unbound.giveOf(b.shareOf(p.with()), 1)
	case !was.unbound() && next.unbound():
		b.unbound.giveOf(b.shareOf(p.with()), -1)
		if p.stuck { // else those that come back all at once would leave nobody room until each of them has failed again
			b.unbound.addStuck(1)
		}
	}
	if next.final() && p.sent {
		b.names.count(-1)
	}
	return true
}

// noteStuck says, of a placement that counts as unbound and of which the caller is the owner, that its bind has failed, or that those of its
// namespace are slow: nobody gives way to it, for who knows how long.
func (b *backlog) noteStuck(p *placement) {
	if !p.stuck && p.state.unbound() {
		p.stuck = true
		b.unbound.addStuck(1)
	}
}

// says reports whether a try that failed is to be logged: the first, and those behind 1, 2, 4, 8 and so on others.
func (p *placement) says() bool { return p.tries&(p.tries-1) == 0 }
