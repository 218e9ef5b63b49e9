package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// crew is the running processes of a contender. Its methods are for one goroutine.
type crew struct {
	// ctx ends when the context that the crew was started with does, or when a process ends that should not.
	ctx    context.Context
	fail   context.CancelCauseFunc
	began  time.Time // when its first process was about to start; its etcd ran already
	procs  []*kubetest.Process
	http   string                    // address of the gateway, if it has one
	ops    string                    // address of profiles, if they are taken
	waits  sync.WaitGroup            // the goroutines that wait for processes
	mu     sync.Mutex                // guards ending
	ending map[string]bool           // processes that are meant to end
	last   map[string]kubetest.Usage // of killed processes, just before
}

// processUsage is what a process of a contender has consumed.
type processUsage struct {
	name string
	kubetest.Usage
}

// startCrew starts all processes of a contender.
func startCrew(ctx context.Context, c contender, env environment) (_ *crew, err error) {
	w := &crew{ending: map[string]bool{}, last: map[string]kubetest.Usage{}}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	if c.etcd {
		etcd, err := kubetest.StartEtcd(ctx, filepath.Join(env.dir, "contender-etcd"))
		if err != nil {
			return nil, err
		}
		env.etcd = etcd.Endpoint()
		w.add(etcd.Process())
		ports, err := kubetest.FreePorts(1)
		if err != nil {
			return nil, err
		}
		env.http = "127.0.0.1:" + ports[0]
		w.http = env.http
	}
	if env.profile != "" {
		ports, err := kubetest.FreePorts(1)
		if err != nil {
			return nil, err
		}
		env.ops = "127.0.0.1:" + ports[0]
		w.ops = env.ops
	}
	commands, err := c.commands(env)
	if err != nil {
		return nil, err
	}
	w.began = time.Now()
	for _, cmd := range commands {
		p, err := kubetest.StartProcess(cmd.name, filepath.Join(env.dir, cmd.name+".log"), cmd.argv...)
		if err != nil {
			return nil, err
		}
		w.add(p)
	}
	return w, nil
}

// add makes p one of the crew: its unexpected end fails the run.
func (w *crew) add(p *kubetest.Process) {
	w.procs = append(w.procs, p)
	w.waits.Go(func() {
		<-p.Done()
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.ending[p.Name()] {
			w.fail(fmt.Errorf("%s ended: %w", p.Name(), errors.Join(p.Err(), errUnexpected)))
		}
	})
}

// errUnexpected is the end of a process that nobody has asked to end, be it with exit status 0.
var errUnexpected = errors.New("not expected")

// kill ends a process as a power cut would.
func (w *crew) kill(name string) error {
	for _, p := range w.procs {
		if p.Name() != name {
			continue
		}
		used, err := p.Usage()
		if err != nil {
			return err
		}
		w.last[name] = used
		w.expectEnd(p)
		p.Kill()
		return nil
	}
	return fmt.Errorf("kill %q: no such process", name)
}

func (w *crew) expectEnd(p *kubetest.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending[p.Name()] = true
}

// usage returns what each process has consumed since its start, killed ones included.
func (w *crew) usage() ([]processUsage, error) {
	var all []processUsage
	for _, p := range w.procs {
		used, killed := w.last[p.Name()]
		if !killed {
			var err error
			if used, err = p.Usage(); err != nil {
				return nil, err
			}
		}
		all = append(all, processUsage{p.Name(), used})
	}
	return all, nil
}

// stop ends all processes, the last started first. It may be called again.
func (w *crew) stop() {
	for _, p := range w.procs {
		w.expectEnd(p)
	}
	for i := len(w.procs) - 1; i >= 0; i-- {
		w.procs[i].Stop()
	}
	w.waits.Wait()
	w.fail(nil)
}

// logTails returns the ends of the processes' logs.
func (w *crew) logTails() string {
	var b strings.Builder
	for _, p := range w.procs {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.Name(), p.LogTail(1500))
	}
	return b.String()
}
