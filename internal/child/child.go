// Package child runs a process of foreign code beside this one: it starts it, starts it again when it ends, ends it when it takes too much memory or does not answer any more, and logs what it
// writes. It knows nothing of what the process is for.
package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

const (
	// A process that has ended is started again after firstPause, and after twice as long each time that it has not lasted for lasted, up to longestPause.
	firstPause, longestPause = 200 * time.Millisecond, 30 * time.Second
	lasted                   = time.Minute
	// memoryEvery is how often is looked how much memory the process has.
	memoryEvery = 250 * time.Millisecond
	// mostSilent is how often in a row it may fail to say that it lives, once it has, or startWithin is over.
	mostSilent  = 3
	startWithin = time.Minute
	// endWithin is how soon the process has to end by itself when it is told to.
	endWithin = 2 * time.Second
	// aliveEvery is how often a process is asked whether it lives, and how soon it has to say so.
	aliveEvery = 5 * time.Second
)

// Config is everything a process needs.
type Config struct {
	// Path is the program, and Args are its arguments. Its standard input is a pipe that ends with this process.
	Path string
	Args []string
	// Env is its environment; nil is this process'.
	Env []string
	// Prepare is called before each start; nil: nothing is to be prepared. What it fails with, the start does.
	Prepare func() error
	// Memory is how many bytes of memory it may have; 0 means any number. Where the system does not tell how many it has, it has no limit.
	Memory int64
	// Alive asks the process whether it lives; nil: nobody does.
	Alive func(ctx context.Context) error
	// AliveEvery is how often it is asked, and how soon it has to answer; 0 means 5 s.
	AliveEvery time.Duration
	Log        *slog.Logger // required
}

var (
	errMemory = errors.New("it has more memory than it may have")
	errSilent = errors.New("it does not answer")
)

// Run runs the process until ctx ends, and waits until it has ended too.
func Run(ctx context.Context, cfg Config) {
	// The system ends a child with the thread that has started it: this one has to last.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	Again(ctx, cfg.Log, "process has ended, and is started again", cfg.once)
}

// Again calls once until ctx ends, after a pause each time that it returns, which doubles unless it has lasted. Log is told so, in words of the caller's.
func Again(ctx context.Context, log *slog.Logger, says string, once func(context.Context) error) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := once(ctx)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		if took >= lasted {
			pause = firstPause
		}
		log.Error(says, "err", err, "for", took, "after", pause)
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
		pause = min(2*pause, longestPause)
	}
}

// once runs the process once, and returns why it has ended.
func (c *Config) once(ctx context.Context) error {
	if c.Prepare != nil {
		if err := c.Prepare(); err != nil {
			return err
		}
	}
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.SysProcAttr = attributes()
	cmd.Cancel = func() error {
		if cause := context.Cause(ctx); errors.Is(cause, errMemory) || errors.Is(cause, errSilent) {
			return kill9(cmd.Process) // it has had its time
		}
		return terminate(cmd.Process)
	}
	cmd.Env = c.Env
	cmd.WaitDelay = endWithin
	out := newLines(c.Log)
	cmd.Stdout, cmd.Stderr = out, out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		return err
	}
	preferred(cmd.Process.Pid)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.watch(ctx, cmd.Process.Pid, kill)
	}()
	err = cmd.Wait()
	_ = kill9(cmd.Process) // what it has started itself
	cause := context.Cause(ctx)
	kill(nil)
	<-watched
	out.flush()
	switch {
	case cause != nil:
		return cause
	case err == nil:
		return errors.New("it has ended by itself")
	}
	return err
}

// watch ends the process when it must not go on, until ctx ends.
func (c *Config) watch(ctx context.Context, pid int, kill context.CancelCauseFunc) {
	var asking sync.WaitGroup
	defer asking.Wait()
	if c.Alive != nil {
		asking.Go(func() {
			if err := Silence(ctx, c.Alive, cmp.Or(c.AliveEvery, aliveEvery)); err != nil {
				kill(err)
			}
		})
	}
	memory := time.NewTicker(memoryEvery)
	defer memory.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-memory.C:
			if has := resident(pid); c.Memory > 0 && has > c.Memory {
				kill(fmt.Errorf("%w: %d MiB of %d", errMemory, has>>20, c.Memory>>20))
			}
		}
	}
}

// Silence asks something whether it lives, every so often, 0 means 5 s, and for no longer than that. It returns an error when it has failed to say so three times in a row, once it has, or a minute is over; nil when ctx ends.
func Silence(ctx context.Context, alive func(context.Context) error, every time.Duration) error {
	every = cmp.Or(every, aliveEvery)
	ask := time.NewTicker(every)
	defer ask.Stop()
	began, answered, silent := time.Now(), false, 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ask.C:
		}
		within, cancel := context.WithTimeout(ctx, every)
		err := alive(within)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			answered, silent = true, 0
		case answered || time.Since(began) > startWithin:
			silent++
		}
		if silent == mostSilent {
			return fmt.Errorf("%w: %w", errSilent, err)
		}
	}
}
