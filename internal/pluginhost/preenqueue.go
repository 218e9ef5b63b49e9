package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-scheduler/berth/internal/cluster"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Entering is a pod that is about to wait for its turn.
type Entering struct {
	UID, Namespace, Name string
	Pod                  PodOf
	// OnlySorts: it is in, and only where it belongs in the queue is asked.
	OnlySorts bool
	// Queued is how it waits, for who sorts.
	Queued *pluginv1.Queued
}

// SortKey is where a pod belongs in the queue. Keys of the same order can be compared, and a higher order is newer.
type SortKey struct {
	Order uint64
	Key   int64
}

// oneOrder is the order of keys that can be compared whoever has said them.
const oneOrder = 1

// Entrance says whether a pod may be tried.
type Entrance struct {
	// Err is nil if it may, a [Rejection] if a plugin keeps it out, ErrPodGone if it is gone, and else why nobody knows.
	Err error
	// Told: the service of the plugin that keeps it out says when it is to be asked again.
	Told bool
	// Key is where it belongs in the queue if it may, and a plugin sorts that.
	Key SortKey
}

// PreEnqueues reports whether services say which pods of a scheduler name may be tried.
func (h *Host) PreEnqueues(schedulerName string) bool {
	return len(h.inOrder(schedulerName, preEnqueue)) > 0
}

// PreEnqueue asks services which pods of a scheduler name may be tried, in the order of the profile, and then where those belong that may: kube-scheduler's PreEnqueue and QueueSort. The first plugin that is against a pod is the last that is asked about it.
// There is an answer for each pod, in order.
func (h *Host) PreEnqueue(ctx context.Context, epoch cluster.Epoch, schedulerName string, pods []Entering) []Entrance {
	out := make([]Entrance, len(pods))
	ask := func(u *use, at step, of func(i int) bool) {
		var asked []int
		var about []Entering
		for i := range pods {
			if out[i].Err == nil && of(i) {
				asked, about = append(asked, i), append(about, pods[i])
			}
		}
		if len(asked) == 0 {
			return
		}
		said := h.services[u.service].enter(ctx, epoch, schedulerName, u, at, about)
		for k, i := range asked {
			out[i] = said[k]
		}
	}
	for _, u := range h.inOrder(schedulerName, preEnqueue) {
		ask(u, preEnqueue, func(i int) bool { return !pods[i].OnlySorts })
	}
	for _, u := range h.inOrder(h.sorter, queueSort) { // one at most
		ask(u, queueSort, func(int) bool { return true })
	}
	return out
}

const (
	// enteringWithin is how long a service may take, at most, to say which of some pods may be tried, or four times its timeout, if that is more.
	enteringWithin = time.Minute
	// enteringHangs is how long, and its timeout besides, it may say nothing of one pod until its stream ends.
	enteringHangs = time.Minute
)

// enter asks a service about pods that have no node yet. It is asked about those of one call at a time: they wait for each other there, and a service that answers one after the other has its time for each.
func (s *service) enter(ctx context.Context, epoch cluster.Epoch, schedulerName string, u *use, at step, pods []Entering) []Entrance {
	out := make([]Entrance, len(pods))
	for i := range out {
		out[i].Key.Order = oneOrder // of who is passed over
	}
	all := func(err error) []Entrance {
		for i := range out {
			out[i].Err = s.excused(ctx, err, nil)
		}
		return out
	}
	select {
	case s.enters <- struct{}{}:
		defer func() { <-s.enters }()
	case <-ctx.Done():
		return all(context.Cause(ctx))
	}
	is, err := s.beginPlacing(ctx, epoch)
	if err == nil && is.hangs(enteringHangs+s.Timeout) { // of pods perhaps that nobody asks about any more
		is, err = s.beginPlacing(ctx, epoch)
	}
	if err != nil {
		return all(err)
	}
	objects := s.entering(ctx, is, pods, out)
	within, cancel := context.WithTimeoutCause(ctx, max(enteringWithin, 4*s.Timeout), fmt.Errorf("%w, nor of pods that were asked about with it", errLate))
	defer cancel()
	calls, answers := make([]*call, len(pods)), newAnswers(s.Timeout, s.Timeout)
	defer answers.end()
	for i, p := range pods {
		if out[i].Err == nil {
			var queued *pluginv1.Queued
			if at == queueSort {
				queued = p.Queued
			}
			calls[i], out[i].Err = s.sendEntering(within, is, answers, at, u.steps[at], objects[i], queued, Placement{UID: p.UID, Namespace: p.Namespace, Name: p.Name, SchedulerName: schedulerName})
			out[i].Err = s.excused(ctx, out[i].Err, nil)
		}
	}
	var late error // no more answers are waited for
	for i, c := range calls {
		if c == nil {
			continue
		}
		if late == nil {
			if late = answers.await(within, c); errors.Is(late, errLate) && within.Err() == nil {
				late = fmt.Errorf("%w of %v", errLate, s.Timeout)
				if s.Follows { // its process hangs, and ends with the stream. Others go on: what is kept on the stream is none of this
					is.cancel(late)
				}
			}
		}
		err := late
		select {
		case <-c.last:
			if err = c.err; err == nil && at == queueSort {
				out[i].Key = c.key
			}
		default:
		}
		s.metrics.observe(at.String(), time.Since(c.began), err)
		out[i].Err = s.excused(ctx, err, u.steps[at])
		out[i].Told = errors.As(out[i].Err, new(Rejection)) && s.placing.tells()
	}
	return out
}

// sendEntering has a service asked about a pod, once what was asked before of it, for somebody who has gone, is answered: that may be of before what this is asked for. Nil, with an error: it is not.
func (s *service) sendEntering(ctx context.Context, is *placeStream, answers *answers, at step, plugins []string, object *sentPod, queued *pluginv1.Queued, p Placement) (*call, error) {
	for {
		c, other := is.sendEntering(at, plugins, p, object, queued, answers.wake)
		if c != nil {
			return c, nil
		}
		var err error
		if time.Since(other.began) < s.Timeout {
			err = answers.await(ctx, other)
		} else {
			err = errLate
		}
		if errors.Is(err, errLate) && ctx.Err() == nil {
			err = fmt.Errorf("%w of %v", errLate, s.Timeout)
			if s.Follows { // as below
				is.cancel(err)
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// hangs ends the stream if nothing has been said for so long of whether some pod may be tried, and reports whether it does.
func (is *placeStream) hangs(long time.Duration) bool {
	is.mu.Lock()
	hangs := false
	for _, c := range is.enters {
		hangs = hangs || time.Since(c.began) >= long
	}
	is.mu.Unlock()
	if hangs {
		is.end(fmt.Errorf("nothing has been said for %v of whether a pod may be tried", long))
	}
	return hangs
}

// entering returns what is sent of pods, and says of those that cannot be read why.
func (s *service) entering(ctx context.Context, is *placeStream, pods []Entering, out []Entrance) []*sentPod {
	objects := make([]*sentPod, len(pods))
	if s.Follows {
		return objects
	}
	var reads errgroup.Group
	reads.SetLimit(readAtOnce)
	for i, p := range pods {
		reads.Go(func() error {
			objects[i], out[i].Err = is.objectOf(ctx, p.Pod)
			return nil
		})
	}
	_ = reads.Wait() // each has said what is wrong
	return objects
}

// tells reports whether the service says which pods are worth trying.
func (p *placing) tells() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.activates
}
