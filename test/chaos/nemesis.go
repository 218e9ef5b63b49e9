package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// nemesis carries out a plan.
type nemesis struct {
	store    store
	crew     *crew
	etcd     *etcdCluster
	network  *Network
	api      *apiProxy
	control  *kubetest.ControlPlane
	ids      *identities // nil: no TLS
	record   *Recorder
	recorded *atomic.Int64 // the revision of etcd up to which its history is recorded
	binds    *atomic.Int64 // pods that were seen to be bound
	done     atomic.Int64  // faults

	controllers *controllers
	plugins     *pluginProcess                 // nil: there are none
	yoda        *serviceProcess                // nil: there are no cards
	collectors  *collectors                    // nil, too
	seen        *atomic.Pointer[func(*Object)] // is told changes of objects as they are recorded
	claimed     claimed
}

// run does one step after the other for some time, and longer if a step takes longer; or, if count is not 0, until so many
// faults have been done. When ctx ends it undoes what is under way. An error is the harness's own: the system under test is
// not as the plan wants it.
func (n *nemesis) run(ctx context.Context, plan *Plan, duration time.Duration, count int) error {
	for began := time.Now(); ctx.Err() == nil && (time.Since(began) < duration && count == 0 || n.done.Load() < int64(count)); {
		step := plan.Next()
		var failed error
		var mu sync.Mutex
		var faults sync.WaitGroup
		for _, f := range step.Faults {
			faults.Go(func() {
				err := n.fault(ctx, f)
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			})
		}
		faults.Wait()
		if failed != nil {
			return failed
		}
		sleep(ctx, step.Rest)
	}
	return nil
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// fault does one fault, for its time or until ctx ends, and undoes it.
func (n *nemesis) fault(ctx context.Context, f Fault) error {
	f.Phase = phaseBegin
	if f.Target == activeBinder || f.Other == activeBinder || f.Target == standbyBinder {
		met, err := n.binder(ctx, f.Target == standbyBinder)
		if err != nil { // nobody is elected: the fault meets any
			met = memberID(roleBinder, 0)
		}
		f.Met = met
	}
	if f.Target == lastCard && n.collectors != nil {
		f.Met = n.collectors.givenLast()
	}
	switch f.Kind {
	case killActive, killRecorded, killWritten, killPrepared, killWriting, killGang:
		f.Met = cmp.Or(n.awaitBinders(ctx), f.Met)
	}
	n.record.Add(Entry{Fault: &f})
	end := f
	end.Phase = phaseEnd
	undo, err := n.begin(ctx, f)
	if err != nil { // a process has ended, which the history shows
		end.Error = err.Error()
		n.record.Add(Entry{Fault: &end})
		return nil
	}
	n.done.Add(1)
	sleep(ctx, f.Lasts)
	err = undo()
	var told sign
	switch {
	case errors.As(err, &told):
		end.Saw, end.Missed, end.Error, err = told.saw, told.missed, told.idle, nil
	case err != nil:
		err = fmt.Errorf("undo fault %d, %s: %w", f.Number, f.Kind, err)
		end.Error = err.Error()
	}
	n.record.Add(Entry{Fault: &end})
	return err
}

// awaitBinders waits for a while until one binder binds and another one runs, and returns the first: empty if it has waited
// in vain. That somebody is elected is not enough: etcd says so of a dead binder, too, until its lease ends.
func (n *nemesis) awaitBinders(ctx context.Context) string {
	for until := time.Now().Add(bindersLimit); time.Now().Before(until) && ctx.Err() == nil; {
		before, err := n.binder(ctx, false)
		bound := n.binds.Load()
		sleep(ctx, time.Second)
		if now, again := n.binder(ctx, false); err == nil && again == nil && now == before && n.binds.Load() >= bound+bindsFlow &&
			len(n.crew.runningOf(roleBinder)) > 1 {
			return now
		}
	}
	return ""
}

const (
	bindersLimit = 30 * time.Second
	bindsFlow    = 3 // in a second, of the ten probes that come
)

// leader is the value of etcd's key coord/leader, as far as it is read here.
type leader struct {
	ID string `json:"id"`
}

// binder returns which binder is active, or which is not.
func (n *nemesis) binder(ctx context.Context, standby bool) (string, error) {
	kv, err := n.etcd.get(ctx, prefix+keyLeader)
	if err != nil {
		return "", err
	}
	if kv == nil {
		return "", errors.New("no binder is active")
	}
	var l leader
	if err := json.Unmarshal(kv.Value, &l); err != nil {
		return "", fmt.Errorf("decode the active binder: %w", err)
	}
	if !standby {
		return l.ID, nil
	}
	for _, id := range n.crew.having(roleBinder) {
		if id != l.ID {
			return id, nil
		}
	}
	return "", errors.New("there is only one binder")
}

// party returns the name that a drawn party has.
func (f Fault) party(drawn string) string {
	if drawn == activeBinder || drawn == standbyBinder || drawn == lastCard {
		return f.Met
	}
	return drawn
}

// begin does a fault and returns what undoes it.
func (n *nemesis) begin(ctx context.Context, f Fault) (undo func() error, err error) {
	target, other := f.party(f.Target), f.party(f.Other)
	// 1. Processes of Berth.
	verb, role := f.Kind.verb()
	switch verb {
	case doKill:
		return func() error { return n.crew.start(target) }, n.crew.kill(target)
	case doDrain:
		return func() error { return n.crew.start(target) }, n.crew.drain(target)
	case doPause:
		p, err := n.crew.take(target, notEnding)
		if err != nil {
			return nil, err
		}
		return p.Resume, p.Pause()
	case doAdd:
		return func() error { return n.crew.drain(target) }, n.crew.start(target)
	case doReplace:
		return func() error { return n.crew.replace(ctx, role, n.crew.berth) }, n.crew.replace(ctx, role, cmp.Or(n.crew.older, n.crew.berth))
	}
	switch f.Kind {
	case killAll:
		return n.killAll()
	case killActive:
		return func() error { return n.crew.start(target) }, n.crew.kill(target)
	case killHolding:
		return n.killHolding(ctx, f.Number, target)
	case killHeir:
		return n.killHeir(ctx, target)
	case killRefused:
		return n.killRefused(ctx, f.Number, target)

	case killRecorded, killWritten, killPrepared:
		return n.killAtStep(ctx, f)
	case killGang:
		return n.killInGang(ctx, f)
	case killWriting:
		return n.leaveWriting(ctx, f, true)

	// 2. Etcd.
	case etcdMemberKill:
		return n.killEtcd(target)
	case etcdRestart:
		return n.killEtcd("")
	case etcdMemberPause:
		return n.pauseEtcd(target)
	case etcdPause:
		return n.pauseEtcd("")
	case etcdIsolate:
		return n.spoil(Condition{Hold: true}, routes(target, "both", "")...), nil
	case etcdCompact:
		return n.compact(target), nil
	case leaseRevoke:
		n.revoke(ctx)
		return nothing, nil

	// 3. The network.
	case cutBinderEtcd, cutEtcd:
		return n.spoil(Condition{Hold: true}, routes(target, f.Way, etcdParty)...), nil
	case cutRoles:
		return n.spoil(Condition{Hold: true}, routes(target, f.Way, other)...), nil
	case cutAPI:
		return n.spoil(Condition{Hold: true}, routes(target, f.Way, apiParty)...), nil
	case delayRoles:
		return n.spoil(Condition{Delay: delay}, routes(target, "both", other)...), nil
	case delayEtcd:
		return n.spoil(Condition{Delay: delay}, routes(target, "both", etcdParty)...), nil
	case slowFollower:
		return n.spoil(Condition{Rate: slowRate}, Route{"", target}), nil
	case lostFollower:
		return n.outrun(ctx, target)
	case diverge:
		return n.diverge(ctx, target)
	case slowWorker:
		return n.slowDown(ctx, target), nil
	case resetRoles:
		return n.reset(target, other), nil

	// 4. The API server.
	case apiRestart:
		n.control.StopAPIServer()
		return n.startAPI, nil
	case apiPause:
		return n.control.ResumeAPIServer, n.control.PauseAPIServer()

	// 5. Objects.
	case relistStorm:
		return n.relistStorm(ctx, f.Number), nil
	case imageChurn:
		return n.churnImages(ctx), nil
	case untoldPod:
		return n.untoldPod(ctx, f.Number)
	case untoldNode:
		return n.untoldNode(ctx, f.Number)

	// 6. Volumes.
	case holdWriting:
		return n.leaveWriting(ctx, f, false)
	case cutWriting:
		return n.cutWriting(ctx, f, target)
	case deleteClaims, deleteVolumes:
		return n.deleteMeanwhile(ctx, f)
	case writesAmiss:
		return n.writesAmiss(ctx, f), nil
	case provisionerNo:
		return n.provisionerIs(ctx, f, moodRefuses), nil
	case provisionerMute:
		return n.provisionerIs(ctx, f, moodSilent), nil

	// 7. Plugin services.
	case pluginKill, pluginPause, pluginLie:
		return n.plugins.begin(f.Kind)

	// 8. Cards.
	case yodaHolding:
		return n.killYodaHolding(ctx, target)
	case yodaKill, yodaPause, yodaCut, collectorDies, cardSick, cardVanishes:
		return n.spoilCards(f, target)

	// 9. Certificates.
	case certRenew:
		return nothing, n.renew(ctx)
	case certRotate:
		return nothing, n.rotate(ctx)
	case certExpire:
		return n.expire(ctx, target)
	}
	fault, ok := map[Kind]APIFault{
		api429:        {Status: http.StatusTooManyRequests, Part: 0.5},
		api409:        {Status: http.StatusConflict, Part: 0.5},
		api500:        {Status: http.StatusInternalServerError, Part: 0.5},
		apiLate:       {Late: true, Part: 0.2},
		apiMute:       {Late: true, Keep: 100 * time.Millisecond, Mute: true, Part: 1},
		apiSlow:       {Slow: 300 * time.Millisecond, Part: 1},
		hookFails:     {Status: http.StatusInternalServerError, Hooked: tenantNamespace, Part: 1},
		hookConflicts: {Status: http.StatusConflict, Hooked: tenantNamespace, Part: 1},
	}[f.Kind]
	if !ok {
		return nil, errors.New("no such kind of fault")
	}
	n.api.set(fault)
	return func() error { n.api.set(APIFault{}); return nil }, nil
}

const (
	delay    = 50 * time.Millisecond // each way
	slowRate = 2000                  // bytes per second to a slow follower
)

func nothing() error { return nil }

// startAPI starts the API server. On a busy machine that does not always succeed at once.
func (n *nemesis) startAPI() error {
	var failed error
	for range 3 {
		if failed = n.control.StartAPIServer(); failed == nil {
			return nil
		}
	}
	return failed
}

// routes returns the ways of what two parties send each other.
func routes(a, way, b string) []Route {
	switch way {
	case "to":
		return []Route{{a, b}}
	case "from":
		return []Route{{b, a}}
	}
	return []Route{{a, b}, {b, a}}
}

// spoil sets the condition of routes, and returns what makes them good again.
func (n *nemesis) spoil(c Condition, routes ...Route) func() error {
	n.network.Set(c, routes...)
	return func() error { n.network.Set(Condition{}, routes...); return nil }
}

// reset breaks the connections between two parties again and again, until the returned function is called.
func (n *nemesis) reset(a, b string) func() error {
	stop := make(chan struct{})
	var resetting sync.WaitGroup
	resetting.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			n.network.Reset(a, b)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	return func() error { close(stop); resetting.Wait(); return nil }
}

const (
	// heldBinds is how long the binds of a binder are held up before it is killed.
	heldBinds = time.Second
	// Pods that come when it is dead, and go before others: the room of what was held up would be theirs.
	urgentRush = 24
	urgentTick = 30 * time.Millisecond
)

// killHolding kills a binder whose binds are recorded, and sent, and have not arrived. What of them is on its way arrives
// when the fault is undone, and finds the room wanted by others.
func (n *nemesis) killHolding(ctx context.Context, number int, binder string) (func() error, error) {
	to := apiParty
	if n.api == nil { // what is bound is written to etcd
		to = etcdParty
	}
	heal := n.spoil(Condition{Hold: true}, Route{binder, to})
	sleep(ctx, heldBinds)
	if err := n.crew.kill(binder); err != nil {
		return nil, errors.Join(err, heal())
	}
	var rush crowd
	stop := every(ctx, urgentTick, func(ctx context.Context, i int) {
		if i < urgentRush {
			p := urgent(fmt.Sprintf("late-%d-%d", number, i))
			rush.add(ctx, n.store, p)
		}
	})
	return func() error {
		failed := errors.Join(heal(), n.crew.start(binder))
		stop()
		sleep(ctx, heldBinds) // what arrives is judged while the others are there
		rush.leave(ctx, n.store)
		return failed
	}, nil
}

const (
	// fatesLast is how long binds have fates before their binder dies: so long that the room of what was refused is given to others.
	fatesLast = 6 * time.Second
	// fatesDelay makes records take long, so that there are several intents in each.
	fatesDelay = 100 * time.Millisecond
	rushPods   = 60
	rushTick   = 50 * time.Millisecond
)

// killRefused kills a binder when binds that were recorded together have had different fates: some were refused for good, and
// their room is others' by now; of others nothing was heard, though some were done. Then the API server is well. More pods come
// meanwhile than there is room for, so that none stays free.
func (n *nemesis) killRefused(ctx context.Context, number int, binder string) (func() error, error) {
	heal := n.spoil(Condition{Delay: fatesDelay}, routes(binder, "both", etcdParty)...)
	n.api.set(APIFault{Fates: true})
	var rush crowd
	stop := every(ctx, rushTick, func(ctx context.Context, i int) {
		if i < rushPods {
			rush.add(ctx, n.store, pod(classBig, fmt.Sprintf("rush-%d-%d", number, i), 1300))
		}
	})
	sleep(ctx, fatesLast)
	stop()
	err := n.crew.kill(binder)
	n.api.set(APIFault{})
	if err = errors.Join(err, heal()); err != nil {
		rush.leave(ctx, n.store)
		return nil, err
	}
	return func() error {
		failed := n.crew.start(binder)
		_ = n.awaitBinders(ctx) // what is taken over is judged while the others are there
		rush.leave(ctx, n.store)
		return failed
	}, nil
}

// killHeir kills the active binder, and the one that follows it as soon as it is elected: it is taking over then.
func (n *nemesis) killHeir(ctx context.Context, first string) (func() error, error) {
	if err := n.crew.kill(first); err != nil {
		return nil, err
	}
	killed := []string{first}
	for until := time.Now().Add(4 * leaseTTL); len(killed) == 1 && time.Now().Before(until) && ctx.Err() == nil; sleep(ctx, 10*time.Millisecond) {
		heir, err := n.binder(ctx, false)
		if err != nil || heir == first {
			continue
		}
		if n.crew.kill(heir) == nil {
			killed = append(killed, heir)
		}
	}
	return func() error { return n.startAll(killed) }, nil
}

// startAll starts members that do not run.
func (n *nemesis) startAll(ids []string) error {
	var failed error
	for _, id := range ids {
		failed = errors.Join(failed, n.crew.start(id))
	}
	return failed
}

// killAll kills all members that run.
func (n *nemesis) killAll() (func() error, error) {
	var killed []string
	for _, id := range n.crew.running() {
		if err := n.crew.kill(id); err != nil {
			return nil, err
		}
		killed = append(killed, id)
	}
	return func() error { return n.startAll(killed) }, nil
}

// etcdNamed returns the numbers of the members that a fault is about: of all if name is empty.
func (n *nemesis) etcdNamed(name string) []int {
	var out []int
	for i := range etcdMembers {
		if matches(name, etcdName(i)) {
			out = append(out, i)
		}
	}
	return out
}

func (n *nemesis) killEtcd(name string) (func() error, error) {
	members := n.etcdNamed(name)
	for _, i := range members {
		n.etcd.member(i).Kill()
	}
	return func() error {
		for _, i := range members {
			if err := n.etcd.start(i); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (n *nemesis) pauseEtcd(name string) (func() error, error) {
	members := n.etcdNamed(name)
	for _, i := range members {
		if err := n.etcd.member(i).Pause(); err != nil {
			return nil, err
		}
	}
	return func() error {
		var failed error
		for _, i := range members {
			failed = errors.Join(failed, n.etcd.member(i).Resume())
		}
		return failed
	}, nil
}

// revoke ends the lease of the active binder, if there is one.
func (n *nemesis) revoke(ctx context.Context) {
	kv, err := n.etcd.get(ctx, prefix+keyLeader)
	if err != nil || kv == nil {
		return // another fault has been faster
	}
	_ = n.etcd.revoke(ctx, int64(kv.Lease)) // as above
}

// compact breaks a member's watches and lets it find, when it comes back, that what they wanted is gone.
func (n *nemesis) compact(member string) func() error {
	heal := n.spoil(Condition{Hold: true}, routes(member, "both", etcdParty)...)
	n.network.Reset(member, etcdParty)
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*etcdCall)
		defer cancel()
		// That etcd has compacted that far already is no failure, and that it does not answer is another fault's.
		_ = n.etcd.compact(ctx, n.recorded.Load())
		return heal()
	}
}
