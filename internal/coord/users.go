package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-scheduler/berth/internal/coord/announced"
)

// Roles returns all roles of Berth.
func Roles() []Role {
	return []Role{RoleBinder, RoleQueue, RoleFilterWorker, RoleScoreWorker, RoleGateway}
}

// RolePlugin is that of processes with plugins of others, which are no members of Berth: they only announce themselves.
const RolePlugin Role = "plugin"

// UserRoles returns all roles that are users in etcd.
func UserRoles() []Role { return append(Roles(), RolePlugin) }

// rootName is the user, and the role, without which etcd does not switch authentication on.
const rootName = "root"

// Users says which users of etcd Berth's roles are to be. To etcd, a client is who the CommonName of its certificate says, and those
// of Berth's roles say the role.
type Users struct {
	Prefix    string   // under which all of Berth's keys are; "" means /berth/
	Manifests bool     // the cluster is the local source, which binders and gateways write; else nobody may write its keys
	Admins    []string // who may do everything besides root, whoever calls SetUpUsers among them
}

// grant is one permission in etcd: on all keys that begin so.
type grant struct {
	prefix string
	write  bool // and read; else only read
}

// grants returns what a role may do with the keys of Berth, and no more than it has to. The prefix ends with a slash.
func grants(role Role, prefix string, manifests bool) []grant {
	coord := prefix + "coord/"
	members := coord + membersPrefix
	all := []grant{{members + string(role) + "/", true}, {coord + leaderName, false}}
	switch role {
	case RoleBinder:
		all = []grant{
			{coord, false}, {members + string(role) + "/", true}, {coord + leaderName, true}, {coord + candidatesPrefix, true},
			{coord + identityName, true}, {coord + versionName, true}, {coord + intentsPrefix, true},
			{prefix + announced.Prefix, false},
		}
	case RoleQueue:
		all = append(all, grant{members, false}, grant{coord + shardsPrefix, true})
	case RoleGateway:
		all = append(all, grant{members, false}, grant{coord + shardsPrefix, false})
	case RolePlugin:
		all = []grant{{prefix + announced.Prefix, true}}
	}
	if manifests && (role == RoleBinder || role == RoleGateway) {
		all = append(all, grant{prefix + "kv/", true})
	}
	return all
}

// roleName is that of a role of Berth in etcd, where another Berth may have roles too.
func (u Users) roleName(role Role) string { return u.prefix() + string(role) }

func (u Users) prefix() string {
	if u.Prefix == "" {
		return defaultPrefix
	}
	return strings.TrimSuffix(u.Prefix, "/") + "/"
}

func (g grant) kind() string {
	if g.write {
		return "readwrite"
	}
	return "read"
}

func (g grant) permission() *authpb.Permission {
	kind := authpb.READ
	if g.write {
		kind = authpb.READWRITE
	}
	return &authpb.Permission{PermType: kind, Key: []byte(g.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(g.prefix))}
}

// Commands returns what SetUpUsers does as command lines of etcdctl, for an etcd whose users somebody else looks after.
func (u Users) Commands() []string {
	var all []string
	say := func(format string, args ...any) { all = append(all, "etcdctl "+fmt.Sprintf(format, args...)) }
	for _, role := range UserRoles() {
		name := u.roleName(role)
		say("role add %s", name)
		for _, g := range grants(role, u.prefix(), u.Manifests) {
			say("role grant-permission %s --prefix=true %s %s", name, g.kind(), g.prefix)
		}
		say("user add %s --no-password", role)
		say("user grant-role %s %s", role, name)
	}
	return all
}

// SetUpUsers makes a user and a role in etcd for each role of Berth, with the permissions it needs, takes others from those roles,
// and makes the administrators. It may be repeated, also beside another that does the same. It returns a line for each thing it has
// changed. Who calls must be an administrator where authentication is on, and be named as one where it is to be.
func (c *Client) SetUpUsers(ctx context.Context, u Users) (did []string, err error) {
	if u.prefix() != c.prefix {
		return nil, fmt.Errorf("set up users of %s: the client's prefix is %s", u.prefix(), c.prefix)
	}
	s := &userSetup{client: c}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append([]string{rootName}, u.Admins...)))) {
		s.role(ctx, rootName, nil)
		s.user(ctx, name, rootName, "")
	}
	for _, role := range UserRoles() {
		s.role(ctx, u.roleName(role), grants(role, c.prefix, u.Manifests))
		s.user(ctx, string(role), u.roleName(role), c.prefix)
	}
	if s.err != nil {
		return s.did, fmt.Errorf("set up users: %w", s.err)
	}
	return s.did, nil
}

// RequireUsers switches authentication on, for whoever uses this etcd: who is no user of it, or may not, is refused from then on. It
// returns whether it was off.
func (c *Client) RequireUsers(ctx context.Context) (changed bool, err error) {
	on, err := c.UsersRequired(ctx)
	if err != nil || on {
		return false, err
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	if _, err := c.etcd.AuthEnable(ctx); err != nil {
		return false, fmt.Errorf("switch etcd's authentication on: %w", err)
	}
	return true, nil
}

// UsersRequired reports whether etcd's authentication is on.
func (c *Client) UsersRequired(ctx context.Context) (bool, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	r, err := c.etcd.AuthStatus(ctx)
	if err != nil {
		return false, fmt.Errorf("ask whether etcd's authentication is on: %w", c.readError(err))
	}
	return r.Enabled, nil
}

// userSetup remembers what it has done and the first error, behind which it does nothing.
type userSetup struct {
	client *Client
	did    []string
	err    error
}

// do makes one request, and takes that it has been done already for success.
func (s *userSetup) do(ctx context.Context, what string, done error, request func(ctx context.Context) error) {
	if s.err != nil {
		return
	}
	ctx, cancel := s.client.request(ctx)
	defer cancel()
	switch err := request(ctx); {
	case err == nil && what != "":
		s.did = append(s.did, what)
	case err != nil && !errors.Is(err, done):
		s.err = fmt.Errorf("%s: %w", what, s.client.readError(err))
	}
}

// role makes a role that may do exactly what grants say.
func (s *userSetup) role(ctx context.Context, name string, grants []grant) {
	etcd := s.client.etcd
	var has []*authpb.Permission
	exists := true
	s.do(ctx, "", rpctypes.ErrRoleNotFound, func(ctx context.Context) error {
		r, err := etcd.RoleGet(ctx, name)
		if err != nil {
			exists = false
			return err
		}
		for _, p := range r.Perm {
			has = append(has, (*authpb.Permission)(p))
		}
		return nil
	})
	if !exists {
		s.do(ctx, "role "+name+" added", rpctypes.ErrRoleAlreadyExist, func(ctx context.Context) error {
			_, err := etcd.RoleAdd(ctx, name)
			return err
		})
	}
	same := func(a, b *authpb.Permission) bool {
		return a.PermType == b.PermType && string(a.Key) == string(b.Key) && string(a.RangeEnd) == string(b.RangeEnd)
	}
	var wanted []*authpb.Permission
	for _, g := range grants {
		wanted = append(wanted, g.permission())
	}
	// First what it may no longer: a permission on the same keys would be replaced, and taken away after it.
	for _, p := range has {
		if name == rootName || slices.ContainsFunc(wanted, func(w *authpb.Permission) bool { return same(w, p) }) {
			continue
		}
		s.do(ctx, fmt.Sprintf("role %s: %s of %q taken away", name, p.PermType, p.Key), rpctypes.ErrPermissionNotGranted, func(ctx context.Context) error {
			_, err := etcd.RoleRevokePermission(ctx, name, string(p.Key), string(p.RangeEnd))
			return err
		})
	}
	for _, w := range wanted {
		if slices.ContainsFunc(has, func(p *authpb.Permission) bool { return same(w, p) }) {
			continue
		}
		s.do(ctx, fmt.Sprintf("role %s: %s of %s* given", name, w.PermType, w.Key), nil, func(ctx context.Context) error {
			_, err := etcd.RoleGrantPermission(ctx, name, string(w.Key), string(w.RangeEnd), clientv3.PermissionType(w.PermType))
			return err
		})
	}
}

// user makes a user who has a role, and no other of those that the roles of Berth have under the prefix ours, if that is not empty. It has no password: who is
// that user shows a certificate that says so.
func (s *userSetup) user(ctx context.Context, name, role, ours string) {
	etcd := s.client.etcd
	exists := true
	var has []string
	s.do(ctx, "", rpctypes.ErrUserNotFound, func(ctx context.Context) error {
		r, err := etcd.UserGet(ctx, name)
		if err != nil {
			exists = false
			return err
		}
		has = r.Roles
		return nil
	})
	if !exists {
		s.do(ctx, "user "+name+" added", rpctypes.ErrUserAlreadyExist, func(ctx context.Context) error {
			_, err := etcd.UserAddWithOptions(ctx, name, "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		})
	}
	for _, other := range has {
		// Under a prefix there may be that of another Berth, whose roles are its own business.
		of, mine := strings.CutPrefix(other, ours)
		if ours != "" && other != role && mine && slices.Contains(UserRoles(), Role(of)) {
			s.do(ctx, fmt.Sprintf("user %s: role %s taken away", name, other), rpctypes.ErrRoleNotGranted, func(ctx context.Context) error {
				_, err := etcd.UserRevokeRole(ctx, name, other)
				return err
			})
		}
	}
	if !slices.Contains(has, role) {
		s.do(ctx, fmt.Sprintf("user %s: role %s given", name, role), nil, func(ctx context.Context) error {
			_, err := etcd.UserGrantRole(ctx, name, role)
			return err
		})
	}
}
