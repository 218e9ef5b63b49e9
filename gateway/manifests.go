package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/coord"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/source/local"
)

// Manifests is where the objects of a cluster without Kubernetes are kept. *local.Store implements it.
type Manifests interface {
	// Apply makes the stored objects equal to the given ones and answers for each, in order; with dryRun it only says
	// what it would do. A *manifest.Error means that one of them cannot be changed so.
	Apply(ctx context.Context, objects []manifest.Object, dryRun bool) ([]local.Applied, error)
	// Delete removes an object; local.ErrNotFound if there is none.
	Delete(ctx context.Context, kind, namespace, name string) error
}

// takesManifests returns an error unless the log says that the cluster is made of manifests.
func (s *Service) takesManifests(ctx context.Context) error {
	from := ""
	if err := s.look(ctx, func(st *cluster.State) { from = st.Settings.Source }); err != nil {
		return err
	}
	if from != "local" || s.cfg.Manifests == nil {
		return errNotLocal()
	}
	return nil
}

// Apply implements SchedulingService.
func (s *Service) Apply(ctx context.Context, req *schedulingv1.ApplyRequest) (*schedulingv1.ApplyResponse, error) {
	if err := s.takesManifests(ctx); err != nil {
		return nil, err
	}
	if strings.TrimSpace(req.GetManifests()) == "" {
		return nil, rpc.Invalid(rpc.Violation{Field: "manifests", Description: "required"})
	}
	objects, err := parse(ctx, req.GetManifests())
	if err != nil {
		return nil, s.manifestError(ctx, err)
	}
	applied, err := s.cfg.Manifests.Apply(ctx, objects, req.GetDryRun())
	if err != nil {
		return nil, s.manifestError(ctx, err)
	}
	response := &schedulingv1.ApplyResponse{}
	for _, a := range applied {
		response.Objects = append(response.Objects, &schedulingv1.Applied{
			Kind: a.Kind, Namespace: a.Namespace, Name: a.Name, Result: string(a.Result),
		})
	}
	return response, nil
}

// parse parses manifests in turns of the caller's, of which it has none when it returns: etcd is waited for without one.
func parse(ctx context.Context, manifests string) ([]manifest.Object, error) {
	turn, err := rpc.TakeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer turn.End()
	return manifest.ParseBetween([]byte(manifests), func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return turn.Yield()
	})
}

// Delete implements SchedulingService.
func (s *Service) Delete(ctx context.Context, req *schedulingv1.DeleteRequest) (*schedulingv1.DeleteResponse, error) {
	if err := s.takesManifests(ctx); err != nil {
		return nil, err
	}
	violations := checkName("namespace", req.GetNamespace(), false, maxNamespace)
	violations = append(violations, checkName("name", req.GetName(), true, maxObject)...)
	namespace := req.GetNamespace()
	switch kind := req.GetKind(); {
	case kind == "":
		violations = append(violations, rpc.Violation{Field: "kind", Description: "required"})
	case !slices.Contains(manifest.Kinds(), kind):
		violations = append(violations, rpc.Violation{
			Field: "kind", Description: fmt.Sprintf("%q is none of %s", kind, strings.Join(manifest.Kinds(), ", ")),
		})
	case manifest.Namespaced(kind):
		namespace = cmp.Or(namespace, "default")
	case namespace != "":
		violations = append(violations, rpc.Violation{Field: "namespace", Description: "a " + strings.ToLower(kind) + " is in none"})
	}
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	err := s.cfg.Manifests.Delete(ctx, req.GetKind(), namespace, req.GetName())
	switch {
	case errors.Is(err, local.ErrNotFound) && namespace != "":
		return nil, errNotFound("%s %s/%s not found", req.GetKind(), namespace, req.GetName())
	case errors.Is(err, local.ErrNotFound):
		return nil, errNotFound("%s %s not found", req.GetKind(), req.GetName())
	case err != nil:
		return nil, s.manifestError(ctx, err)
	}
	return &schedulingv1.DeleteResponse{}, nil
}

// manifestError says what a client should know of an error about manifests.
func (s *Service) manifestError(ctx context.Context, err error) error {
	if invalid, ok := errors.AsType[*manifest.Error](err); ok {
		return rpc.Invalid(manifestViolations(invalid)...)
	}
	switch {
	case errors.Is(err, coord.ErrTooLarge):
		return rpc.Invalid(rpc.Violation{Field: "manifests", Description: "an object is larger than etcd takes"})
	case errors.Is(err, local.ErrConflict):
		return rpc.Error(codes.Aborted, rpc.ReasonStale, "an object was changed by someone else meanwhile: send the request again")
	case errors.Is(err, coord.ErrUnknown):
		s.cfg.Log.Warn("outcome of a write unknown", "err", err)
		return rpc.Error(codes.Unavailable, ReasonOutcomeUnknown,
			"etcd did not answer: it may or may not have been written; sending the request again is safe")
	case ctx.Err() != nil:
		return ctx.Err()
	}
	s.cfg.Log.Warn("etcd failed", "err", err)
	return rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "etcd does not take or give objects at the moment: try again")
}

// manifestViolations names a field of the n-th document documents[n-1].<path>, and the input as a whole manifests.
func manifestViolations(err *manifest.Error) []rpc.Violation {
	violations := make([]rpc.Violation, 0, len(err.Violations))
	for _, v := range err.Violations {
		var path []string
		if v.Document > 0 {
			path = append(path, fmt.Sprintf("documents[%d]", v.Document-1))
		}
		if v.Field != "" {
			path = append(path, v.Field)
		}
		if len(path) == 0 {
			path = append(path, "manifests")
		}
		description := v.Description
		if v.Object != "" {
			description = v.Object + ": " + description
		}
		violations = append(violations, rpc.Violation{Field: strings.Join(path, "."), Description: description})
	}
	return violations
}
