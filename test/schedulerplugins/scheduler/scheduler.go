// Package scheduler stands in for k8s.io/kubernetes/pkg/scheduler in the integration tests of scheduler-plugins and of kube-scheduler: New makes the kube-scheduler that they ask for, or, if the environment names the program of a Berth, a Berth with the same profiles.
package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/schedulinggates"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // arguments of plugins

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/test/schedulerplugins/relay"
)

// Environment variables.
const (
	// Program names the program of a Berth, which has the plugins. Without it, New makes a kube-scheduler.
	Program = "BERTH_PROGRAM"
	// InProcess, if it is not empty, has the plugins be those of the test, in its process, and not those that the Berth has compiled in: the program is relay/berth.
	InProcess = "IN_PROCESS"
	// AsBerth, if it is not empty, has a kube-scheduler be configured as a Berth would be.
	AsBerth = "AS_BERTH"
)

// Started is what a process says in which New has started a Berth.
const Started = "Berth is ready"

// Differs is what a process says before each thing that a Berth's configuration has otherwise than the test's.
const Differs = "Berth has it otherwise: "

// readyWithin is after which time a Berth that is started hangs.
const readyWithin = 4 * time.Minute

// logTail is how many bytes of the log of a Berth are shown.
const logTail = 16 << 10

// Option is an option of New.
type Option = scheduler.Option

// What the tests use besides.
var (
	NewInformerFactory             = scheduler.NewInformerFactory
	WithExtenders                  = scheduler.WithExtenders
	WithFrameworkOutOfTreeRegistry = scheduler.WithFrameworkOutOfTreeRegistry
	WithKubeConfig                 = scheduler.WithKubeConfig
	WithParallelism                = scheduler.WithParallelism
	WithPercentageOfNodesToScore   = scheduler.WithPercentageOfNodesToScore
	WithPodInitialBackoffSeconds   = scheduler.WithPodInitialBackoffSeconds
	WithPodMaxBackoffSeconds       = scheduler.WithPodMaxBackoffSeconds
	WithProfiles                   = scheduler.WithProfiles
)

// Scheduler is a kube-scheduler, or a Berth, of which nothing is to be seen from inside but how many nodes it has.
type Scheduler struct {
	*scheduler.Scheduler
	process *kubetest.Process // nil: it is a kube-scheduler
	plugins *inProcess        // nil: they are elsewhere
	dir     string
	over    context.Context // ends with it
	stopped chan struct{}   // closed when it no longer runs
}

// last is the Berth that was made last. When its test is over, the next one begins without it.
var last struct {
	sync.Mutex
	*Scheduler
}

// New makes a scheduler. A Berth is ready, and places pods from now on.
func New(ctx context.Context, client kubernetes.Interface, objects informers.SharedInformerFactory, others dynamicinformer.DynamicSharedInformerFactory, recorders profile.RecorderFactory, options ...Option) (*Scheduler, error) {
	program := os.Getenv(Program)
	if program == "" {
		if os.Getenv(AsBerth) != "" {
			cfg, _, err := valuesOf(options).configuration()
			if err != nil {
				return nil, err
			}
			options = append(options, scheduler.WithProfiles(cfg.Profiles...))
		}
		s, err := scheduler.New(ctx, client, objects, others, recorders, options...)
		return &Scheduler{Scheduler: s}, err
	}
	last.Lock()
	defer last.Unlock()
	if s := last.Scheduler; s != nil && s.over.Err() != nil {
		<-s.stopped
	}
	s, err := startBerth(ctx, program, valuesOf(options))
	if err != nil {
		return nil, err
	}
	fmt.Println(Started)
	last.Scheduler = s
	return s, nil
}

// Run runs it until ctx ends.
func (s *Scheduler) Run(ctx context.Context) {
	if s.process == nil {
		s.Scheduler.Run(ctx)
		return
	}
	defer close(s.stopped)
	defer os.RemoveAll(s.dir)
	if s.plugins != nil {
		defer s.plugins.end()
	}
	select {
	case <-ctx.Done():
		s.process.Stop()
	case <-s.process.Done():
		fmt.Printf("Berth has ended: %v\n", s.process.Err())
	}
	fmt.Printf("log of Berth:\n%s\n", s.process.LogTail(logTail))
}

// startBerth starts a Berth and waits until it is ready. It is killed when this process ends.
func startBerth(ctx context.Context, program string, of values) (_ *Scheduler, err error) {
	dir, err := os.MkdirTemp("", "berth")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	cfg, differs, err := of.configuration()
	if err != nil {
		return nil, err
	}
	text, err := encode(cfg)
	if err != nil {
		return nil, err
	}
	for _, what := range differs {
		fmt.Println(Differs + what)
	}
	configFile, kubeconfig := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig")
	if err := errors.Join(os.WriteFile(configFile, text, 0o600), writeKubeconfig(kubeconfig, of.kubeConfig)); err != nil {
		return nil, err
	}
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		return nil, err
	}
	asked := "127.0.0.1:" + ports[0]
	var plugins *inProcess
	if os.Getenv(InProcess) != "" {
		if plugins, err = of.serve(ctx, dir, cfg.Profiles, configFile, kubeconfig); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				plugins.end()
			}
		}()
	}
	args := []string{"env", "TMPDIR=" + dir, relay.At + "=" + filepath.Join(dir, pluginsFile), program, "all", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:0", "--http-listen", "", "--metrics-listen", asked, "--kubeconfig", kubeconfig, "--config", configFile}
	if of.podMaxInUnschedulable > 0 {
		args = append(args, "--pod-max-in-unschedulable-pods-duration", of.podMaxInUnschedulable.String())
	}
	process, err := kubetest.StartProcess("berth", filepath.Join(dir, "log"), args...)
	if err != nil {
		return nil, err
	}
	if err := awaitReady(ctx, process, func(ctx context.Context) error {
		return errors.Join(kubetest.GetOK(ctx, "http://"+asked+"/readyz"), of.pluginsReady(ctx, dir, cfg.Profiles))
	}); err != nil {
		process.Stop()
		return nil, fmt.Errorf("%w\n%s", err, process.LogTail(logTail))
	}
	return &Scheduler{
		Scheduler: &scheduler.Scheduler{Cache: &nodeCount{url: "http://" + asked + "/metrics"}},
		process:   process, plugins: plugins, dir: dir, over: ctx, stopped: make(chan struct{}),
	}, nil
}

// awaitReady waits until ready returns nil.
func awaitReady(ctx context.Context, process *kubetest.Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-process.Done():
			return fmt.Errorf("berth has ended: %w", process.Err())
		case <-ctx.Done():
			return fmt.Errorf("berth is not ready: %w", err)
		}
	}
}

// pluginsReady returns nil if each profile that has plugins has its process, with the plugins made: New returns when they are.
func (of values) pluginsReady(ctx context.Context, dir string, profiles []config.KubeSchedulerProfile) error {
	sockets, err := filepath.Glob(filepath.Join(dir, "berth-plugins-*", "*.sock"))
	if err != nil {
		return err
	}
	for i := range profiles {
		if of.uses(profiles[i].Plugins) {
			if len(sockets) == 0 {
				return errors.New("plugins of a profile have no process")
			}
			conn, err := grpc.NewClient("unix:"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := pluginv1.NewPluginServiceClient(conn).Describe(ctx, &pluginv1.DescribeRequest{}); err != nil {
				return err
			}
			sockets = sockets[1:]
		}
	}
	return nil
}

// uses reports whether plugins are among those of the test.
func (of values) uses(p *config.Plugins) bool {
	return slices.ContainsFunc([]config.PluginSet{p.PreEnqueue, p.PreFilter, p.Filter, p.PostFilter, p.PreScore, p.Score, p.Reserve, p.Permit, p.PreBind, p.Bind, p.PostBind, p.MultiPoint}, func(set config.PluginSet) bool {
		return slices.ContainsFunc(set.Enabled, func(e config.Plugin) bool { return of.registry[e.Name] != nil })
	})
}

// values are what options set.
type values struct {
	kubeConfig *restclient.Config
	profiles   []config.KubeSchedulerProfile
	registry   frameworkruntime.Registry
	// podMaxInUnschedulable is how long a pod is left that fits nowhere, and nothing happens; 0: as long as kube-scheduler leaves it.
	podMaxInUnschedulable time.Duration
}

// valuesOf asks options what they set. Where they keep it is kube-scheduler's own.
func valuesOf(options []Option) (of values) {
	kept := reflect.New(reflect.TypeFor[Option]().In(0).Elem())
	for _, option := range options {
		reflect.ValueOf(option).Call([]reflect.Value{kept})
	}
	read(kept, "kubeConfig", &of.kubeConfig)
	read(kept, "profiles", &of.profiles)
	read(kept, "frameworkOutOfTreeRegistry", &of.registry)
	read(kept, "podMaxInUnschedulablePodsDuration", &of.podMaxInUnschedulable)
	return of
}

func read[T any](of reflect.Value, name string, into *T) {
	field := of.Elem().FieldByName(name)
	*into = reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(T)
}

// configuration returns one with the profiles as they are, but for what Berth would refuse, and that.
func (of values) configuration() (_ *config.KubeSchedulerConfiguration, differs []string, err error) {
	defaults := new(configv1.KubeSchedulerConfiguration)
	scheme.Scheme.Default(defaults)
	cfg := new(config.KubeSchedulerConfiguration)
	if err := scheme.Scheme.Convert(defaults, cfg, nil); err != nil {
		return nil, nil, err
	}
	cfg.LeaderElection.LeaderElect = false // nobody else is there, and the kube-scheduler of a test asks for no Lease either
	everywhere := cfg.Profiles[0].Plugins.MultiPoint.Enabled
	if len(of.profiles) > 0 {
		cfg.Profiles = nil
		for i := range of.profiles {
			cfg.Profiles = append(cfg.Profiles, *of.profiles[i].DeepCopy())
		}
	}
	for i := range cfg.Profiles {
		p := &cfg.Profiles[i]
		// New takes profiles as they are, a file adds what is there by default.
		p.Plugins.MultiPoint.Disabled = []config.Plugin{{Name: "*"}}
		isBinder := func(e config.Plugin) bool { return e.Name == defaultbinder.Name }
		if slices.ContainsFunc(p.Plugins.Bind.Disabled, isBinder) && slices.Equal(p.Plugins.MultiPoint.Enabled, slices.DeleteFunc(slices.Clone(everywhere), isBinder)) {
			p.Plugins.MultiPoint.Enabled = everywhere // it is the same, and Berth takes all that is there by default, of which it does not have everything
		}
		enters := &p.Plugins.PreEnqueue
		for _, name := range []string{schedulinggates.Name, defaultpreemption.Name} {
			is := func(e config.Plugin) bool { return e.Name == name }
			off := slices.ContainsFunc(enters.Disabled, func(e config.Plugin) bool { return e.Name == "*" || e.Name == name })
			switch everywhere := slices.ContainsFunc(p.Plugins.MultiPoint.Enabled, is); {
			case slices.ContainsFunc(enters.Enabled, is), everywhere && !off, !everywhere && name == defaultpreemption.Name:
				continue
			}
			differs = append(differs, fmt.Sprintf("profiles[%d].plugins.preEnqueue has %s, without which Berth refuses a profile", i, name))
			enters.Enabled = append(enters.Enabled, config.Plugin{Name: name})
		}
		if len(p.Plugins.QueueSort.Enabled) == 0 { // in a file, all profiles have to say the same
			p.Plugins.QueueSort.Enabled = []config.Plugin{{Name: queuesort.Name}}
		}
	}
	return cfg, differs, nil
}

func encode(cfg *config.KubeSchedulerConfiguration) ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		return nil, errors.New("there is no YAML")
	}
	var out bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion).Encode(cfg, &out); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return out.Bytes(), nil
}

// writeKubeconfig writes how the tests reach the API server.
func writeKubeconfig(file string, c *restclient.Config) error {
	if c == nil {
		return errors.New("the test has no API server")
	}
	url := c.Host
	if !strings.Contains(url, "://") {
		url = "https://" + url
	}
	out := clientcmdapi.NewConfig()
	out.Clusters["test"] = &clientcmdapi.Cluster{Server: url, CertificateAuthority: c.CAFile, CertificateAuthorityData: c.CAData, InsecureSkipTLSVerify: c.Insecure}
	out.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Token: c.BearerToken}
	out.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	out.CurrentContext = "test"
	return clientcmd.WriteToFile(*out, file)
}
