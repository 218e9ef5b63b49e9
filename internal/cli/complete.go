package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

const (
	// completionWait is how long a shell waits for names.
	completionWait = 3 * time.Second
	// completions is how many names are offered at most: nobody reads more.
	completions = 500
)

// completePods completes the name of a pod of the namespace that --namespace says.
func completePods(c *connection, opt Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		namespace := cmd.Flag("namespace").Value.String()
		if namespace == "" {
			var err error
			if namespace, err = opt.Namespace(); err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
		}
		return complete(cmd, c, opt, args, start, func(ctx context.Context, s *session) ([]string, error) {
			response, err := ask(ctx, s, s.ListPods, &schedulingv1.ListPodsRequest{Namespace: namespace, PageSize: listPage})
			return bare(podNames(response.GetPods())), err
		})
	}
}

// completeNodes completes the name of a node.
func completeNodes(c *connection, opt Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, c, opt, args, start, func(ctx context.Context, s *session) ([]string, error) {
			response, err := ask(ctx, s, s.ListNodes, &schedulingv1.ListNodesRequest{PageSize: listPage})
			return bare(nodeNames(response.GetNodes())), err
		})
	}
}

// completeMembers completes the id of a member of Berth.
func completeMembers(c *connection, opt Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, c, opt, args, start, func(ctx context.Context, s *session) ([]string, error) {
			response, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
			return bare(memberNames(response)), err
		})
	}
}

// complete offers the names of a list's first page that begin as the argument does. A command has one name.
func complete(cmd *cobra.Command, c *connection, opt Options, args []string, start string, list func(context.Context, *session) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	var names []string
	err := c.with(ctx, opt, func(s *session) error {
		all, err := list(ctx, s)
		for _, name := range all {
			if strings.HasPrefix(name, start) && len(names) < completions {
				names = append(names, printable(name))
			}
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// bare returns names without their kinds.
func bare(names []string) []string {
	for i, name := range names {
		_, names[i], _ = strings.Cut(name, "/")
	}
	return names
}
