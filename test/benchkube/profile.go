package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/berth-scheduler/berth/test/measure"
)

const (
	profilePart  = 2 * time.Second // of CPU profile; how much longer than the run it may take
	profileRetry = 50 * time.Millisecond
)

// profiler takes CPU profiles of a process, one after the other, from when the process serves them until stop: how long that is
// going to be is not known when it starts. Its methods are for one goroutine.
type profiler struct {
	address string
	dir     string // of the parts
	ending  chan struct{}
	done    chan struct{}
	parts   []string // and err: to be read when done is closed
	err     error
}

// startProfiler starts to profile the process whose /debug/pprof/ is going to be at address (host:port).
func startProfiler(ctx context.Context, address, dir string) *profiler {
	p := &profiler{address: address, dir: dir, ending: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = p.run(ctx)
	}()
	return p
}

func (p *profiler) run(ctx context.Context) error {
	for {
		ended := p.ended()
		if ended && len(p.parts) > 0 {
			return nil
		}
		file := filepath.Join(p.dir, fmt.Sprintf("%04d.pb.gz", len(p.parts)))
		err := measure.CPUProfile(ctx, p.address, profilePart, file)
		switch {
		case err == nil:
			p.parts = append(p.parts, file)
			continue
		case ended || len(p.parts) > 0:
			return err
		}
		select { // the process does not listen yet
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ending:
		case <-time.After(profileRetry):
		}
	}
}

// ended reports whether stop was called.
func (p *profiler) ended() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// stop ends the profiles, the last of which may still take 2 s, and waits for that. There is at least one, if the process serves
// any. It may be called again.
func (p *profiler) stop() {
	if !p.ended() {
		close(p.ending)
	}
	<-p.done
}

// write stops the profiles and writes them as one to base.cpu.pb.gz, and what the process has allocated to base.allocs.pb.gz.
func (p *profiler) write(ctx context.Context, base string) (files []string, err error) {
	p.stop()
	if p.err != nil {
		return nil, p.err
	}
	cpu, allocs := base+".cpu.pb.gz", base+".allocs.pb.gz"
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of profiles: %w", err)
	}
	merge := exec.CommandContext(ctx, "go", append([]string{"tool", "pprof", "-proto", "-output", cpu}, p.parts...)...)
	if out, err := merge.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("merge profiles: %w\n%s", err, out)
	}
	if err := measure.AllocsProfile(ctx, p.address, allocs); err != nil {
		return nil, err
	}
	return []string{cpu, allocs}, nil
}
