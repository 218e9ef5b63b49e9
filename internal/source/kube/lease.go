package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/source"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaseConfig names a Lease and says how it is held. All of it is required.
type LeaseConfig struct {
	Namespace, Name string
	// Duration is how long others leave a lease alone that its holder does not renew: whole seconds.
	Duration time.Duration
	// RenewDeadline is how long the holder acts after it has sent a renewal that succeeded; shorter than Duration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two tries.
	RetryPeriod time.Duration
}

func (cfg *LeaseConfig) check() error {
	switch {
	case cfg.Namespace == "" || cfg.Name == "":
		return errors.New("lease: the namespace or the name is empty")
	case cfg.RetryPeriod <= 0 || cfg.RenewDeadline <= cfg.RetryPeriod || cfg.Duration <= cfg.RenewDeadline || cfg.Duration%time.Second != 0:
		return fmt.Errorf("lease: duration %v, renew deadline %v, retry period %v: want them decreasing, and whole seconds of the first",
			cfg.Duration, cfg.RenewDeadline, cfg.RetryPeriod)
	}
	return nil
}

// Lease is a Lease object by which schedulers agree which of them is active, as kube-scheduler's replicas do: what is written and
// when it may be taken is what client-go's tools/leaderelection does. It differs from that in whose clock ends first: a holder's time
// counts from when its renewal left, not from when the answer came. One goroutine at a time may use it, but for CatchUp and String.
type Lease struct {
	cfg    LeaseConfig
	source *Source
	client kubernetes.Interface
	lock   *resourcelock.LeaseLock
	now    func() time.Time
	slow   prometheus.Counter // renewals that had to read it first

	record resourcelock.LeaderElectionRecord // as it was read or written last
	raw    []byte                            // as it was read last
	seen   time.Time                         // since when it has been so, for all this process knows
}

// Lease returns a Lease of the cluster, with connections of its own. It does not connect.
func (s *Source) Lease(cfg LeaseConfig) (*Lease, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	base, err := restConfig(s.cfg.Master, s.cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := newClient(base, 0, 0)
	if err != nil {
		return nil, err
	}
	slow := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leader_election_slowpath_total",
		Help: "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.",
	}, []string{"name"})
	if s.cfg.Metrics != nil {
		if err := s.cfg.Metrics.Register(slow); err != nil {
			return nil, fmt.Errorf("register metrics of lease %s/%s: %w", cfg.Namespace, cfg.Name, err)
		}
	}
	return &Lease{
		cfg: cfg, source: s, client: client, now: time.Now, slow: slow.WithLabelValues(cfg.Name),
		lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name}, Client: client.CoordinationV1(),
		},
	}, nil
}

// String returns the namespace and the name.
func (l *Lease) String() string { return l.lock.Describe() }

// Name returns the name without the namespace.
func (l *Lease) Name() string { return l.cfg.Name }

// Duration returns how long others leave it alone when its holder does not renew it.
func (l *Lease) Duration() time.Duration { return l.cfg.Duration }

// RetryPeriod returns how long a holder waits between two calls of Try.
func (l *Lease) RetryPeriod() time.Duration { return l.cfg.RetryPeriod }

// Wait returns how long a holder waits before the next call of Try, or who would be one: a quarter as long, so that a lease that is given up is soon taken, and no
// longer than until it runs out, if nobody renews it.
func (l *Lease) Wait(holder string) time.Duration {
	if l.record.HolderIdentity == holder && holder != "" {
		return l.cfg.RetryPeriod
	}
	wait := l.cfg.RetryPeriod / 4
	if left := l.seen.Add(time.Duration(l.record.LeaseDurationSeconds) * time.Second).Sub(l.now()); left > 0 {
		wait = min(wait, left+time.Millisecond)
	}
	return wait
}

// Try takes the lease for a holder, or renews it. That another holds it is no error. A lease of another may be taken when it has been
// seen to stay as it is for as long as it says, whatever times it names.
func (l *Lease) Try(ctx context.Context, holder string) (source.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.RenewDeadline/2)
	defer cancel()
	began := l.now()
	next := resourcelock.LeaderElectionRecord{
		HolderIdentity: holder, LeaseDurationSeconds: int(l.cfg.Duration / time.Second),
		RenewTime: metav1.NewTime(began), AcquireTime: metav1.NewTime(began),
	}
	// 1. Who holds it writes on. If somebody else has written, or nobody answers, what there is decides.
	if l.record.HolderIdentity == holder && l.valid(began) {
		next.AcquireTime, next.LeaderTransitions = l.record.AcquireTime, l.record.LeaderTransitions
		if l.lock.Update(ctx, next) == nil {
			return l.taken(next, began), nil
		}
	}
	// 2. What is there?
	old, raw, err := l.lock.Get(ctx)
	if apierrors.IsNotFound(err) {
		if err := l.lock.Create(ctx, next); err != nil {
			return source.Claim{}, fmt.Errorf("make lease %v: %w", l, err)
		}
		l.say(ctx, holder, "became leader")
		return l.taken(next, began), nil
	}
	if err != nil {
		return source.Claim{}, fmt.Errorf("read lease %v: %w", l, err)
	}
	if l.raw == nil || !bytes.Equal(raw, l.raw) {
		l.record, l.raw, l.seen = *old, raw, l.now()
	}
	mine := old.HolderIdentity == holder
	if !mine && old.HolderIdentity != "" && l.valid(began) {
		return source.Claim{Holder: old.HolderIdentity}, nil
	}
	// 3. Take it.
	if next.LeaderTransitions = old.LeaderTransitions + 1; mine {
		next.AcquireTime, next.LeaderTransitions = old.AcquireTime, old.LeaderTransitions
		l.slow.Inc()
	}
	if err := l.lock.Update(ctx, next); err != nil {
		return source.Claim{}, fmt.Errorf("take lease %v: %w", l, err)
	}
	if !mine {
		l.say(ctx, holder, "became leader")
	}
	return l.taken(next, began), nil
}

// valid reports whether the lease, as it was seen last, has not run out.
func (l *Lease) valid(now time.Time) bool {
	return l.seen.Add(time.Duration(l.record.LeaseDurationSeconds) * time.Second).After(now)
}

// taken remembers what has been written by a request that left at a time.
func (l *Lease) taken(record resourcelock.LeaderElectionRecord, sent time.Time) source.Claim {
	l.record, l.raw, l.seen = record, nil, l.now()
	return source.Claim{Until: sent.Add(l.cfg.RenewDeadline), Holder: record.HolderIdentity}
}

// Release gives the lease up, if nobody has written it since the holder did, so that another scheduler can follow at once.
func (l *Lease) Release(ctx context.Context, holder string) error {
	if l.record.HolderIdentity != holder {
		return nil
	}
	now := metav1.NewTime(l.now())
	free := resourcelock.LeaderElectionRecord{
		LeaderTransitions: l.record.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
	}
	if err := l.lock.Update(ctx, free); err != nil {
		return fmt.Errorf("release lease %v: %w", l, err)
	}
	l.record, l.raw, l.seen = free, nil, l.now()
	l.say(ctx, holder, "stopped leading")
	return nil
}

// CatchUp waits until the running Watch has told all that others who place pods had written when it was called. An error is ctx's.
func (l *Lease) CatchUp(ctx context.Context) error { return l.source.catchUp(ctx) }

// say writes an event about the lease, as kube-scheduler's election does. That it is not written costs nothing.
func (l *Lease) say(ctx context.Context, holder, what string) {
	lease, err := l.client.CoordinationV1().Leases(l.cfg.Namespace).Get(ctx, l.cfg.Name, metav1.GetOptions{})
	if err == nil {
		err = l.source.create(ctx, l.event(lease.UID, holder+" "+what))
	}
	if err != nil {
		l.source.cfg.Log.Warn("event about the lease not written", "lease", l.String(), "err", err)
	}
}

func (l *Lease) event(uid types.UID, note string) *eventsv1.Event {
	s := l.source
	now := s.cfg.Now()
	suffix := "." + strconv.FormatInt(s.unique(now), 16)
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.cfg.Namespace, Name: strings.TrimRight(l.cfg.Name[:min(len(l.cfg.Name), maxEventName-len(suffix))], "-.") + suffix,
		},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: s.cfg.SchedulerNames[0],
		ReportingInstance:   s.cfg.Instance,
		Action:              "LeaderElection",
		Reason:              "LeaderElection",
		Type:                v1.EventTypeNormal,
		Note:                note,
		Regarding: v1.ObjectReference{
			APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Namespace: l.cfg.Namespace, Name: l.cfg.Name, UID: uid,
		},
	}
}
