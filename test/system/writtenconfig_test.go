package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// podGroupGates are those by which kube-scheduler follows PodGroups.
const podGroupGates = "GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true,WorkloadAwarePreemption=true"

// TestWhatKubeSchedulerWritesIsTaken has Berth read what kube-scheduler writes with --write-config-to, with the gates that change it, and write by default what it has read.
func TestWhatKubeSchedulerWritesIsTaken(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "scheduler.conf") // of a cluster that nobody asks
	if err := os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: x}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, ours := kubeScheduler(t), asKubeScheduler(t)
	for _, gates := range []string{"", "AllAlpha=true", "AllAlpha=true,AllBeta=true", "AllBeta=false", "GenericWorkload=true,GangScheduling=true", podGroupGates, "StorageCapacityScoring=true", "DRAExtendedResource=false,DRADeviceTaints=false"} {
		dir := t.TempDir()
		file := map[string]string{theirs: filepath.Join(dir, "theirs.yaml"), ours: filepath.Join(dir, "ours.yaml")}
		run := func(program string, more ...string) {
			t.Helper()
			args := append([]string{"--kubeconfig=" + kubeconfig, "--secure-port=0", "--write-config-to=" + file[program], "--feature-gates=" + gates}, more...)
			if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %s %s: %v\n%s", gates, program, strings.Join(args, " "), err, out)
			}
		}
		run(theirs)
		run(ours, "--config="+file[theirs])
		want, err := os.ReadFile(file[theirs])
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file[ours])
		if err != nil {
			t.Fatal(err)
		}
		if gates == "" && string(got) != string(want) {
			t.Errorf("kube-scheduler's defaults:\n%s\nbecome\n%s", want, got)
		}
	}
}
