package coord

import (
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// listening returns the sockets that this process listens on: TCP, and Unix ones without a file, which are open to the machine.
func listening(t *testing.T) map[string]string {
	t.Helper()
	own := make(map[string]bool) // inodes
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())) // it may be closed by now
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	found := make(map[string]string)
	for _, table := range []struct {
		name, listens         string
		state, inode, address int // columns
	}{{"tcp", "0A", 3, 9, 1}, {"tcp6", "0A", 3, 9, 1}, {"unix", "00010000", 3, 6, 7}} {
		text, err := os.ReadFile("/proc/self/net/" + table.name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) <= table.inode || f[table.state] != table.listens || !own[f[table.inode]] {
				continue
			}
			address := ""
			if len(f) > table.address {
				address = f[table.address]
			}
			if !strings.HasPrefix(address, "/") {
				found[f[table.inode]] = table.name + " " + address
			}
		}
	}
	return found
}

func TestEmbeddedIsReachedOnlyByThoseWhoMayEnterItsDirectory(t *testing.T) {
	before := listening(t)
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.Mkdir(dir, 0o755); err != nil { // open to others, as a directory made by hand is
		t.Fatal(err)
	}
	e, err := StartEmbedded(within(t), EmbeddedConfig{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closeEmbedded(t, e)
	for inode, at := range listening(t) {
		if before[inode] == "" {
			t.Errorf("etcd listens at %s, where everybody on this machine gets in", at)
		}
	}
	path, ok := strings.CutPrefix(e.Endpoints()[0], "unix://")
	if !ok {
		t.Fatalf("the endpoint is %s, want a Unix socket", e.Endpoints()[0])
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("the directory of the socket: %v, %v; want mode 0700", info.Mode(), err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("the directory: %v, %v; want mode 0700", info.Mode(), err)
	}
}

// The path of a socket has 107 bytes at most.
func TestEmbeddedInADirectoryWithALongName(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // so that what is left behind is seen
	if len(os.TempDir()) > 60 {
		t.Setenv("TMPDIR", filepath.Dir(filepath.Dir(os.TempDir())))
	}
	short := func() []string {
		left, err := filepath.Glob(filepath.Join(os.TempDir(), shortDirs+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	before := len(short())
	s := &embeddedServer{t: t, cfg: EmbeddedConfig{Dir: filepath.Join(t.TempDir(), strings.Repeat("long", 40)), UnsafeNoFsync: true}}
	s.start()
	path := strings.TrimPrefix(s.Endpoints()[0], "unix://")
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode() != fs.ModeDir|0o700 || len(path) > maxSocketPath {
		t.Errorf("%s: %v, %v; want a short one in a directory of mode 0700", path, info.Mode(), err)
	}
	c, err := Connect(Config{Endpoints: s.Endpoints()}) // as another process does
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(within(t)); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	closeEmbedded(t, s.e)
	if left := short(); len(left) != before {
		t.Errorf("after the end there is %v", left)
	}

	// A process that was killed leaves its socket; the next one removes it.
	stale, err := os.MkdirTemp("", shortDirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(stale, socketName), filepath.Join(s.cfg.Dir, socketName)); err != nil {
		t.Fatal(err)
	}
	s.start()
	closeEmbedded(t, s.e)
	if left := short(); len(left) != before {
		t.Errorf("what a killed process has left is still there: %v", left)
	}
}

// Berth's embedded etcd once listened on loopback ports, and advertised them.
func TestEmbeddedTakesUpDataOfOneThatListenedOnPorts(t *testing.T) {
	dir := t.TempDir()
	loopback, err := url.Parse("http://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = embeddedName, dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*loopback}, []url.URL{*loopback}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*loopback}, []url.URL{*loopback}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.TickMs, c.ElectionMs = tickMillis, electionMillis
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(slog.New(slog.DiscardHandler), make(chan struct{})))
	earlier, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-earlier.Server.ReadyNotify():
	case <-time.After(patient):
		t.Fatal("etcd is not ready")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{earlier.Clients[0].Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(within(t), "/berth/kv/a", "1"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	earlier.Close()

	s := &embeddedServer{t: t, cfg: EmbeddedConfig{Dir: dir, Log: testLog(t), UnsafeNoFsync: true}}
	s.start()
	defer func() { closeEmbedded(t, s.e) }()
	for range 2 { // and goes on from its own data
		kv, _, err := connect(t, s).Get(within(t), "a")
		if err != nil || kv == nil || string(kv.Value) != "1" {
			t.Fatalf("Get = %v, %v", kv, err)
		}
		s.Restart()
	}
}
