package command

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Whoever reads the help of a role finds each flag once, under a heading.
func TestHelpHasEachFlagUnderAHeading(t *testing.T) {
	for role, want := range map[string][]string{
		"all": {"Cluster", "Configuration", "Scheduling", "Leader election", "Public API", "Parts", "Member", "Etcd", "Peers", "TLS", "Metrics and health", "Log"},
		"kube-scheduler": {"Cluster", "Configuration", "Scheduling", "Feature gate", "Leader election", "Secure serving", "Authentication", "Authorization", "Metrics", "Deprecated",
			"Public API", "Parts", "Member", "Etcd", "Peers", "Metrics and health", "Log"},
		"binder":        {"Cluster", "Configuration", "Scheduling", "Leader election", "Member", "Etcd", "TLS", "Metrics and health", "Log"},
		"queue":         {"Parts", "Member", "Etcd", "TLS", "Metrics and health", "Log"},
		"filter-worker": {"Member", "Etcd", "TLS", "Metrics and health", "Log"},
		"score-worker":  {"Member", "Etcd", "TLS", "Metrics and health", "Log"},
		"gateway":       {"Public API", "Member", "Etcd", "TLS", "Metrics and health", "Log"},
		"demo":          {"Cluster", "Scheduling", "Public API", "Parts", "Member", "Etcd", "TLS", "Metrics and health", "Log"},
	} {
		root := New(nil)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{role, "--help"})
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		c, _, err := root.Find([]string{role})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), c.Short+"\n") || !strings.Contains(out.String(), "Usage:\n  berth "+role+" [flags]\n") {
			t.Errorf("%s: help begins %.200q", role, out.String())
		}
		var got []string
		flags := make(map[string]int)
		for line := range strings.Lines(out.String()) {
			if heading, is := strings.CutSuffix(strings.TrimSpace(line), " flags:"); is {
				got = append(got, heading)
			} else if _, flag, is := strings.Cut(line, "--"); is && strings.HasPrefix(strings.TrimLeft(line, " "), "-") {
				flags[strings.Fields(flag)[0]]++
			}
		}
		if !slices.Equal(got, append(want, "Other")) {
			t.Errorf("%s: headings %q, want %q, and Other for --help", role, got, want)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if n := flags[f.Name]; n != 1 {
				t.Errorf("%s: help has --%s %d times", role, f.Name, n)
			}
			if own := sectionOf(f) == otherSection; own != (f.Name == "help" || role == "demo" && f.Name == "exit" || role == "kube-scheduler" && f.Name == "version") {
				t.Errorf("%s: --%s is under %q", role, f.Name, sectionOf(f))
			}
		})
	}
}
