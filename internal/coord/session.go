package coord

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// minTTL is the shortest lease worth having: etcd counts in seconds.
const minTTL = time.Second

// Session is an etcd lease, kept alive. What is registered or claimed under it vanishes soon after it ends.
// Its methods are safe for concurrent use.
type Session struct {
	client *Client
	lease  clientv3.LeaseID
	ttl    time.Duration // how long the holder may act after a keepalive was sent; never longer than the lease
	cancel context.CancelFunc
	done   chan struct{}

	campaigns atomic.Int64 // numbers the campaigns of this session
}

// NewSession waits for etcd until ctx ends, then keeps the lease alive until Close, the end of the client, or loss.
// The ttl says how long a silent holder keeps what it holds: at least a second, rounded up to whole seconds for etcd,
// which may make the lease (not the holder's own limit) longer.
//
// Whoever may use etcd may list its leases, and end one, or hang a key of its own on it, which ends it for its holder: etcd renews a
// lease for nobody who may not write all of its keys. So a lease gets a key of the role's own as soon as it is granted, and is nobody
// else's from then on. One that somebody has laid hands on before, which takes him less than a round trip, is given up for another.
func (c *Client) NewSession(ctx context.Context, ttl time.Duration) (*Session, error) {
	if ttl < minTTL {
		return nil, fmt.Errorf("session ttl: %v is less than %v", ttl, minTTL)
	}
	try := retryPace{log: c.log, what: "grant lease"}
	for {
		sent := time.Now()
		granted, err := c.grant(ctx, ttl)
		if err == nil {
			s := &Session{client: c, lease: clientv3.LeaseID(granted.ID), done: make(chan struct{})}
			s.ttl = min(ttl, time.Duration(granted.TTL)*time.Second)
			keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
			s.cancel = cancel
			if !c.start(keep, func(ctx context.Context) { s.keepAlive(ctx, sent) }) {
				cancel()
				return nil, errors.New("start session: client is closed")
			}
			// The lease is renewed meanwhile: of an etcd that is slow to write, the mark may take longer than the lease lasts.
			if err = s.mark(ctx); err == nil {
				return s, nil
			}
			_ = s.Close(context.WithoutCancel(ctx)) // else it expires
		}
		if status.Code(err) == codes.OutOfRange {
			return nil, fmt.Errorf("grant lease of %v: %w", ttl, err)
		}
		if c.ctx.Err() != nil || !try.wait(ctx, err) {
			return nil, fmt.Errorf("grant lease of %v: %w", ttl, errors.Join(context.Cause(ctx), err))
		}
	}
}

func (c *Client) grant(ctx context.Context, ttl time.Duration) (*pb.LeaseGrantResponse, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	seconds := int64((ttl + time.Second - 1) / time.Second)
	return c.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds}, grpc.WaitForReady(true))
}

// mark hangs a key of the role's own on the lease.
func (s *Session) mark(ctx context.Context) error {
	c := s.client
	if c.role == "" {
		return nil
	}
	key := c.coordPrefix() + membersPrefix + string(c.role) + "/" + markPrefix + strconv.FormatInt(int64(s.lease), 16)
	if _, err := c.commit(ctx, nil, []clientv3.Op{clientv3.OpPut(key, "", clientv3.WithLease(s.lease))}, nil); err != nil {
		return fmt.Errorf("hang a key on lease %x: %w", int64(s.lease), err)
	}
	return nil
}

// markPrefix begins, in the place of a member's id, the keys that only make a lease its role's own.
const markPrefix = ".lease-"

// refused ends the session, if that is what the error of a write under it means: that somebody else has hung a key on its lease, or
// that the role may not write what it has to. Nobody keeps the lease alive then.
func (s *Session) refused(err error) error {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	s.client.log.Error("session lost: etcd does not let the role use the lease", "lease", fmt.Sprintf("%x", int64(s.lease)), "err", err)
	s.cancel()
	return fmt.Errorf("%w: %w", ErrSessionLost, err)
}

// Done is closed when the session is closed, when its lease is lost, or when the lease may have expired by the local
// clock: never later than the TTL after the last keepalive that succeeded was sent. Stop acting under it at once.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session and revokes the lease, so that others need not wait for it to expire.
// Done closes first. It may be called again; an error means that the lease may live on for its TTL.
func (s *Session) Close(ctx context.Context) error {
	s.cancel()
	<-s.done
	ctx, cancel := s.client.request(ctx)
	defer cancel()
	_, err := s.client.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(s.lease)}, grpc.WaitForReady(true))
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("revoke lease %x: %w", int64(s.lease), err)
	}
	return nil
}

// over reports whether the session may no longer be acted under.
func (s *Session) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// limit returns until when the holder may act, given when the last successful keepalive was sent.
// etcd counts the lease from a moment after that, but with its own clock: a tenth is left for clocks that run at
// different rates and for timers that fire late.
func (s *Session) limit(sent time.Time) time.Time { return sent.Add(s.ttl - s.ttl/10) }

// keepAlive renews the lease until ctx ends, the lease is gone, or the limit has passed; then it closes done.
//
// clientv3 has a KeepAlive of its own; it counts the TTL from the answer and looks at its clock once a second, so
// it can report the loss of a lease seconds after it has expired.
func (s *Session) keepAlive(ctx context.Context, sent time.Time) {
	defer close(s.done)
	log := s.client.log.With("lease", fmt.Sprintf("%x", int64(s.lease)))
	next := sent.Add(s.ttl / 3)
	for {
		limit := s.limit(sent)
		if !sleepUntil(ctx, next) {
			return
		}
		if !time.Now().Before(limit) {
			log.Error("session lost: the lease may have expired", "ttl", s.ttl, "for", time.Since(sent).Round(time.Millisecond))
			return
		}
		attempt := time.Now()
		deadline := attempt.Add(s.ttl / 3)
		if deadline.After(limit) {
			deadline = limit
		}
		err := s.renew(ctx, deadline)
		switch {
		case err == nil:
			sent, next = attempt, attempt.Add(s.ttl/3)
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrSessionLost):
			log.Error("session lost: etcd has ended the lease, or does not renew it for this role", "ttl", s.ttl, "err", err)
			return
		}
		log.Warn("lease not renewed", "err", err, "left", time.Until(limit).Round(time.Millisecond))
		if next = time.Now().Add(s.ttl / 20); next.After(limit) {
			next = limit
		}
	}
}

// renew sends one keepalive and waits for its answer until deadline.
func (s *Session) renew(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(clientv3.WithRequireLeader(ctx), deadline)
	defer cancel()
	stream, err := s.client.leases.LeaseKeepAlive(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease)}); err != nil {
		return err
	}
	answer, err := stream.Recv()
	if told := rpctypes.Error(err); errors.Is(told, rpctypes.ErrLeaseNotFound) || errors.Is(told, rpctypes.ErrPermissionDenied) {
		return fmt.Errorf("%w: %w", ErrSessionLost, told)
	}
	if err != nil {
		return err
	}
	if answer.TTL <= 0 {
		return ErrSessionLost
	}
	return nil
}

// sleepUntil reports false when ctx ends first.
func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
