package binder

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/replica"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func TestAReplicaFollowsTheLedgerOverTermsToTheSameDigest(t *testing.T) {
	etcd, src := startEtcd(t), newFakeSource()
	for i := range 20 {
		src.setNode(node(fmt.Sprintf("n%d", i), 1000))
		src.setPod(pod(fmt.Sprintf("p%d", i), int64(10*i+10)))
	}
	network := rpc.Config{Net: rpc.Memory(), Log: testLog(t)}
	one := start(t, etcd, src, named("one"))
	serve(t, network, one)
	one.active()
	two := start(t, etcd, src, named("two"))
	serve(t, network, two)

	rep := followed(t, etcd, network)
	same := func(b *running) func() bool {
		return func() bool {
			v := b.Version()
			return !v.IsZero() && rep.Version() == v && rep.Digest() == b.Digest()
		}
	}
	eventually(t, "the replica has the ledger", same(one))
	for i := range 20 {
		one.commit(one.request(1, fmt.Sprintf("p%d", i)))
	}
	src.setPod(pod("more", 10))
	src.deletePod("p3")
	eventually(t, "all is settled", func() bool { return one.term.Load().unbound.count() == 0 && one.phase("p3") == "gone" })
	eventually(t, "the replica has the ledger", same(one))

	one.stop()
	two.active()
	two.commit(two.request(1, "more"))
	eventually(t, "the replica has the next ledger", same(two))

	wantError(t, one.Follow(nil, nil), codes.Unavailable, "NOT_ACTIVE")
}

// serve lets others reach a binder until the test ends.
func serve(t *testing.T, network rpc.Config, b *running) {
	t.Helper()
	l, err := network.Net.Listen(b.cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.NewServer(network, "binder")
	b.Register(server.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// followed returns a replica that follows the binders until the test ends.
func followed(t *testing.T, etcd []string, network rpc.Config) *replica.Replica {
	t.Helper()
	clients := rpc.NewClients(network)
	t.Cleanup(func() {
		if err := clients.Close(); err != nil {
			t.Errorf("close clients: %v", err)
		}
	})
	rep, err := replica.New(replica.Config{Member: "test", Leaders: connect(t, etcd, prefix), Conns: clients, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rep.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("replica: %v", err)
		}
	})
	return rep
}
