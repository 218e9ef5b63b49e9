package kube

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/access"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

const (
	// reviewed is how long a review is believed, as API servers that delegate to another believe one.
	reviewed      = 10 * time.Second
	reviewTimeout = 5 * time.Second
	maxReviews    = 8192
)

// Reviewer asks the API server whose tokens are and what their owners may do. It remembers what it was told for 10 s. It
// needs to create tokenreviews and subjectaccessreviews, and nothing else.
type Reviewer struct {
	client      kubernetes.Interface
	callers     *cache.LRUExpireCache // *access.Caller by hash of the token; nil: unknown
	permissions *cache.LRUExpireCache // permitted, by question
}

type permitted struct {
	allowed bool
	reason  string
}

// question is what a SubjectAccessReview asks.
type question struct {
	user, uid, groups string
	extra             string
	access.Permission
}

// NewReviewer returns a Reviewer at the API server of a kubeconfig; "" means that of the service account of the pod. It does
// not connect.
func NewReviewer(kubeconfig string) (*Reviewer, error) {
	base, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := newClient(base, 0, 0)
	if err != nil {
		return nil, err
	}
	return &Reviewer{
		client: client, callers: cache.NewLRUExpireCache(maxReviews), permissions: cache.NewLRUExpireCache(maxReviews),
	}, nil
}

// Authenticate implements access.Reviewer with a TokenReview.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (access.Caller, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := r.callers.Get(key); ok {
		return callerOf(known.(*access.Caller))
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return access.Caller{}, fmt.Errorf("review a token: %w", err)
	}
	var caller *access.Caller
	if user := &review.Status.User; review.Status.Authenticated {
		caller = &access.Caller{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: make(map[string][]string)}
		for k, v := range user.Extra {
			caller.Extra[k] = v
		}
	}
	r.callers.Add(key, caller, reviewed)
	return callerOf(caller)
}

func callerOf(c *access.Caller) (access.Caller, error) {
	if c == nil {
		return access.Caller{}, access.ErrUnknownToken
	}
	return *c, nil
}

// Allowed implements access.Reviewer with a SubjectAccessReview.
func (r *Reviewer) Allowed(ctx context.Context, c access.Caller, p access.Permission) (bool, string, error) {
	key := question{user: c.User, uid: c.UID, groups: strings.Join(c.Groups, "\n"), extra: fmt.Sprint(c.Extra), Permission: p}
	if known, ok := r.permissions.Get(key); ok {
		return known.(permitted).allowed, known.(permitted).reason, nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: c.User, UID: c.UID, Groups: c.Groups}
	if len(c.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(c.Extra))
		for k, v := range c.Extra {
			spec.Extra[k] = v
		}
	}
	if p.Path != "" {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: p.Verb, Path: p.Path}
	} else {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb: p.Verb, Version: "v1", Resource: p.Resource, Namespace: p.Namespace, Name: p.Name,
		}
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, "", fmt.Errorf("review whether %s may %v: %w", c.User, p, err)
	}
	answer := permitted{review.Status.Allowed, review.Status.Reason}
	if !answer.allowed && answer.reason == "" {
		answer.reason = review.Status.EvaluationError
	}
	r.permissions.Add(key, answer, reviewed)
	return answer.allowed, answer.reason, nil
}

var _ access.Reviewer = (*Reviewer)(nil)
