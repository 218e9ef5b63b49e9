package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// line runs a command line, and returns what it wrote and its error.
func line(args string) (string, error) {
	out, _, err := berth("", strings.Fields(args)...)
	return out, err
}

func TestPlaintextIsRefusedWhereOtherMachinesCanReachIt(t *testing.T) {
	const advice = "give --tls-cert, --tls-key and --tls-ca"
	for _, args := range []string{
		"queue --etcd-endpoints 127.0.0.1:1 --listen 0.0.0.0:7100",
		"queue --etcd-endpoints 127.0.0.1:1 --listen :7100",
		"queue --etcd-endpoints 127.0.0.1:1 --listen [::]:7100",
		"filter-worker --etcd-endpoints 127.0.0.1:1 --listen 10.0.0.1:7100",
		"score-worker --etcd-endpoints 127.0.0.1:1 --listen 127.0.0.1:7100 --advertise 10.0.0.1",
		"binder --etcd-endpoints 127.0.0.1:1 --listen host:7100",
		"gateway --etcd-endpoints 127.0.0.1:1 --http-listen 0.0.0.0:7080",
		"all --listen 0.0.0.0:7070",
		"all --http-listen :7080",
		"demo --http-listen :7080",
	} {
		if _, err := line(args); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("berth %s: %v, want %q", args, err, advice)
		}
	}
	plain, secure := tlsFlags{plaintext: true}, tlsFlags{}
	secure.roles.Cert = "a.crt"
	for _, f := range []tlsFlags{plain, secure} {
		if err := f.allows("--listen", "0.0.0.0:7100"); err != nil {
			t.Errorf("with %+v: %v", f, err)
		}
	}
	for _, address := range []string{"127.0.0.1:0", "localhost:7100", "[::1]:7100", "::1", "127.0.0.2", ""} {
		if err := (&tlsFlags{}).allows("--listen", address); err != nil {
			t.Errorf("loopback: %v", err)
		}
	}
}

// Who can write to etcd can place pods.
func TestPlaintextToAnEtcdElsewhereNeedsAFlag(t *testing.T) {
	for _, endpoint := range []string{"http://10.0.0.1:2379", "10.0.0.1:2379", "http://etcd.example:2379", "http://[2001:db8::1]:2379", "http://127.0.0.1:2379,http://etcd:2379", "http://127.0.0.1.example:2379", "http://:2379"} {
		for _, role := range []string{"all", "binder", "queue", "filter-worker", "score-worker", "gateway"} {
			_, err := line(role + " --etcd-endpoints " + endpoint)
			if err == nil || !strings.Contains(err.Error(), "is plaintext to another machine") || !strings.Contains(err.Error(), "--etcd-insecure-plaintext") {
				t.Errorf("berth %s, etcd at %s: %v, want an error that names --etcd-insecure-plaintext", role, endpoint, err)
			}
		}
		if err := (&tlsFlags{etcdPlaintext: true}).finish(strings.Split(endpoint, ",")); err != nil {
			t.Errorf("%s, with the flag: %v", endpoint, err)
		}
	}
	for _, endpoint := range []string{"http://127.0.0.1:2379", "127.0.0.1:2379", "localhost:2379", "http://[::1]:2379/", "https://etcd.example:2379", "unix:///run/etcd.sock"} {
		if err := (&tlsFlags{}).finish([]string{endpoint}); err != nil {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

func TestTLSFlagsThatDoNotGoTogetherAreNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := line("certs --dir " + dir); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"queue --etcd-endpoints 127.0.0.1:1 --tls-cert a.crt", "--tls-cert, --tls-key and --tls-ca: give all three"},
		{"queue --etcd-endpoints 127.0.0.1:1 --tls-ca ca.crt", "--tls-cert, --tls-key and --tls-ca: give all three"},
		{"queue --etcd-endpoints https://127.0.0.1:1 --etcd-cert a.crt", "--etcd-cert and --etcd-key: give both"},
		{"queue --etcd-endpoints https://127.0.0.1:1 --etcd-cert a.crt --etcd-key a.key", "with --etcd-ca"},
		{"queue --etcd-endpoints http://127.0.0.1:1 --etcd-ca ca.crt", "want https://"},
		{"queue --etcd-endpoints 127.0.0.1:1 --tls-cert DIR/binder.crt --tls-key DIR/binder.key --tls-ca DIR/ca.crt", "is of role binder, and this is a queue"},
		{"queue --etcd-endpoints 127.0.0.1:1 --tls-cert DIR/queue.crt --tls-key DIR/binder.key --tls-ca DIR/ca.crt", "private key does not match"},
		{"queue --etcd-endpoints 127.0.0.1:1 --tls-cert DIR/none.crt --tls-key DIR/queue.key --tls-ca DIR/ca.crt", "none.crt"},
		{"demo --tls-cert a --tls-key b --tls-ca c", "does not go with it"},
		{"get status --tls-cert a --tls-key b", "with --tls-ca"},
		{"health --tls-ca ca.crt", "give all three"},
		{"certs", "--dir: required"},
		{"certs --dir DIR --role scheduler", `--role: "scheduler": want one of`},
		{"certs --dir DIR --days 0", "want at least 1"},
	} {
		args := strings.ReplaceAll(tt.args, "DIR", dir)
		if _, err := line(args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("berth %s: %v, want %q", args, err, tt.want)
		}
	}
}

func TestCertsMakesAKeyPairPerRoleAndSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	out, err := line("certs --dir " + dir + " --host berth.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"binder", "queue", "filter-worker", "score-worker", "gateway"} {
		if _, err := os.Stat(filepath.Join(dir, role+".crt")); err != nil || !strings.Contains(out, "spiffe://berth/"+role) {
			t.Errorf("%s: %v; said:\n%s", role, err, out)
		}
	}
	if n := strings.Count(out, "berth.example"); n != 1 {
		t.Errorf("host names given to %d certificates, want the gateway's only:\n%s", n, out)
	}
	again, err := line("certs --dir " + dir + " --role etcd --host etcd-1,etcd-2")
	if err != nil || !strings.Contains(again, "ca.crt: kept") || !strings.Contains(again, "[etcd-1 etcd-2 member.berth.internal]") {
		t.Errorf("a second time: %v, said:\n%s", err, again)
	}
	// etcd takes clients by that name: who may only ask must not have it.
	callers, err := line("certs --dir " + dir + " --role metrics,operator")
	if err != nil || !strings.Contains(callers, "spiffe://berth/metrics\n") || !strings.Contains(callers, "spiffe://berth/operator\n") {
		t.Errorf("for callers: %v, said:\n%s", err, callers)
	}
}
