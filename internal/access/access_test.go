package access

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

const tokens = `
# those who look
r-token, reader, read
w-token, writer, write
`

func guard(t *testing.T, change func(*GuardConfig)) *Guard {
	t.Helper()
	reviewer, err := ReadTokens(strings.NewReader(tokens))
	if err != nil {
		t.Fatal(err)
	}
	cfg := GuardConfig{Reviewer: reviewer}
	if change != nil {
		change(&cfg)
	}
	g, err := NewGuard(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// call makes a call with a header through a Guard; it returns what the Guard says, nil if the call came through.
func call(t *testing.T, g *Guard, header, method string, request any) error {
	t.Helper()
	ctx := t.Context()
	if header != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", header))
	}
	ctx, err := g.Admit(ctx, method)
	if err != nil {
		return err
	}
	return g.Permit(ctx, method, request)
}

// requests are one of each method.
var requests = map[string]any{
	"GetStatus": &schedulingv1.GetStatusRequest{}, "ListPods": &schedulingv1.ListPodsRequest{Namespace: "a"},
	"GetPod":    &schedulingv1.GetPodRequest{Namespace: "a", Name: "p"},
	"ListNodes": &schedulingv1.ListNodesRequest{}, "GetNode": &schedulingv1.GetNodeRequest{Name: "n"},
	"ExplainPod": &schedulingv1.ExplainPodRequest{}, "WhatIf": &schedulingv1.WhatIfRequest{},
	"GetCapacity": &schedulingv1.GetCapacityRequest{}, "Compare": &schedulingv1.CompareRequest{},
	"GetMap": &schedulingv1.GetMapRequest{}, "GetQueue": &schedulingv1.GetQueueRequest{},
	"WatchPlacements": nil, "Apply": &schedulingv1.ApplyRequest{}, "Delete": &schedulingv1.DeleteRequest{},
	"DrainMember": &schedulingv1.DrainMemberRequest{},
}

// methods yields the names of all methods of SchedulingService.
func methods(visit func(name, full string)) {
	d := &schedulingv1.SchedulingService_ServiceDesc
	for _, m := range d.Methods {
		visit(m.MethodName, "/"+d.ServiceName+"/"+m.MethodName)
	}
	for _, m := range d.Streams {
		visit(m.StreamName, "/"+d.ServiceName+"/"+m.StreamName)
	}
}

func TestEveryMethodIsGuarded(t *testing.T) {
	g := guard(t, nil)
	methods(func(name, full string) {
		request, ok := requests[name]
		if !ok {
			t.Fatalf("%s: this test has no request for it", name)
		}
		writes := name == "Apply" || name == "Delete" || name == "DrainMember"
		for header, want := range map[string]codes.Code{
			"": codes.Unauthenticated, "Bearer": codes.Unauthenticated, "Bearer nobody": codes.Unauthenticated,
			"Basic r-token": codes.Unauthenticated, "bearer w-token": codes.OK, "Bearer r-token": codes.OK,
		} {
			if writes && header == "Bearer r-token" {
				want = codes.PermissionDenied
			}
			if err := call(t, g, header, full, request); status.Code(err) != want {
				t.Errorf("%s with %q: %v, want %v", name, header, err, want)
			}
		}
	})
}

func TestOthersThanPeoplesCallsAreNotGuarded(t *testing.T) {
	g := guard(t, nil)
	for method, want := range map[string]codes.Code{
		"/grpc.health.v1.Health/Check":                                   codes.OK,
		"/berth.member.v1.MemberService/GetInfo":                         codes.OK,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      codes.Unauthenticated,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": codes.Unauthenticated,
	} {
		if err := call(t, g, "", method, nil); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", method, err, want)
		}
	}
	if err := call(t, g, "Bearer r-token", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", nil); err != nil {
		t.Errorf("reflection for a known caller: %v", err)
	}
}

func TestOneCallerDoesNotUseUpWhatAnotherMay(t *testing.T) {
	g := guard(t, func(c *GuardConfig) { c.Rate, c.Burst = 0.001, 2 })
	get := func(token string) error {
		return call(t, g, "Bearer "+token, schedulingv1.SchedulingService_GetStatus_FullMethodName, &schedulingv1.GetStatusRequest{})
	}
	for range 2 {
		if err := get("r-token"); err != nil {
			t.Fatal(err)
		}
	}
	err := get("r-token")
	if status.Code(err) != codes.ResourceExhausted || rpc.ReasonOf(err) != ReasonTooManyCalls {
		t.Errorf("the third call: %v, want RESOURCE_EXHAUSTED, TOO_MANY_CALLS", err)
	}
	if err := get("w-token"); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

// broken is a Reviewer that cannot tell.
type broken struct{ asked atomic.Int64 }

func (b *broken) Authenticate(context.Context, string) (Caller, error) {
	b.asked.Add(1)
	return Caller{}, errors.New("the API server is away, and its token is s3cret")
}
func (b *broken) Allowed(context.Context, Caller, Permission) (bool, string, error) {
	return true, "", nil
}

func TestWhoCannotBeReviewedIsNotLetIn(t *testing.T) {
	g := guard(t, func(c *GuardConfig) { c.Reviewer = new(broken) })
	err := call(t, g, "Bearer r-token", schedulingv1.SchedulingService_GetStatus_FullMethodName, &schedulingv1.GetStatusRequest{})
	if status.Code(err) != codes.Unavailable || rpc.ReasonOf(err) != ReasonNoReview || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v, want UNAVAILABLE, NO_REVIEW, and nothing of the cause", err)
	}
}

func TestAPermissionReadsAsASentence(t *testing.T) {
	for want, p := range map[string]Permission{
		"get pods/p in namespace a":     {Verb: "get", Resource: "pods", Namespace: "a", Name: "p"},
		"list pods in all namespaces":   {Verb: "list", Resource: "pods"},
		"get nodes/n":                   {Verb: "get", Resource: "nodes", Name: "n"},
		"delete " + "/berth/manifests":  {Verb: "delete", Path: manifestsPath},
		"delete " + "/berth/members":    {Verb: "delete", Path: membersPath},
		"watch pods in all namespaces":  {Verb: "watch", Resource: "pods"},
		"create pods in namespace prod": {Verb: "create", Resource: "pods", Namespace: "prod"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}

func TestBrokenTokenFilesAreRefusedByLine(t *testing.T) {
	for text, want := range map[string]string{
		"a,b": "line 1", "a,b,admin": "line 1", "a,b,read\n,c,read": "line 2",
		"a,b,read\n\na,c,write": "line 3: the token of c is in another line too",
	} {
		if _, err := ReadTokens(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestAGuardNeedsSense(t *testing.T) {
	for want, cfg := range map[string]GuardConfig{
		"Reviewer": {}, "Rate": {Reviewer: new(broken), Rate: -1}, "Burst": {Reviewer: new(broken), Burst: -1},
	} {
		if _, err := NewGuard(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error that names %s", cfg, err, want)
		}
	}
}

func TestTheCallThatIsTooMuchSaysWhenToComeBack(t *testing.T) {
	g := guard(t, func(c *GuardConfig) { c.Rate, c.Burst = 0.5, 1 })
	if _, ok := g.take("a"); !ok {
		t.Fatal("the first is refused")
	}
	if wait, ok := g.take("a"); ok || wait != 2*time.Second {
		t.Errorf("the second: %v, to wait %v; want to wait 2s", ok, wait)
	}
}

func TestTokensThatAreMadeAreKnownAndKept(t *testing.T) {
	dir := t.TempDir()
	read := func() (*Tokens, map[string]string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "tokens"))
		if err != nil {
			t.Fatal(err)
		}
		known, err := ReadTokens(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		own := make(map[string]string)
		for _, user := range []string{"ann", "bob"} {
			token, err := os.ReadFile(filepath.Join(dir, user+".token"))
			if err == nil {
				own[user] = strings.TrimSpace(string(token))
			}
		}
		return known, own
	}
	make := func(texts ...string) {
		t.Helper()
		var grants []Grant
		for _, text := range texts {
			g, err := ParseGrant(text)
			if err != nil {
				t.Fatal(err)
			}
			grants = append(grants, g)
		}
		if did, err := MakeTokens(dir, grants); err != nil || len(did) != len(grants) {
			t.Fatalf("%q, %v", did, err)
		}
	}
	make("ann=write")
	_, first := read()
	make("ann=read", "bob=read")
	known, own := read()
	if own["ann"] != first["ann"] || own["ann"] == own["bob"] || len(own["bob"]) < 40 {
		t.Errorf("tokens %v, then %v", first, own)
	}
	for user, writes := range map[string]bool{"ann": true, "bob": false} {
		c, err := known.Authenticate(t.Context(), own[user])
		if err != nil || c.User != user {
			t.Fatalf("the token of %s is of %+v, %v", user, c, err)
		}
		if may, _, _ := known.Allowed(t.Context(), c, Permission{Verb: "create", Path: manifestsPath}); may != writes {
			t.Errorf("%s may write: %v", user, may)
		}
	}
	for _, name := range []string{"tokens", "ann.token"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want it to be its owner's alone", name, info.Mode(), err)
		}
	}
	for _, bad := range []string{"", "ann", "ann=admin", "=read", "a,b=read", "../a=read"} {
		if _, err := ParseGrant(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestWhoMayGetAPathMayNotPutThere(t *testing.T) {
	for method, want := range map[string]string{http.MethodGet: "get", http.MethodHead: "get", http.MethodPut: "put", http.MethodPost: "post"} {
		if got := (Permission{Verb: verbOf(method), Path: "/debug/flags/v"}); got.Verb != want || got.Reads() != (want == "get") {
			t.Errorf("%s needs %v", method, got)
		}
	}
}
