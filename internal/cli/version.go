package cli

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

func versionCommand(opt Options) *cobra.Command {
	var c connection
	var client bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which version this program is, and which the gateway and the other members are",
		Long: "Version says what this program, the gateway that answers and the members that it sees were built from: a version,\n" +
			"or a commit. While members are replaced by others of another version, there are several.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := fmt.Fprintf(opt.Out, "client    %s (%s, %s, %s/%s)\n", buildName(opt.Version), opt.Program, runtime.Version(), runtime.GOOS, runtime.GOARCH); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
			if client {
				return nil
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.version(cmd.Context(), opt) })
		},
	}
	c.add(cmd, opt)
	cmd.Flags().BoolVar(&client, "client", false, "only that of this program; no gateway is asked")
	return cmd
}

func (s *session) version(ctx context.Context, opt Options) error {
	response, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(opt.Out, "gateway   %s\nmembers   %s\n", printable(buildName(response.GetBuild())), printable(builds(response))); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// buildName names what a program was built from.
func buildName(build string) string { return cmp.Or(build, "unknown") }

// builds counts the members by what they were built from, and by role: "v1.3.0: binder 1, queue 2; v1.2.0: queue 1".
func builds(s *schedulingv1.GetStatusResponse) string {
	byBuild := make(map[string]*schedulingv1.GetStatusResponse)
	var names []string
	for _, m := range s.GetMembers() {
		name := buildName(m.GetBuild())
		if byBuild[name] == nil {
			byBuild[name] = &schedulingv1.GetStatusResponse{}
			names = append(names, name)
		}
		byBuild[name].Members = append(byBuild[name].Members, m)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = name + ": " + roles(byBuild[name])
	}
	return cmp.Or(strings.Join(names, "; "), "none")
}
