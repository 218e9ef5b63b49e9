package coord

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What went wrong, for errors.Is.
var (
	// ErrFenced: the guard of a write no longer holds, or the term's session is over. Nothing was written. Drop the work.
	ErrFenced = errors.New("fenced: a newer holder may exist")
	// ErrTaken: another session holds the shard. Wait for WatchShards to show it free.
	ErrTaken = errors.New("taken by another holder")
	// ErrCompacted: the revision asked for is no longer kept. List, then watch from there.
	ErrCompacted = errors.New("revision compacted")
	// ErrUnknown: etcd may or may not have applied the write, or may do so later.
	ErrUnknown = errors.New("outcome unknown")
	// ErrSessionLost: the lease of the session is gone. Nothing was written. Start a new session.
	ErrSessionLost = errors.New("session lost")
	// ErrTooLarge: etcd does not take a request of this size. Nothing was written.
	ErrTooLarge = errors.New("too large for etcd")
	// ErrNoSpace: etcd's database has come to its quota, and etcd takes no writes that need room. It says so of a write, too, that it has
	// let through to its database and applied, just when there was no more room. Somebody has to make room; then try again.
	ErrNoSpace = errors.New("no space in etcd's database")
	// ErrBusy: etcd has more requests to do than it takes. Nothing was written. Try again.
	ErrBusy = errors.New("etcd has too much to do")
	// ErrOutOfOrder: a later version is already recorded, or the batch ID is in use. Neither version nor batch was written.
	ErrOutOfOrder = errors.New("out of order")
)

// errClosed: Close has been called. Nothing was written.
var errClosed = errors.New("the client of etcd is closed")

// readError explains the error of a read.
func (c *Client) readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, context.DeadlineExceeded):
		return c.noAnswer(err)
	}
	return err
}

// writeError tells errors after which nothing was written from errors that leave it open.
func (c *Client) writeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", ErrSessionLost, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, rpctypes.ErrTooManyRequests):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrUnknown, c.noAnswer(err))
	}
	code := status.Code(err)
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = etcd.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange,
		codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.Unimplemented:
		return err // etcd, or the client itself, has refused the request
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// noAnswer adds where the answer should have come from and whether there is a connection, which clientv3 leaves out.
func (c *Client) noAnswer(err error) error {
	return fmt.Errorf("no answer from etcd at %s, connection %s: %w", c.names(), c.inUse.Load().conn.GetState(), err)
}
