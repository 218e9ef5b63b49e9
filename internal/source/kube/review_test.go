package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/kubetest"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// account makes a service account and returns a token of it.
func account(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	accounts := client.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(within(t), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(within(t), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

func TestTheAPIServerSaysWhoMayAsk(t *testing.T) {
	plane := kubetest.StartT(t, kubetest.Options{Authorization: "RBAC"})
	client := plane.Client()
	token, other := account(t, client, "reader"), account(t, client, "nobody")
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "reader"}
	role := rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
		{NonResourceURLs: []string{"/berth/status"}, Verbs: []string{"get"}},
	}}
	pods := rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	}}
	_, err1 := client.RbacV1().ClusterRoles().Create(within(t), &role, metav1.CreateOptions{})
	_, err2 := client.RbacV1().Roles("default").Create(within(t), &pods, metav1.CreateOptions{})
	_, err3 := client.RbacV1().ClusterRoleBindings().Create(within(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
	}, metav1.CreateOptions{})
	_, err4 := client.RbacV1().RoleBindings("default").Create(within(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}

	asks, err := NewReviewer(plane.Kubeconfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := access.NewReviews(asks)
	for range 2 { // asked, and remembered
		if c, err := r.Authenticate(within(t), "forged"); !errors.Is(err, access.ErrUnknownToken) {
			t.Errorf("a forged token is of %+v, %v", c, err)
		}
		if c, err := r.Authenticate(within(t), strings.TrimSuffix(token, token[len(token)-4:])+"AAAA"); !errors.Is(err, access.ErrUnknownToken) {
			t.Errorf("a token with another signature is of %+v, %v", c, err)
		}
	}
	caller, err := r.Authenticate(within(t), token)
	if err != nil || caller.User != "system:serviceaccount:default:reader" {
		t.Fatalf("%+v, %v", caller, err)
	}
	stranger, err := r.Authenticate(within(t), other)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		permission access.Permission
		want       bool
	}{
		{access.Permission{Verb: "list", Resource: "nodes"}, true},
		{access.Permission{Verb: "get", Resource: "nodes", Name: "n"}, false},
		{access.Permission{Verb: "get", Resource: "pods", Namespace: "default", Name: "p"}, true},
		{access.Permission{Verb: "list", Resource: "pods", Namespace: "default"}, true},
		{access.Permission{Verb: "list", Resource: "pods"}, false},
		{access.Permission{Verb: "watch", Resource: "pods"}, false},
		{access.Permission{Verb: "get", Path: "/berth/status"}, true},
		{access.Permission{Verb: "create", Path: "/berth/manifests"}, false},
	} {
		for range 2 {
			if got, reason, err := r.Allowed(within(t), caller, c.permission); got != c.want || err != nil {
				t.Errorf("may %v: %v (%s), %v; want %v", c.permission, got, reason, err, c.want)
			}
		}
		if got, _, err := r.Allowed(within(t), stranger, c.permission); got || err != nil {
			t.Errorf("a stranger may %v: %v, %v", c.permission, got, err)
		}
	}

	// A token is for whom it was made for.
	for audience, want := range map[string]bool{"": false, "berth": true, "other": false} {
		request := &authenticationv1.TokenRequest{}
		if audience != "" {
			request.Spec.Audiences = []string{audience}
		}
		made, err := client.CoreV1().ServiceAccounts("default").CreateToken(within(t), "reader", request, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		picky, err := NewReviewer(plane.Kubeconfig(), []string{"berth", "berth.example"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := picky.Authenticate(within(t), made.Status.Token); (err == nil) != want || !want && !errors.Is(err, access.ErrUnknownToken) {
			t.Errorf("a token for %q, where one for berth is wanted: %v", audience, err)
		}
		if _, err := asks.Authenticate(within(t), made.Status.Token); (err == nil) != (audience == "") {
			t.Errorf("a token for %q, where one for the API server is wanted: %v", audience, err)
		}
	}

	plane.Stop()
	if _, err := r.Authenticate(within(t), "new"); err == nil || errors.Is(err, access.ErrUnknownToken) {
		t.Errorf("a new token while the API server is away: %v, want an error that says so", err)
	}
}

// An API server that knows no audiences says so by naming none.
func TestATokenOfWhichNobodyKnowsTheAudienceIsNotTaken(t *testing.T) {
	for _, c := range []struct {
		wanted, said []string
		want         bool
	}{
		{nil, nil, true}, {nil, []string{"x"}, true}, {[]string{"berth"}, nil, false}, {[]string{"berth"}, []string{"x"}, false},
		{[]string{"berth", "b"}, []string{"x", "b"}, true},
	} {
		client := fake.NewSimpleClientset()
		client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
			if !slices.Equal(review.Spec.Audiences, c.wanted) {
				t.Errorf("asked for the audiences %q, want %q", review.Spec.Audiences, c.wanted)
			}
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: c.said, User: authenticationv1.UserInfo{Username: "ann"}}
			return true, review, nil
		})
		r := &Reviewer{client: client, audiences: c.wanted}
		if _, err := r.Authenticate(within(t), "token"); (err == nil) != c.want {
			t.Errorf("wanted %q, the token is for %q: %v", c.wanted, c.said, err)
		}
	}
}
