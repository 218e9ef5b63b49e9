package coord

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

func TestSecondEmbeddedOnADirectoryFailsAtOnce(t *testing.T) {
	s := startEmbeddedServer(t)
	began := time.Now()
	second, err := StartEmbedded(within(t), s.cfg)
	if err == nil {
		closeEmbedded(t, second)
		t.Fatal("the second etcd has started")
	}
	if took := time.Since(began); took > patient/2 {
		t.Errorf("it took %v", took)
	}
	for _, want := range []string{s.cfg.Dir, "in use by another process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestBrokenDataDirectoryIsAnError(t *testing.T) {
	s := startEmbeddedServer(t)
	closeEmbedded(t, s.e)
	logs, err := filepath.Glob(filepath.Join(s.cfg.Dir, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("find the log: %v, %v", logs, err)
	}
	for _, log := range logs {
		if err := os.WriteFile(log, []byte(strings.Repeat("nonsense", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// etcd leaves goroutines behind when it gives up, hence a process of its own.
	child := exec.CommandContext(within(t), os.Args[0], "-test.run=^TestStartInBrokenDirectory$")
	child.Env = append(os.Environ(), brokenDir+"="+s.cfg.Dir)
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("start in a process of its own: %v\n%s", err, out)
	}
	for _, want := range []string{s.cfg.Dir, "cannot use its data"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q does not say %q", out, want)
		}
	}
}

// brokenDir is the variable that tells TestStartInBrokenDirectory where to start.
const brokenDir = "BERTH_TEST_BROKEN_DIR"

// TestStartInBrokenDirectory is the other process of TestBrokenDataDirectoryIsAnError.
func TestStartInBrokenDirectory(t *testing.T) {
	dir := os.Getenv(brokenDir)
	if dir == "" {
		return
	}
	if _, err := StartEmbedded(within(t), EmbeddedConfig{Dir: dir}); err != nil {
		fmt.Println(err)
		os.Exit(0)
	}
	t.Error("etcd has started")
}

func TestWaitEndsWithItsContextAndWithClose(t *testing.T) {
	s := startEmbeddedServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 2)
	go func() { waits <- s.e.Wait(ctx) }()
	cancel()
	if err := next(t, waits); err != nil {
		t.Errorf("Wait whose context ends: %v", err)
	}
	go func() { waits <- s.e.Wait(t.Context()) }()
	closeEmbedded(t, s.e)
	if err := next(t, waits); err != nil {
		t.Errorf("Wait when etcd is closed: %v", err)
	}
}

// A connection would be refused here.
func TestTransactionsOfAnEmbeddedEtcdNeedNoConnection(t *testing.T) {
	s := startEmbeddedServer(t)
	c, err := Connect(Config{Embedded: s.e, Endpoints: []string{"127.0.0.1:1"}, RequestTimeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if ok, _, err := c.Txn(within(t), []Cond{IfAbsent("a")}, []Op{Put("a", nil)}); err != nil || !ok {
		t.Errorf("Txn: %v, %v", ok, err)
	}
}

func TestTransactionsUnderWayWhenTheEmbeddedEtcdIsClosed(t *testing.T) {
	s := startEmbeddedServer(t)
	c := connect(t, s)
	const writers = 8
	done, failed := make([]int, writers), make([]error, writers) // how many were written by each, and why no more
	var running, over sync.WaitGroup
	running.Add(writers)
	for w := range writers {
		over.Go(func() {
			isRunning := sync.OnceFunc(running.Done)
			defer isRunning() // whoever fails at once is not waited for
			for ; failed[w] == nil; done[w]++ {
				if done[w] == 1 {
					isRunning()
				}
				key := fmt.Sprintf("%d/%06d", w, done[w])
				c.Txn(within(t), []Cond{IfModRevision(key, 1)}, nil) // only reads, from the file that is to be closed
				ok, _, err := c.Txn(within(t), []Cond{IfAbsent(key)}, []Op{Put(key, nil)})
				if failed[w] = err; err == nil && !ok {
					t.Errorf("%s was there before", key)
				}
			}
			done[w]--
		})
	}
	running.Wait()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	s.Restart()
	over.Wait()
	after := connect(t, s)
	for w := range writers {
		kvs, _, err := after.List(within(t), fmt.Sprintf("%d/", w))
		if err != nil {
			t.Fatal(err)
		}
		if extra := len(kvs) - done[w]; extra < 0 || extra > 1 || extra == 1 && !errors.Is(failed[w], ErrUnknown) {
			t.Errorf("writer %d: %d keys of %d that were written before %v", w, len(kvs), done[w], failed[w])
		}
	}
}

func TestTransactionAfterTheEmbeddedEtcdHasStopped(t *testing.T) {
	s := startEmbeddedServer(t)
	c := connect(t, s)
	closeEmbedded(t, s.e)
	if ok, _, err := c.Txn(within(t), nil, []Op{Put("a", nil)}); err == nil {
		t.Errorf("Txn: %v, no error", ok)
	}
}

func TestEmbeddedKeepsItsDataOverARestart(t *testing.T) {
	s := startEmbeddedServer(t)
	put := func(key, value string) {
		t.Helper()
		c := connect(t, s)
		if ok, _, err := c.Txn(within(t), []Cond{IfAbsent(key)}, []Op{Put(key, []byte(value))}); err != nil || !ok {
			t.Fatalf("Txn: %v, %v", ok, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "1")
	s.Restart()
	put("b", "2")
	s.Restart()
	kvs, _, err := connect(t, s).List(within(t), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(kvs) != 2 || string(kvs[0].Value) != "1" || string(kvs[1].Value) != "2" {
		t.Errorf("List = %v", kvs)
	}
}

// Nobody but etcd itself compacts it while there is room: without, it would keep every value that a key ever had.
func TestTheEmbeddedEtcdCompactsAndHasAQuota(t *testing.T) {
	s := startEmbeddedServer(t)
	c := s.e.etcd.Config()
	if c.AutoCompactionMode != embed.CompactorModePeriodic {
		t.Errorf("it compacts by %q, want periodic", c.AutoCompactionMode)
	}
	if kept, err := time.ParseDuration(c.AutoCompactionRetention); err != nil || kept < time.Minute || kept > 10*time.Minute {
		t.Errorf("it keeps %q of the past, want 1 to 10 minutes", c.AutoCompactionRetention)
	}
	d, err := connect(t, s).Database(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if d.Quota < 2<<30 || d.Quota > 8<<30 {
		t.Errorf("its quota is %d bytes, want 2 GiB to 8 GiB", d.Quota)
	}
}

func TestAnEphemeralFolderOfAProcessThatWasKilledIsTakenAway(t *testing.T) {
	parent, err := os.MkdirTemp("", "e") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	t.Setenv("TMPDIR", filepath.Join(parent, "none-yet"))
	used, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	e, err := StartEmbedded(t.Context(), EmbeddedConfig{Dir: filepath.Join(used.Path, "etcd"), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	killed, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.lock.Close(); err != nil { // as the kernel does
		t.Fatal(err)
	}
	// Others have such names too: one that somebody has made by hand, one that has no mark yet, and a link to something.
	hand, begun, link := filepath.Join(os.TempDir(), ephemeralPrefix+"backup"), filepath.Join(os.TempDir(), ephemeralPrefix+"new"), filepath.Join(os.TempDir(), ephemeralPrefix+"link")
	for _, dir := range []string{filepath.Join(hand, "etcd"), begun} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(hand, "etcd", "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(killed.Path, link); err != nil {
		t.Fatal(err)
	}
	last, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	for dir, there := range map[string]bool{used.Path: true, killed.Path: false, hand: true, begun: true, link: true, last.Path: true} {
		if _, err := os.Lstat(dir); (err == nil) != there {
			t.Errorf("%s: %v, there %t", dir, err, there)
		}
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(last.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left behind: %v", err)
	}
}
