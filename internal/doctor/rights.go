package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Right is what Berth has to be allowed to do.
type Right struct {
	Group, Resource, Subresource string
	Verbs                        []string
	For                          string // what Berth needs it for
	Version                      string // of an API that few servers serve: the right is needed only where it is there; "": everywhere
}

// Rights are those that a binder needs of the API server, but for the Lease's. A test compares them with what is deployed.
var Rights = []Right{
	{"", "pods", "", []string{"get", "list", "watch"}, "what is to be placed, and what is", ""},
	{"", "nodes", "", []string{"list", "watch"}, "where they go", ""},
	{"", "namespaces", "", []string{"list", "watch"}, "affinity by namespaces", ""},
	{"", "services", "", []string{"list", "watch"}, "the default spread constraints", ""},
	{"", "replicationcontrollers", "", []string{"list", "watch"}, "the default spread constraints", ""},
	{"apps", "replicasets", "", []string{"list", "watch"}, "the default spread constraints", ""},
	{"apps", "statefulsets", "", []string{"list", "watch"}, "the default spread constraints", ""},
	{"", "persistentvolumes", "", []string{"get", "list", "watch", "patch"}, "pods with volumes", ""},
	{"", "persistentvolumeclaims", "", []string{"get", "list", "watch", "patch"}, "pods with volumes", ""},
	{"storage.k8s.io", "storageclasses", "", []string{"list", "watch"}, "pods with volumes", ""},
	{"storage.k8s.io", "csinodes", "", []string{"list", "watch"}, "pods with volumes", ""},
	{"storage.k8s.io", "csidrivers", "", []string{"list", "watch"}, "pods with volumes", ""},
	{"storage.k8s.io", "csistoragecapacities", "", []string{"list", "watch"}, "pods with volumes", ""},
	{"storage.k8s.io", "volumeattachments", "", []string{"list", "watch"}, "pods with volumes", ""},
	{"scheduling.k8s.io", "podgroups", "", []string{"list", "watch"}, "pods of PodGroups", "v1alpha2"},
	{coscheduling, "podgroups", "", []string{"list", "watch"}, "pods of Coscheduling's PodGroups", "v1alpha1"},
	{"scheduling.k8s.io", "podgroups", "status", []string{"patch"}, "saying what has come of a PodGroup", "v1alpha2"},
	{"policy", "poddisruptionbudgets", "", []string{"list", "watch"}, "preemption", ""},
	{"", "pods", "", []string{"delete"}, "preemption", ""},
	{"", "pods", "binding", []string{"create"}, "placing pods", ""},
	{"", "pods", "status", []string{"patch"}, "saying why a pod waits", ""},
	{"events.k8s.io", "events", "", []string{"create", "patch"}, "events", ""},
}

// coscheduling is the group of rights that are only needed with the plugin Coscheduling.
const coscheduling = "scheduling.x-k8s.io"

const grant = "give the user the ClusterRoles system:kube-scheduler and system:volume-scheduler, or those of deploy/kustomize/base/rbac.yaml"

// serves reports whether the API server has a version of a group of its API.
func (x *examined) serves(version string) (bool, error) {
	_, err := x.client.Discovery().ServerResourcesForGroupVersion(version)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("ask whether %s is served: %w", version, err)
	}
	return err == nil, nil
}

// rights finds what the user of the kubeconfig may not do.
func (x *examined) rights(ctx context.Context) ([]Finding, error) {
	var out []Finding
	asked := 0
	may := func(a authorizationv1.ResourceAttributes) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		asked++
		review, err := x.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, fmt.Errorf("ask what the user may: %w", err)
		}
		return review.Status.Allowed, nil
	}
	for _, r := range Rights {
		var missing []string
		if r.Group == coscheduling && !x.cfg.Coscheduling {
			continue
		}
		if r.Version != "" {
			served, err := x.serves(r.Group + "/" + r.Version)
			if err != nil {
				return out, err
			}
			if !served {
				continue
			}
		}
		for _, verb := range r.Verbs {
			ok, err := may(authorizationv1.ResourceAttributes{Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Verb: verb})
			if err != nil {
				return out, err
			}
			if !ok {
				missing = append(missing, verb)
			}
		}
		if len(missing) > 0 {
			out = append(out, Finding{Level: Fail, What: fmt.Sprintf("the user may not %s %s, which Berth needs for %s", strings.Join(missing, ", "), r.name(), r.For), Fix: grant})
		}
	}
	if name := x.cfg.LeaseName; name != "" {
		var missing []string
		for _, verb := range []string{"get", "update"} {
			ok, err := may(authorizationv1.ResourceAttributes{Group: "coordination.k8s.io", Resource: "leases", Namespace: x.cfg.LeaseNamespace, Name: name, Verb: verb})
			if err != nil {
				return out, err
			}
			if !ok {
				missing = append(missing, verb)
			}
		}
		if len(missing) > 0 {
			out = append(out, Finding{Level: Fail, What: fmt.Sprintf("the user may not %s the lease %s/%s, without which no pod is placed", strings.Join(missing, ", "), x.cfg.LeaseNamespace, name),
				Fix: grant + "; deploy/kustomize/components/lease has the Lease's"})
		}
		ok, err := may(authorizationv1.ResourceAttributes{Group: "coordination.k8s.io", Resource: "leases", Namespace: x.cfg.LeaseNamespace, Verb: "create"})
		if err != nil {
			return out, err
		}
		if _, err := x.client.CoordinationV1().Leases(x.cfg.LeaseNamespace).Get(ctx, name, metav1.GetOptions{}); !ok && apierrors.IsNotFound(err) {
			out = append(out, Finding{Level: Fail, What: fmt.Sprintf("there is no lease %s/%s, and the user may not create leases there: no pod is placed", x.cfg.LeaseNamespace, name), Fix: grant + "; deploy/kustomize/components/lease has the Lease's"})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{Level: OK, What: fmt.Sprintf("the user may do all that Berth does (%d questions)", asked)})
	}
	// What kube-scheduler's secure port needs, by which metrics are read: it may have a user of its own.
	authentication := authorizationv1.ResourceAttributes{Resource: "configmaps", Namespace: "kube-system", Name: "extension-apiserver-authentication"}
	asks := map[string]authorizationv1.ResourceAttributes{
		"create tokenreviews":         {Group: "authentication.k8s.io", Resource: "tokenreviews", Verb: "create"},
		"create subjectaccessreviews": {Group: "authorization.k8s.io", Resource: "subjectaccessreviews", Verb: "create"},
	}
	for _, verb := range []string{"get", "list", "watch"} {
		authentication.Verb = verb
		asks[verb+" the configmap kube-system/"+authentication.Name] = authentication
	}
	var missing []string
	for what, a := range asks {
		ok, err := may(a)
		if err != nil {
			return out, err
		}
		if !ok {
			missing = append(missing, what)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		out = append(out, Finding{Level: Note, What: fmt.Sprintf("the user may not %s: not everybody who may get /metrics of berth kube-scheduler is known by it", strings.Join(missing, ", ")),
			Fix: "let --authentication-kubeconfig and --authorization-kubeconfig name a user who may, as system:kube-scheduler is"})
	}
	return out, nil
}

// name returns what RBAC calls the resource.
func (r Right) name() string {
	name := r.Resource
	if r.Subresource != "" {
		name += "/" + r.Subresource
	}
	if r.Group != "" {
		name += "." + r.Group
	}
	return name
}
