package rpc

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// RetryPause returns how long to wait after err before asking again: what the server asked for, or fallback if it did not
// say, and up to half as much more, so that those who were refused together do not come back together.
func RetryPause(err error, fallback time.Duration) time.Duration {
	pause, asked := RetryAfter(err)
	if !asked {
		pause = fallback
	}
	pause = max(pause, time.Millisecond)
	return pause + rand.N(pause/2+1)
}

// RetryRefused returns conn with retries. A unary call on it that is refused with RESOURCE_EXHAUSTED and RetryInfo, which means
// that nothing was done, is made again after [RetryPause], until the pause would outlast its deadline: then the refusal
// is the answer. A context without a deadline gets one of [DefaultClientDeadline].
func RetryRefused(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return retryRefused{conn} }

type retryRefused struct{ grpc.ClientConnInterface }

func (p retryRefused) Invoke(ctx context.Context, method string, request, response any, options ...grpc.CallOption) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultClientDeadline)
		defer cancel()
		deadline, _ = ctx.Deadline()
	}
	for {
		err := p.ClientConnInterface.Invoke(ctx, method, request, response, options...)
		if _, asked := RetryAfter(err); !asked || status.Code(err) != codes.ResourceExhausted {
			return err
		}
		pause := RetryPause(err, 0)
		if time.Until(deadline) <= pause {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done(): // cancelled
			timer.Stop()
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
