package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/extender"
	"github.com/berth-scheduler/berth/internal/roles"
)

// clusterFlags are the flags of binders.
type clusterFlags struct {
	cluster       roles.Cluster
	configFile    string
	servicesFile  string
	writeTo       string
	schedulerName string
	strategy      string
	shape         []string
	fitResources  []string
	shards        int32
	unschedulable time.Duration
	seesVolumes   bool
	gates         []string
	options       config.Options
	seed          uint64
	election      electionFlags
	inPlace       bool // the flags are kube-scheduler's, and so is what they mean beside a file
	asks          bool // a person does, who names the kubeconfig that counts
	compiledIn    compiledInFlags
	written       []byte // what configFile has

	profiles, contention *bool // nil: the process' flags say it

	completed config.Completed
	unused    []string // what is to be said of plugin services
	notes     []string // what is to be said of flags
}

func (f *clusterFlags) add(fs *pflag.FlagSet) {
	section(fs, clusterSection, f.addCluster)
	section(fs, scheduleSection, f.addSchedule)
}

// addCluster adds the flags of where the cluster is.
func (f *clusterFlags) addCluster(fs *pflag.FlagSet) {
	fs.StringVar(&f.cluster.Source, "source", "", "where the cluster comes from: kube (an API server) or local (manifests kept in etcd) (default: kube if a kubeconfig is given, else local)")
	fs.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "how to reach the API server; with --source=kube and no kubeconfig, the service account of the pod Berth runs in")
	fs.Float32Var(&f.cluster.KubeQPS, "kube-qps", defaultQPS, "requests per second to the API server, for binds; events, conditions and preemptions have their own")
	fs.IntVar(&f.cluster.KubeBurst, "kube-burst", defaultQPS, "burst of the same")
}

// defaultQPS is how many requests per second the API server is sent of a kind, if nothing else is said.
const defaultQPS = 5000

// addSchedule adds the flags of how pods are placed.
func (f *clusterFlags) addSchedule(fs *pflag.FlagSet) {
	f.addPlacing(fs)
	f.addUnschedulable(fs)
	fs.StringSliceVar(&f.gates, gatesFlag, nil, "feature gates of kube-scheduler's, as NAME=true or NAME=false: StorageCapacityScoring, TaintTolerationComparisonOperators, VolumeLimitScaling, or any other at its default")
}

// addUnschedulable adds a flag that kube-scheduler has too.
func (f *clusterFlags) addUnschedulable(fs *pflag.FlagSet) {
	fs.DurationVar(&f.unschedulable, unschedulableFlag, 5*time.Minute, "after how long an unschedulable pod is tried again though nothing has happened that could help it; whole seconds, at least 1s")
}

// addPlacing adds those of them that kube-scheduler has not.
func (f *clusterFlags) addPlacing(fs *pflag.FlagSet) {
	fs.StringVar(&f.schedulerName, "scheduler-name", "default-scheduler", "spec.schedulerName of the pods to schedule")
	fs.StringVar(&f.strategy, "fit-strategy", cluster.LeastAllocated, "how NodeResourcesFit scores: LeastAllocated, MostAllocated or RequestedToCapacityRatio")
	fs.StringSliceVar(&f.shape, "fit-shape", []string{"0:0", "100:10"}, "the function of RequestedToCapacityRatio, as utilization:score points")
	fs.StringSliceVar(&f.fitResources, "fit-resources", []string{"cpu:1", "memory:1"}, "what NodeResourcesFit scores, as resource:weight")
	fs.Int32Var(&f.shards, "shards", 4, "parts the queue is cut into, 1 to 256; 1 where a plugin of others sorts it")
	fs.BoolVar(&f.seesVolumes, "preemption-sees-volumes", false, "where room is looked for, count volumes as detached that only pods use which would be evicted: kube-scheduler does not, and finds nobody to evict on nodes that are full of attached volumes")
	fs.DurationVar(&f.cluster.ReserveForGroups, reserveFlag, 0, "for how long a gang that fits nowhere waits before the room is reserved for it that pods leave which end by themselves; at least 1s, or 0: never; cluster-autoscaler adds no nodes for a gang that has room reserved")
	fs.BoolVar(&f.options.RequireCSIDrivers, "require-csi-drivers", false, "place no pod with a volume of a CSI driver on a node whose CSINode does not list the driver (yet), whatever the CSIDriver says")
	fs.Uint64Var(&f.seed, "seed", 0, "of the order in which nodes of equal score are preferred")
}

// addAsked adds the flags of a command by which a person asks about a cluster: what the kubeconfig is for, and what becomes of the pods of the scheduler names.
func (f *clusterFlags) addAsked(fs *pflag.FlagSet, kubeconfig, pods string) {
	rest := pflag.NewFlagSet("", pflag.ContinueOnError) // of which only the defaults are wanted
	f.addPlacing(rest)
	f.addUnschedulable(rest)
	f.cluster.KubeQPS, f.cluster.KubeBurst = defaultQPS, defaultQPS
	fs.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", kubeconfig+" (default: the service account of the pod Berth runs in)")
	fs.StringVar(&f.cluster.Master, "master", "", "the URL of the API server, instead of that of the kubeconfig")
	f.addFiles(fs)
	fs.Lookup("config").Usage = "kube-scheduler's configuration file; by default its profile is the default one"
	fs.Lookup("write-config-to").Hidden = true
	fs.StringVar(&f.schedulerName, "scheduler-name", "default-scheduler", "spec.schedulerName of the pods that "+pods+", if there is no file")
	fs.StringSliceVar(&f.gates, gatesFlag, nil, "kube-scheduler's feature gates")
}

func (f *clusterFlags) addConfig(fs *pflag.FlagSet) {
	section(fs, configSection, f.addFiles)
	section(fs, electionSection, f.election.add)
}

// addFiles adds the flags of configurations, and of the plugins that these name.
func (f *clusterFlags) addFiles(fs *pflag.FlagSet) {
	fs.StringVar(&f.configFile, "config", "", "a file with a KubeSchedulerConfiguration ("+configv1.SchemeGroupVersion.String()+"); --kubeconfig, --kube-qps and --kube-burst override its clientConnection")
	fs.StringVar(&f.servicesFile, servicesFlag, "", "a file with the plugin services whose plugins the configuration may enable (apiVersion: berth.dev/v1, kind: PluginServices)")
	fs.StringVar(&f.writeTo, "write-config-to", "", "write the configuration, with all defaults, to this file, and exit")
	f.compiledIn.add(fs)
}

// unschedulableFlag has kube-scheduler's name.
const unschedulableFlag = "pod-max-in-unschedulable-pods-duration"

const servicesFlag = "plugin-services"

const reserveFlag = "reserve-for-groups"

// gatesFlag has kube-scheduler's name, too.
const gatesFlag = "feature-gates"

// profileFlags say what a file says in its profiles.
var profileFlags = []string{"scheduler-name", "fit-strategy", "fit-shape", "fit-resources"}

// finish checks the flags and makes the settings of them and of the file. fs says which flags are given.
func (f *clusterFlags) finish(ctx context.Context, fs *pflag.FlagSet) error {
	var cfg *configv1.KubeSchedulerConfiguration
	var err error
	if f.configFile != "" {
		cfg, err = f.fromFile(fs)
	} else {
		cfg, err = f.fromFlags()
	}
	if err != nil {
		return err
	}
	f.connection(fs, cfg)
	f.profiling(fs, cfg)
	f.election.into(fs, &cfg.LeaderElection)
	if f.cluster.Source == "" {
		f.cluster.Source = "local"
		if f.cluster.Kubeconfig != "" {
			f.cluster.Source = "kube"
		}
	}
	switch {
	case f.cluster.Source != "kube" && f.cluster.Source != "local":
		return fmt.Errorf("--source: %q: want kube or local", f.cluster.Source)
	case f.cluster.Source == "local" && f.cluster.Kubeconfig != "":
		return errors.New("--source=local and --kubeconfig exclude each other")
	case f.shards < 1 || f.shards > 256:
		return fmt.Errorf("--shards: %d: want 1 to 256", f.shards)
	case f.unschedulable < time.Second || f.unschedulable%time.Second != 0:
		return fmt.Errorf("--%s: %v: want whole seconds, at least 1s", unschedulableFlag, f.unschedulable)
	case f.cluster.ReserveForGroups < 0 || f.cluster.ReserveForGroups > 0 && f.cluster.ReserveForGroups < time.Second:
		return fmt.Errorf("--%s: %v: want at least 1s, or 0 to reserve nothing", reserveFlag, f.cluster.ReserveForGroups)
	}
	if err := f.setGates(); err != nil {
		return fmt.Errorf("--%s: %w", gatesFlag, err)
	}
	if f.servicesFile != "" {
		if f.cluster.PluginServices, err = f.services(); err != nil {
			return fmt.Errorf("--%s: %w", servicesFlag, err)
		}
	}
	compiled, enabled, err := f.compiledIn.services(cfg, f.written, fs, &f.cluster)
	if err != nil {
		return err
	}
	if known := slices.Concat(f.cluster.PluginServices, compiled); len(known) > 0 {
		f.options.Plugins = config.PluginsOf(known)
	}
	f.cluster.PluginServices, f.cluster.PluginEnvironment = append(f.cluster.PluginServices, enabled...), pluginEnvironment()
	var wrong error // that only plugins know which are compiled in
	if f.cluster.CompiledIn, wrong, err = f.compiledIn.finish(ctx, cfg, f.written, f.configFile, &f.cluster, &f.options); err == nil {
		if f.completed, err = config.Complete(cfg, f.options); err == nil {
			err = wrong
		}
	}
	if err != nil {
		if f.configFile != "" {
			return fmt.Errorf("--config: %s: %w", f.configFile, err)
		}
		return err
	}
	switch {
	case f.inPlace && f.cluster.KubeQPS < 0:
		f.cluster.KubeQPS, f.cluster.KubeBurst = 0, 0 // there is no limit, as client-go has it
	case f.cluster.KubeQPS <= 0 || f.cluster.KubeBurst <= 0:
		return errors.New("--kube-qps and --kube-burst, or clientConnection's qps and burst: must be above 0")
	}
	if by := f.completed.Profiles[0].QueueSort; by != "" {
		if fs.Changed("shards") && f.shards != 1 {
			return fmt.Errorf("--shards: %d: plugin %s sorts the queue, which is in one part then: want 1, or leave the flag out", f.shards, by)
		}
		f.shards = 1
	}
	f.cluster.Settings = cluster.Settings{
		Shards: f.shards, Seed: f.seed, Profiles: f.completed.Profiles,
		InitialBackoffSeconds:   *f.completed.Config.PodInitialBackoffSeconds,
		MaxBackoffSeconds:       *f.completed.Config.PodMaxBackoffSeconds,
		MaxUnschedulableSeconds: int64(f.unschedulable / time.Second),
		PreemptionSeesVolumes:   f.seesVolumes,
	}
	f.cluster.BindTimeouts, f.cluster.Extenders, f.cluster.Candidates = f.completed.BindTimeouts, f.completed.Config.Extenders, f.completed.Candidates
	f.cluster.Coscheduling = f.completed.Coscheduling
	if len(f.cluster.Coscheduling) > 0 && f.cluster.Source != "kube" {
		return fmt.Errorf("--config: %s: plugin Coscheduling: its PodGroups are an API server's, and --source=%s has none: want --source=kube, or PodGroups of scheduling.k8s.io, which need no plugin", f.configFile, f.cluster.Source)
	}
	f.cluster.PluginArguments, f.cluster.PluginSteps = f.completed.Arguments, f.completed.Steps
	f.unused = config.Unused(f.cluster.PluginServices, f.completed.Profiles, f.completed.Steps)
	if len(f.cluster.Extenders) > 0 && f.cluster.Source != "kube" {
		return fmt.Errorf("--config: %s: extenders: they are sent the objects of an API server, and --source=%s has none: want --source=kube", f.configFile, f.cluster.Source)
	}
	f.cluster.Gates = f.options.Gates()
	f.cluster.Election = f.election.of(f.completed)
	if e := f.cluster.Election; e != nil && e.LeaseDuration <= e.RenewDeadline {
		return fmt.Errorf("--leader-elect-lease-duration: it is in whole seconds, so %v, which is not more than --leader-elect-renew-deadline, %v", e.LeaseDuration, e.RenewDeadline)
	}
	text, err := config.Encode(withoutSecrets(f.completed.Config))
	if err != nil {
		return err
	}
	f.cluster.Config, err = yaml.YAMLToJSON(text)
	return err
}

// setGates sets the feature gates.
func (f *clusterFlags) setGates() error {
	if !f.inPlace {
		return f.options.SetGates(f.gates)
	}
	notes, err := f.options.AcceptGates(f.gates)
	f.notes = append(f.notes, notes...)
	return err
}

// withoutSecrets returns a configuration as it is served: without the keys, users and passwords by which extenders know Berth.
func withoutSecrets(cfg *configv1.KubeSchedulerConfiguration) *configv1.KubeSchedulerConfiguration {
	cfg = cfg.DeepCopy()
	for i := range cfg.Extenders {
		e := &cfg.Extenders[i]
		if e.URLPrefix = extender.WithoutUser(e.URLPrefix); e.TLSConfig != nil {
			e.TLSConfig.KeyData = nil
		}
	}
	return cfg
}

// fromFile reads the configuration of --config.
func (f *clusterFlags) fromFile(fs *pflag.FlagSet) (*configv1.KubeSchedulerConfiguration, error) {
	for _, name := range profileFlags {
		if fs.Changed(name) {
			return nil, fmt.Errorf("--config and --%s exclude each other: say it in the file's profiles", name)
		}
	}
	data, err := os.ReadFile(f.configFile)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	cfg, err := config.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", f.configFile, err)
	}
	f.written = data
	return cfg, nil
}

// services reads the file of plugin services.
func (f *clusterFlags) services() ([]config.PluginService, error) {
	data, err := os.ReadFile(f.servicesFile)
	if err != nil {
		return nil, err
	}
	services, err := config.DecodePluginServices(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.servicesFile, err)
	}
	return services, nil
}

// fromFlags makes a configuration of the flags.
func (f *clusterFlags) fromFlags() (*configv1.KubeSchedulerConfiguration, error) {
	if f.schedulerName == "" {
		return nil, errors.New("--scheduler-name: must not be empty")
	}
	strategy := configv1.ScoringStrategy{Type: configv1.ScoringStrategyType(f.strategy)}
	switch f.strategy {
	case cluster.LeastAllocated, cluster.MostAllocated:
	case cluster.RequestedToCapacityRatio:
		shape, err := parseShape(f.shape)
		if err != nil {
			return nil, err
		}
		strategy.RequestedToCapacityRatio = &configv1.RequestedToCapacityRatioParam{Shape: shape}
	default:
		return nil, fmt.Errorf("--fit-strategy: %q: want LeastAllocated, MostAllocated or RequestedToCapacityRatio", f.strategy)
	}
	var err error
	if strategy.Resources, err = parseWeights(f.fitResources); err != nil {
		return nil, err
	}
	return &configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{
		SchedulerName: &f.schedulerName,
		PluginConfig: []configv1.PluginConfig{{
			Name: "NodeResourcesFit",
			Args: runtime.RawExtension{Object: &configv1.NodeResourcesFitArgs{ScoringStrategy: &strategy}},
		}},
	}}}, nil
}

// connection settles how the API server is reached: flags that are given, then the file, then the flags' defaults, which
// are higher than kube-scheduler's. The configuration then says it too. kube-scheduler's flags are for what the file does not say.
func (f *clusterFlags) connection(fs *pflag.FlagSet, cfg *configv1.KubeSchedulerConfiguration) {
	c := &cfg.ClientConnection
	if f.inPlace { // where kube-scheduler's client takes its default
		f.cluster.KubeQPS, f.cluster.KubeBurst = cmp.Or(f.cluster.KubeQPS, defaultQPS), cmp.Or(f.cluster.KubeBurst, defaultQPS)
	}
	given := func(flag string) bool { return !f.inPlace && fs.Changed(flag) }
	if given("kubeconfig") || f.asks && fs.Changed("kubeconfig") || c.Kubeconfig == "" {
		c.Kubeconfig = f.cluster.Kubeconfig
	}
	if given("kube-qps") || c.QPS == 0 {
		c.QPS = f.cluster.KubeQPS
	}
	if given("kube-burst") || c.Burst == 0 {
		c.Burst = int32(min(f.cluster.KubeBurst, 1<<31-1))
	}
	f.cluster.Kubeconfig, f.cluster.KubeQPS, f.cluster.KubeBurst = c.Kubeconfig, c.QPS, int(c.Burst)
}

// profiling settles whether profiles are served, in the same way. kube-scheduler serves them by default.
func (f *clusterFlags) profiling(fs *pflag.FlagSet, cfg *configv1.KubeSchedulerConfiguration) {
	for name, said := range map[string]**bool{"profiling": &cfg.EnableProfiling, "contention-profiling": &cfg.EnableContentionProfiling} {
		flag := fs.Lookup(name)
		if flag != nil && (flag.Changed && !f.inPlace || *said == nil) {
			*said = new(flag.Value.String() == "true")
		}
	}
	f.profiles, f.contention = cfg.EnableProfiling, cfg.EnableContentionProfiling
}

// profile tells the process what of profiles is served.
func (f *clusterFlags) profile(c *roles.Common) {
	if f.profiles != nil {
		c.Profiling = *f.profiles
	}
	if f.contention != nil {
		c.ContentionProfiling = *f.contention
	}
}

// write writes the configuration that Berth would run by.
func (f *clusterFlags) write() error {
	data, err := config.Encode(f.completed.Config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.writeTo, data, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// logNotes says what the files set and Berth ignores.
func (f *clusterFlags) logNotes(log *slog.Logger) {
	for _, note := range f.completed.Notes {
		log.Warn("configuration", "file", f.configFile, "note", note)
	}
	for _, note := range f.unused {
		log.Warn("configuration", "file", f.servicesFile, "note", note)
	}
	for _, note := range f.notes {
		log.Warn("flags", "note", note)
	}
}

func parseWeights(items []string) ([]configv1.ResourceSpec, error) {
	var out []configv1.ResourceSpec
	seen := make(map[string]bool)
	for _, item := range items {
		cut := strings.LastIndex(item, ":")
		var w configv1.ResourceSpec
		if cut > 0 {
			w.Name = item[:cut]
			if _, err := fmt.Sscanf(item[cut+1:], "%d", &w.Weight); err != nil {
				w.Weight = 0
			}
		}
		if w.Weight < 1 || w.Weight > 100 || seen[w.Name] {
			return nil, fmt.Errorf("--fit-resources: %q: want resource:weight, each resource once, weights 1 to 100", item)
		}
		seen[w.Name] = true
		out = append(out, w)
	}
	if len(out) == 0 {
		return nil, errors.New("--fit-resources: must not be empty")
	}
	return out, nil
}

func parseShape(items []string) ([]configv1.UtilizationShapePoint, error) {
	var out []configv1.UtilizationShapePoint
	for _, item := range items {
		var p configv1.UtilizationShapePoint
		n, err := fmt.Sscanf(item, "%d:%d", &p.Utilization, &p.Score)
		increasing := len(out) == 0 || p.Utilization > out[len(out)-1].Utilization
		if err != nil || n != 2 || p.Utilization < 0 || p.Utilization > 100 || p.Score < 0 || p.Score > 10 || !increasing {
			return nil, fmt.Errorf("--fit-shape: %q: want utilization:score with utilizations 0 to 100, increasing, and scores 0 to 10", item)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, errors.New("--fit-shape: must not be empty")
	}
	return out, nil
}
