package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/access"
	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/coord"
)

// certRoles are those that berth certs makes key pairs for, unless it is told otherwise.
var certRoles = []string{
	string(coord.RoleBinder), string(coord.RoleQueue), string(coord.RoleFilterWorker), string(coord.RoleScoreWorker), string(coord.RoleGateway),
}

// knownByHost are the roles that others know by host name.
var knownByHost = []string{string(coord.RoleGateway), etcdRole, pluginRole, coord.PeerRole}

// etcdRole is not a role of Berth: no other takes calls from it.
const etcdRole = "etcd"

// pluginRole is not a role of Berth either: binders ask it, and it asks nobody.
const pluginRole = "plugin"

// callers are what key pairs can be made for besides roles, for those who only ask or are only asked.
var callers = []string{access.IdentityMetrics, access.IdentityOperator, pluginRole}

func certsCommand() *cobra.Command {
	var dir string
	var roles, hosts, tokens []string
	var caDays, days int
	var apart bool
	c := &cobra.Command{
		Use:   "certs --dir DIR",
		Short: "Make an authority and a key pair per role, for TLS between them",
		Long: "Certs writes ca.crt and ca.key into a directory, unless they are there, and ROLE.crt and ROLE.key for each role,\n" +
			"signed by it; ECDSA P-256. Key pairs that are there are replaced: run it again before they expire, and roles take\n" +
			"up the new ones by themselves. Only ca.crt and a role's own key pair belong where the role runs; ca.key does not.\n" +
			"In a cluster, cert-manager does the same. Role etcd makes a key pair for etcd's servers, peer one for processes of --peers, plugin one for a process with plugins, metrics one for those who read\n" +
			"/metrics of --metrics-listen, operator one for all that is served there. For --token, it writes USER.token and a line in the file tokens, for the gateway's --authenticate=tokens; who has a token keeps it.",
		Example: "  berth certs --dir certs --host gateway,localhost,127.0.0.1\n" +
			"  berth queue --tls-cert certs/queue.crt --tls-key certs/queue.key --tls-ca certs/ca.crt …",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errors.New("--dir: required: name the directory to write to")
			}
			for _, role := range roles {
				if known := slices.Concat(certRoles, []string{etcdRole, coord.PeerRole}, callers); !slices.Contains(known, role) {
					return fmt.Errorf("--role: %q: want one of %s", role, strings.Join(known, ", "))
				}
			}
			if caDays < 1 || days < 1 {
				return errors.New("--ca-days and --days: want at least 1")
			}
			var grants []access.Grant
			for _, text := range tokens {
				grant, err := access.ParseGrant(text)
				if err != nil {
					return fmt.Errorf("--token: %w", err)
				}
				grants = append(grants, grant)
			}
			did, err := certs.Make(certs.Request{
				Dir: dir, Roles: roles, Hosts: hosts, Known: knownByHost, Callers: callers, Apart: apart, Now: time.Now(),
				CALife: time.Duration(caDays) * 24 * time.Hour, Life: time.Duration(days) * 24 * time.Hour,
			})
			if err == nil {
				var more []string
				tokensIn := dir
				if apart {
					tokensIn = filepath.Join(dir, string(coord.RoleGateway))
				}
				if len(grants) > 0 {
					err = os.MkdirAll(tokensIn, 0o755)
				}
				if err == nil {
					more, err = access.MakeTokens(tokensIn, grants)
				}
				did = append(did, more...)
			}
			for _, line := range did {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return err
		},
	}
	fs := c.Flags()
	fs.StringVar(&dir, "dir", "", "where to write; made if it is not there")
	fs.StringSliceVar(&roles, "role", certRoles, "the roles to make key pairs for")
	fs.StringSliceVar(&hosts, "host", []string{"localhost", "127.0.0.1", "::1"}, "the host names and IP addresses under which the gateway, etcd, a peer, or a plugin is known")
	fs.StringSliceVar(&tokens, "token", nil, "USER=read or USER=write: the people to make tokens for")
	fs.BoolVar(&apart, "apart", false, "give each role a directory of its own, DIR/ROLE, with its key pair and ca.crt, and the gateway the tokens: what one role may see, and no more")
	fs.IntVar(&caDays, "ca-days", 3650, "how long a new authority holds")
	fs.IntVar(&days, "days", 365, "how long key pairs hold; no longer than the authority")
	return c
}
