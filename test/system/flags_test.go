package system

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/test/berthtest"
)

func TestFlagsThatMakeNoSenseAreNamed(t *testing.T) {
	berth := berthtest.Binary(t)
	for _, tt := range []struct{ args, want string }{
		{"queue", "--etcd-endpoints: required"},
		{"queue --etcd-endpoints 127.0.0.1:2379 --batch-size 0", "--batch-size: 0: want"},
		{"queue --etcd-endpoints 127.0.0.1:2379 --lease-ttl 1ms", "--lease-ttl: 1ms: want"},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --source kubernetes", `--source: "kubernetes": want kube or local`},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --source local --kubeconfig k", "exclude each other"},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --kubeconfig /does/not/exist", "/does/not/exist"},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --shards 0", "--shards: 0: want 1 to 256"},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --fit-strategy BestFit", `--fit-strategy: "BestFit": want`},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --fit-strategy RequestedToCapacityRatio --fit-shape 50:1,20:3", `--fit-shape: "20:3": want`},
		{"binder --etcd-endpoints http://127.0.0.1:2379 --fit-resources cpu:0", `--fit-resources: "cpu:0": want`},
		{"gateway --etcd-endpoints ::nonsense::", "::nonsense::"},
		{"all --log-level loud", `--log-level: "loud": want`},
		{"all --queues 0", "want at least 1"},
		{"all --listen nonsense --data-dir " + t.TempDir(), "nonsense"},
		{"all extra", "extra"},
		{"demo --kubeconfig k", "do not go with it"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out, err := exec.Command(berth, strings.Fields(tt.args)...).CombinedOutput()
			if _, failed := err.(*exec.ExitError); !failed || !strings.Contains(string(out), tt.want) || strings.Contains(string(out), "panic") {
				t.Errorf("berth %s: %v, output %q; want exit status 1 and %q", tt.args, err, out, tt.want)
			}
		})
	}
}
