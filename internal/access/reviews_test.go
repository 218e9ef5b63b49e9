package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/bubble"
)

// apiServer is a Reviewer that takes its time. Tokens that begin with "user-" are somebody's.
type apiServer struct {
	takes time.Duration

	mu                   sync.Mutex
	asked, running, most int
}

func (a *apiServer) Authenticate(ctx context.Context, token string) (Caller, error) {
	a.mu.Lock()
	a.asked++
	a.running++
	a.most = max(a.most, a.running)
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.running--
		a.mu.Unlock()
	}()
	select {
	case <-time.After(a.takes):
	case <-ctx.Done():
		return Caller{}, ctx.Err()
	}
	if !strings.HasPrefix(token, "user-") {
		return Caller{}, ErrUnknownToken
	}
	return Caller{User: token}, nil
}

func (a *apiServer) Allowed(context.Context, Caller, Permission) (bool, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return true, "", nil
}

func from(t *testing.T, address string) context.Context { return rpc.WithCaller(t.Context(), address) }

func TestOneReviewIsAskedForOneToken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := &apiServer{takes: 100 * time.Millisecond}
		r := NewReviews(api)
		for _, token := range []string{"user-a", "guess"} {
			api.asked = 0
			var asking sync.WaitGroup
			for range 100 {
				asking.Go(func() {
					if _, err := r.Authenticate(from(t, ""), token); (err == nil) != (token == "user-a") {
						t.Errorf("%s: %v", token, err)
					}
				})
			}
			asking.Wait()
			if _, err := r.Authenticate(from(t, ""), token); (err == nil) != (token == "user-a") {
				t.Errorf("%s, remembered: %v", token, err)
			}
			if api.asked != 1 {
				t.Errorf("%s was asked about %d times, want once", token, api.asked)
			}
			time.Sleep(reviewed + time.Second)
			_, _ = r.Authenticate(from(t, ""), token) // the answer is that of before
			if api.asked != 2 {
				t.Errorf("%s was asked about %d times after its answer was forgotten, want twice", token, api.asked)
			}
		}
	})
}

func TestWhoGuessesTokensHoldsUpNobodyElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		api := &apiServer{takes: 20 * time.Millisecond}
		r := NewReviews(api)
		if _, err := r.Authenticate(from(t, "10.0.0.9"), "user-known"); err != nil {
			t.Fatal(err)
		}
		stop, end := context.WithCancel(t.Context())
		var guessing sync.WaitGroup
		for k := range 40 { // from four addresses, each faster than anybody answers
			guessing.Go(func() {
				for i := 0; stop.Err() == nil; i++ {
					_, err := r.Authenticate(rpc.WithCaller(t.Context(), fmt.Sprint("10.0.1.", k%4)), fmt.Sprint("guess ", k, " ", i))
					if !errors.Is(err, ErrUnknownToken) && rpc.ReasonOf(err) != ReasonTooManyNew && rpc.ReasonOf(err) != rpc.ReasonQueueFull {
						t.Errorf("a guess: %v", err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		time.Sleep(3 * time.Second)
		if _, err := r.Authenticate(from(t, "10.0.0.9"), "user-known"); err != nil {
			t.Errorf("a caller who is remembered: %v", err)
		}
		for i := range 20 {
			began := time.Now()
			if _, err := r.Authenticate(from(t, fmt.Sprint("10.0.2.", i)), fmt.Sprint("user-new-", i)); err != nil {
				t.Errorf("a new caller from elsewhere: %v", err)
			}
			if took := time.Since(began); took > 5*api.takes {
				t.Errorf("a new caller from elsewhere waited %v, of which its own review took %v", took, api.takes)
			}
		}
		end()
		guessing.Wait()
		if most := 4*(newAtOnce+newPerSecond*10) + 100; api.asked > most || api.most > reviewsAtOnce {
			t.Errorf("the API server was asked %d times, and %d at once; want at most %d and %d", api.asked, api.most, most, reviewsAtOnce)
		}
		if got := r.callers.Keys(); len(got) == 0 {
			t.Error("guesses have pushed out the callers who were remembered")
		}
	})
}

func TestTokensAreReadAgainWhenTheirFileChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one, ann, read\n")
	var text bytes.Buffer
	f, err := OpenTokens(file, slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain until %s", what)
			}
		}
	}
	knows := func(token string) bool { _, err := f.Authenticate(t.Context(), token); return err == nil }
	if !knows("one") || knows("two") {
		t.Fatal("the file was not read")
	}
	write("two, ann, read\n")
	await("the new token is known", func() bool { return knows("two") })
	if knows("one") {
		t.Error("the token that was taken out is known still")
	}
	write("half a li")
	await("the broken file is noticed", f.Stale)
	if !knows("two") {
		t.Error("a broken file has made the tokens of before unknown")
	}
	if n := strings.Count(text.String(), "cannot be used"); n != 1 || strings.Contains(text.String(), "two") {
		t.Errorf("the log says it %d times, want once, and no token:\n%s", n, text.String())
	}
	write("three, ann, read\n")
	await("the mended file is read", func() bool { return knows("three") && !f.Stale() })
	write("# nobody\n")
	await("all tokens are taken back", func() bool { return !knows("three") })
	if f.Stale() {
		t.Error("a file that says that nobody has a token cannot be used")
	}
	if _, err := OpenTokens(file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file without tokens at the start: %v", err)
	}
}

// rbac is a Reviewer whose only caller may do what it says.
type rbac map[string]bool

func (rbac) Authenticate(context.Context, string) (Caller, error) { return Caller{User: "ann"}, nil }
func (r rbac) Allowed(_ context.Context, _ Caller, p Permission) (bool, string, error) {
	return r[p.String()], "", nil
}

func TestAQuestionAboutAPodNeedsTheRightToThePod(t *testing.T) {
	const (
		explain, whatIf = "get /berth/explain", "get /berth/whatif"
		listNodes       = "list nodes"
		getPod          = "get pods/p in namespace a"
		listAll         = "list pods in all namespaces"
	)
	service := "/" + schedulingv1.SchedulingService_ServiceDesc.ServiceName + "/"
	for _, c := range []struct {
		method  string
		request any
		needs   []string
	}{
		{"ExplainPod", &schedulingv1.ExplainPodRequest{Namespace: "a", Name: "p"}, []string{explain, getPod}},
		{"ExplainPod", &schedulingv1.ExplainPodRequest{Name: "p"}, []string{explain, "get pods/p in namespace default"}},
		{"GetPod", &schedulingv1.GetPodRequest{Name: "p"}, []string{"get pods/p in namespace default"}},
		{"GetMap", &schedulingv1.GetMapRequest{}, []string{listNodes}},
		{"GetMap", &schedulingv1.GetMapRequest{Namespace: "a", Pod: "p"}, []string{listNodes, getPod}},
		{"GetCapacity", &schedulingv1.GetCapacityRequest{Manifest: "x"}, []string{whatIf}},
		{"GetCapacity", &schedulingv1.GetCapacityRequest{Namespace: "a", Name: "p"}, []string{whatIf, getPod}},
		{"GetCapacity", &schedulingv1.GetCapacityRequest{Namespace: "a", PodGroup: "g"}, []string{whatIf, "list pods in namespace a"}},
		{"GetCapacity", &schedulingv1.GetCapacityRequest{PodGroup: "g"}, []string{whatIf, "list pods in namespace default"}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Manifests: "x"}, []string{whatIf}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Pending: true}, []string{whatIf, listAll}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Pending: true, SummaryOnly: true}, []string{whatIf}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_Drain{Drain: "n"}}}}, []string{whatIf, listAll}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_RemoveNode{RemoveNode: "n"}}}}, []string{whatIf, listAll}},
		{"WhatIf", &schedulingv1.WhatIfRequest{Changes: []*schedulingv1.Change{{Change: &schedulingv1.Change_Cordon{Cordon: "n"}}}}, []string{whatIf}},
		{"Compare", &schedulingv1.CompareRequest{Manifests: "x"}, []string{whatIf}},
		{"Compare", &schedulingv1.CompareRequest{}, []string{whatIf, listAll}},
		{"Compare", &schedulingv1.CompareRequest{Manifests: " \n\t"}, []string{whatIf, listAll}},
		{"Compare", &schedulingv1.CompareRequest{Manifests: "x", Everything: true}, []string{whatIf, listAll}},
		{"WatchPlacements", nil, []string{"watch pods in all namespaces"}},
		{"GetQueue", &schedulingv1.GetQueueRequest{}, []string{"get /berth/status"}},
	} {
		all := rbac{}
		for _, need := range c.needs {
			all[need] = true
		}
		may := func(r rbac) error {
			return call(t, guard(t, func(cfg *GuardConfig) { cfg.Reviewer = r }), "Bearer x", service+c.method, c.request)
		}
		if err := may(all); err != nil {
			t.Errorf("%s %v with %q: %v", c.method, c.request, c.needs, err)
		}
		for _, without := range c.needs {
			less := rbac{}
			for _, need := range c.needs {
				less[need] = need != without
			}
			if err := may(less); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), without) {
				t.Errorf("%s %v without %q: %v, want PERMISSION_DENIED", c.method, c.request, without, err)
			}
		}
	}
}

func TestPodsAreNamedToThoseWhoMayListThem(t *testing.T) {
	for _, may := range []bool{true, false} {
		g := guard(t, func(c *GuardConfig) {
			c.Reviewer = rbac{"get nodes/n": true, "list pods in all namespaces": may}
		})
		ctx, err := g.Admit(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer x")), schedulingv1.SchedulingService_GetNode_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := MayNamePods(ctx); got != may || err != nil {
			t.Errorf("who may list pods, %v, may be told names: %v, %v", may, got, err)
		}
	}
	if got, err := MayNamePods(t.Context()); !got || err != nil {
		t.Errorf("where callers are not known: %v, %v", got, err)
	}
}

func TestTokensThatNobodyHasAreNotAskedAbout(t *testing.T) {
	asked := &broken{}
	g := guard(t, func(c *GuardConfig) { c.Reviewer = asked })
	method := schedulingv1.SchedulingService_GetStatus_FullMethodName
	for _, header := range []string{"", "Bearer ", "Basic x", "Bearer " + strings.Repeat("x", maxToken+1)} {
		if err := call(t, g, header, method, &schedulingv1.GetStatusRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%.20q: %v", header, err)
		}
	}
	if n := asked.asked.Load(); n != 0 {
		t.Errorf("the reviewer was asked %d times", n)
	}
}

func TestWhoGuessesDoesNotLockOutThoseBehindTheSameAddress(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		office := from(t, "10.0.0.9")
		api := &apiServer{}
		r := NewReviews(api)
		if _, err := r.Authenticate(office, "user-known"); err != nil {
			t.Fatal(err)
		}
		guess := func() {
			for i := 0; ; i++ {
				if _, err := r.Authenticate(office, fmt.Sprint("guess ", time.Now(), i)); rpc.ReasonOf(err) == ReasonTooManyNew {
					return
				}
			}
		}
		for range 5 {
			time.Sleep(reviewed + time.Second)
			guess()
			if _, err := r.Authenticate(office, "user-known"); err != nil {
				t.Errorf("a caller who was known when it was last asked about: %v", err)
			}
		}
		// A token that is nobody's any more is a guess like others.
		r.of = new(Tokens)
		time.Sleep(reviewed + time.Second)
		for range 2 {
			if _, err := r.Authenticate(office, "user-known"); !errors.Is(err, ErrUnknownToken) {
				t.Errorf("a token that was taken back: %v", err)
			}
		}
		time.Sleep(reviewed + time.Second)
		guess()
		if _, err := r.Authenticate(office, "user-known"); rpc.ReasonOf(err) != ReasonTooManyNew {
			t.Errorf("a token that was taken back, among guesses: %v", err)
		}
	})
}
