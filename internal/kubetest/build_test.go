package kubetest

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLockKeepsOthersOutUntilItIsReleased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second lock = %v, want to wait until the deadline", err)
	}

	locked := make(chan error, 1)
	go func() {
		unlock, err := lockFile(t.Context(), path)
		if err == nil {
			unlock()
		}
		locked <- err
	}()
	unlock()
	select {
	case err := <-locked:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Minute):
		t.Error("the lock was not handed on")
	}
}

func TestVersionsAreThoseOfTheModules(t *testing.T) {
	versions, err := Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(versions)), slices.Sorted(slices.Values(append(Programs(), ControllerManager, Helm, TopoLVM, GPUShare, APIServer134, APIServer135))); !slices.Equal(got, want) {
		t.Errorf("%q can be built, and the programs are %q", got, want)
	}
	for name, prefix := range map[string]string{Etcd: "v3.", APIServer: "v1.", ControllerManager: "v1.", KubeScheduler: "v1.", Etcdctl: "v3.", Kubectl: "v1.", Helm: "v3.", TopoLVM: "v0.", GPUShare: "v0.", APIServer134: "v1.34.", APIServer135: "v1.35."} {
		if !strings.HasPrefix(versions[name], prefix) {
			t.Errorf("version of %s = %q, want %s…", name, versions[name], prefix)
		}
	}
	if v := versions[APIServer]; v != versions[KubeScheduler] || v != versions[ControllerManager] || v != versions[Kubectl] {
		t.Errorf("versions of the API server, the scheduler, the controllers and the client differ: %v", versions)
	}
	if versions[Etcd] != versions[Etcdctl] {
		t.Errorf("versions of etcd and its client differ: %v", versions)
	}
}

func TestUnknownProgramIsAnError(t *testing.T) {
	if _, err := Build(t.Context(), "kubelet"); err == nil || !strings.Contains(err.Error(), `"kubelet"`) {
		t.Errorf("Build of an unknown program = %v, want an error that names it", err)
	}
}
