package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
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
	Resource  string // "pods", "nodes" or "persistentvolumeclaims"; "" if Path is set
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

// The most that a Permission may say, in bytes. Names are those of Kubernetes' objects; a verb is one of HTTP's too.
const (
	maxVerb      = 16
	maxNamespace = 63
	maxName      = 253
	maxPath      = 1 << 10
)

// tooLong says what of a permission is longer than anything there is could be. Nobody is asked about such a one: whoever calls has chosen
// these texts, and each is kept, logged and sent on.
func (p Permission) tooLong() []rpc.Violation {
	var found []rpc.Violation
	for _, text := range []struct {
		field, value string
		limit        int
	}{{"verb", p.Verb, maxVerb}, {"namespace", p.Namespace, maxNamespace}, {"name", p.Name, maxName}, {"path", p.Path, maxPath}} {
		if len(text.value) > text.limit {
			found = append(found, rpc.Violation{Field: text.field, Description: fmt.Sprintf("longer than %d bytes", text.limit)})
		}
	}
	return found
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
	explainPath   = "/berth/explain"
	whatIfPath    = "/berth/whatif"
	manifestsPath = "/berth/manifests"
	membersPath   = "/berth/members"
)

// listPods is what it takes to be told the names of pods that one has not named oneself.
var listPods = Permission{Verb: "list", Resource: "pods"}

func path(verb, path string) Permission { return Permission{Verb: verb, Path: path} }

// getPod is the right to one pod.
func getPod(namespace, name string) Permission {
	return Permission{Verb: "get", Resource: "pods", Namespace: cmp.Or(namespace, "default"), Name: name}
}

// need is what a method needs, all of it: first whatever the request is, which is asked before anything of that is read, and then what
// the request decides; nil: nothing.
type need struct {
	first []Permission
	then  func(request any) []Permission
}

func always(all ...Permission) need { return need{first: all} }

// needs says what the methods of SchedulingService need, by full method name. What answers tell besides, of pods that the request has
// not named, those with [MayNamePods] are told.
var needs = map[string]need{
	schedulingv1.SchedulingService_GetStatus_FullMethodName: always(path("get", statusPath)),
	schedulingv1.SchedulingService_ListPods_FullMethodName: {then: func(request any) []Permission {
		return []Permission{{Verb: "list", Resource: "pods", Namespace: request.(*schedulingv1.ListPodsRequest).GetNamespace()}}
	}},
	schedulingv1.SchedulingService_GetPod_FullMethodName: {then: func(request any) []Permission {
		r := request.(*schedulingv1.GetPodRequest)
		return []Permission{getPod(r.GetNamespace(), r.GetName())}
	}},
	schedulingv1.SchedulingService_ListNodes_FullMethodName: always(Permission{Verb: "list", Resource: "nodes"}),
	schedulingv1.SchedulingService_GetNode_FullMethodName: {then: func(request any) []Permission {
		return []Permission{{Verb: "get", Resource: "nodes", Name: request.(*schedulingv1.GetNodeRequest).GetName()}}
	}},
	schedulingv1.SchedulingService_WatchPlacements_FullMethodName: always(Permission{Verb: "watch", Resource: "pods"}),
	schedulingv1.SchedulingService_ExplainPod_FullMethodName: {[]Permission{path("get", explainPath)}, func(request any) []Permission {
		r := request.(*schedulingv1.ExplainPodRequest)
		return []Permission{getPod(r.GetNamespace(), r.GetName())}
	}},
	schedulingv1.SchedulingService_WhatIf_FullMethodName: {[]Permission{path("get", whatIfPath)}, func(request any) []Permission {
		if r := request.(*schedulingv1.WhatIfRequest); !r.GetSummaryOnly() && (r.GetPending() || slices.ContainsFunc(r.GetChanges(), movesPods)) {
			return []Permission{listPods}
		}
		return nil
	}},
	schedulingv1.SchedulingService_GetCapacity_FullMethodName: {[]Permission{path("get", whatIfPath)}, func(request any) []Permission {
		r := request.(*schedulingv1.GetCapacityRequest)
		var all []Permission
		if r.GetName() != "" {
			all = append(all, getPod(r.GetNamespace(), r.GetName()))
		}
		if r.GetPodGroup() != "" { // it is about all pods of the group
			all = append(all, Permission{Verb: "list", Resource: "pods", Namespace: cmp.Or(r.GetNamespace(), "default")})
		}
		return all
	}},
	schedulingv1.SchedulingService_Compare_FullMethodName: {[]Permission{path("get", whatIfPath)}, func(request any) []Permission {
		if r := request.(*schedulingv1.CompareRequest); r.GetEverything() || strings.TrimSpace(r.GetManifests()) == "" {
			return []Permission{listPods}
		}
		return nil
	}},
	schedulingv1.SchedulingService_GetMap_FullMethodName: {[]Permission{{Verb: "list", Resource: "nodes"}}, func(request any) []Permission {
		if r := request.(*schedulingv1.GetMapRequest); r.GetPod() != "" {
			return []Permission{getPod(r.GetNamespace(), r.GetPod())}
		}
		return nil
	}},
	schedulingv1.SchedulingService_GetQueue_FullMethodName:    always(path("get", statusPath)),
	schedulingv1.SchedulingService_Apply_FullMethodName:       always(path("create", manifestsPath)),
	schedulingv1.SchedulingService_Delete_FullMethodName:      always(path("delete", manifestsPath)),
	schedulingv1.SchedulingService_DrainMember_FullMethodName: always(path("delete", membersPath)),
}

// movesPods reports whether what becomes of the pods of a node is part of the answer.
func movesPods(c *schedulingv1.Change) bool { return c.GetDrain() != "" || c.GetRemoveNode() != "" }

// guarded reports whether a method is one that people call, and what it needs. The others, health and what members ask each
// other, are no concern of a Guard; reflection needs a known caller and nothing else.
func guarded(method string) (what need, ok bool) {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if service == schedulingv1.SchedulingService_ServiceDesc.ServiceName {
		return needs[method], true
	}
	return need{}, strings.HasPrefix(service, "grpc.reflection.")
}
