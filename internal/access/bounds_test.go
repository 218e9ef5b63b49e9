package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// judge is a Reviewer for whom everybody is "ann", and who counts what it is asked about her.
type judge struct {
	asked   atomic.Int64
	allowed bool
	reason  string
	err     error
}

func (j *judge) Authenticate(context.Context, string) (Caller, error) {
	return Caller{User: "ann"}, nil
}
func (j *judge) Allowed(context.Context, Caller, Permission) (bool, string, error) {
	j.asked.Add(1)
	return j.allowed, j.reason, j.err
}

func TestNobodyIsAskedAboutNamesThatAreTooLong(t *testing.T) {
	j := &judge{allowed: true}
	g := guard(t, func(c *GuardConfig) { c.Reviewer = NewReviews(j) })
	long := strings.Repeat("a", 254)
	for _, c := range []struct {
		method, field string
		request       any
	}{
		{schedulingv1.SchedulingService_GetPod_FullMethodName, "name", &schedulingv1.GetPodRequest{Name: long}},
		{schedulingv1.SchedulingService_GetPod_FullMethodName, "namespace", &schedulingv1.GetPodRequest{Namespace: long[:64], Name: "p"}},
		{schedulingv1.SchedulingService_ListPods_FullMethodName, "namespace", &schedulingv1.ListPodsRequest{Namespace: long}},
		{schedulingv1.SchedulingService_GetNode_FullMethodName, "name", &schedulingv1.GetNodeRequest{Name: strings.Repeat(long, 1<<14)}},
		{schedulingv1.SchedulingService_GetMap_FullMethodName, "pod", &schedulingv1.GetMapRequest{Pod: long}},
	} {
		j.asked.Store(0)
		err := call(t, g, "Bearer x", c.method, c.request)
		found := rpc.Violations(err)
		if status.Code(err) != codes.InvalidArgument || len(found) != 1 || found[0].Field != c.field {
			t.Errorf("%s: %v, want INVALID_ARGUMENT of %s", c.method, err, c.field)
		}
		if n := j.asked.Load(); n > 1 { // of GetMap, whether she may list nodes
			t.Errorf("%s: asked %d times", c.method, n)
		}
	}
	j.asked.Store(0)
	if err := call(t, g, "Bearer x", schedulingv1.SchedulingService_GetPod_FullMethodName, &schedulingv1.GetPodRequest{Namespace: long[:63], Name: long[:253]}); err != nil {
		t.Errorf("names as long as there are: %v", err)
	}
}

func TestNobodyIsAskedAboutPathsThatAreTooLong(t *testing.T) {
	j := &judge{allowed: true}
	p := Paths{Guard: guard(t, func(c *GuardConfig) { c.Reviewer = j })}
	for path, want := range map[string]codes.Code{"/" + strings.Repeat("a", 1024): codes.InvalidArgument, "/" + strings.Repeat("a", 1023): codes.OK} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer x")
		if err := p.Admit(r); status.Code(err) != want {
			t.Errorf("a path of %d bytes: %v, want %v", len(path), err, want)
		}
	}
	r := httptest.NewRequest(strings.Repeat("A", 17), "/metrics", nil)
	r.Header.Set("Authorization", "Bearer x")
	if err := p.Admit(r); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a method of 17 bytes: %v", err)
	}
	if n := j.asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

// Denials are remembered too, and the API server may repeat in a reason what a caller has said.
func TestWhatIsRememberedOfAQuestionIsSmall(t *testing.T) {
	j := &judge{reason: strings.Repeat("é", 1<<20)}
	r := NewReviews(j)
	for k := range 3 {
		if allowed, _, err := r.Allowed(t.Context(), Caller{User: "ann"}, Permission{Verb: "get", Resource: "pods", Name: fmt.Sprint(k) + strings.Repeat("a", 1<<20)}); allowed || err != nil {
			t.Fatalf("%v, %v", allowed, err)
		}
	}
	if n := len(r.permissions.Keys()); n != 3 {
		t.Errorf("%d questions are remembered, want 3", n)
	}
	for _, key := range r.permissions.Keys() {
		if _, ok := key.(question); !ok {
			t.Errorf("a question is remembered as %T, want its hash", key)
		}
		known, _ := r.permissions.Get(key)
		if n := len(known.(permitted).reason); n > maxText+8 {
			t.Errorf("%d bytes of a reason are remembered, want at most some %d", n, maxText)
		}
	}
}

func TestQuestionsThatDifferAreNotTakenForEachOther(t *testing.T) {
	seen := make(map[question]string)
	for _, c := range []Caller{
		{User: "a"}, {UID: "a"}, {Groups: []string{"a"}}, {Groups: []string{"a", "b"}}, {Groups: []string{"a\nb"}}, {Groups: []string{"ab"}},
		{Extra: map[string][]string{"a": {"b"}}}, {Extra: map[string][]string{"a": {"b", "c"}}}, {Extra: map[string][]string{"a": {"b c"}}},
		{Extra: map[string][]string{"a": {"b"}, "c": nil}}, {Extra: map[string][]string{"a": nil, "b": nil}},
	} {
		for _, p := range []Permission{{}, {Verb: "a"}, {Resource: "a"}, {Namespace: "a"}, {Name: "a"}, {Path: "a"}, {Verb: "a", Name: "a"}} {
			text := fmt.Sprintf("%+v %+v", c, p)
			if other, ok := seen[questionOf(c, p)]; ok {
				t.Errorf("%s is taken for %s", text, other)
			}
			seen[questionOf(c, p)] = text
		}
	}
	two := Caller{Extra: map[string][]string{"a": {"1"}, "b": {"2"}, "c": {"3"}}}
	first := questionOf(two, listPods)
	for range 20 { // maps are told in another order each time
		if questionOf(two, listPods) != first {
			t.Fatal("the same question is another one the next time")
		}
	}
}

func TestWhatCannotBeReviewedIsLoggedInShort(t *testing.T) {
	var text bytes.Buffer
	j := &judge{err: errors.New(strings.Repeat("é", 1<<20))}
	g := guard(t, func(c *GuardConfig) { c.Reviewer, c.Log = j, slog.New(slog.NewTextHandler(&text, nil)) })
	if err := call(t, g, "Bearer x", schedulingv1.SchedulingService_GetStatus_FullMethodName, &schedulingv1.GetStatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	if text.Len() > 2*maxText {
		t.Errorf("%d bytes are logged, want some %d", text.Len(), maxText)
	}
}

func TestWhoMayMakeNoSuchCallIsRefusedBeforeItsRequestIsThere(t *testing.T) {
	j := &judge{}
	g := guard(t, func(c *GuardConfig) { c.Reviewer = j })
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer x"))
	// Of these, the request decides all.
	later := map[string]bool{"ListPods": true, "GetPod": true, "GetNode": true}
	methods(func(name, full string) {
		_, err := g.Admit(ctx, full)
		if want := map[bool]codes.Code{true: codes.OK, false: codes.PermissionDenied}[later[name]]; status.Code(err) != want {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if err := g.Expect(t.Context(), []string{"Bearer x"}, full); (status.Code(err) == codes.OK) != later[name] {
			t.Errorf("%s, whose body follows: %v", name, err)
		}
	})
}

func TestACallWhoseBodyWasExpectedIsCountedOnce(t *testing.T) {
	const method = schedulingv1.SchedulingService_WhatIf_FullMethodName
	g := guard(t, func(c *GuardConfig) { c.Rate, c.Burst = 0.001, 2 })
	ctx := rpc.WithCounted(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer r-token")))
	for range 2 {
		if err := g.Expect(t.Context(), []string{"Bearer r-token"}, method); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Admit(ctx, method); err != nil {
			t.Fatalf("the call of a body that was counted: %v", err)
		}
	}
	if err := g.Expect(t.Context(), []string{"Bearer r-token"}, method); rpc.ReasonOf(err) != ReasonTooManyCalls {
		t.Errorf("a third body: %v, want %s", err, ReasonTooManyCalls)
	}
	for header, want := range map[string]rpc.Reason{"": ReasonNoToken, "Bearer who": ReasonUnknownToken} {
		if err := g.Expect(t.Context(), []string{header}, method); rpc.ReasonOf(err) != want {
			t.Errorf("%q: %v, want %s", header, err, want)
		}
	}
}

func TestTheServiceAccountsOfANamespaceAreOneCaller(t *testing.T) {
	for user, want := range map[string]string{
		"ann": "user ann", "system:serviceaccount:shop:web": "user system:serviceaccount:shop", "system:serviceaccount:shop:db": "user system:serviceaccount:shop",
		"system:serviceaccount:bank:web": "user system:serviceaccount:bank", "system:serviceaccounts": "user system:serviceaccounts",
	} {
		if got := shareOf(user); got != want {
			t.Errorf("%s shares as %q, want %q", user, got, want)
		}
	}
}
