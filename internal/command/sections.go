package command

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// The headings under which help has the flags of a role.
const (
	memberSection   = "member"
	etcdSection     = "etcd"
	tlsSection      = "TLS"
	opsSection      = "metrics and health"
	logSection      = "log"
	clusterSection  = "cluster"
	scheduleSection = "scheduling"
	configSection   = "configuration"
	electionSection = "leader election"
	publicSection   = "public API"
	partsSection    = "parts"
	peersSection    = "peers"
	otherSection    = "other"

	// kube-scheduler's, beside some that are Berth's too.
	servingSection        = "secure serving"
	authenticationSection = "authentication"
	authorizationSection  = "authorization"
	gateSection           = "feature gate"
	metricsSection        = "metrics"
	deprecatedSection     = "deprecated"
)

// sections are the headings in order: what people look for first comes first.
var sections = []string{
	clusterSection, configSection, scheduleSection, gateSection, electionSection, servingSection, authenticationSection, authorizationSection, metricsSection, deprecatedSection,
	publicSection, partsSection, memberSection, etcdSection, peersSection, tlsSection, opsSection, logSection, otherSection,
}

// sectionAnnotation is on flags that have a heading.
const sectionAnnotation = "berth.dev/section"

// section puts the flags that add adds under a heading.
func section(fs *pflag.FlagSet, name string, add func(*pflag.FlagSet)) {
	part := pflag.NewFlagSet(name, pflag.ContinueOnError)
	add(part)
	part.VisitAll(func(f *pflag.Flag) {
		if fs.Lookup(f.Name) != nil {
			panic("flag redefined: " + f.Name) // as within one set: else nobody would hear what it is set to
		}
		if f.Annotations == nil {
			f.Annotations = make(map[string][]string)
		}
		f.Annotations[sectionAnnotation] = []string{name}
	})
	fs.AddFlagSet(part)
}

// sectionOf returns the heading of a flag.
func sectionOf(f *pflag.Flag) string {
	if is := f.Annotations[sectionAnnotation]; len(is) == 1 {
		return is[0]
	}
	return otherSection
}

// inSections has help list the flags of a command under their headings, as kube-scheduler's does.
func inSections(c *cobra.Command) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		var all cliflag.NamedFlagSets
		for _, name := range sections {
			all.FlagSet(name)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { all.FlagSet(sectionOf(f)).AddFlag(f) })
		if _, err := fmt.Fprintf(c.OutOrStdout(), "Usage:\n  %s\n", c.UseLine()); err != nil {
			return err
		}
		cliflag.PrintSections(c.OutOrStdout(), all, 0)
		return nil
	})
}
