package kube

import (
	"context"
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/access"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Reviewer asks the API server whose tokens are and what their owners may do, each time: access.Reviews is for what stands before
// it. It needs to create tokenreviews and subjectaccessreviews, and nothing else.
type Reviewer struct {
	client    kubernetes.Interface
	audiences []string
}

// NewReviewer returns a Reviewer at the API server of a kubeconfig; "" means that of the service account of the pod. Tokens must be
// for one of the audiences; none means the API server's own. It does not connect.
func NewReviewer(kubeconfig string, audiences []string) (*Reviewer, error) {
	base, err := restConfig("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := newClient(base, 0, 0)
	if err != nil {
		return nil, err
	}
	return &Reviewer{client: client, audiences: audiences}, nil
}

// Authenticate implements access.Reviewer with a TokenReview.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (access.Caller, error) {
	review, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: r.audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return access.Caller{}, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated || !r.meant(review.Status.Audiences) {
		return access.Caller{}, access.ErrUnknownToken
	}
	user := &review.Status.User
	caller := access.Caller{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: make(map[string][]string)}
	for k, v := range user.Extra {
		caller.Extra[k] = v
	}
	return caller, nil
}

// meant reports whether a token for these audiences is for Berth. An API server that knows no audiences answers with none, and has
// looked at none: the token is then for itself.
func (r *Reviewer) meant(audiences []string) bool {
	return len(r.audiences) == 0 || slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(r.audiences, a) })
}

// Allowed implements access.Reviewer with a SubjectAccessReview.
func (r *Reviewer) Allowed(ctx context.Context, c access.Caller, p access.Permission) (bool, string, error) {
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
	review, err := r.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, "", fmt.Errorf("review whether %s may %v: %w", c.User, p, err)
	}
	reason := review.Status.Reason
	if !review.Status.Allowed && reason == "" {
		reason = review.Status.EvaluationError
	}
	return review.Status.Allowed, reason, nil
}

var _ access.Reviewer = (*Reviewer)(nil)
