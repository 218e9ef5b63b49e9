package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/cache"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// The reasons of refusals.
const (
	ReasonNoToken      rpc.Reason = "NO_TOKEN"       // UNAUTHENTICATED: send one
	ReasonUnknownToken rpc.Reason = "UNKNOWN_TOKEN"  // UNAUTHENTICATED: send another
	ReasonNotAllowed   rpc.Reason = "NOT_ALLOWED"    // PERMISSION_DENIED
	ReasonNoReview     rpc.Reason = "NO_REVIEW"      // UNAVAILABLE: whose the token is cannot be found out now
	ReasonTooManyCalls rpc.Reason = "TOO_MANY_CALLS" // RESOURCE_EXHAUSTED: come back later
	ReasonTooManyNew   rpc.Reason = "TOO_MANY_NEW"   // RESOURCE_EXHAUSTED: too many tokens that are not known yet: come back later
)

const (
	maxCallers = 4096             // whose rates are remembered
	forgetting = 10 * time.Minute // how long after their last call, at least
	maxToken   = 16 << 10         // the bytes of a token; longer ones are nobody's
)

// GuardConfig says how a Guard judges.
type GuardConfig struct {
	Reviewer Reviewer     // required
	Rate     float64      // calls per second of one caller; 0 means 50
	Burst    int          // calls of one caller at once; 0 means twice the rate
	Log      *slog.Logger // nil discards
	// Alone says that no certificates tell who may call what members ask each other: then nobody may, but for health.
	Alone bool
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

// asking is what a Guard remembers of a call between Admit and its end, in the call's context.
type asking struct {
	guard  *Guard
	caller Caller
}

type askingKey struct{}

// Admit implements rpc.Guard: it finds out who calls, whether that one calls too often, and whether it may make such calls at all.
func (g *Guard) Admit(ctx context.Context, method string) (context.Context, error) {
	what, ok := guarded(method)
	if !ok {
		if g.cfg.Alone && !strings.HasPrefix(method, "/grpc.health.") {
			return nil, rpc.Error(codes.Unauthenticated, rpc.ReasonNoIdentity, "%s: members prove who they are by certificates, and there are none here", method)
		}
		return ctx, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	caller, err := g.admit(ctx, bearer(md.Get("authorization")), what, !rpc.Counted(ctx))
	if err != nil {
		return nil, err
	}
	ctx = rpc.WithCaller(ctx, shareOf(caller.User))
	return context.WithValue(ctx, askingKey{}, &asking{g, caller}), nil
}

// Expect is Admit for a call of a method whose request comes with the header authorization over HTTP, before anything of it is read: the
// call that is made of it is counted hereby, and is to be made in a context of [rpc.WithCounted]. The method "" is one that there is not.
func (g *Guard) Expect(ctx context.Context, authorization []string, method string) error {
	what, _ := guarded(method)
	_, err := g.admit(ctx, bearer(authorization), what, true)
	return err
}

// admit returns whose a token is, if that one may make one more call of a method that needs this.
func (g *Guard) admit(ctx context.Context, token string, what need, count bool) (Caller, error) {
	caller, err := g.identify(ctx, token)
	if err != nil {
		return Caller{}, err
	}
	if count {
		if wait, ok := g.take(caller.User); !ok {
			return Caller{}, rpc.Exhausted(ReasonTooManyCalls, wait, "%s calls more than %v times a second", caller.User, g.cfg.Rate)
		}
	}
	for _, permission := range what.first {
		if err := g.permit(ctx, caller, permission); err != nil {
			return Caller{}, err
		}
	}
	return caller, nil
}

// shareOf names who shares the bounds of a server with a user: the service accounts of a namespace are one, since who may create one may
// create many. Names of users are told from addresses.
func shareOf(user string) string {
	if account, ok := strings.CutPrefix(user, serviceAccount); ok {
		namespace, _, _ := strings.Cut(account, ":")
		user = serviceAccount + namespace
	}
	return "user " + user
}

// serviceAccount begins the user names of service accounts; namespace and name follow.
const serviceAccount = "system:serviceaccount:"

// Permit implements rpc.Guard, for a call that Admit has let in.
func (g *Guard) Permit(ctx context.Context, method string, request any) error {
	what, ok := guarded(method)
	if !ok || what.then == nil {
		return nil
	}
	a, ok := ctx.Value(askingKey{}).(*asking)
	if !ok {
		return errNoToken()
	}
	for _, permission := range what.then(request) {
		if wrong := permission.tooLong(); len(wrong) > 0 {
			for k := range wrong {
				if _, ok := request.(*schedulingv1.GetMapRequest); ok && wrong[k].Field == "name" {
					wrong[k].Field = "pod"
				}
			}
			return rpc.Invalid(wrong...)
		}
		if err := g.permit(ctx, a.caller, permission); err != nil {
			return err
		}
	}
	return nil
}

// MayNamePods reports whether an answer may name pods that the call has not named: whether the caller may list pods in all
// namespaces. Where callers are not known, everyone may. An error is one of Berth's.
func MayNamePods(ctx context.Context) (bool, error) { return may(ctx, listPods) }

// MayListPods reports whether an answer may tell of the pods of a namespace: whether the caller may list them. Where callers are not known, everyone may. An error
// is one of Berth's.
func MayListPods(ctx context.Context, namespace string) (bool, error) {
	return may(ctx, Permission{Verb: "list", Resource: "pods", Namespace: namespace})
}

// MayReadClaims reports whether an answer may tell what claims of a namespace ask for, which there are, and what they are bound to: whether the
// caller may list them. Where callers are not known, everyone may. An error is one of Berth's.
func MayReadClaims(ctx context.Context, namespace string) (bool, error) {
	return may(ctx, Permission{Verb: "list", Resource: "persistentvolumeclaims", Namespace: namespace})
}

func may(ctx context.Context, p Permission) (bool, error) {
	a, ok := ctx.Value(askingKey{}).(*asking)
	if !ok {
		return true, nil
	}
	allowed, _, err := a.guard.cfg.Reviewer.Allowed(ctx, a.caller, p)
	if err != nil {
		return false, a.guard.unreviewed(ctx, "permission", err)
	}
	return allowed, nil
}

// Know returns whose token the header authorization carries, as rpc.CallerOf would for a call, before anything else of a request is
// looked at. It counts for no rate: Expect does, or the call that follows. The caller's address is that of rpc.CallerOf.
func (g *Guard) Know(ctx context.Context, authorization []string) (string, error) {
	caller, err := g.identify(ctx, bearer(authorization))
	return shareOf(caller.User), err
}

// identify returns whose a token is.
func (g *Guard) identify(ctx context.Context, token string) (Caller, error) {
	if token == "" {
		return Caller{}, errNoToken()
	}
	if len(token) > maxToken {
		return Caller{}, errUnknownToken()
	}
	caller, err := g.cfg.Reviewer.Authenticate(ctx, token)
	switch {
	case errors.Is(err, ErrUnknownToken):
		return Caller{}, errUnknownToken()
	case rpc.ReasonOf(err) != "": // too many reviews
		return Caller{}, err
	case err != nil:
		return Caller{}, g.unreviewed(ctx, "token", err)
	}
	return caller, nil
}

func errNoToken() error {
	return rpc.Error(codes.Unauthenticated, ReasonNoToken, "no token: send the header \"authorization: Bearer TOKEN\"")
}

func errUnknownToken() error {
	return rpc.Error(codes.Unauthenticated, ReasonUnknownToken, "the token is not known, or not valid any more")
}

// permit returns nil if the caller may do that.
func (g *Guard) permit(ctx context.Context, caller Caller, permission Permission) error {
	allowed, reason, err := g.cfg.Reviewer.Allowed(ctx, caller, permission)
	if rpc.ReasonOf(err) != "" {
		return err
	}
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

// review lets through whoever has a token and may do what is needed.
func (g *Guard) review(ctx context.Context, token string, permission Permission) error {
	if wrong := permission.tooLong(); len(wrong) > 0 {
		return rpc.Invalid(wrong...)
	}
	_, err := g.admit(ctx, token, need{first: []Permission{permission}}, true)
	return err
}

func (g *Guard) unreviewed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g.cfg.Log.Warn("cannot review a call", "what", what, "err", short(err.Error()))
	return rpc.WithRetry(rpc.Error(codes.Unavailable, ReasonNoReview, "the %s cannot be reviewed now", what), time.Second)
}

// maxText is how much is kept and logged of what others say, who may repeat what a caller has said.
const maxText = 256

// short cuts a text, between characters.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
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
