package command

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	componentv1alpha1 "k8s.io/component-base/config/v1alpha1"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/roles"
)

// electionFlags say by which Lease Berth and other schedulers agree who places the pods of names that they share. All but names have
// kube-scheduler's names.
type electionFlags struct {
	elect                                     bool
	namespace, name                           string
	leaseDuration, renewDeadline, retryPeriod time.Duration
	names                                     []string
	allNames                                  bool // all names are shared, whatever names has
}

func (f *electionFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.elect, "leader-elect", true, "with --source=kube, place pods of --leader-elect-names only while holding kube-scheduler's Lease")
	f.addLease(fs)
	fs.StringSliceVar(&f.names, "leader-elect-names", []string{corev1.DefaultSchedulerName}, "the scheduler names that other schedulers may have too: those of Berth's that are among them are placed only with the Lease")
}

// addLease adds the flags of the Lease.
func (f *electionFlags) addLease(fs *pflag.FlagSet) {
	fs.StringVar(&f.namespace, "leader-elect-resource-namespace", "kube-system", "the namespace of the Lease")
	fs.StringVar(&f.name, "leader-elect-resource-name", "kube-scheduler", "the name of the Lease")
	fs.DurationVar(&f.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "after how long others take a Lease that is not renewed; whole seconds")
	fs.DurationVar(&f.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long after its last renewal the holder places pods; shorter than the lease duration")
	fs.DurationVar(&f.retryPeriod, "leader-elect-retry-period", 2*time.Second, "the time between two tries to take the Lease, or to renew it")
}

// into puts flags that are given in the place of what a file says.
func (f *electionFlags) into(fs *pflag.FlagSet, e *componentv1alpha1.LeaderElectionConfiguration) {
	given := func(name string, set func()) {
		if fs.Changed("leader-elect" + name) {
			set()
		}
	}
	given("", func() { e.LeaderElect = &f.elect })
	given("-resource-namespace", func() { e.ResourceNamespace = f.namespace })
	given("-resource-name", func() { e.ResourceName = f.name })
	given("-lease-duration", func() { e.LeaseDuration.Duration = f.leaseDuration })
	given("-renew-deadline", func() { e.RenewDeadline.Duration = f.renewDeadline })
	given("-retry-period", func() { e.RetryPeriod.Duration = f.retryPeriod })
}

// of returns the election of a configuration that has been completed, nil if there is none, or it would be about nothing.
func (f *electionFlags) of(c config.Completed) *roles.Election {
	e := &c.Config.LeaderElection
	if !*e.LeaderElect {
		return nil
	}
	names := f.names
	if f.allNames {
		names = nil
		for _, p := range c.Profiles {
			names = append(names, p.SchedulerName)
		}
	}
	for _, p := range c.Profiles {
		if slices.Contains(names, p.SchedulerName) {
			return &roles.Election{
				Names: names, Namespace: e.ResourceNamespace, Name: e.ResourceName,
				LeaseDuration: e.LeaseDuration.Duration.Truncate(time.Second), // as the Lease says it
				RenewDeadline: e.RenewDeadline.Duration, RetryPeriod: e.RetryPeriod.Duration,
			}
		}
	}
	return nil
}
