package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/internal/roles"
	"github.com/berth-scheduler/berth/internal/shadow"
)

func shadowCommand(in *CompiledIn) *cobra.Command {
	cl := clusterFlags{inPlace: true, asks: true, compiledIn: compiledInFlags{in: in}}
	var log LogFlags
	o := roles.ShadowOptions{}
	var output string
	c := &cobra.Command{
		Use:   "shadow",
		Short: "Follow a cluster that kube-scheduler runs, and say where Berth would have put its pods; it only reads",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case output != "text" && output != "json":
				return fmt.Errorf("--output: %q: want text or json", output)
			case o.Every < time.Second:
				return fmt.Errorf("--every: %v: want at least 1s", o.Every)
			case o.For < 0 || o.Examples < 0:
				return errors.New("--for and --examples: want 0 or more")
			}
			cl.cluster.Source = "kube"
			if err := cl.finish(cmd.Context(), cmd.Flags()); err != nil {
				return err
			}
			if n := len(cl.cluster.Extenders); n > 0 {
				return fmt.Errorf("--config: it has %d extenders, which have a say in where pods go and are not asked here: follow with a file without them, if some pods interest none", n)
			}
			for i := range cl.completed.Profiles {
				if others := engine.Foreign(&cl.completed.Profiles[i]); len(others) > 0 {
					return fmt.Errorf("--config: the profile %s has plugins of others (%s), which have a say in where pods go and are not asked here", cl.completed.Profiles[i].SchedulerName, strings.Join(others, ", "))
				}
			}
			err := setClientGates(cl.options)
			if err != nil {
				return err
			}
			if o.Log, _, err = log.Open(); err != nil {
				return err
			}
			cl.logNotes(o.Log)
			o.Kubeconfig, o.Master, o.Settings = cl.cluster.Kubeconfig, cl.cluster.Master, cl.cluster.Settings
			o.Report = func(r shadow.Report, nodes, enough int, last bool) error {
				if output == "json" {
					return writeShadowJSON(cmd.OutOrStdout(), r, nodes, enough)
				}
				return writeShadow(cmd.OutOrStdout(), r, nodes, enough, last)
			}
			return roles.Shadow(cmd.Context(), o)
		},
	}
	fs := c.Flags()
	cl.addAsked(fs, "how to reach the API server", "are looked at")
	fs.DurationVar(&o.Every, "every", 10*time.Second, "how often to report")
	fs.DurationVar(&o.For, "for", 0, "how long to follow; 0: until it is interrupted")
	fs.IntVar(&o.Examples, "examples", 5, "how many pods to tell of each outcome that is worth a look")
	fs.StringVarP(&output, "output", "o", "text", "text, or json: an object per report")
	log.Add(fs)
	return c
}

// writeShadowJSON writes a report as a line of JSON.
func writeShadowJSON(w io.Writer, r shadow.Report, nodes, enough int) error {
	return json.NewEncoder(w).Encode(struct {
		shadow.Report
		Bound     int `json:"bound"`
		Explained int `json:"explained"`
		Nodes     int `json:"nodes"`
		Enough    int `json:"enough"` // nodes that can run a pod, for the scheduler
	}{r, r.Bound(), r.Explained(), nodes, enough})
}

// writeShadow writes a report for people: a line, and at the end all of it.
func writeShadow(w io.Writer, r shadow.Report, nodes, enough int, last bool) error {
	bound := r.Bound()
	percent := func(n int) string {
		if bound == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f %%", float64(n)*100/float64(bound))
	}
	if !last {
		_, err := fmt.Fprintf(w, "%s  %d pods bound, %s explained: %d same, %d equal, %d in another order, %d sampled; %d better, %d elsewhere, %d nowhere; %d could be placed%s\n",
			time.Now().Format(time.TimeOnly), bound, percent(r.Explained()), r.Same, r.Equal, r.OtherOrder, r.Sampled, r.Better, r.Elsewhere, r.Nowhere, r.Places, behind(r))
		return err
	}
	fmt.Fprintf(w, "\n%d pods were bound on %d nodes since %s; %s of them are explained.\n\n", bound, nodes, r.Since.Format(time.DateTime), percent(r.Explained()))
	row := func(n int, what string) { fmt.Fprintf(w, "  %8d  %9s  %s\n", n, percent(n), what) }
	row(r.Same, "Berth would have taken the same node")
	row(r.Equal, "another one of the same score")
	row(r.OtherOrder, "one of these two, in another order of the binds that were in flight")
	row(r.Sampled, fmt.Sprintf("a better one, of the few that may not have been among the %d nodes that can run a pod at which the scheduler stops looking", enough))
	row(r.Better, "a better one, for no reason that is known")
	row(r.Elsewhere, "another one: it would not have put the pod on the scheduler's")
	row(r.Nowhere, "none")
	fmt.Fprintf(w, "\n%d pods that the scheduler says fit nowhere would have been placed. Besides, %d pods were bound of which nothing can be said: it was written to them, or to their claims, where they go, or the node has gone; and %d that were not seen before.\n", r.Places, r.Unknown, r.Unseen)
	fmt.Fprintf(w, "\nFrom when a pod was seen to its bind: %s in the median, %s for 99 of 100, %s at most, the queue included.\nBerth's choice of a node: %s in the median, %s for 99 of 100, %s at most.\n",
		seconds(r.Waited.P50), seconds(r.Waited.P99), seconds(r.Waited.Max), seconds(r.Choosing.P50), seconds(r.Choosing.P99), seconds(r.Choosing.Max))
	for _, group := range []struct {
		title string
		all   []shadow.Example
	}{
		{"In another order", r.Examples.OtherOrder}, {"Sampled", r.Examples.Sampled}, {"Better, for no reason that is known", r.Examples.Better},
		{"Not on the scheduler's node", r.Examples.Elsewhere}, {"Nowhere", r.Examples.Nowhere}, {"Could be placed", r.Examples.Places},
	} {
		if len(group.all) > 0 {
			fmt.Fprintf(w, "\n%s:\n", group.title)
		}
		for _, e := range group.all {
			fmt.Fprintf(w, "  %s", e.Pod)
			if e.Node != "" {
				fmt.Fprintf(w, " is on %s", e.Node)
			}
			if e.Berth != "" {
				fmt.Fprintf(w, "; Berth: %s", e.Berth)
			}
			if e.Total != e.Best && e.Node != "" && e.Total != 0 {
				fmt.Fprintf(w, " (%d instead of %d)", e.Best, e.Total)
			}
			if e.Order != "" {
				fmt.Fprintf(w, "; %s", e.Order)
			}
			if e.Why != "" {
				fmt.Fprintf(w, "; %s", e.Why)
			}
			fmt.Fprintln(w)
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// behind says how far a report is behind, if it is.
func behind(r shadow.Report) string {
	if r.Behind < 1 {
		return ""
	}
	return fmt.Sprintf("; %s behind", seconds(r.Behind))
}

// seconds returns a number of seconds for people.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Microsecond).String()
}
