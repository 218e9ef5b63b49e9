package coord

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Role is what a member of Berth does.
type Role string

// The roles.
const (
	RoleQueue        Role = "queue"
	RoleFilterWorker Role = "filter-worker"
	RoleScoreWorker  Role = "score-worker"
	RoleBinder       Role = "binder"
	RoleGateway      Role = "gateway"
)

// Member is a running instance of a role. ID is unique within its role; Address is where it serves.
type Member struct {
	Role    Role
	ID      string
	Address string
}

type memberValue struct {
	Address string `json:"address"`
}

func (c *Client) coordPrefix() string { return c.prefix + "coord/" }

const membersPrefix = "members/"

// What is read of members. Each role may write its own, and no key can write so much that those who read them suffer.
const (
	maxMemberValue   = 512  // bytes; those with more are ignored
	maxMemberKey     = 512  // bytes behind the prefix; those with more are not even looked at
	maxMembersOfRole = 4096 // and of more some are left out
)

// check says what of a member is missing or cannot stand in a key.
func (m Member) check() error {
	for _, f := range []struct{ name, value string }{{"Role", string(m.Role)}, {"ID", m.ID}} {
		if f.value == "" || strings.Contains(f.value, "/") {
			return fmt.Errorf("%s: %q is empty or contains a slash", f.name, f.value)
		}
	}
	if strings.HasPrefix(m.ID, markPrefix) {
		return fmt.Errorf("ID: %q begins as no id may", m.ID)
	}
	if m.Address == "" {
		return fmt.Errorf("%s %s: Address: empty", m.Role, m.ID)
	}
	return nil
}

// decodeMember returns the member that Register has written, and nothing that it would not have written.
func decodeMember(kv KV) (Member, error) {
	rest, prefixed := strings.CutPrefix(kv.Key, membersPrefix)
	role, id, found := strings.Cut(rest, "/")
	if !prefixed || !found {
		return Member{}, errors.New("want a role and an id in the key")
	}
	if len(kv.Value) > maxMemberValue {
		return Member{}, fmt.Errorf("the value has more than %d bytes", maxMemberValue)
	}
	var value memberValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return Member{}, err
	}
	m := Member{Role: Role(role), ID: id, Address: value.Address}
	return m, m.check()
}

// isMark reports whether a key is there only for its lease.
func isMark(key string) bool {
	_, id, _ := strings.Cut(strings.TrimPrefix(key, membersPrefix), "/")
	return strings.HasPrefix(id, markPrefix)
}

// Register makes the member visible to WatchMembers until the session ends. To register it again, from this or another
// session, replaces its address and makes it live as long as that session. It is idempotent.
func (s *Session) Register(ctx context.Context, m Member) error {
	if err := m.check(); err != nil {
		return fmt.Errorf("register member: %w", err)
	}
	value, err := json.Marshal(memberValue{Address: m.Address})
	if err != nil {
		return fmt.Errorf("encode member %s: %w", m.ID, err)
	}
	if len(value) > maxMemberValue || len(membersPrefix)+len(m.Role)+1+len(m.ID) > maxMemberKey {
		return fmt.Errorf("register %s %s: its id or address is longer than others read", m.Role, m.ID)
	}
	if s.over() {
		return fmt.Errorf("register %s %s: %w", m.Role, m.ID, ErrSessionLost)
	}
	key := s.client.coordPrefix() + membersPrefix + string(m.Role) + "/" + m.ID
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(s.lease))
	if _, err := s.client.commit(ctx, nil, []clientv3.Op{put}, nil); err != nil {
		return fmt.Errorf("register %s %s: %w", m.Role, m.ID, s.refused(err))
	}
	return nil
}

// WatchMembers sends the members of all roles, sorted by role and ID: the full list at once and after each change. Of a role it sends
// at most 4,096, and nobody whose id or address does not fit into 512 bytes.
// A reader that is slow misses lists but always gets the newest one next. While etcd is away the last list stands.
// The channel is closed when ctx or the client ends.
func (c *Client) WatchMembers(ctx context.Context) <-chan []Member {
	warned := make(map[string]int64) // of which revision of a key
	limits := bounds{key: maxMemberKey, value: maxMemberValue, each: maxMembersOfRole, without: markPrefix}
	return follow(ctx, c, c.coordPrefix(), membersPrefix, limits, func(keys map[string]KV) []Member {
		members := make([]Member, 0, len(keys))
		malformed := make(map[string]int64)
		for key, kv := range keys {
			if isMark(key) {
				continue
			}
			m, err := decodeMember(kv)
			if err != nil {
				if malformed[key] = kv.ModRevision; warned[key] != kv.ModRevision {
					c.log.Warn("member ignored: its key or value is malformed", "key", key, "err", err)
				}
				continue
			}
			members = append(members, m)
		}
		warned = malformed
		slices.SortFunc(members, func(a, b Member) int {
			return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID))
		})
		return members
	})
}
