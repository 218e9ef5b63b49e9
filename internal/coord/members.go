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

// check says what of a member is missing or cannot stand in a key.
func (m Member) check() error {
	for _, f := range []struct{ name, value string }{{"Role", string(m.Role)}, {"ID", m.ID}} {
		if f.value == "" || strings.Contains(f.value, "/") {
			return fmt.Errorf("%s: %q is empty or contains a slash", f.name, f.value)
		}
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
	var value memberValue
	if err := json.Unmarshal(kv.Value, &value); err != nil {
		return Member{}, err
	}
	m := Member{Role: Role(role), ID: id, Address: value.Address}
	return m, m.check()
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
	if s.over() {
		return fmt.Errorf("register %s %s: %w", m.Role, m.ID, ErrSessionLost)
	}
	key := s.client.coordPrefix() + membersPrefix + string(m.Role) + "/" + m.ID
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(s.lease))
	if _, err := s.client.commit(ctx, nil, []clientv3.Op{put}, nil); err != nil {
		return fmt.Errorf("register %s %s: %w", m.Role, m.ID, err)
	}
	return nil
}

// WatchMembers sends the members of all roles, sorted by role and ID: the full list at once and after each change.
// A reader that is slow misses lists but always gets the newest one next. While etcd is away the last list stands.
// The channel is closed when ctx or the client ends.
func (c *Client) WatchMembers(ctx context.Context) <-chan []Member {
	return follow(ctx, c, c.coordPrefix(), membersPrefix, func(keys map[string]KV) []Member {
		members := make([]Member, 0, len(keys))
		for key, kv := range keys {
			m, err := decodeMember(kv)
			if err != nil {
				c.log.Warn("member ignored: its key or value is malformed", "key", key, "err", err)
				continue
			}
			members = append(members, m)
		}
		slices.SortFunc(members, func(a, b Member) int {
			return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.ID, b.ID))
		})
		return members
	})
}
