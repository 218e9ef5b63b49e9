package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// The reasons of refusals.
const (
	ReasonNoToken      rpc.Reason = "NO_TOKEN"       // UNAUTHENTICATED: send one
	ReasonUnknownToken rpc.Reason = "UNKNOWN_TOKEN"  // UNAUTHENTICATED: send another
	ReasonNotAllowed   rpc.Reason = "NOT_ALLOWED"    // PERMISSION_DENIED
	ReasonNoReview     rpc.Reason = "NO_REVIEW"      // UNAVAILABLE: whose the token is cannot be found out now
	ReasonTooManyCalls rpc.Reason = "TOO_MANY_CALLS" // RESOURCE_EXHAUSTED: come back later
)

const (
	maxCallers = 4096             // whose rates are remembered
	forgetting = 10 * time.Minute // how long after their last call, at least
)

// GuardConfig says how a Guard judges.
type GuardConfig struct {
	Reviewer Reviewer     // required
	Rate     float64      // calls per second of one caller; 0 means 50
	Burst    int          // calls of one caller at once; 0 means twice the rate
	Log      *slog.Logger // nil discards
}

// Guard lets through the calls of those who may make them. It is safe for concurrent use.
type Guard struct {
	cfg    GuardConfig
	limits *cache.LRUExpireCache // *rate.Limiter by user
}

// NewGuard returns a Guard. An error names the field that makes no sense.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	switch {
	case cfg.Reviewer == nil:
		return nil, errors.New("guard the gateway: Reviewer is missing")
	case cfg.Rate < 0:
		return nil, fmt.Errorf("guard the gateway: Rate: %v is negative", cfg.Rate)
	case cfg.Burst < 0:
		return nil, fmt.Errorf("guard the gateway: Burst: %d is negative", cfg.Burst)
	}
	if cfg.Rate == 0 {
		cfg.Rate = 50
	}
	if cfg.Burst == 0 {
		cfg.Burst = max(1, int(2*cfg.Rate))
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Guard{cfg: cfg, limits: cache.NewLRUExpireCache(maxCallers)}, nil
}

// Unary is the interceptor of unary calls.
func (g *Guard) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := g.admit(ctx, info.FullMethod, request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is the interceptor of streams.
func (g *Guard) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := g.admit(stream.Context(), info.FullMethod, nil); err != nil {
		return err
	}
	return handler(srv, stream)
}

func (g *Guard) admit(ctx context.Context, method string, request any) error {
	need, ok := guarded(method)
	if !ok {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	token := bearer(md.Get("authorization"))
	if token == "" {
		return rpc.Error(codes.Unauthenticated, ReasonNoToken, "no token: send the header \"authorization: Bearer TOKEN\"")
	}
	if need == nil {
		return g.review(ctx, token, nil)
	}
	return g.review(ctx, token, func() Permission { return need(request) })
}

// review lets through whoever has a token, if they may do what is needed; nil needs nothing.
func (g *Guard) review(ctx context.Context, token string, need func() Permission) error {
	// 1. Who is it?
	caller, err := g.cfg.Reviewer.Authenticate(ctx, token)
	if errors.Is(err, ErrUnknownToken) {
		return rpc.Error(codes.Unauthenticated, ReasonUnknownToken, "the token is not known, or not valid any more")
	}
	if err != nil {
		return g.unreviewed(ctx, "token", err)
	}
	// 2. Does it ask too often?
	if wait, ok := g.take(caller.User); !ok {
		return rpc.Exhausted(ReasonTooManyCalls, wait, "%s calls more than %v times a second", caller.User, g.cfg.Rate)
	}
	// 3. May it?
	if need == nil {
		return nil
	}
	permission := need()
	allowed, reason, err := g.cfg.Reviewer.Allowed(ctx, caller, permission)
	if err != nil {
		return g.unreviewed(ctx, "permission", err)
	}
	if !allowed {
		if reason != "" {
			reason = ": " + reason
		}
		return rpc.Error(codes.PermissionDenied, ReasonNotAllowed, "%s may not %v%s", caller.User, permission, reason)
	}
	return nil
}

func (g *Guard) unreviewed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g.cfg.Log.Warn("cannot review a call", "what", what, "err", err)
	return rpc.WithRetry(rpc.Error(codes.Unavailable, ReasonNoReview, "the %s cannot be reviewed now", what), time.Second)
}

// take reports whether the user may make one more call now, or how long to wait.
func (g *Guard) take(user string) (wait time.Duration, ok bool) {
	var limiter *rate.Limiter
	if known, found := g.limits.Get(user); found {
		limiter = known.(*rate.Limiter)
	} else {
		limiter = rate.NewLimiter(rate.Limit(g.cfg.Rate), g.cfg.Burst) // of two at the same time one is lost
	}
	g.limits.Add(user, limiter, forgetting)
	if limiter.Allow() {
		return 0, true
	}
	return time.Duration(float64(time.Second) / g.cfg.Rate), false
}

// bearer returns the token in the values of the header authorization, "" if there is none.
func bearer(values []string) string {
	for _, value := range values {
		scheme, token, _ := strings.Cut(value, " ")
		if token = strings.TrimSpace(token); strings.EqualFold(scheme, "bearer") && token != "" {
			return token
		}
	}
	return ""
}
