package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/shadow"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/kube"
)

// ShadowOptions say which scheduler is followed, and how often it is told what is found.
type ShadowOptions struct {
	Kubeconfig, Master string
	Settings           cluster.Settings // with the profiles of the scheduler
	Every              time.Duration    // between two reports
	For                time.Duration    // how long it is followed; 0: until ctx ends
	Examples           int              // of each outcome
	Log                *slog.Logger
	// Report is called with what has been found so far, and at the end. Nodes are all there are, and as many as are enough for the scheduler.
	Report func(r shadow.Report, nodes, enough int, last bool) error
}

const (
	// shadowEvents is how many events of the cluster wait to be taken: behind them, the API server waits.
	shadowEvents = 1 << 13
	// shadowAhead is how many events are taken that are not looked at yet.
	shadowAhead = 1 << 16
	// shadowLook is how often pods are looked at that the scheduler says fit nowhere.
	shadowLook = 15 * time.Second
	// shadowTick is how often it is looked whether what was in flight has arrived.
	shadowTick = 100 * time.Millisecond
)

// toldAt is an event, and when it came.
type toldAt struct {
	event source.Event
	at    time.Time
}

// Shadow follows a scheduler until ctx ends, or for as long as it is told to. It only reads.
func Shadow(ctx context.Context, o ShadowOptions) error {
	names := make([]string, len(o.Settings.Profiles))
	ours := make(map[string]bool)
	for i, p := range o.Settings.Profiles {
		names[i] = p.SchedulerName
		ours[p.SchedulerName] = true
	}
	src, err := kube.New(kube.Config{
		Kubeconfig: o.Kubeconfig, Master: o.Master, SchedulerNames: names, Log: o.Log,
		KeepPods: func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" && ours[pod.Spec.SchedulerName] },
	})
	if err != nil {
		return err
	}
	follower, err := shadow.New(shadow.Config{Settings: o.Settings, Examples: o.Examples})
	if err != nil {
		return err
	}
	if o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.For)
		defer cancel()
	}
	events := make(chan toldAt, shadowEvents)
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := src.Watch(running, func(e source.Event) {
			select {
			case events <- toldAt{e, time.Now()}:
			case <-running.Done():
			}
		})
		if running.Err() != nil {
			return nil // it was told to end
		}
		return err
	})
	f := following{o: o, source: src, shadow: follower, events: events, looks: make(chan []shadow.Refused, 1)}
	g.Go(func() error { return f.run(running, g) })
	if err := g.Wait(); err != nil {
		return err
	}
	return f.last()
}

// following is a scheduler that is followed.
type following struct {
	o      ShadowOptions
	source *kube.Source
	shadow *shadow.Shadow
	events chan toldAt
	looks  chan []shadow.Refused // what a look has found, of which one is under way
	looked bool                  // one is
	newest time.Time             // when what was taken last had come
}

func (f *following) run(ctx context.Context, g *errgroup.Group) error {
	tick, report, look := time.NewTicker(shadowTick), time.NewTicker(f.o.Every), time.NewTicker(min(shadowLook, max(f.o.Every, time.Second)))
	defer tick.Stop()
	defer report.Stop()
	defer look.Stop()
	more := false // is to be looked at
	for {
		var at <-chan time.Time
		if more {
			at = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-at:
		case t := <-f.events:
			if err := f.tell(t); err != nil {
				return err
			}
		case refused := <-f.looks:
			f.looked = false
			if now := time.Now(); f.shadow.Behind(now) == 0 { // what the scheduler says of now is no news of a while ago
				f.shadow.Look(refused, now)
			} else {
				f.shadow.Look(nil, now)
			}
		case <-tick.C:
		case <-look.C:
			f.look(g)
		case <-report.C:
			if err := f.report(false); err != nil {
				return err
			}
		}
		// A bind is looked at when what was in flight with it has been taken, and not only arrived.
		upTo, err := f.take()
		if err != nil {
			return err
		}
		if more, err = f.shadow.Advance(upTo, false); err != nil {
			return fmt.Errorf("follow the cluster: %w", err)
		}
	}
}

func (f *following) tell(t toldAt) error {
	if err := f.shadow.Tell(t.event, t.at); err != nil {
		return fmt.Errorf("follow the cluster: %w", err)
	}
	f.newest = t.at
	return nil
}

// take takes what has arrived, as long as not too much waits to be looked at, and returns up to when all has been taken.
func (f *following) take() (upTo time.Time, err error) {
	for len(f.events) > 0 { // nobody else takes any
		if f.shadow.Ahead() >= shadowAhead {
			return f.newest, nil
		}
		if err := f.tell(<-f.events); err != nil {
			return time.Time{}, err
		}
	}
	return time.Now(), nil
}

// now is a channel that never waits.
var now = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// look has it found out what the scheduler says of pods that wait: what is told of pods may wait for what is done with it, so nothing of the source is asked here.
func (f *following) look(g *errgroup.Group) {
	if f.looked || !f.shadow.Synced() {
		return
	}
	waiting := make(map[[2]string]string)
	for name, uid := range f.shadow.Waiting() {
		waiting[name] = uid
	}
	f.looked = true
	g.Go(func() error {
		var refused []shadow.Refused
		for name, uid := range waiting {
			pod := f.source.LastPod(name[0], name[1])
			if pod == nil || string(pod.UID) != uid {
				continue
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
					refused = append(refused, shadow.Refused{UID: uid, Namespace: name[0], Name: name[1], Why: c.Message})
				}
			}
		}
		f.looks <- refused // there is room: one look is under way
		return nil
	})
}

func (f *following) report(last bool) error {
	if !f.shadow.Synced() {
		if last {
			return errors.Join(errors.New("the cluster has not been read: see the log"), f.source.Ready())
		}
		return nil
	}
	nodes, enough := f.shadow.Nodes()
	return f.o.Report(f.shadow.Report(time.Now()), nodes, enough, last)
}

// last tells what has been found, when nothing more is told.
func (f *following) last() error {
	for {
		select {
		case t := <-f.events:
			if err := f.shadow.Tell(t.event, t.at); err != nil {
				return fmt.Errorf("follow the cluster: %w", err)
			}
			continue
		default:
		}
		break
	}
	for more := true; more; {
		var err error
		if more, err = f.shadow.Advance(time.Now(), true); err != nil {
			return fmt.Errorf("follow the cluster: %w", err)
		}
	}
	return f.report(true)
}
