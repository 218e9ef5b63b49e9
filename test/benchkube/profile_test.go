package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestProfilesBeginWhenTheProcessServesThemAndAreOneFile(t *testing.T) {
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", ports[0])
	dir := t.TempDir()
	p := startProfiler(t.Context(), address, filepath.Join(dir, "parts")) // nobody listens yet
	defer p.stop()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- rpc.ServeOps(ctx, l, rpc.OpsConfig{Profiling: true}) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	files, err := p.write(t.Context(), filepath.Join(dir, "new", "plain"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || !strings.HasSuffix(files[0], "plain.cpu.pb.gz") || !strings.HasSuffix(files[1], "plain.allocs.pb.gz") {
		t.Errorf("files: %q", files)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "\x1f\x8b") {
			t.Errorf("%s is no profile: %d bytes, %v", file, len(b), err)
		}
	}
}
