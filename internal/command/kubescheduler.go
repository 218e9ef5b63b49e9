package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/roles"
	"github.com/berth-scheduler/berth/internal/secureport"
)

// inPlaceArguments returns the arguments of a program that is called kube-scheduler, if they are kube-scheduler's flags: those of Berth's command. Nil: they are what they are. What
// is no flag is a command of Berth's, whatever the program is called, so that it can start itself.
func inPlaceArguments(program string, args []string) []string {
	if strings.TrimSuffix(filepath.Base(program), ".exe") == secureport.Component && (len(args) == 0 || strings.HasPrefix(args[0], "-")) {
		return append([]string{secureport.Component}, args...)
	}
	return nil
}

// kubeScheduler is what kube-scheduler's flags say, and some of Berth's besides.
type kubeScheduler struct {
	commonFlags
	cluster clusterFlags
	options roles.AllOptions
	peers   peerFlags
	port    *secureport.Options

	lock, loggingFormat           string
	emulated, compatible          []string
	version                       versionFlag
	contentType                   string
	taken                         ignoredFlags
	bufferSize, jsonBufferSize    resource.QuantityValue
	hiddenMetricsFor              string
	disabledMetrics, moduleLevels []string
}

// ignoredFlags are where the values go of flags that mean nothing.
type ignoredFlags struct {
	flush                time.Duration
	splitText, splitJSON bool
	labels               map[string]string
	labelsFile           string
}

func newKubeScheduler(in *CompiledIn) *kubeScheduler {
	return &kubeScheduler{cluster: clusterFlags{compiledIn: compiledInFlags{in: in}, inPlace: true}, port: secureport.NewOptions()}
}

func kubeSchedulerCommand(in *CompiledIn) *cobra.Command { return newKubeScheduler(in).command() }

func (k *kubeScheduler) command() *cobra.Command {
	c := &cobra.Command{
		Use:   secureport.Component,
		Short: "Run every role in this process, in kube-scheduler's place: with its flags, and nothing that outlives the process",
		RunE:  func(cmd *cobra.Command, _ []string) error { return k.start(cmd) },
	}
	c.SetFlagErrorFunc(explainRemoved)
	k.add(c.Flags())
	c.Flags().SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // kube-scheduler takes --leader_elect too
	return c
}

func (k *kubeScheduler) add(fs *pflag.FlagSet) {
	k.all = fs
	section(fs, clusterSection, func(fs *pflag.FlagSet) {
		fs.StringVar(&k.cluster.cluster.Master, "master", "", "the URL of the API server, instead of that of the kubeconfig")
	})
	section(fs, configSection, k.cluster.addFiles)
	section(fs, scheduleSection, k.cluster.addPlacing)
	section(fs, gateSection, func(fs *pflag.FlagSet) {
		fs.StringSliceVar(&k.cluster.gates, gatesFlag, nil, "feature gates of Kubernetes "+secureport.Release+", as NAME=true or NAME=false: those that mean nothing in Berth are taken with a warning")
		fs.StringSliceVar(&k.emulated, "emulated-version", nil, "the version of Kubernetes whose feature gates are to hold, as kube=1.35: Berth does as "+secureport.Release+" in any case")
		fs.StringSliceVar(&k.compatible, "min-compatibility-version", nil, "the least version of Kubernetes that is in the cluster, as kube=1.35")
	})
	section(fs, electionSection, func(fs *pflag.FlagSet) {
		fs.BoolVar(&k.cluster.election.elect, "leader-elect", true, "place pods only while holding the Lease")
		k.cluster.election.addLease(fs)
		fs.StringVar(&k.lock, "leader-elect-resource-lock", "leases", "the kind of the object by which the leader is elected: leases")
	})
	section(fs, servingSection, k.port.Serving.AddFlags)
	section(fs, authenticationSection, k.port.Authentication.AddFlags)
	section(fs, authorizationSection, k.port.Authorization.AddFlags)
	section(fs, metricsSection, func(fs *pflag.FlagSet) {
		fs.StringVar(&k.hiddenMetricsFor, "show-hidden-metrics-for-version", "", "the release before, 1.35, whose metrics are to be shown that this one hides: Berth hides none")
		fs.StringSliceVar(&k.disabledMetrics, "disabled-metrics", nil, "names of metrics that are not to be served")
		fs.StringToStringVar(&k.taken.labels, "allow-metric-labels", nil, "which values labels of metrics may have: those of Berth's metrics have a bound of their own")
		fs.StringVar(&k.taken.labelsFile, "allow-metric-labels-manifest", "", "a file that says the same")
	})
	section(fs, logSection, k.addLog)
	section(fs, deprecatedSection, k.addDeprecated)

	section(fs, publicSection, func(fs *pflag.FlagSet) {
		fs.StringVar(&k.common.Listen, "listen", "", "where to serve Berth's public API over gRPC, as host:port; empty: nowhere")
		addHTTP(fs, &k.options.Public)
		addCallers(fs, &k.options.Access)
		k.tls.add(fs)
	})
	fs.Lookup("http-listen").DefValue, k.options.HTTPListen = "", ""
	section(fs, partsSection, func(fs *pflag.FlagSet) { addParts(fs, &k.options) })
	section(fs, memberSection, func(fs *pflag.FlagSet) { addIdentity(fs, &k.common) })
	fs.Lookup("lease-ttl").DefValue, k.common.LeaseTTL = aloneTTL.String(), aloneTTL
	fs.Lookup("lease-ttl").Usage += "; with --data-dir, 5s by default"
	section(fs, etcdSection, func(fs *pflag.FlagSet) {
		fs.StringVar(&k.options.DataDir, "data-dir", "", "where the embedded etcd keeps what it records; empty: nothing outlives the process, as with kube-scheduler")
	})
	section(fs, peersSection, k.peers.add)
	section(fs, opsSection, func(fs *pflag.FlagSet) { addConnections(fs, &k.common) })
	section(fs, otherSection, func(fs *pflag.FlagSet) {
		fs.Var(&k.version, "version", "print the version, and exit")
		fs.Lookup("version").NoOptDefVal = "true"
	})
}

func (k *kubeScheduler) addLog(fs *pflag.FlagSet) {
	fs.StringVar(&k.loggingFormat, "logging-format", formatText, "text or json, as kube-scheduler's")
	fs.IntVarP(&k.log.verbosity, "v", "v", 0, "how much is logged: 2 says what becomes of each pod, 4 is debug")
	fs.StringSliceVar(&k.moduleLevels, "vmodule", nil, "pattern=N pairs: how much files log, by their names without .go, of Berth's or of libraries'")
	fs.DurationVar(&k.taken.flush, "log-flush-frequency", 5*time.Second, "how often the log is flushed: Berth writes each line at once")
	fs.BoolVar(&k.taken.splitText, "log-text-split-stream", false, "errors on stderr and the rest on stdout: Berth's log is on stderr")
	fs.BoolVar(&k.taken.splitJSON, "log-json-split-stream", false, "the same, of JSON")
	fs.Var(&k.bufferSize, "log-text-info-buffer-size", "how much of the log is held back: Berth writes each line at once")
	fs.Var(&k.jsonBufferSize, "log-json-info-buffer-size", "the same, of JSON")
}

func (k *kubeScheduler) addDeprecated(fs *pflag.FlagSet) {
	c := &k.cluster.cluster
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "how to reach the API server, if --config does not say it (default: the service account of the pod Berth runs in)")
	fs.Float32Var(&c.KubeQPS, "kube-api-qps", defaultQPS, "requests per second to the API server, for binds, if --config does not say it; events, conditions and preemptions have their own")
	fs.IntVar(&c.KubeBurst, "kube-api-burst", defaultQPS, "burst of the same")
	fs.StringVar(&k.contentType, "kube-api-content-type", protobuf, "the form of what is sent to the API server: Berth sends "+protobuf)
	fs.BoolVar(&k.common.Profiling, "profiling", true, "serve Go's profiles at /debug/pprof/ too, if --config does not say it")
	fs.BoolVar(&k.common.ContentionProfiling, "contention-profiling", true, "with --profiling, tell where goroutines wait for each other")
	k.cluster.addUnschedulable(fs)
}

// aloneTTL is the default of how long a role that fell silent keeps what it holds where nobody else could take it: a process that was held up goes on.
const aloneTTL = 30 * time.Second

// recordedTTL is the default with --data-dir.
const recordedTTL = 5 * time.Second

const protobuf = "application/vnd.kubernetes.protobuf"

// flagFates say what becomes of each of kube-scheduler's flags. Of those that begin with nothing, it is said in the log that they were given.
var flagFates = map[string]string{
	"allow-metric-labels":                          nothing + "the labels of Berth's metrics have a bound of their own",
	"allow-metric-labels-manifest":                 nothing + "the labels of Berth's metrics have a bound of their own",
	"authentication-kubeconfig":                    same,
	"authentication-skip-lookup":                   same,
	"authentication-token-webhook-cache-ttl":       same,
	"authentication-tolerate-lookup-failure":       same,
	"authorization-always-allow-paths":             same + ", but that it is not looked at who asks for one of them",
	"authorization-kubeconfig":                     same,
	"authorization-webhook-cache-authorized-ttl":   same,
	"authorization-webhook-cache-unauthorized-ttl": same,
	"bind-address":                                 same,
	"cert-dir":                                     same,
	"client-ca-file":                               same,
	"config":                                       same,
	"contention-profiling":                         same + "; where --config does not say it, true",
	"disable-http2-serving":                        same,
	"disabled-metrics":                             same,
	"emulated-version":                             nothing + "Berth does as kube-scheduler " + secureport.Release,
	"feature-gates":                                "all of Kubernetes " + secureport.Release + " are taken, of which those below mean something; of others that are not at their defaults, the log says why they change nothing; those that there are not, or that are locked, are refused",
	"help":                                         same,
	"http2-max-streams-per-connection":             same + "; by default it is 32",
	"kube-api-burst":                               same + ", but that the default is 5000, also where --config does not say it",
	"kube-api-content-type":                        nothing + "Berth sends protobuf",
	"kube-api-qps":                                 same + ", but that the default is 5000, also where --config does not say it",
	"kubeconfig":                                   same + ", but that it is also for a --config that names none",
	"leader-elect":                                 same,
	"leader-elect-lease-duration":                  same,
	"leader-elect-renew-deadline":                  same,
	"leader-elect-resource-lock":                   same,
	"leader-elect-resource-name":                   same,
	"leader-elect-resource-namespace":              same,
	"leader-elect-retry-period":                    same,
	"log-flush-frequency":                          nothing + "each line is written at once",
	"log-json-info-buffer-size":                    nothing + "each line is written at once",
	"log-json-split-stream":                        nothing + "the log is on stderr",
	"log-text-info-buffer-size":                    nothing + "each line is written at once",
	"log-text-split-stream":                        nothing + "the log is on stderr",
	"logging-format":                               same + "; what the lines say is Berth's own, but for what becomes of pods",
	"master":                                       same,
	"min-compatibility-version":                    nothing + "Berth reads what every release from 1.34 on serves",
	"permit-address-sharing":                       same,
	"permit-port-sharing":                          same,
	"pod-max-in-unschedulable-pods-duration":       same + ", in whole seconds, and 1s where it is less",
	"profiling":                                    same,
	"requestheader-allowed-names":                  same,
	"requestheader-client-ca-file":                 same,
	"requestheader-extra-headers-prefix":           same,
	"requestheader-group-headers":                  same,
	"requestheader-uid-headers":                    same,
	"requestheader-username-headers":               same,
	"secure-port":                                  same,
	"show-hidden-metrics-for-version":              nothing + "Berth hides no metrics",
	"tls-cert-file":                                same,
	"tls-cipher-suites":                            same,
	"tls-curve-preferences":                        same,
	"tls-min-version":                              same,
	"tls-private-key-file":                         same,
	"tls-sni-cert-key":                             same,
	"v":                                            same + ": [what is logged](operations.md#logs)",
	"version":                                      "prints Berth's version, and the release of Kubernetes in whose scheduler's place it is",
	"vmodule":                                      same + ", of Berth's files; it stays as it is given",
	"write-config-to":                              same,
}

const (
	same    = "as with kube-scheduler"
	nothing = "nothing: "
)

// finish checks the flags, and makes of them what roles are told.
func (k *kubeScheduler) finish(cmd *cobra.Command) error {
	fs := cmd.Flags()
	k.cluster.cluster.Source, k.cluster.election.allNames = "kube", true
	k.beside(fs)
	if k.options.DataDir != "" && !fs.Changed("lease-ttl") { // what the process held before it was killed is in the data, and has to end first
		k.common.LeaseTTL = recordedTTL
	}
	if k.options.Access.By == "" && (k.common.Listen != "" || k.options.HTTPListen != "") {
		k.options.Access.By = roles.AccessKubernetes
	}
	k.options.Access.Kubeconfig = ""
	if k.options.Access.By == roles.AccessKubernetes {
		k.options.Access.Kubeconfig = k.port.Kubeconfig()
	}
	err := errors.Join(k.commonFlags.finish("berth", false), k.tls.allows("--http-listen", k.options.HTTPListen), k.port.Validate(),
		checkAccess(&k.options.Access, k.common.Listen, k.options.HTTPListen), k.cluster.finish(cmd.Context(), fs), checkBatch(k.options.Queue), checkParts(k.options), k.check())
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(flagFates)) {
		if why, ok := strings.CutPrefix(flagFates[name], nothing); ok && fs.Changed(name) && fs.Lookup(name).Value.String() != fs.Lookup(name).DefValue {
			k.cluster.notes = append(k.cluster.notes, fmt.Sprintf("--%s changes nothing: %s", name, why))
		}
	}
	if err := secureport.SetGates(k.cluster.options.Serving); err != nil {
		return fmt.Errorf("--%s: %w", gatesFlag, err)
	}
	if err := setClientGates(k.cluster.options); err != nil {
		return err
	}
	if k.options.Peers, err = k.peers.of(k.options.DataDir, nil); err != nil {
		return err
	}
	k.common.OpsPort = k.port
	k.common.DisabledMetrics = k.disabledMetrics
	switch e := k.cluster.cluster.Election; {
	case e == nil:
		k.cluster.notes = append(k.cluster.notes, "--leader-elect=false: nothing keeps other schedulers, another process of Berth's among them, from placing the same pods")
	case e.Name != "kube-scheduler" || e.Namespace != "kube-system":
		k.cluster.notes = append(k.cluster.notes, fmt.Sprintf("the Lease is %s/%s: a scheduler that holds kube-scheduler's own, kube-system/kube-scheduler, places the same pods", e.Namespace, e.Name))
	}
	k.options.Cluster = k.cluster.cluster
	k.cluster.profile(&k.common)
	k.log.level = "info"
	return nil
}

// setClientGates sets client-go's feature gates, which it reads when it is first asked for a client. What the environment had counts no more, as with kube-scheduler.
func setClientGates(o config.Options) error {
	for _, name := range slices.Sorted(maps.Keys(o.Client)) {
		if err := os.Setenv("KUBE_FEATURE_"+name, strconv.FormatBool(o.Client[name])); err != nil {
			return fmt.Errorf("--%s: %w", gatesFlag, err)
		}
	}
	return nil
}

// besideFile are the flags that are for what is there without --config, as kube-scheduler has them.
var besideFile = []string{"profiling", "contention-profiling", "kube-api-qps", "kube-api-burst"}

// beside settles what flags mean beside a file, and where Berth takes less than kube-scheduler.
func (k *kubeScheduler) beside(fs *pflag.FlagSet) {
	if k.cluster.configFile != "" {
		for _, name := range besideFile {
			f := fs.Lookup(name)
			if !f.Changed {
				continue
			}
			k.cluster.notes = append(k.cluster.notes, fmt.Sprintf("--%s changes nothing: --config says it", name))
			_ = f.Value.Set(f.DefValue) // which it has been set to before
		}
	}
	if k.cluster.unschedulable < time.Second && k.cluster.unschedulable >= 0 {
		k.cluster.notes = append(k.cluster.notes, fmt.Sprintf("--%s: %v is taken for 1s", unschedulableFlag, k.cluster.unschedulable))
		k.cluster.unschedulable = time.Second
	}
}

// check checks the flags that nobody else does.
func (k *kubeScheduler) check() (err error) {
	if k.log.modules, err = logs.ParseModules(k.moduleLevels); err != nil {
		return fmt.Errorf("--vmodule: %w", err)
	}
	switch k.log.format = k.loggingFormat; k.loggingFormat {
	case formatJSON:
	case formatText:
		k.log.format = formatKlog
	default:
		return fmt.Errorf("--logging-format: %q: want text or json", k.loggingFormat)
	}
	switch {
	case k.lock != "leases":
		return fmt.Errorf("--leader-elect-resource-lock: %q: want leases", k.lock)
	case k.log.verbosity < 0 || k.log.verbosity > math.MaxInt32:
		return fmt.Errorf("-v: %d: want 0 or more", k.log.verbosity)
	case k.hiddenMetricsFor != "" && k.hiddenMetricsFor != previousRelease:
		return fmt.Errorf("--show-hidden-metrics-for-version: %q: want %s, the release before", k.hiddenMetricsFor, previousRelease)
	}
	return cmp.Or(checkVersions("emulated-version", k.emulated), checkVersions("min-compatibility-version", k.compatible))
}

// The releases that kube-scheduler 1.36 emulates, or is compatible with.
const (
	oldestRelease   = "1.33"
	previousRelease = "1.35"
)

// checkVersions checks versions of components.
func checkVersions(flag string, versions []string) error {
	for _, text := range versions {
		v, found := strings.CutPrefix(text, "kube=")
		if !found && strings.Contains(text, "=") {
			return fmt.Errorf("--%s: %q: the only component is kube", flag, text)
		}
		is, err := version.Parse(v)
		if err != nil {
			return fmt.Errorf("--%s: %q: want a version, as kube=%s", flag, text, previousRelease)
		}
		if is.LessThan(version.MustParse(oldestRelease)) || is.GreaterThan(version.MustParse(secureport.Release)) {
			return fmt.Errorf("--%s: %q: want %s to %s", flag, text, oldestRelease, secureport.Release)
		}
	}
	return nil
}

func (k *kubeScheduler) start(cmd *cobra.Command) error {
	if k.version.asked {
		fmt.Fprintf(cmd.OutOrStdout(), "Berth %s, in the place of kube-scheduler v%s\n", cmp.Or(member.Build(), "unknown"), secureport.Release)
		return nil
	}
	if err := k.finish(cmd); err != nil {
		return err
	}
	if k.cluster.writeTo != "" {
		return k.cluster.write()
	}
	return k.run(cmd.Context(), secureport.Component, func(ctx context.Context) error {
		k.cluster.logNotes(k.common.Log)
		useThreads(minThreads)
		return roles.All(ctx, k.common, k.options)
	})
}

// versionFlag is --version, which may be given a value.
type versionFlag struct{ asked bool }

// String implements pflag.Value.
func (v *versionFlag) String() string { return fmt.Sprint(v.asked) }

// Type implements pflag.Value.
func (v *versionFlag) Type() string { return "version" }

// Set implements pflag.Value.
func (v *versionFlag) Set(text string) error {
	switch {
	case text == "false":
		v.asked = false
	case text == "true" || text == "raw":
		v.asked = true
	case strings.HasPrefix(text, "v"): // kube-scheduler says from then on that it is of this version
	default:
		return fmt.Errorf("%q: want true, false, raw or a version", text)
	}
	return nil
}
