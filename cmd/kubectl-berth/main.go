// Command kubectl-berth is the plugin kubectl berth: Berth's client commands, for the cluster of a kubeconfig.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // as kubectl: what kubeconfigs may name as auth-provider

	"github.com/berth-scheduler/berth/internal/certs"
	"github.com/berth-scheduler/berth/internal/cli"
	"github.com/berth-scheduler/berth/internal/cli/offline"
	"github.com/berth-scheduler/berth/internal/member"
)

func main() {
	ctx, stop := cli.Interruptible(context.Background(), os.Exit)
	defer stop()
	root := command(os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	if err := root.ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "kubectl berth:", err)
		os.Exit(1)
	}
}

// command assembles the command line.
func command(getenv func(string) string, in io.Reader, out, notices io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-berth",
		Short: "Ask Berth, a Kubernetes scheduler: why is a pod pending, what would help, what would happen",
		Long: "Ask Berth, a Kubernetes scheduler: why is a pod pending, what would help, what would happen.\n\n" +
			"Without --server, the gateway is found in the cluster of the kubeconfig, and reached through its API server.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(notices)

	access := cli.Access{
		Files: certs.Files{CA: getenv("BERTH_TLS_CA")}, TokenFile: getenv("BERTH_TOKEN_FILE"), Token: getenv("BERTH_TOKEN"),
	}
	kubeconfig := &genericclioptions.ConfigFlags{KubeConfig: new(string), Context: new(string), ClusterName: new(string), AuthInfoName: new(string)}
	cluster := kubeCluster{kubeconfig: kubeconfig, access: &access}
	flags := root.PersistentFlags()
	access.AddFlags(flags)
	kubeconfig.AddFlags(flags)
	flags.StringVar(&cluster.namespace, "berth-namespace", "berth", "the namespace that Berth's gateway is in")

	opt := cli.Options{
		Program: "kubectl berth", Version: member.Build(), Revision: member.Revision(), Kubernetes: member.Kubernetes, In: in, Out: out, Err: notices,
		DefaultServer: getenv("BERTH_SERVER"), Dial: access.Dial, Find: cluster.find, Offline: offline.Open,
		Namespace: func() (string, error) {
			namespace, _, err := kubeconfig.ToRawKubeConfigLoader().Namespace()
			return namespace, err
		},
		Screen: screen(out),
	}
	root.AddCommand(cli.Commands(opt)...)
	return root
}

// screen returns what tells the size of the terminal that out is.
func screen(out io.Writer) func() (width, height int, ok bool) {
	return func() (int, int, bool) {
		file, ok := out.(*os.File)
		if !ok {
			return 0, 0, false
		}
		width, height, err := term.GetSize(int(file.Fd()))
		return width, height, err == nil
	}
}
