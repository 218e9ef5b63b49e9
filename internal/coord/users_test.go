package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/berth-scheduler/berth/internal/certs"
)

// withUsers starts an etcd that serves who shows a certificate, sets up its users, and connects as each of them.
func withUsers(t *testing.T, manifests bool) map[Role]*Client {
	t.Helper()
	clients, _, _ := withUsersAt(t, manifests)
	return clients
}

// withUsersAt is withUsers, and returns where etcd is, and the files of each.
func withUsersAt(t *testing.T, manifests bool) (clients map[Role]*Client, endpoint string, files func(name string) certs.Files) {
	t.Helper()
	names := []string{"etcd"}
	for _, role := range UserRoles() {
		names = append(names, string(role))
	}
	files = makeCertsOf(t, names...)
	endpoint = startTLS(t, files("etcd"))
	clients = map[Role]*Client{}
	for _, name := range names {
		clients[Role(name)] = connectAs(t, endpoint, files(name))
	}
	for _, role := range Roles() {
		clients[role].role = role
	}
	admin := clients["etcd"]
	if _, err := admin.SetUpUsers(within(t), Users{Manifests: manifests, Admins: []string{"etcd"}}); err != nil {
		t.Fatal(err)
	}
	if changed, err := admin.RequireUsers(within(t)); err != nil || !changed {
		t.Fatalf("RequireUsers: %v, %v", changed, err)
	}
	return clients, endpoint, files
}

func TestEachRoleMayDoItsPartInEtcd(t *testing.T) {
	as := withUsers(t, true)
	for _, role := range Roles() {
		c := as[role]
		if err := c.Ready(within(t)); err != nil {
			t.Errorf("%s: Ready: %v", role, err)
		}
		s := newSession(t, c, lasting)
		if err := s.Register(within(t), Member{Role: role, ID: "a", Address: "b"}); err != nil {
			t.Error(err)
		}
		if err := s.renew(within(t), time.Now().Add(patient)); err != nil {
			t.Errorf("%s: renew: %v", role, err)
		}
		if _, err := c.Database(within(t)); err != nil {
			t.Errorf("%s: Database: %v", role, err)
		}
		defer closeSession(t, s)
	}
	binder, queue, gateway := as[RoleBinder], as[RoleQueue], as[RoleGateway]
	s := newSession(t, binder, lasting)
	if err := s.Stand(within(t), "b"); err != nil {
		t.Error(err)
	}
	term := elect(t, binder, s, "b")
	if err := term.Record(within(t), Version{term.Epoch(), 1}, &Batch{ID: 1, Intents: []Intent{{PodUID: "u"}}}, nil); err != nil {
		t.Error(err)
	}
	if err := term.Record(within(t), Version{term.Epoch(), 2}, nil, []int64{1}); err != nil {
		t.Error(err)
	}
	if _, err := binder.ReadRecord(within(t)); err != nil {
		t.Error(err)
	}
	if _, err := term.Identity(within(t)); err != nil {
		t.Error(err)
	}
	if _, err := term.Contested(within(t)); err != nil {
		t.Error(err)
	}
	if ok, _, err := binder.Txn(within(t), []Cond{term.Guard()}, []Op{Put("local/placements/u", nil)}); err != nil || !ok {
		t.Errorf("place: %v, %v", ok, err)
	}
	qs := newSession(t, queue, lasting)
	if _, err := qs.ClaimShard(within(t), 0, "q"); err != nil {
		t.Error(err)
	}
	if ok, _, err := gateway.Txn(within(t), nil, []Op{Put("local/nodes/n", nil)}); err != nil || !ok {
		t.Errorf("apply: %v, %v", ok, err)
	}
	for _, role := range Roles() {
		until(t, as[role].WatchLeader(t.Context()), func(l Leader) bool { return l.ID == "b" })
	}
	for _, c := range []*Client{queue, gateway, binder} {
		until(t, c.WatchMembers(t.Context()), func(all []Member) bool { return len(all) == len(Roles()) })
		until(t, c.WatchShards(t.Context()), func(all []ShardOwner) bool { return len(all) == 1 })
	}
	closeSession(t, qs)
	if err := term.Resign(within(t)); err != nil {
		t.Error(err)
	}
	closeSession(t, s)
}

// Whoever can write intents, or take the place of the binder, places pods.
func TestNobodyButTheBinderWritesWhatPlacesPods(t *testing.T) {
	as := withUsers(t, true)
	s := newSession(t, as[RoleBinder], lasting)
	term := elect(t, as[RoleBinder], s, "b")
	qs := newSession(t, as[RoleQueue], lasting)
	if _, err := qs.ClaimShard(within(t), 0, "q"); err != nil {
		t.Fatal(err)
	}
	put := func(key string) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.etcd.Put(ctx, key, "x"); return err }
	}
	remove := func(key string) func(context.Context, *Client) error {
		return func(ctx context.Context, c *Client) error { _, err := c.etcd.Delete(ctx, key); return err }
	}
	type attack struct {
		what string
		by   []Role // all but those that may
		do   func(context.Context, *Client) error
	}
	except := func(may ...Role) []Role {
		return slices.DeleteFunc(Roles(), func(r Role) bool { return slices.Contains(may, r) })
	}
	attacks := []attack{
		{"write an intent", except(RoleBinder), put("/berth/coord/intents/0000000000000000001")},
		{"write the version", except(RoleBinder), put("/berth/coord/version")},
		{"take the election key", except(RoleBinder), put("/berth/coord/leader")},
		{"delete the election key", except(RoleBinder), remove("/berth/coord/leader")},
		{"stand for election", except(RoleBinder), put("/berth/coord/candidates/x")},
		{"revoke the binder's lease", except(RoleBinder), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Revoke(ctx, s.lease)
			return err
		}},
		{"hang a key on the binder's lease", except(RoleBinder), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Put(ctx, "/berth/coord/members/filter-worker/x", "x", clientv3.WithLease(s.lease))
			return err
		}},
		{"read intents", except(RoleBinder), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Get(ctx, "/berth/coord/intents/", clientv3.WithPrefix())
			return err
		}},
		{"claim a shard", except(RoleQueue), put("/berth/coord/shards/000000")},
		{"take a shard from its owner", except(RoleQueue), remove("/berth/coord/shards/000000")},
		{"delete all", Roles(), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Delete(ctx, "/berth/", clientv3.WithPrefix())
			return err
		}},
		{"delete all, in a transaction", Roles(), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete("", clientv3.WithFromKey())}, nil)).Commit()
			return err
		}},
		{"place a pod of the local source", except(RoleBinder, RoleGateway), put("/berth/kv/local/placements/u")},
		{"write beside Berth's keys", Roles(), put("/other")},
		{"read beside Berth's keys", Roles(), func(ctx context.Context, c *Client) error { _, err := c.etcd.Get(ctx, "/other"); return err }},
		{"become an administrator", Roles(), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.UserGrantRole(ctx, "binder", "root")
			return err
		}},
		{"widen a role", Roles(), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.RoleGrantPermission(ctx, "/berth/filter-worker", "/", "0", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		}},
		{"become a plugin", Roles(), func(ctx context.Context, c *Client) error {
			_, err := c.etcd.UserGrantRole(ctx, "queue", "/berth/plugin")
			return err
		}},
		{"read members", []Role{RoleFilterWorker, RoleScoreWorker}, func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Get(ctx, "/berth/coord/members/", clientv3.WithPrefix())
			return err
		}},
		{"read who is announced", []Role{RoleQueue, RoleFilterWorker, RoleScoreWorker, RoleGateway}, func(ctx context.Context, c *Client) error {
			_, err := c.etcd.Get(ctx, "/berth/plugins/", clientv3.WithPrefix())
			return err
		}},
		{"write the key beside its own", Roles(), put("/berth/plugins")},
		{"switch authentication off", Roles(), func(ctx context.Context, c *Client) error { _, err := c.etcd.AuthDisable(ctx); return err }},
		// Not the binder either, so the manifests do not tell it that etcd is its own: docs/operations.md.
		{"compact", Roles(), func(ctx context.Context, c *Client) error { return c.Compact(ctx, 2) }},
		{"take a snapshot", Roles(), func(ctx context.Context, c *Client) error {
			r, err := c.etcd.Snapshot(ctx)
			if err == nil {
				defer r.Close()
				_, err = r.Read(make([]byte, 1))
			}
			return err
		}},
	}
	for _, victim := range Roles() {
		attacks = append(attacks, attack{fmt.Sprintf("pass for a member of %s", victim), except(victim), put("/berth/coord/members/" + string(victim) + "/x")})
	}
	attacks = append(attacks, attack{"announce a process with plugins", Roles(), put("/berth/plugins/gpu/x")})
	for _, a := range attacks {
		if a.what != "announce a process with plugins" && a.what != "read who is announced" {
			a.by = append(slices.Clip(a.by), RolePlugin)
		}
		for _, role := range a.by {
			if err := a.do(within(t), as[role]); !errors.Is(err, rpctypes.ErrPermissionDenied) && !strings.Contains(fmt.Sprint(err), "permission denied") {
				t.Errorf("with the key of a %s one can %s: %v", role, a.what, err)
			}
		}
	}
	if err := term.Record(within(t), Version{term.Epoch(), 1}, nil, nil); err != nil {
		t.Errorf("the binder after all that: %v", err)
	}
}

// Leases without keys are anybody's.
func TestALeaseIsItsRolesOwnFromTheStart(t *testing.T) {
	as := withUsers(t, false)
	s := newSession(t, as[RoleQueue], lasting)
	worker := as[RoleFilterWorker].etcd
	if _, err := worker.Revoke(within(t), s.lease); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a worker ends the lease of a queue that has claimed nothing yet: %v", err)
	}
	if _, err := worker.Put(within(t), "/berth/coord/members/filter-worker/x", "", clientv3.WithLease(s.lease)); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a worker hangs a key on it: %v", err)
	}
	if got := next(t, as[RoleGateway].WatchMembers(t.Context())); len(got) != 0 {
		t.Errorf("what is there for its lease is taken for a member: %v", got)
	}
	closeSession(t, s)
	if r, err := as[RoleGateway].etcd.Get(within(t), "/berth/coord/members/", clientv3.WithPrefix()); err != nil || r.Count != 0 {
		t.Errorf("%d keys are left, %v", r.Count, err)
	}
}

// taken is leases of which somebody else lays hands on the first, as soon as it is granted.
type taken struct {
	pb.LeaseClient
	once sync.Once
	take func(clientv3.LeaseID)
}

func (l *taken) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, opts ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	granted, err := l.LeaseClient.LeaseGrant(ctx, r, opts...)
	if err == nil {
		l.once.Do(func() { l.take(clientv3.LeaseID(granted.ID)) })
	}
	return granted, err
}

func TestALeaseThatSomebodyElseHasTakenIsGivenUpForAnother(t *testing.T) {
	as := withUsers(t, false)
	worker := as[RoleFilterWorker].etcd
	for what, take := range map[string]func(clientv3.LeaseID) error{
		"hung a key on it": func(lease clientv3.LeaseID) error {
			_, err := worker.Put(within(t), "/berth/coord/members/filter-worker/x", "", clientv3.WithLease(lease))
			return err
		},
		"ended it": func(lease clientv3.LeaseID) error { _, err := worker.Revoke(within(t), lease); return err },
	} {
		t.Run(what, func(t *testing.T) {
			c := as[RoleQueue]
			before := c.leases
			var first clientv3.LeaseID
			c.leases = &taken{LeaseClient: before, take: func(lease clientv3.LeaseID) {
				first = lease
				if err := take(lease); err != nil {
					t.Error(err)
				}
			}}
			defer func() { c.leases = before }()
			s := newSession(t, c, lasting)
			defer closeSession(t, s)
			if first == 0 || s.lease == first {
				t.Errorf("the session is under lease %x, the first was %x", s.lease, first)
			}
			if _, err := s.ClaimShard(within(t), 0, "q"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestASessionWhoseLeaseIsNotItsRolesEndsAtOnce(t *testing.T) {
	as := withUsers(t, false)
	for what, use := range map[string]func(s *Session) error{
		"renew":    func(s *Session) error { return s.renew(within(t), time.Now().Add(patient)) },
		"claim":    func(s *Session) error { _, err := s.ClaimShard(within(t), 0, "q"); return err },
		"stand":    func(s *Session) error { return s.Stand(within(t), "q") },
		"register": func(s *Session) error { return s.Register(within(t), Member{RoleQueue, "q", "address"}) },
		"campaign": func(s *Session) error { _, err := s.client.Campaign(within(t), s, "q", "address"); return err },
	} {
		t.Run(what, func(t *testing.T) {
			c := as[RoleQueue]
			if what == "stand" || what == "campaign" {
				c = as[RoleBinder]
			}
			role := c.role
			c.role = "" // as if there had been no time for its own key
			s := newSession(t, c, time.Hour)
			c.role = role
			defer vanish(s)
			if _, err := as[RoleFilterWorker].etcd.Put(within(t), "/berth/coord/members/filter-worker/x", "", clientv3.WithLease(s.lease)); err != nil {
				t.Fatal(err)
			}
			if err := use(s); !errors.Is(err, ErrSessionLost) {
				t.Errorf("%s: %v, want %v", what, err, ErrSessionLost)
			}
			if what != "renew" { // there it is keepAlive that ends it
				next(t, closed(s.Done()))
			}
		})
	}
}

// closed returns a channel that has a value once done is closed.
func closed(done <-chan struct{}) <-chan bool {
	out := make(chan bool, 1)
	go func() { <-done; out <- true }()
	return out
}

func TestWithAnAPIServerNobodyWritesTheLocalSource(t *testing.T) {
	as := withUsers(t, false)
	for _, role := range Roles() {
		if _, _, err := as[role].Txn(within(t), nil, []Op{Put("local/placements/u", nil)}); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestSettingUpUsersAgainChangesWhatIsNotAsItShouldBe(t *testing.T) {
	as := withUsers(t, true)
	admin, u := as["etcd"], Users{Manifests: true, Admins: []string{"etcd"}}
	if did, err := admin.SetUpUsers(within(t), u); err != nil || len(did) != 0 {
		t.Errorf("a second time: %v, %v", did, err)
	}
	if changed, err := admin.RequireUsers(within(t)); err != nil || changed {
		t.Errorf("RequireUsers a second time: %v, %v", changed, err)
	}
	// Somebody has helped himself, and taken something.
	etcd := admin.etcd
	_, err1 := etcd.RoleGrantPermission(within(t), "/berth/filter-worker", "/berth/", "/berth0", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err2 := etcd.RoleGrantPermission(within(t), "/berth/queue", "/berth/coord/leader", "/berth/coord/leades", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err3 := etcd.UserGrantRole(within(t), "filter-worker", "/berth/binder")
	_, err4 := etcd.UserDelete(within(t), "gateway")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	did, err := admin.SetUpUsers(within(t), u)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`role /berth/filter-worker: READWRITE of "/berth/" taken away`, `role /berth/queue: READWRITE of "/berth/coord/leader" taken away`,
		"role /berth/queue: READ of /berth/coord/leader* given", "user filter-worker: role /berth/binder taken away",
		"user gateway added", "user gateway: role /berth/gateway given",
	} {
		if !slices.Contains(did, want) {
			t.Errorf("it has not said %q, but %q", want, did)
		}
	}
	if _, err := as[RoleFilterWorker].etcd.Put(within(t), "/berth/coord/version", ""); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("a filter-worker writes the version: %v", err)
	}
	if err := as[RoleQueue].Ready(within(t)); err != nil {
		t.Errorf("a queue afterwards: %v", err)
	}
	// Another Berth's roles are not touched.
	_, err1 = etcd.RoleAdd(within(t), "/berth/blue/queue")
	_, err2 = etcd.UserGrantRole(within(t), "queue", "/berth/blue/queue")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if did, err := admin.SetUpUsers(within(t), u); err != nil || len(did) != 0 {
		t.Errorf("where users have roles of another prefix too: %q, %v", did, err)
	}
	// When the manifests move to an API server, so do the rights.
	u.Manifests = false
	if did, err := admin.SetUpUsers(within(t), u); err != nil || len(did) != 2 {
		t.Errorf("without manifests: %q, %v", did, err)
	}
}
