package command

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/plugin"
)

// servePlugin serves a plugin that scores, until the test ends.
func servePlugin(t *testing.T, l net.Listener, score int64, files plugin.TLSFiles) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- plugin.Serve(ctx, plugin.Config{Listener: l, TLS: files, Plugins: []plugin.Plugin{{
			Name: "P", Score: func(context.Context, *plugin.Kind, *plugin.Node) (int64, error) { return score, nil },
		}}})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestPluginTestSaysOfEachCaseWhetherItIsOK(t *testing.T) {
	dir := t.TempDir()
	listen := func(network, address string) net.Listener {
		t.Helper()
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if _, err := certs.Make(certs.Request{Dir: dir, Roles: []string{pluginRole, "operator", "queue"}, Known: knownByHost, Hosts: []string{"127.0.0.1", "gpu.internal"}, Callers: callers, Now: time.Now(), CALife: time.Hour, Life: time.Hour}); err != nil {
		t.Fatal(err)
	}
	as := func(role string) []string {
		base := filepath.Join(dir, role)
		return []string{"--tls-cert=" + base + ".crt", "--tls-key=" + base + ".key", "--tls-ca=" + filepath.Join(dir, "ca.crt")}
	}
	objects := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(objects, []byte("{apiVersion: v1, kind: Node, metadata: {name: mine}, status: {allocatable: {cpu: \"4\"}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good, bad, secure := listen("tcp", "127.0.0.1:0"), listen("tcp", "127.0.0.1:0"), listen("tcp", "127.0.0.1:0")
	socket := filepath.Join(dir, "plugin.sock")
	servePlugin(t, good, 7, plugin.TLSFiles{})
	servePlugin(t, listen("unix", socket), 7, plugin.TLSFiles{})
	servePlugin(t, bad, 101, plugin.TLSFiles{})
	base := filepath.Join(dir, pluginRole)
	servePlugin(t, secure, 7, plugin.TLSFiles{Cert: base + ".crt", Key: base + ".key", CA: filepath.Join(dir, "ca.crt")})

	for _, tt := range []struct {
		what   string
		args   []string
		fails  string // "": it does not
		oks    int
		prints string
	}{
		{"a good one", []string{good.Addr().String()}, "", 25, "ok    Describe tells of plugins as they can be, and the same each time (filters: none; scores: P)\n"},
		{"on a socket", []string{"unix://" + socket}, "", 25, "a node; asked about again in"},
		{"about objects", []string{good.Addr().String(), "--objects=" + objects}, "", 25, ""},
		{"over TLS", append(as("operator"), secure.Addr().String()), "", 25, ""},
		{"over TLS, by another name", append(as("operator"), secure.Addr().String(), "--tls-server-name=gpu.internal"), "", 25, ""},
		{"over TLS, by a name that it has not", append(as("operator"), secure.Addr().String(), "--tls-server-name=gpu"), "do not answer", 0, "not gpu"},
		{"a bad one", []string{bad.Addr().String()}, "do not answer as they have to", 14, "FAIL  each question gets one answer, in order: question 0: it could not be answered: plugin P, node node-0: its score is 101: want 0 to 100\n"},
		{"one with arguments that it does not take", []string{good.Addr().String(), `--args=P={"a":1}`}, "do not answer", 14, "its arguments in profile default-scheduler: it takes none"},
		{"one that knows the caller for another", append(as("queue"), secure.Addr().String()), "do not answer", 0, `role "queue": want one of [binder operator]`},
		{"one that wants TLS", []string{secure.Addr().String()}, "do not answer", 0, "FAIL  Describe"},
		{"nobody", []string{"127.0.0.1:1"}, "do not answer", 0, "connection refused"},
		{"nothing", nil, "accepts 1 arg", 0, ""},
		{"no time", []string{"x:1", "--timeout=0s"}, "--timeout", 0, ""},
		{"arguments of nobody", []string{"x:1", "--args=P"}, `--args: "P": want PLUGIN=JSON`, 0, ""},
		{"no file", []string{"x:1", "--objects=none"}, "--objects: open none", 0, ""},
		{"a file that is none of objects", []string{"x:1", "--objects=" + base + ".crt"}, "--objects: ", 0, ""},
		{"half a key pair", []string{"x:1", "--tls-cert=a"}, "--tls-cert, --tls-key and --tls-ca", 0, ""},
	} {
		c, out := New(nil), new(bytes.Buffer)
		c.SetOut(out)
		c.SetErr(io.Discard)
		c.SetArgs(append([]string{"plugin", "test"}, tt.args...))
		err := c.ExecuteContext(t.Context())
		if (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%s: %v, want an error with %q", tt.what, err, tt.fails)
		}
		if got := strings.Count("\n"+out.String(), "\nok    "); got != tt.oks || !strings.Contains(out.String(), tt.prints) {
			t.Errorf("%s: %d cases are ok, want %d, and %q:\n%s", tt.what, got, tt.oks, tt.prints, out)
		}
	}
}
