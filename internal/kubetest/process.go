package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// stopGrace is how long Stop waits between asking a process to end and killing it.
const stopGrace = 10 * time.Second

// Process is a child process whose output goes to a file. On Linux it is killed when this process ends in any way.
// Its methods may be called concurrently.
type Process struct {
	name string
	log  string
	proc *os.Process
	done chan struct{} // closed when the process has ended; state and err are set before
	// state is nil if waiting for the process failed.
	state *os.ProcessState
	err   error
}

// Usage is what a process has consumed.
type Usage struct {
	CPU     time.Duration // user and system time
	PeakRSS int64         // bytes; 0 if the process has ended
}

// StartProcess starts argv, appending its output to the file at log. Name is what errors call it.
func StartProcess(name, log string, argv ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = procAttr()
	p := &Process{name: name, log: log, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		defer out.Close()
		// The parent-death signal comes when the starting *thread* ends, so this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.proc = cmd.Process
		started <- nil
		p.err = cmd.Wait()
		p.state = cmd.ProcessState
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Name returns the name the process was started with.
func (p *Process) Name() string { return p.name }

// PID returns the process' id.
func (p *Process) PID() int { return p.proc.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil with exit status 0. It waits for the end.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Pause stops the process from running (SIGSTOP) without ending it: its connections stay open and silent.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

// Kill ends the process at once (SIGKILL) and waits for its end. A process that has ended is left alone.
func (p *Process) Kill() {
	// An error means that it has ended already.
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end (SIGTERM), also when it is paused, waits for its end and kills it if it takes longer than 10 s.
func (p *Process) Stop() {
	_ = p.signal(syscall.SIGTERM)
	_ = p.signal(syscall.SIGCONT)
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
	}
}

func (p *Process) signal(s os.Signal) error {
	if err := p.proc.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// Usage returns what the process has consumed so far. When it has ended, the peak memory is no longer known: ask before.
func (p *Process) Usage() (Usage, error) {
	select {
	case <-p.done:
		if p.state == nil {
			return Usage{}, fmt.Errorf("read usage of %s: %w", p.name, p.err)
		}
		return Usage{CPU: p.state.UserTime() + p.state.SystemTime()}, nil
	default:
	}
	u, err := usage(p.PID())
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of %s: %w", p.name, err)
	}
	return u, nil
}

// LogTail returns the last lines of the process' output, at most limit bytes.
func (p *Process) LogTail(limit int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		return err.Error()
	}
	tail := make([]byte, min(size, limit))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil {
		return err.Error()
	}
	if int64(len(tail)) < size { // the first line is cut
		_, tail, _ = bytes.Cut(tail, []byte("\n"))
	}
	return string(tail)
}

// errEnded is what waiting for a process to be ready reports when it ends instead.
var errEnded = errors.New("process ended")

// ended reports whether the process has ended.
func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
