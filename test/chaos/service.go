package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// serviceProcess is a process that serves plugins. Its methods may be called concurrently, but not those that start and end it.
type serviceProcess struct {
	party   string // what the history and the network call it
	dir     string // of its log
	argv    []string
	record  *Recorder
	network *Network // nil: it connects to nobody

	mu    sync.Mutex
	proc  *kubetest.Process // nil: it does not run
	waits sync.WaitGroup
}

// start starts the process, and records its end if nobody has asked for that.
func (p *serviceProcess) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	proc, err := kubetest.StartProcess(p.party, filepath.Join(p.dir, strings.ReplaceAll(p.party, " ", "-")+".log"), p.argv...)
	if err != nil {
		return err
	}
	p.proc = proc
	if p.network != nil {
		p.network.Is(p.party, proc.PID())
	}
	p.waits.Go(func() {
		<-proc.Done()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.proc == proc {
			p.record.Add(Entry{Exit: &Exit{Name: p.party, Error: fmt.Sprint(proc.Err())}})
		}
	})
	return nil
}

// running returns the process, nil if it does not run.
func (p *serviceProcess) running() *kubetest.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc
}

// kill ends it as a power cut does, if it runs.
func (p *serviceProcess) kill() {
	p.mu.Lock()
	proc := p.proc
	p.proc = nil
	p.mu.Unlock()
	if proc != nil {
		proc.Kill()
	}
}

// begin kills or pauses it, and returns what undoes that.
func (p *serviceProcess) begin(kind Kind) (undo func() error, err error) {
	proc := p.running()
	if proc == nil {
		return nil, fmt.Errorf("%s: it does not run", p.party)
	}
	switch kind {
	case pluginKill, yodaKill:
		p.kill()
		return p.start, nil
	case pluginPause, yodaPause:
		return proc.Resume, proc.Pause()
	}
	return nil, fmt.Errorf("%s: not done to a service", kind)
}

// stop ends it, and waits.
func (p *serviceProcess) stop() {
	p.kill()
	p.waits.Wait()
}

// writeServices writes the file that says which services there are, and returns its path.
func writeServices(dir string, entries ...string) (string, error) {
	name := filepath.Join(dir, "services.yaml")
	return name, os.WriteFile(name, []byte("apiVersion: berth.dev/v1\nkind: PluginServices\nservices:\n"+strings.Join(entries, "")), 0o600)
}
