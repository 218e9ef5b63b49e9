package coord

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-scheduler/berth/internal/logtest"
)

// putMembers writes keys of members as one who need not keep to what Register does.
func putMembers(t *testing.T, c *Client, role Role, n int) {
	t.Helper()
	for from := 0; from < n; from += MaxTxnOps {
		var ops []clientv3.Op
		for i := from; i < min(from+MaxTxnOps, n); i++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/berth/coord/members/%s/m%05d", role, i), `{"address":"x"}`))
		}
		if _, err := c.commit(within(t), nil, ops, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func count(all []Member, role Role) (n int) {
	for _, m := range all {
		if m.Role == role {
			n++
		}
	}
	return n
}

func TestOneRoleCannotFillTheListOfMembers(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	putMembers(t, c, RoleFilterWorker, maxMembersOfRole+300)
	putMembers(t, c, RoleScoreWorker, 40)
	before := c.WatchMembers(t.Context())
	is := func(filters, scores int) func([]Member) bool {
		return func(all []Member) bool {
			return count(all, RoleFilterWorker) == filters && count(all, RoleScoreWorker) == scores
		}
	}
	until(t, before, is(maxMembersOfRole, 40))
	putMembers(t, c, RoleScoreWorker, 41)
	until(t, before, is(maxMembersOfRole, 41))
	// What was left out comes in when there is room.
	if _, err := c.etcd.Delete(within(t), "/berth/coord/members/filter-worker/", clientv3.WithRange("/berth/coord/members/filter-worker/m04300")); err != nil {
		t.Fatal(err)
	}
	until(t, before, is(96, 41))
}

func TestMembersThatAreTooLargeAreIgnored(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	putMembers(t, c, RoleQueue, 1)
	for key, value := range map[string]string{
		"/berth/coord/members/queue/large":                            `{"address":"` + strings.Repeat("x", 1<<20) + `"}`,
		"/berth/coord/members/queue/" + strings.Repeat("x", 100<<10):  `{"address":"x"}`,
		"/berth/coord/members/queue/.lease-" + strings.Repeat("x", 5): `{"address":"x"}`,
	} {
		if _, err := c.etcd.Put(within(t), key, value); err != nil {
			t.Fatal(err)
		}
	}
	if got := next(t, c.WatchMembers(t.Context())); len(got) != 1 {
		t.Errorf("%d members, want the one that is as small as they are", len(got))
	}
	s := newSession(t, c, lasting)
	defer closeSession(t, s)
	if err := s.Register(within(t), Member{RoleQueue, "a", strings.Repeat("x", maxMemberValue)}); err == nil {
		t.Error("one is registered whom nobody reads")
	}
}

func TestAMalformedMemberIsWarnedOfOnceForEachOfItsRevisions(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	lines := &logtest.Buffer{}
	c.log = slog.New(slog.NewTextHandler(lines, nil))
	spoil := func() {
		t.Helper()
		if _, err := c.etcd.Put(within(t), "/berth/coord/members/queue/bad", "{"); err != nil {
			t.Fatal(err)
		}
	}
	spoil()
	watch := c.WatchMembers(t.Context())
	for n := range 5 {
		putMembers(t, c, RoleQueue, n+1)
		until(t, watch, func(all []Member) bool { return len(all) == n+1 })
	}
	if n := strings.Count(lines.String(), "malformed"); n != 1 {
		t.Errorf("it is warned of %d times, want once", n)
	}
	spoil()
	putMembers(t, c, RoleQueue, 6)
	until(t, watch, func(all []Member) bool { return len(all) == 6 })
	if n := strings.Count(lines.String(), "malformed"); n != 2 {
		t.Errorf("it is warned of %d times once it has changed, want twice", n)
	}
}

func TestWhatChangesWhileAListIsBuiltIsInTheNextOneTogether(t *testing.T) {
	set := newKeySet("a/", bounds{})
	<-takes(set) // being built
	for i := range 100 {
		set.apply(WatchUpdate{Events: []Event{{KV: KV{Key: fmt.Sprint("a/", i)}}}})
	}
	set.apply(WatchUpdate{Events: []Event{{KV: KV{Key: "a/7"}, Deleted: true}}})
	if got := len(<-takes(set)); got != 99 {
		t.Errorf("%d keys, want all 99 that there are", got)
	}
	select {
	case <-set.dirty:
		t.Error("another list is to be built, of what is in the last one")
	default:
	}
}

// takes returns the keys of a set that has changed.
func takes(set *keySet) <-chan map[string]KV {
	if len(set.dirty) == 0 {
		set.changed()
	}
	<-set.dirty
	out := make(chan map[string]KV, 1)
	out <- set.take()
	return out
}

func TestOfKeysThatAreNotKeptNoMoreThanAPageIsRead(t *testing.T) {
	c := connect(t, startEmbeddedServer(t))
	putMembers(t, c, RoleFilterWorker, 500)
	putMembers(t, c, RoleQueue, 2)
	set, _, err := c.listBounded(within(t), c.coordPrefix(), membersPrefix, bounds{each: 10})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for key := range set.take() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(keys) != 12 || !set.leftOut || keys[9] != "members/filter-worker/m00009" || keys[11] != "members/queue/m00001" {
		t.Errorf("left out %v, kept %q; want the first ten of each", set.leftOut, keys)
	}
}
