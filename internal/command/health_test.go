package command

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestHealthFailsUnlessTheServerServes(t *testing.T) {
	server := rpc.NewServer(rpc.Config{}, "test")
	l, err := rpc.TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	expect := func(when, want string, args ...string) {
		t.Helper()
		c, out := healthCommand(), new(bytes.Buffer)
		c.SetOut(out)
		c.SetErr(io.Discard)
		c.SetArgs(append(args, "--address="+l.Addr().String()))
		got := ""
		if err := c.ExecuteContext(t.Context()); err != nil {
			got = err.Error()
		}
		if want == "" && (got != "" || out.String() != "SERVING\n") || !strings.Contains(got, want) {
			t.Errorf("%s: printed %q, error %q; want one with %q", when, out, got, want)
		}
	}
	expect("at the start", "NOT_SERVING")
	server.Health().Set("", true, "")
	expect("once it is ready", "")
	expect("a service that there is not", "NotFound", "--service=available")
	server.Health().Set("available", false, "why")
	expect("a service that is not available", "NOT_SERVING", "--service=available")
	expect("a key pair without authorities", "--tls-ca", "--tls-cert=a", "--tls-key=b")
	expect("no time", "--timeout", "--timeout=0s")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	expect("when it is gone", "refused")
}
