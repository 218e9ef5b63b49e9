package kubetest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// parentEnv makes this test binary start a child with StartProcess, print its id, and wait to be killed.
const parentEnv = "KUBETEST_PARENT_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentEnv); log != "" {
		p, err := StartProcess("child", log, "sleep", "600")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Done()
		return
	}
	os.Exit(m.Run())
}

// running reports whether a process exists and is no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func TestChildDiesWithAParentThatIsKilled(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"="+filepath.Join(t.TempDir(), "log"))
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	alive := err == nil && running(pid)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	if readErr != nil || !alive {
		t.Fatalf("the parent printed %q (%v), want the id of a living child", line, readErr)
	}
	for deadline := time.Now().Add(5 * time.Minute); running(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("child %d outlived its parent", pid)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestUsageCountsTimeAndMemory(t *testing.T) {
	// Holds 32 MB and works until it is killed.
	p, err := StartProcess("worker", filepath.Join(t.TempDir(), "log"), "sh", "-c", `x=$(head -c 32000000 /dev/zero | tr '\0' x); while :; do :; done`)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	var u Usage
	for deadline := time.Now().Add(5 * time.Minute); u.CPU < 100*time.Millisecond || u.PeakRSS < 32_000_000; {
		if time.Now().After(deadline) {
			t.Fatalf("usage = %+v, want 100 ms and 32 MB", u)
		}
		if u, err = p.Usage(); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
	p.Kill()
	after, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if after.CPU < u.CPU || after.PeakRSS != 0 {
		t.Errorf("usage after the end = %+v, want at least the time of %+v and no memory", after, u)
	}
}

func TestStopEndsAPausedProcess(t *testing.T) {
	p, err := StartProcess("sleeper", filepath.Join(t.TempDir(), "log"), "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p.Stop()
	if took := time.Since(began); took >= stopGrace {
		t.Errorf("Stop took %v: it had to kill", took)
	}
	if p.Err() == nil {
		t.Error("a terminated process ended well")
	}
}

func TestLogTailIsTheEndInWholeLines(t *testing.T) {
	p, err := StartProcess("printer", filepath.Join(t.TempDir(), "log"), "sh", "-c", "echo one; echo two >&2; echo three")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	if got := p.LogTail(11); got != "two\nthree\n" {
		t.Errorf("LogTail(11) = %q, want the last two lines", got)
	}
	if got := p.LogTail(1000); got != "one\ntwo\nthree\n" {
		t.Errorf("LogTail(1000) = %q, want all", got)
	}
}
