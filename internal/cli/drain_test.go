package cli_test

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// DrainMember drains f-0 and binder-0, and g-0, which the status does not list. Others are refused, as a gateway words it.
func (g *gateway) DrainMember(ctx context.Context, req *schedulingv1.DrainMemberRequest) (*schedulingv1.DrainMemberResponse, error) {
	switch id := req.GetId(); {
	case id == "f-1":
		return nil, rpc.Error(codes.FailedPrecondition, "SHARES_PROCESS", "filter-worker f-1 shares its process with other roles, and cannot be drained alone: to drain all of them, end the process with SIGTERM")
	case id == "q-0" && !req.GetForce():
		return nil, rpc.Error(codes.FailedPrecondition, "LAST_OF_ROLE", "there is no other queue that is ready, and without one no pod is scheduled: start another first, or drain it with --force")
	case id == "q-0":
		return nil, rpc.Error(codes.Unavailable, "SILENT", "queue q-0 does not answer: connection refused")
	case id == "g-0":
		g.drained.Store(req)
		return &schedulingv1.DrainMemberResponse{Member: &schedulingv1.Member{Role: "gateway", Id: "g-0", Started: timestamppb.New(now)}}, nil
	}
	status, err := g.GetStatus(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, m := range status.GetMembers() {
		if m.GetId() == req.GetId() {
			g.drained.Store(req)
			return &schedulingv1.DrainMemberResponse{Member: m}, nil
		}
	}
	return nil, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "there is no member %s: there are binder/binder-0, filter-worker/f-0, filter-worker/f-1, queue/q-0", req.GetId())
}

func without(id string) func(*schedulingv1.GetStatusResponse) error {
	return func(s *schedulingv1.GetStatusResponse) error {
		s.Members = slices.DeleteFunc(s.Members, func(m *schedulingv1.Member) bool { return m.GetId() == id })
		return nil
	}
}

func TestDrainWaitsUntilTheMemberHasLeft(t *testing.T) {
	asked := 0
	soon := func(then func(*schedulingv1.GetStatusResponse) error) func(*schedulingv1.GetStatusResponse) error {
		asked = 0
		return func(s *schedulingv1.GetStatusResponse) error {
			if asked++; asked < 3 {
				return nil
			}
			return then(s)
		}
	}
	for _, test := range []struct {
		name, args string
		after      func(*schedulingv1.GetStatusResponse) error
	}{
		{"drain", "drain-worker f-0", soon(without("f-0"))},
		{"drain-role", "drain-worker filter-worker/f-0 --force --wait 20s", without("f-0")},
		{"drain-again", "drain-worker f-0", func(s *schedulingv1.GetStatusResponse) error {
			s.Members[1].Started = timestamppb.New(now)
			return nil
		}},
		{"drain-stays", "drain-worker f-0 --wait 300ms", func(s *schedulingv1.GetStatusResponse) error {
			s.Members[1].Started, s.Members[1].Ready, s.Members[1].NotReadyBecause = nil, false, "it does not answer"
			return nil
		}},
		{"drain-no-wait", "drain-worker f-0 --wait 0", nil},
		{"drain-name", "drain-worker f-0 -o name", without("f-0")},
		{"drain-json", "drain-worker f-0 -o json", without("f-0")},
		{"drain-unseen", "drain-worker f-0", func(*schedulingv1.GetStatusResponse) error {
			return rpc.Error(codes.PermissionDenied, "NOT_ALLOWED", "you may not get /berth/status")
		}},
		{"drain-loading", "drain-worker binder-0 --wait 300ms", func(*schedulingv1.GetStatusResponse) error {
			return rpc.Error(codes.Unavailable, rpc.ReasonNotReady, "the gateway is starting")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, notices, err := start(t, &gateway{after: test.after}).run("", words(test.args)...)
			text := "$ berth " + test.args + "\n" + out + "--- notices\n" + notices
			if err != nil {
				text += "--- error\n" + err.Error() + "\n"
			}
			golden(t, test.name, text)
		})
	}
}

func TestDrainSaysWhatIsMeant(t *testing.T) {
	for args, want := range map[string]*schedulingv1.DrainMemberRequest{
		"f-0":                     {Id: "f-0"},
		"filter-worker/f-0":       {Role: "filter-worker", Id: "f-0"},
		"binder/binder-0 --force": {Role: "binder", Id: "binder-0", Force: true},
	} {
		g := &gateway{}
		if _, _, err := start(t, g).run("", append([]string{"drain-worker", "--wait", "0"}, words(args)...)...); err != nil {
			t.Fatal(err)
		}
		if got := g.drained.Load(); got.String() != want.String() {
			t.Errorf("%s asks for %v, want %v", args, got, want)
		}
	}
}

func TestTheGatewayThatIsAskedMayBeTheOneThatDrains(t *testing.T) {
	g := &gateway{}
	h := start(t, g)
	g.after = func(*schedulingv1.GetStatusResponse) error {
		h.stop()
		return rpc.Error(codes.Unavailable, rpc.ReasonDraining, "the gateway is stopping")
	}
	out, _, err := h.run("", "drain-worker", "g-0")
	if want := "gateway/g-0 drains, and the gateway at berth is gone\n"; err != nil || out != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func TestVersionTellsClientGatewayAndMembers(t *testing.T) {
	h := start(t, &gateway{})
	client := regexp.MustCompile(`^client    v1\.2\.3 \(berth, go[^ ]+, [a-z]+/[a-z0-9]+\)\n`)
	out, _, err := h.run("", "version")
	if err != nil || !client.MatchString(out) {
		t.Fatalf("%q, %v, want %v first", out, err, client)
	}
	want := "gateway   v1.2.2\nmembers   unknown: queue 1; v1.1.0: filter-worker 1; v1.2.2: binder 1, filter-worker 1\n"
	if got := client.ReplaceAllString(out, ""); got != want {
		t.Errorf("version: %q, want %q", got, want)
	}
	if out, _, err := h.run("", "version", "--client", "--server", "elsewhere"); err != nil || client.ReplaceAllString(out, "") != "" {
		t.Errorf("version --client: %q, %v, want a line and no question to anybody", out, err)
	}
	out, _, err = h.run("", "version", "--server", "elsewhere")
	if err == nil || client.ReplaceAllString(out, "") != "" || !strings.Contains(fmt.Sprint(err), "no answer from the gateway at elsewhere") {
		t.Errorf("version without a gateway: %q, %v, want the client's, and why not more", out, err)
	}
}

func TestVersionTellsProgramsTheSame(t *testing.T) {
	h := start(t, &gateway{})
	client := fmt.Sprintf(`{"version": "v1.2.3", "revision": "abc1234", "kubernetes": "1.36", "program": "berth", "goVersion": %q, "platform": "%s/%s"}`, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	all := `{"client": ` + client + `, "gateway": {"version": "v1.2.2"}, "members": [
		{"version": "unknown", "roles": {"queue": 1}}, {"version": "v1.1.0", "roles": {"filter-worker": 1}}, {"version": "v1.2.2", "roles": {"binder": 1, "filter-worker": 1}}]}`
	for args, want := range map[string]string{
		"version -o json": all,
		"version -o yaml": all,
		"version -o json --client --server elsewhere": `{"client": ` + client + `}`,
	} {
		out, _, err := h.run("", words(args)...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		var got, wanted any
		if err := yaml.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s: %v of %s", args, err, out)
		}
		if err := yaml.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	if _, _, err := h.run("", "version", "-o", "xml"); err == nil || !strings.Contains(err.Error(), `--output "xml" is not json or yaml`) {
		t.Errorf("version -o xml: %v", err)
	}
	if out, _, err := h.run("", "version", "-o", "json", "--server", "elsewhere"); err == nil || out != "" {
		t.Errorf("version -o json without a gateway: %q, %v, want why not, and nothing that a program would read", out, err)
	}
}
