package coord

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/coord/etcdtest"
)

func TestConnectNamesTheFieldThatMakesNoSense(t *testing.T) {
	for _, test := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, []string{"Endpoints"}},
		{Config{Endpoints: []string{"127.0.0.1:2379", "nonsense"}}, []string{"Endpoints[1]", `"nonsense"`}},
		{Config{Endpoints: []string{""}}, []string{"Endpoints[0]"}},
		{Config{Endpoints: []string{":2379"}}, []string{"Endpoints[0]", "host"}},
		{Config{Endpoints: []string{"a:port"}}, []string{"Endpoints[0]", "port"}},
		{Config{Endpoints: []string{"a:70000"}}, []string{"Endpoints[0]", "port"}},
		{Config{Endpoints: []string{"ftp://a:1"}}, []string{"Endpoints[0]", "scheme"}},
		{Config{Endpoints: []string{"http://a:1/path"}}, []string{"Endpoints[0]"}},
		{Config{Endpoints: []string{"a b:1"}}, []string{"Endpoints[0]"}},
		{Config{Endpoints: []string{"http://a:1", "https://b:1"}}, []string{"Endpoints", "mixes"}},
		{Config{Endpoints: []string{"unix:///a", "https://b:1"}}, []string{"Endpoints", "mixes"}},
		{Config{Endpoints: []string{"unix://a/b"}}, []string{"Endpoints[0]", "absolute"}},
		{Config{Endpoints: []string{"a:1"}, DialTimeout: -1}, []string{"DialTimeout"}},
		{Config{Endpoints: []string{"a:1"}, RequestTimeout: -1}, []string{"RequestTimeout"}},
	} {
		c, err := Connect(test.cfg)
		if err == nil {
			t.Errorf("%+v: accepted", test.cfg)
			c.Close()
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %q does not say %q", test.cfg, err, want)
			}
		}
	}
}

func TestReadySaysWhyEtcdIsNotThere(t *testing.T) {
	etcd := etcdtest.Start(t)
	c := connect(t, etcd)
	if err := c.Ready(within(t)); err != nil {
		t.Errorf("Ready: %v", err)
	}
	etcd.Kill()
	deadline := time.After(patient)
	for { // the connection that ends says less: EOF
		err := c.Ready(within(t))
		if err == nil || !strings.Contains(err.Error(), etcd.Endpoints()[0]) {
			t.Fatalf("Ready without etcd: %v", err)
		}
		if strings.Contains(err.Error(), "connection refused") {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("Ready without etcd: %v", err)
		default:
		}
	}
	etcd.Restart()
	for c.Ready(within(t)) != nil {
		select {
		case <-deadline:
			t.Fatal("not ready after etcd's return")
		default:
		}
	}
}

func TestRequestsEndWithTheirTimeoutWhileEtcdIsPaused(t *testing.T) {
	etcd := etcdtest.Start(t)
	c, err := Connect(Config{Endpoints: etcd.Endpoints(), RequestTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	etcd.Pause()
	ctx := context.Background() // no deadline of its own
	for name, call := range map[string]func() error{
		"Ready": func() error { return c.Ready(ctx) },
		"Get":   func() error { _, _, err := c.Get(ctx, "a"); return err },
		"List":  func() error { _, _, err := c.List(ctx, ""); return err },
		"Txn":   func() error { _, _, err := c.Txn(ctx, nil, []Op{Put("a", nil)}); return err },
	} {
		began := time.Now()
		if err := call(); err == nil {
			t.Errorf("%s succeeds", name)
		}
		if took := time.Since(began); took > patient {
			t.Errorf("%s took %v", name, took)
		}
	}
	etcd.Continue()
}

func TestNothingWorksAndNothingHangsAfterClose(t *testing.T) {
	s := startEmbeddedServer(t)
	c := connect(t, s)
	session := newSession(t, c, lasting)
	members := c.WatchMembers(t.Context())
	watch := c.Watch(t.Context(), "", 0)
	next(t, members)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for name, closed := range map[string]func() bool{
		"session": session.over,
		"members": func() bool { _, open := <-members; return !open },
		"watch":   func() bool { _, open := <-watch; return !open },
		"leader":  func() bool { _, open := <-c.WatchLeader(t.Context()); return !open },
	} {
		if !closed() {
			t.Errorf("%s goes on", name)
		}
	}
	if _, err := c.NewSession(within(t), time.Second); err == nil {
		t.Error("NewSession succeeds")
	}
	if _, _, err := c.Get(within(t), "a"); err == nil {
		t.Error("Get succeeds")
	}
}
