package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
)

// EtcdInit sets up etcd for Berth: a user for each role, who may do what the role needs. If etcd is Berth's alone (c.EtcdOwned), it
// also has etcd refuse everybody else, and then the certificate that it shows must be one of the users' administrators. It waits
// for etcd until ctx ends, may be repeated, and tells each thing it has changed.
func EtcdInit(ctx context.Context, c Common, users coord.Users, say func(string)) error {
	cfg := coord.Config{Endpoints: c.EtcdEndpoints, Prefix: c.EtcdPrefix, Log: c.Log}
	name := ""
	if c.EtcdTLS != (certs.Files{}) {
		source, err := certs.Open(c.EtcdTLS, "", c.Log)
		if err != nil {
			return fmt.Errorf("read TLS files of etcd: %w", err)
		}
		cfg.Credentials, name = source.Credentials(), source.CommonName()
	}
	if c.EtcdOwned && !slices.Contains(users.Admins, name) {
		return fmt.Errorf("the certificate is of %q, and would be let in no more; want one of the administrators %s", name, strings.Join(users.Admins, ", "))
	}
	for _, role := range coord.UserRoles() {
		if slices.Contains(users.Admins, string(role)) {
			return fmt.Errorf("administrators %s: %s is a role, and whoever had its key would have all of etcd", strings.Join(users.Admins, ", "), role)
		}
	}
	client, err := coord.Connect(cfg)
	if err != nil {
		return err
	}
	defer client.Close()

	// 1. Wait for etcd.
	for said := ""; ; {
		_, err := client.Database(ctx)
		if err == nil {
			break
		}
		now := "silent"
		if !silent(err) {
			now = err.Error()
		}
		if now != said {
			said = now
			c.Log.Info("waiting for etcd", "err", err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(time.Second):
		}
	}
	// 2. Set it up.
	did, err := client.SetUpUsers(ctx, users)
	for _, line := range did {
		say(line)
	}
	if err != nil {
		return err
	}
	// 3. Have it ask everybody who they are.
	if !c.EtcdOwned {
		on, err := client.UsersRequired(ctx)
		if err == nil && !on {
			say("authentication is off: whoever reaches this etcd may write what places pods. It is not Berth's alone, so it is left as it is")
		}
		return err
	}
	changed, err := client.RequireUsers(ctx)
	if changed {
		say("authentication switched on")
	}
	return err
}
