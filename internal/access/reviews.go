package access

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/berth-scheduler/berth/internal/rpc"
)

// The bounds of what is asked of a Reviewer that is elsewhere, and of what is remembered.
const (
	// reviewed is how long a review is believed, as API servers that delegate to another believe one.
	reviewed      = 10 * time.Second
	reviewTimeout = 5 * time.Second
	maxReviews    = 8192             // remembered of each: callers, unknown tokens, permissions
	goodFor       = 10 * time.Minute // how long a token that was somebody's is none that is new

	reviewsAtOnce  = 8 // of tokens, and as many of permissions
	reviewsWaiting = 256
	// Of one address, reviews of tokens that are not remembered: what an office behind one address needs when it comes to work, and
	// few enough that the API server does not notice who guesses.
	newPerSecond   = 10
	newAtOnce      = 50
	maxNewComers   = 8192
	newComersKept  = time.Minute
	busyReviewsFor = time.Second
)

// Reviews is a Reviewer that asks another one, which is elsewhere, as seldom as it can: it remembers answers for 10 s, also that a token
// is nobody's, asks about one token once at a time, and bounds how many questions are under way and wait. Addresses share these
// bounds, so that one that guesses tokens holds up nobody else, and each has a rate of its own of new tokens, which those that were
// somebody's are not.
type Reviews struct {
	of          Reviewer
	callers     *cache.LRUExpireCache // Caller by hash of the token
	unknown     *cache.LRUExpireCache // nothing, by hash: apart, so that guesses push out no callers
	permissions *cache.LRUExpireCache // permitted, by question: a few hundred bytes each, since none is dropped before there are too many
	good        *cache.LRUExpireCache // nothing, by hash of tokens that were somebody's when they were last asked about
	newComers   *cache.LRUExpireCache // *rate.Limiter by address
	asking      singleflight.Group
	tokens      *rpc.Gate
	rights      *rpc.Gate
}

// NewReviews returns a Reviewer that asks r.
func NewReviews(r Reviewer) *Reviews {
	return &Reviews{
		of:      r,
		callers: cache.NewLRUExpireCache(maxReviews), unknown: cache.NewLRUExpireCache(maxReviews),
		good:        cache.NewLRUExpireCache(maxReviews),
		permissions: cache.NewLRUExpireCache(maxReviews), newComers: cache.NewLRUExpireCache(maxNewComers),
		tokens: rpc.NewGate(reviewsAtOnce, reviewsWaiting), rights: rpc.NewGate(reviewsAtOnce, reviewsWaiting),
	}
}

type permitted struct {
	allowed bool
	reason  string
}

// question is what is asked about a caller, as a hash: callers choose the texts of it, and how many questions they ask.
type question [sha256.Size]byte

func questionOf(c Caller, p Permission) question {
	h := sha256.New()
	number := func(n int) { h.Write(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	texts := func(all ...string) { // with their lengths, so that none can pass for two
		number(len(all))
		for _, text := range all {
			number(len(text))
			h.Write([]byte(text))
		}
	}
	texts(c.User, c.UID)
	texts(c.Groups...)
	number(len(c.Extra))
	for _, key := range slices.Sorted(maps.Keys(c.Extra)) {
		texts(key)
		texts(c.Extra[key]...)
	}
	texts(p.Verb, p.Resource, p.Namespace, p.Name, p.Path)
	return question(h.Sum(nil))
}

// Authenticate implements Reviewer.
func (r *Reviews) Authenticate(ctx context.Context, token string) (Caller, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := r.callers.Get(key); ok {
		return known.(Caller), nil
	}
	if _, ok := r.unknown.Get(key); ok {
		return Caller{}, ErrUnknownToken
	}
	// Who was known a moment ago is asked about again, whoever guesses at the same address.
	if _, ok := r.good.Get(key); !ok && !r.mayCome(rpc.CallerOf(ctx)) {
		return Caller{}, rpc.Exhausted(ReasonTooManyNew, busyReviewsFor, "too many new tokens from this address: more than %d a second", newPerSecond)
	}
	// Those who ask about the same token at the same time get the same answer, whoever of them leaves meanwhile.
	answer, err, _ := r.asking.Do(string(key[:]), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		leave, err := r.tokens.Enter(ctx)
		if err != nil {
			return Caller{}, err
		}
		defer leave()
		caller, err := r.of.Authenticate(ctx, token)
		switch {
		case err == nil:
			r.callers.Add(key, caller, reviewed)
			r.good.Add(key, nil, goodFor)
		case errors.Is(err, ErrUnknownToken):
			r.unknown.Add(key, nil, reviewed)
			r.good.Remove(key)
		}
		return caller, err
	})
	return answer.(Caller), err
}

// mayCome reports whether one more token from an address may be asked about.
func (r *Reviews) mayCome(address string) bool {
	if address == "" {
		return true
	}
	var limiter *rate.Limiter
	if known, ok := r.newComers.Get(address); ok {
		limiter = known.(*rate.Limiter)
	} else {
		limiter = rate.NewLimiter(newPerSecond, newAtOnce) // of two at the same time one is lost
		r.newComers.Add(address, limiter, newComersKept)
	}
	return limiter.Allow()
}

// Allowed implements Reviewer.
func (r *Reviews) Allowed(ctx context.Context, c Caller, p Permission) (bool, string, error) {
	key := questionOf(c, p)
	if known, ok := r.permissions.Get(key); ok {
		return known.(permitted).allowed, known.(permitted).reason, nil
	}
	leave, err := r.rights.Enter(ctx)
	if err != nil {
		return false, "", err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	allowed, reason, err := r.of.Allowed(ctx, c, p)
	if err != nil {
		return false, "", err
	}
	reason = short(reason)
	r.permissions.Add(key, permitted{allowed, reason}, reviewed)
	return allowed, reason, nil
}

var _ Reviewer = (*Reviews)(nil)
