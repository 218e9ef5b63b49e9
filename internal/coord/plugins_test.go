package coord

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-scheduler/berth/internal/coord/announced"
	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
	"github.com/berth-scheduler/berth/internal/logtest"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugin/announce"
)

// announces has a process announce itself until it is told to end, which it waits for.
func announces(t *testing.T, cfg announce.Config) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	if cfg.Log == nil {
		cfg.Log = testLog(t)
	}
	go func() { ended <- announce.Run(ctx, cfg) }()
	over := false
	end = func() {
		cancel()
		if over {
			return
		}
		over = true
		if err := next(t, ended); err != nil {
			t.Errorf("announce %s: %v", cfg.Address, err)
		}
	}
	t.Cleanup(end)
	return end
}

// are waits until exactly these are announced.
func are(t *testing.T, watch <-chan Announced, want ...string) Announced {
	t.Helper()
	return until(t, watch, func(a Announced) bool { return slices.Equal(a.Addresses, want) })
}

func TestProcessesWithPluginsAreKnownAsLongAsTheyAnnounceThemselves(t *testing.T) {
	onEveryEtcd(t, func(t *testing.T, s server) {
		c := connect(t, s)
		watch := c.WatchAnnounced(t.Context(), "gpu")
		if got := next(t, watch); len(got.Addresses) != 0 || got.Ignored != nil {
			t.Errorf("before any: %+v", got)
		}
		at := func(service, address string) announce.Config {
			return announce.Config{Service: service, Address: address, Endpoints: []string{s.Endpoints()[0]}}
		}
		first := announces(t, at("gpu", "b.internal:1"))
		are(t, watch, "b.internal:1")
		announces(t, at("gpu2", "other.internal:1"))
		announces(t, at("gp", "other.internal:1"))
		second := announces(t, at("gpu", "a.internal:1"))
		are(t, watch, "a.internal:1", "b.internal:1")
		// One that is started again while its own announcement stands takes its place, and is not taken back with it.
		again := announces(t, at("gpu", "a.internal:1"))
		key := "/berth/plugins/gpu/a.internal:1"
		for r, err := c.etcd.Get(within(t), key); ; r, err = c.etcd.Get(within(t), key) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Kvs[0].Version == 2 {
				break
			}
		}
		second()
		first()
		are(t, watch, "a.internal:1")
		again()
		are(t, watch)
	})
}

func TestAProcessThatIsGoneWithoutAWordIsForgottenWithItsLease(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	watch := c.WatchAnnounced(t.Context(), "gpu")
	lease, err := c.etcd.Grant(within(t), 5)
	if err != nil {
		t.Fatal(err)
	}
	// As a process in another language writes it.
	if _, err := c.etcd.Put(within(t), "/berth/plugins/gpu/10.0.0.7:9000", `{"address": "10.0.0.7:9000"}`, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	are(t, watch, "10.0.0.7:9000")
	are(t, watch)
}

// Somebody else's hand, or a lease that etcd has ended, does not keep a process that is well from being known.
func TestAProcessWhoseAnnouncementIsGoneAnnouncesItselfAgain(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	watch := c.WatchAnnounced(t.Context(), "gpu")
	announces(t, announce.Config{Service: "gpu", Address: "a.internal:1", Endpoints: c.etcd.Endpoints(), Prefix: "/berth", TTL: announce.MinTTL})
	are(t, watch, "a.internal:1")
	key := "/berth/plugins/gpu/a.internal:1"
	putBehind := func(revision int64) clientv3.LeaseID {
		t.Helper()
		event := until(t, c.etcd.Watch(within(t), key, clientv3.WithRev(revision+1), clientv3.WithFilterDelete()), func(r clientv3.WatchResponse) bool { return len(r.Events) > 0 }).Events[0]
		if got := string(event.Kv.Value); got != `{"address":"a.internal:1"}` {
			t.Errorf("announced again: %s", got)
		}
		return clientv3.LeaseID(event.Kv.Lease)
	}
	written, err := c.etcd.Put(within(t), key, "something else")
	if err != nil {
		t.Fatal(err)
	}
	putBehind(written.Header.Revision)
	deleted, err := c.etcd.Delete(within(t), key)
	if err != nil {
		t.Fatal(err)
	}
	lease := putBehind(deleted.Header.Revision)
	revoked, err := c.etcd.Revoke(within(t), lease)
	if err != nil {
		t.Fatal(err)
	}
	if again := putBehind(revoked.Header.Revision); again == lease {
		t.Error("it is announced under a lease that has ended")
	}
	until(t, c.WatchAnnounced(t.Context(), "gpu"), func(a Announced) bool { return slices.Equal(a.Addresses, []string{"a.internal:1"}) })
}

func TestWhatIsAnnouncedStandsWhileEtcdIsAway(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	watch := c.WatchAnnounced(t.Context(), "gpu")
	lines := make(logLines, 100)
	first := announces(t, announce.Config{
		Service: "gpu", Address: "a.internal:1", Endpoints: []string{"http://" + etcd.Endpoints()[0]}, TTL: 10 * time.Minute, Log: slog.New(slog.NewTextHandler(lines, nil)),
	})
	are(t, watch, "a.internal:1")
	until(t, lines, func(line string) bool { return strings.Contains(line, "msg=announced") }) // who does not know that it is takes it back
	etcd.Kill()
	second := announces(t, announce.Config{Service: "gpu", Address: "b.internal:1", Endpoints: []string{"http://" + etcd.Endpoints()[0]}})
	etcd.Restart()
	until(t, watch, func(a Announced) bool {
		if !slices.Contains(a.Addresses, "a.internal:1") {
			t.Errorf("announced behind a restart of etcd: %v, want that of before too", a.Addresses)
		}
		return slices.Contains(a.Addresses, "b.internal:1")
	})
	first()
	are(t, watch, "b.internal:1")
	second()
	are(t, watch)
}

func TestOfAnnouncementsThatMakeNoSenseNothingIsTaken(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	lines := &logtest.Buffer{}
	c.log = slog.New(slog.NewTextHandler(lines, nil))
	put := func(key, value string) {
		t.Helper()
		if _, err := c.etcd.Put(within(t), "/berth/plugins/gpu/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	put("a", `{"address":"unix:///var/run/docker.sock"}`)
	put("b", `{"address":"gpu.internal"}`)
	put("c", `gpu.internal:1`)
	put("d", `{"address":"`+strings.Repeat("x", 1<<20)+`:1"}`)
	put("e", "")
	put("f/g", `{"address":"nested.internal:1"}`)
	put("", `{"address":"nameless.internal:1"}`)
	put(strings.Repeat("k", 100<<10), `{"address":"long.internal:1"}`)
	put("z", `{"address":"good.internal:1"}`)
	watch := c.WatchAnnounced(t.Context(), "gpu")
	got := next(t, watch)
	if !slices.Equal(got.Addresses, []string{"good.internal:1"}) {
		t.Errorf("taken: %q", got.Addresses)
	}
	if got.Ignored == nil || !strings.Contains(got.Ignored.Error(), "want one name in its key") {
		t.Errorf("said of the others: %v", got.Ignored)
	}
	// Whoever writes nonsense again and again does not fill the log with it.
	for i := range 20 {
		put("a", fmt.Sprintf(`{"address":"unix:///%d"}`, i))
		put("y", fmt.Sprintf(`{"address":"good-%d.internal:1"}`, i))
		until(t, watch, func(a Announced) bool { return slices.Contains(a.Addresses, fmt.Sprintf("good-%d.internal:1", i)) })
	}
	if n := strings.Count(lines.String(), "it makes no sense"); n != 1 {
		t.Errorf("it is warned of %d times in so short a time, want once", n)
	}
	for _, key := range []string{"", "f/g", "a", "b", "c", "d"} {
		if _, err := c.etcd.Delete(within(t), "/berth/plugins/gpu/"+key); err != nil {
			t.Fatal(err)
		}
	}
	got = until(t, watch, func(a Announced) bool { return a.Ignored != nil && strings.HasPrefix(a.Ignored.Error(), `"e"`) })
	if want := `"e": it is not JSON such as {"address": "gpu-0.internal:9000"}`; got.Ignored.Error() != want {
		t.Errorf("said: %v, want %s", got.Ignored, want)
	}
}

func TestOfManyProcessesSomeAreLeftOutAndTakenWhenOthersGo(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	const more = 100
	name := func(i int) string { return fmt.Sprintf("gpu-%04d.internal:1", i) }
	for i := range announced.MaxProcesses + more {
		if _, err := c.etcd.Put(within(t), "/berth/plugins/gpu/"+name(i), `{"address":"`+name(i)+`"}`); err != nil {
			t.Fatal(err)
		}
	}
	watch := c.WatchAnnounced(t.Context(), "gpu")
	got := next(t, watch)
	if len(got.Addresses) != announced.MaxProcesses {
		t.Fatalf("%d are taken, want %d", len(got.Addresses), announced.MaxProcesses)
	}
	if _, err := c.etcd.Put(within(t), "/berth/plugins/gpu/"+name(9999), `{"address":"`+name(9999)+`"}`); err != nil { // it comes while there is no room
		t.Fatal(err)
	}
	if _, err := c.etcd.Delete(within(t), "/berth/plugins/gpu/"+name(0), clientv3.WithRange("/berth/plugins/gpu/"+name(more))); err != nil {
		t.Fatal(err)
	}
	got = until(t, watch, func(a Announced) bool { return slices.Contains(a.Addresses, name(announced.MaxProcesses+more-1)) })
	if len(got.Addresses) > announced.MaxProcesses {
		t.Errorf("%d are taken", len(got.Addresses))
	}
}

// A plugin's key announces processes with plugins: what else it cannot do in etcd is in TestNobodyButTheBinderWritesWhatPlacesPods.
func TestInAnEtcdWithUsersAPluginAnnouncesItselfToTheBinder(t *testing.T) {
	as, endpoint, files := withUsersAt(t, false)
	watch := as[RoleBinder].WatchAnnounced(t.Context(), "gpu")
	end := announces(t, announce.Config{Service: "gpu", Address: "a.internal:1", Endpoints: []string{endpoint}, TLS: plugin.TLSFiles(files("plugin"))})
	are(t, watch, "a.internal:1")
	end()
	are(t, watch)
	c := as[RolePlugin].etcd
	_, err1 := c.Get(within(t), "/berth/coord/leader")
	_, err2 := c.Get(within(t), "/berth/coord/members/", clientv3.WithPrefix())
	_, err3 := c.Put(within(t), "/berth/coord/members/plugin/x", `{"address":"x"}`)
	_, err4 := c.Get(within(t), "/berth/", clientv3.WithPrefix())
	for _, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("a plugin beside its own keys: %v", err)
		}
	}
	// Who is no plugin is not let in.
	lines := make(logLines, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- announce.Run(ctx, announce.Config{
			Service: "gpu", Address: "a.internal:1", Endpoints: []string{endpoint}, TLS: plugin.TLSFiles(files("queue")), Log: slog.New(slog.NewTextHandler(lines, nil)),
		})
	}()
	until(t, lines, func(line string) bool { return strings.Contains(line, "permission denied") })
	cancel()
	if err := next(t, ended); err != nil {
		t.Error(err)
	}
}

// logLines are the lines of a log, as they come.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
