package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/coord"
	"github.com/berth-scheduler/berth/internal/roles"
)

func etcdInitCommand() *cobra.Command {
	var common roles.Common
	var tls tlsFlags
	var source string
	var users coord.Users
	var print bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "etcd-init",
		Short: "Set up etcd's users, so that each role may write there what it has to, and nothing else",
		Long: "Etcd-init makes a user and a role in etcd for each role of Berth, named as the certificates of the roles are, and\n" +
			"takes from them what they should not have. With --etcd-owned it then switches etcd's authentication on: whoever is no\n" +
			"user is refused. It may be repeated, and should be after an upgrade. etcd has to run with --client-cert-auth: it takes\n" +
			"clients for who the CommonName of their certificate says. The certificate to show here is one of --admin, such as etcd's own.",
		Example: "  berth etcd-init --etcd-owned --etcd-endpoints https://127.0.0.1:2379 --etcd-ca ca.crt --etcd-cert etcd.crt --etcd-key etcd.key\n" +
			"  berth etcd-init --print --source kube   # the same as commands of etcdctl",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if source != "kube" && source != "local" {
				return fmt.Errorf("--source: %q: want kube or local, as the binders have it", source)
			}
			users.Prefix, users.Manifests = common.EtcdPrefix, source == "local"
			if print {
				for _, line := range users.Commands() {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				}
				return nil
			}
			if len(common.EtcdEndpoints) == 0 {
				return errors.New("--etcd-endpoints: required")
			}
			if timeout <= 0 {
				return fmt.Errorf("--timeout: %v: want more than 0", timeout)
			}
			common.EtcdTLS = tls.etcd
			log, _, err := newLogger(os.Stderr, formatText, "info", nil)
			if err := cmp.Or(err, tls.finish(common.EtcdEndpoints)); err != nil {
				return err
			}
			common.Log = log
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return roles.EtcdInit(ctx, common, users, func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) })
		},
	}
	fs := c.Flags()
	addEtcd(fs, &common)
	tls.addEtcd(fs)
	fs.StringVar(&source, "source", "kube", "the source of the binders, kube or local: who may write manifests to etcd")
	fs.StringSliceVar(&users.Admins, "admin", []string{etcdRole}, "the users who may do everything in etcd, besides root")
	fs.BoolVar(&print, "print", false, "print the commands of etcdctl that do the same, but for the administrators and the switch, and do nothing")
	fs.DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait for etcd")
	return c
}
