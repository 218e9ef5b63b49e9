package command

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestEtcdInitRefusesWhatWouldLockItselfOutOrLetARoleIn(t *testing.T) {
	dir := t.TempDir()
	if _, err := line("certs --dir " + dir + " --role binder,etcd"); err != nil {
		t.Fatal(err)
	}
	as := func(role string) string {
		return " --etcd-endpoints https://127.0.0.1:1 --etcd-ca " + filepath.Join(dir, "ca.crt") + " --etcd-cert " + filepath.Join(dir, role+".crt") + " --etcd-key " + filepath.Join(dir, role+".key")
	}
	for args, want := range map[string]string{
		"etcd-init": "--etcd-endpoints: required",
		"etcd-init --etcd-endpoints http://127.0.0.1:1 --source both":               "want kube or local",
		"etcd-init --etcd-endpoints http://etcd:2379":                               "is plaintext to another machine",
		"etcd-init --etcd-endpoints http://127.0.0.1:1 --etcd-owned":                `the certificate is of ""`,
		"etcd-init --etcd-owned" + as("binder"):                                     `the certificate is of "binder"`,
		"etcd-init --etcd-owned --admin binder" + as("binder"):                      "binder is a role",
		"etcd-init --timeout 1ms" + as("etcd"):                                      "ask etcd how full it is",
		"etcd-init --timeout 0s --etcd-endpoints http://127.0.0.1:1":                "--timeout",
		"etcd-init --etcd-prefix /b --print --source kube extra":                    "unknown command",
		"etcd-init --etcd-endpoints https://127.0.0.1:1 --etcd-cert a --etcd-key b": "with --etcd-ca",
	} {
		if _, err := line(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("berth %s: %v, want %q", args, err, want)
		}
	}
	out, err := line("etcd-init --print --source local --etcd-prefix /b")
	if err != nil || !strings.Contains(out, "etcdctl role grant-permission /b/gateway --prefix=true readwrite /b/kv/\n") {
		t.Errorf("--print: %v\n%s", err, out)
	}
}
