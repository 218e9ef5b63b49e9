package system

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/plugin/announce"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// madeCerts are files of a binder and of a plugin that is known as gpu.internal, of an authority of their own.
func madeCerts(t *testing.T) func(role string) certs.Files {
	t.Helper()
	dir := t.TempDir()
	if _, err := certs.Make(certs.Request{
		Dir: dir, Roles: []string{"plugin", "binder"}, Hosts: []string{"gpu.internal"}, Known: []string{"plugin"}, Callers: []string{"plugin"}, CALife: time.Hour, Life: time.Hour, Now: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	return func(role string) certs.Files {
		return certs.Files{Cert: filepath.Join(dir, role+".crt"), Key: filepath.Join(dir, role+".key"), CA: filepath.Join(dir, "ca.crt")}
	}
}

// announced runs a process with a plugin of a name that has pods go to one node only, and announces it, until it is ended.
func announced(t *testing.T, etcd, name, node string, tls certs.Files) (end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() {
		ended <- plugin.Serve(ctx, plugin.Config{Listener: l, TLS: plugin.TLSFiles(tls), Plugins: []plugin.Plugin{{
			Name: name, Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
				if n.Name != node {
					return &plugin.Refusal{Reason: "node(s) are not " + node}, nil
				}
				return nil, nil
			},
		}}})
	}()
	go func() {
		ended <- announce.Run(ctx, announce.Config{Service: "gpu", Address: l.Addr().String(), Endpoints: []string{etcd}})
	}()
	over := false
	end = func() {
		if over {
			return
		}
		over = true
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("a process of %s: %v", node, err)
			}
		}
	}
	t.Cleanup(end)
	return end
}

// A service has no address: its processes come and go, pods are placed by whoever is there, and by nobody who is not of the service, whatever is announced.
func TestPluginServicesAreFoundThroughEtcd(t *testing.T) {
	dir, err := os.MkdirTemp("", "berth-") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	of, others := madeCerts(t), madeCerts(t)
	profile := engine.DefaultProfile("default-scheduler")
	profile.Filters = append(slices.Clip(profile.Filters), "Only")
	plain := engine.DefaultProfile("plain")
	tls := of("binder")
	b := berthtest.Start(t, berthtest.Options{
		Nodes: 3, DataDir: dir, Profiles: []cluster.Profile{profile, plain},
		PluginServices: []config.PluginService{{
			Name: "gpu", Discovered: true, Plugins: []config.ServicePlugin{{Name: "Only", Points: []string{"filter"}}}, Timeout: metav1.Duration{Duration: berthtest.Patience},
			TLS: &config.PluginTLS{CA: tls.CA, Cert: tls.Cert, Key: tls.Key, ServerName: "gpu.internal"},
		}},
	})
	etcd := "unix://" + filepath.Join(dir, "etcd", "etcd.sock")
	placed := 0
	last := func() string { return fmt.Sprint("default/p", placed) }
	lastOn := func(node string) {
		t.Helper()
		berthtest.Await(t, berthtest.Patience, last()+" to be placed", func(context.Context) error {
			if p := b.Pods()[last()]; p.GetNode() != node {
				return fmt.Errorf("it is on %q, want %s: %q", p.GetNode(), node, p.GetMessage())
			}
			return nil
		})
	}
	lastTold := func(want string) {
		t.Helper()
		berthtest.Await(t, berthtest.Patience, last()+" to be told "+want, func(context.Context) error {
			p := b.Pods()[last()]
			if p.GetNode() != "" {
				t.Fatalf("%s is on %s", last(), p.GetNode())
			}
			if got := p.GetMessage(); !strings.Contains(got, want) {
				return fmt.Errorf("it is told %q", got)
			}
			return nil
		})
	}
	apply := func(node string) {
		t.Helper()
		placed++
		b.Apply(berthtest.Pod(strings.TrimPrefix(last(), "default/"), "1", "1Gi", ""))
		if node != "" {
			lastOn(node)
		}
	}

	apply("")
	lastTold(`plugin service "gpu": describe: Unavailable: no process of the service is announced in etcd`)
	endLiar := announced(t, etcd, "Only", "node-0000", others("plugin"))
	lastTold("handshake failed")
	endFirst := announced(t, etcd, "Only", "node-0001", of("plugin")) // beside the liar
	lastOn("node-0001")
	apply("node-0001")
	endSecond := announced(t, etcd, "Only", "node-0002", of("plugin"))
	apply("node-0001") // it stays with whom it has
	endLiar()
	endFirst()
	apply("node-0002")
	// One of another release is left for one that has the plugin.
	endOld := announced(t, etcd, "Old", "node-0000", of("plugin"))
	endSecond()
	apply("")
	lastTold(`plugin service "gpu": does not fit the configuration: profiles have plugin "Only" filter nodes`)
	endThird := announced(t, etcd, "Only", "node-0001", of("plugin"))
	lastOn("node-0001")
	endOld()
	endThird()
	apply("")
	lastTold("no process of the service is announced in etcd")
}
