package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// versions are what version shows to programs.
type versions struct {
	Client  clientVersion   `json:"client"`
	Gateway *buildVersion   `json:"gateway,omitempty"` // not with --client
	Members []memberVersion `json:"members,omitempty"` // by version
}

type buildVersion struct {
	Version string `json:"version"` // "unknown" if the build does not say
}

type clientVersion struct {
	buildVersion `json:",inline"`
	Revision     string `json:"revision,omitempty"`   // the commit, if the build says it
	Kubernetes   string `json:"kubernetes,omitempty"` // the release of Kubernetes whose kube-scheduler it decides as
	Program      string `json:"program"`
	GoVersion    string `json:"goVersion"`
	Platform     string `json:"platform"`
}

type memberVersion struct {
	buildVersion `json:",inline"`
	Roles        map[string]int `json:"roles"` // how many members of each
}

func versionCommand(opt Options) *cobra.Command {
	var c connection
	var client bool
	var form string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which version this program is, and which the gateway and the other members are",
		Long: "Version says what this program, the gateway that answers and the members that it sees were built from: a version,\n" +
			"or a commit. While members are replaced by others of another version, there are several. As JSON or YAML it says of this\n" +
			"program also from which commit it was built, and as which release of Kubernetes it decides.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if form != "" && form != "json" && form != "yaml" {
				return fmt.Errorf("--output %q is not json or yaml", form)
			}
			v := versions{Client: clientVersion{
				buildVersion: buildVersion{buildName(opt.Version)}, Revision: opt.Revision, Kubernetes: opt.Kubernetes,
				Program: opt.Program, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}}
			if form != "" {
				if !client {
					if err := c.with(cmd.Context(), opt, func(s *session) error { return s.version(cmd.Context(), &v) }); err != nil {
						return err
					}
				}
				return v.show(opt, form)
			}
			if _, err := fmt.Fprintf(opt.Out, "client    %s (%s, %s, %s)\n", v.Client.Version, v.Client.Program, v.Client.GoVersion, v.Client.Platform); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
			if client {
				return nil
			}
			return c.with(cmd.Context(), opt, func(s *session) error {
				if err := s.version(cmd.Context(), &v); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(opt.Out, "gateway   %s\nmembers   %s\n", printable(v.Gateway.Version), printable(v.members())); err != nil {
					return fmt.Errorf("write answer: %w", err)
				}
				return nil
			})
		},
	}
	c.add(cmd, opt)
	cmd.Flags().BoolVar(&client, "client", false, "only that of this program; no gateway is asked")
	cmd.Flags().StringVarP(&form, "output", "o", "", "json or yaml; empty for text")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that does not exist, or has a function already
	return cmd
}

// version asks the gateway what it and the members were built from.
func (s *session) version(ctx context.Context, v *versions) error {
	response, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	v.Gateway = &buildVersion{buildName(response.GetBuild())}
	for _, m := range response.GetMembers() {
		name := buildName(m.GetBuild())
		k := slices.IndexFunc(v.Members, func(of memberVersion) bool { return of.Version == name })
		if k < 0 {
			k, v.Members = len(v.Members), append(v.Members, memberVersion{buildVersion{name}, make(map[string]int)})
		}
		v.Members[k].Roles[m.GetRole()]++
	}
	slices.SortFunc(v.Members, func(a, b memberVersion) int { return cmp.Compare(a.Version, b.Version) })
	return nil
}

// members counts the members by what they were built from, and by role: "v1.3.0: binder 1, queue 2; v1.2.0: queue 1".
func (v *versions) members() string {
	var all []string
	for _, m := range v.Members {
		var roles []string
		for _, role := range slices.Sorted(maps.Keys(m.Roles)) {
			roles = append(roles, fmt.Sprintf("%s %d", role, m.Roles[role]))
		}
		all = append(all, m.Version+": "+strings.Join(roles, ", "))
	}
	return cmp.Or(strings.Join(all, "; "), "none")
}

// show prints versions as JSON or YAML.
func (v *versions) show(opt Options, form string) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil && form == "yaml" {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	if _, err := opt.Out.Write(text); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// buildName names what a program was built from.
func buildName(build string) string { return cmp.Or(build, "unknown") }
