package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// grace is how long go test may take to end after it was told to.
const grace = 30 * time.Second

// minimize is for how long an input is made smaller. Go's own minute, for each that covers new code, would leave no time to try
// others where a target is slow.
const minimize = 2 * time.Second

// The lines of go test -fuzz that say how far it is, and what it has found.
var (
	progressLine = regexp.MustCompile(`^fuzz: elapsed: (\S+), execs: (\d+) \(.*\), new interesting: (\d+) `)
	findingLine  = regexp.MustCompile(`Failing input written to (\S+)`)
	seedLine     = regexp.MustCompile(`^\s+--- FAIL: (Fuzz\S+/\S+) `)
)

// fuzz runs a target for that long and notes in state how far it comes. An error says that the target has failed, or could
// not be run; what it wrote is in its log.
func (cfg config) fuzz(ctx context.Context, t target, limit time.Duration, state *state, out io.Writer) error {
	logName := filepath.Join(cfg.state, strings.ReplaceAll(t.String(), "/", "_")+".log")
	log, err := os.OpenFile(logName, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "go", "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+limit.Round(time.Second).String(),
		"-parallel="+strconv.Itoa(cfg.parallel), "-fuzzminimizetime="+minimize.String(), "-timeout=0", ".")
	cmd.Dir = t.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                               // go, the test and its workers
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // are told to end all at once
	cmd.WaitDelay = grace
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", t, err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		_ = writer.Close() // the reader gets the end of what was written
		ended <- err
	}()

	before := *state.of(t)
	lines := bufio.NewReader(reader) // of any length: an input that failed may be in one
	var failure error
	for {
		line, err := lines.ReadString('\n')
		_, _ = log.WriteString(line) // a copy for people
		if note(state.of(t), before, line) {
			failure = errors.Join(failure, state.save())
		}
		if strings.HasPrefix(line, "fuzz: elapsed:") {
			fmt.Fprint(out, "\r  "+strings.TrimSpace(line)+"  ")
		}
		if err != nil {
			break
		}
	}
	fmt.Fprintln(out)
	err = <-ended
	if ctx.Err() != nil {
		return ctx.Err()
	}
	done := state.of(t)
	switch {
	case err != nil && len(done.Findings) > len(before.Findings):
		err = fmt.Errorf("FAILED: %s, see %s", strings.Join(done.Findings[len(before.Findings):], ", "), logName)
	case err != nil:
		err = fmt.Errorf("FAILED: %w, see %s", err, logName)
	default:
		done.Seconds = before.Seconds + limit.Seconds() // it has had its time, whatever the last line said
		done.Findings = nil                             // it begins with them, and none fails any more
	}
	return errors.Join(failure, err, state.save())
}

// note adds what a line of go test says to what a target had done before. False: it says nothing.
func note(d *done, before done, line string) bool {
	if m := progressLine.FindStringSubmatch(line); m != nil {
		elapsed, err1 := time.ParseDuration(m[1])
		execs, err2 := strconv.ParseInt(m[2], 10, 64)
		interesting, err3 := strconv.ParseInt(m[3], 10, 64)
		if errors.Join(err1, err2, err3) != nil {
			return false
		}
		d.Seconds, d.Execs, d.Interesting = before.Seconds+elapsed.Seconds(), before.Execs+execs, before.Interesting+interesting
		return true
	}
	for _, of := range []*regexp.Regexp{findingLine, seedLine} {
		if m := of.FindStringSubmatch(line); m != nil {
			d.Findings = append(d.Findings, m[1])
			return true
		}
	}
	return false
}
