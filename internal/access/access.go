package access

import (
	"context"
	"errors"
	"strings"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// Caller is who a token belongs to.
type Caller struct {
	User, UID string
	Groups    []string
	Extra     map[string][]string
}

// Permission is what a call needs: a verb on a resource of Kubernetes' core group, or on a path.
type Permission struct {
	Verb      string
	Resource  string // "pods" or "nodes"; "" if Path is set
	Namespace string // "" means all
	Name      string // "" means all
	Path      string // a path that is no resource
}

func (p Permission) String() string {
	if p.Path != "" {
		return p.Verb + " " + p.Path
	}
	s := p.Verb + " " + p.Resource
	if p.Name != "" {
		s += "/" + p.Name
	}
	if p.Resource == "nodes" {
		return s
	}
	if p.Namespace == "" {
		return s + " in all namespaces"
	}
	return s + " in namespace " + p.Namespace
}

// Reads reports whether the permission changes nothing.
func (p Permission) Reads() bool { return p.Verb == "get" || p.Verb == "list" || p.Verb == "watch" }

// ErrUnknownToken is what a Reviewer says of a token that is nobody's, or not any more.
var ErrUnknownToken = errors.New("unknown token")

// Reviewer knows tokens and what their owners may do. It is safe for concurrent use. Other errors than ErrUnknownToken mean
// that it cannot tell now.
type Reviewer interface {
	Authenticate(ctx context.Context, token string) (Caller, error)
	// Allowed reports whether the caller may, and if not, why not as far as that is known.
	Allowed(ctx context.Context, c Caller, p Permission) (allowed bool, reason string, err error)
}

// The paths of what is no resource of Kubernetes'.
const (
	statusPath    = "/berth/status"
	explainPath   = "/berth/explain" // answers name whatever is in a pod's way, pods of other namespaces too
	whatIfPath    = "/berth/whatif"
	manifestsPath = "/berth/manifests"
	membersPath   = "/berth/members"
)

// needs says what the methods of SchedulingService need, by full method name, given the request, which is nil for streams.
var needs = map[string]func(request any) Permission{
	schedulingv1.SchedulingService_GetStatus_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: statusPath}
	},
	schedulingv1.SchedulingService_ListPods_FullMethodName: func(request any) Permission {
		return Permission{Verb: "list", Resource: "pods", Namespace: request.(*schedulingv1.ListPodsRequest).GetNamespace()}
	},
	schedulingv1.SchedulingService_GetPod_FullMethodName: func(request any) Permission {
		r := request.(*schedulingv1.GetPodRequest)
		return Permission{Verb: "get", Resource: "pods", Namespace: r.GetNamespace(), Name: r.GetName()}
	},
	schedulingv1.SchedulingService_ListNodes_FullMethodName: func(any) Permission {
		return Permission{Verb: "list", Resource: "nodes"}
	},
	schedulingv1.SchedulingService_GetNode_FullMethodName: func(request any) Permission {
		return Permission{Verb: "get", Resource: "nodes", Name: request.(*schedulingv1.GetNodeRequest).GetName()}
	},
	schedulingv1.SchedulingService_WatchPlacements_FullMethodName: func(any) Permission {
		return Permission{Verb: "watch", Resource: "pods"}
	},
	schedulingv1.SchedulingService_ExplainPod_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: explainPath}
	},
	schedulingv1.SchedulingService_WhatIf_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: whatIfPath}
	},
	schedulingv1.SchedulingService_GetCapacity_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: whatIfPath}
	},
	schedulingv1.SchedulingService_Compare_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: whatIfPath}
	},
	schedulingv1.SchedulingService_GetMap_FullMethodName: func(any) Permission {
		return Permission{Verb: "list", Resource: "nodes"}
	},
	schedulingv1.SchedulingService_GetQueue_FullMethodName: func(any) Permission {
		return Permission{Verb: "get", Path: statusPath}
	},
	schedulingv1.SchedulingService_Apply_FullMethodName: func(any) Permission {
		return Permission{Verb: "create", Path: manifestsPath}
	},
	schedulingv1.SchedulingService_Delete_FullMethodName: func(any) Permission {
		return Permission{Verb: "delete", Path: manifestsPath}
	},
	schedulingv1.SchedulingService_DrainMember_FullMethodName: func(any) Permission {
		return Permission{Verb: "delete", Path: membersPath}
	},
}

// guarded reports whether a method is one that people call, and what it needs. The others, health and what members ask each
// other, are no concern of a Guard; reflection needs a known caller and nothing else.
func guarded(method string) (need func(request any) Permission, ok bool) {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if service == schedulingv1.SchedulingService_ServiceDesc.ServiceName {
		return needs[method], true
	}
	return nil, strings.HasPrefix(service, "grpc.reflection.")
}
