package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// Where the cluster comes from, as Berth's flag calls it.
const (
	sourceKube  = "kube"
	sourceLocal = "local"
)

// Names of parties of the network that are not Berth's.
const (
	etcdParty = "etcd"
	apiParty  = "API server"
)

const (
	etcdMembers = 3
	leaseTTL    = 3 * time.Second
	calmTime    = 3 * time.Second  // of work before the first fault
	startLimit  = 60 * time.Second // for the first bind
	endLimit    = 3 * time.Minute  // for the API server and etcd to answer when all faults are over
)

// config says what to run.
type config struct {
	seed     uint64
	duration time.Duration // of the faults
	count    int           // of the faults; 0: as many as there are in duration
	settle   time.Duration // for everything that fits to be bound when they are over
	rate     float64       // pods per second, besides probes
	only     []Kind        // nil: all kinds that are possible
	source   string        // sourceKube, or sourceLocal
	tls      bool          // between all processes
	users    bool          // etcd lets in only its users, which berth etcd-init makes; with tls
	berth    string        // path of the binary
	older    string        // path of another, by which faults replace members; empty: the same
	// noPlugins says that there are no plugin services: the older binary does not know them.
	noPlugins bool
	yoda      string // path of the berth-yoda binary; empty: there are no cards
	crd       string // path of the definition of the resource that collectors of cards write
	dir       string // of the history and of everything else that is left behind; it must not exist
}

// gangs reports whether there are gangs: an older Berth may not know them, and would place each of their pods by itself.
func (c config) gangs() bool { return c.older == "" }

// cards reports whether there are cards: Yoda reads of them at an API server, and an older Berth may not know what plugins choose.
func (c config) cards() bool {
	return c.yoda != "" && c.source == sourceKube && c.older == ""
}

const historyFile = "history.jsonl"

// bindTimeout is how long pods wait for their claims to be bound, so that some wait in vain.
const bindTimeout = 6 * time.Second

// schedulerConfig is the configuration of binders.
var schedulerConfig = fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: VolumeBinding
    args: {bindTimeoutSeconds: %d}
`, bindTimeout/time.Second)

// run runs Berth with faults, and leaves a history. An error is the harness's own, not a violation.
func run(ctx context.Context, cfg config) (err error) {
	if err := os.MkdirAll(filepath.Dir(cfg.dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(cfg.dir, 0o755); err != nil {
		return err
	}
	record, err := NewRecorder(filepath.Join(cfg.dir, historyFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, record.Close()) }()
	record.Add(Entry{Mode: &Mode{Source: cfg.source, TLS: cfg.tls, Began: record.Began()}})
	w := &world{cfg: cfg, record: record, network: newNetwork()}
	defer w.network.Close()

	// 1. What Berth needs: certificates, an etcd whose members are behind proxies, and an API server with a proxy.
	if cfg.tls {
		if w.ids, err = newIdentities(cfg.dir); err != nil {
			return fmt.Errorf("make certificates: %w", err)
		}
	}
	w.etcd, err = startEtcd(ctx, cfg.dir, etcdMembers, w.network, w.ids)
	defer w.etcd.stop()
	if err != nil {
		return err
	}
	if cfg.source == sourceKube {
		var options kubetest.Options
		if cfg.gangs() {
			options.APIServerFlags = kubetest.PodGroups
		}
		if w.control, err = kubetest.Start(ctx, filepath.Join(cfg.dir, "control-plane"), options); err != nil {
			return err
		}
		defer w.control.Stop()
		client, err := kubetest.NewClient(w.control.Kubeconfig())
		if err != nil {
			return err
		}
		w.store = kubeStore{client}
		if w.api, err = startAPIProxy(w.control.URL(), filepath.Join(cfg.dir, "control-plane", "certs"), cfg.seed, record); err != nil {
			return err
		}
		defer w.api.stop()
	}
	if cfg.cards() {
		if w.collectors, err = newCollectors(ctx, w.control.Kubeconfig(), cfg.crd); err != nil {
			return fmt.Errorf("make collectors: %w", err)
		}
	}

	// 2. Berth, each process behind a proxy.
	if !cfg.noPlugins {
		if w.plugins, err = newPluginProcess(cfg.dir, record); err != nil {
			return err
		}
		defer w.plugins.stop()
	}
	if err := w.assemble(); err != nil {
		return err
	}
	defer w.crew.stop()
	if w.yoda != nil {
		defer w.yoda.stop()
	}
	if cfg.users {
		if err := w.etcd.admit(ctx, cfg.berth, cfg.source, w.crew.etcd); err != nil {
			return err
		}
	}
	if cfg.source == sourceLocal {
		as, err := w.ids.grpcCredentials()
		if err != nil {
			return err
		}
		local, err := newLocalStore(w.etcd.etcdClient, as, w.crew.listening(roleGateway))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, local.close()) }()
		w.store = local
	}

	// 3. Everything that changes is recorded.
	watching, stop := context.WithCancelCause(ctx)
	var watches sync.WaitGroup
	watches.Go(func() { stop(w.recordKeys(watching)) })
	if w.control != nil {
		watches.Go(func() { stop(w.recordObjects(watching)) })
	}
	defer func() { stop(nil); watches.Wait() }()

	// 4. Work and faults.
	if err := w.work(watching); err != nil {
		return errors.Join(err, cause(watching))
	}
	return nil
}

// cause says why the recording has ended, if it has.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// world is everything of a run.
type world struct {
	cfg        config
	control    *kubetest.ControlPlane // nil: the cluster is the local source
	api        *apiProxy              // nil, too
	ids        *identities            // nil: no TLS
	store      store
	etcd       *etcdCluster
	record     *Recorder
	network    *Network
	crew       *crew
	plugins    *pluginProcess  // nil: there are no plugin services
	yoda       *serviceProcess // nil: there are no cards
	collectors *collectors     // nil, too
	recorded   atomic.Int64    // the newest revision of Berth's etcd that is in the history
	objects    atomic.Int64    // the newest resource version
	bound      map[string]bool // uids of pods that were seen to be bound
	binds      atomic.Int64    // how many

	seen atomic.Pointer[func(*Object)] // is told each change of an object that is recorded; nil: nobody is
}

// assemble makes the crew and its proxies. Nothing runs yet.
func (w *world) assemble() error {
	var fronts []string
	for _, member := range w.etcd.client {
		front, err := w.network.Front(etcdParty, member)
		if err != nil {
			return err
		}
		fronts = append(fronts, w.ids.scheme()+front)
	}
	metrics, err := w.ids.metricsHTTP()
	if err != nil {
		return err
	}
	w.crew = &crew{
		berth: w.cfg.berth, older: w.cfg.older, dir: w.cfg.dir, cluster: []string{"--source", w.cfg.source}, etcd: fronts, leaseTTL: leaseTTL,
		network: w.network, record: w.record, ids: w.ids, http: metrics, members: map[string]*member{}, asked: map[*kubetest.Process]ending{},
	}
	config, text := filepath.Join(w.cfg.dir, "config.yaml"), schedulerConfig
	var services []string
	if w.plugins != nil {
		text += w.plugins.profiles()
		services = append(services, w.plugins.services())
	}
	if w.control != nil {
		kubeconfig, err := w.kubeconfig()
		if err != nil {
			return err
		}
		w.crew.cluster = append(w.crew.cluster, "--kubeconfig", kubeconfig)
		if w.cfg.cards() {
			var service string
			if w.yoda, service, err = newYoda(w.cfg, kubeconfig, w.record, w.network); err != nil {
				return err
			}
			text += yodaProfile()
			services = append(services, service)
		}
	}
	if len(services) > 0 {
		name, err := writeServices(w.cfg.dir, services...)
		if err != nil {
			return err
		}
		w.crew.cluster = append(w.crew.cluster, "--plugin-services", name)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	w.crew.cluster = append(w.crew.cluster, "--config", config)
	for _, p := range size {
		for i := range p.n + 1 { // one more, that faults may add
			if err := w.crew.enlist(p.role, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// kubeconfig writes one by which Berth reaches the API server through the proxies, and returns its path.
func (w *world) kubeconfig() (string, error) {
	front, err := w.network.Front(apiParty, w.api.address)
	if err != nil {
		return "", err
	}
	admin, err := os.ReadFile(w.control.Kubeconfig())
	if err != nil {
		return "", err
	}
	name := filepath.Join(w.cfg.dir, "kubeconfig")
	return name, os.WriteFile(name, []byte(strings.ReplaceAll(string(admin), w.control.URL(), "https://"+front)), 0o600)
}

// recordKeys records what changes in Berth's etcd, objects among it if they are there.
func (w *world) recordKeys(ctx context.Context) error {
	var reader localReader
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := w.etcd.watch(ctx, prefix, behind(prefix), 1, func(e etcdEvent) {
		defer w.recorded.Store(int64(e.KV.Mod))
		if strings.HasPrefix(string(e.KV.Key), prefix+keyLocal) {
			o, err := reader.read(e)
			if err != nil {
				failed = err
				cancel()
			} else if o != nil {
				w.recordObject(o)
			}
			return
		}
		k := &Key{Revision: int64(e.KV.Mod), Name: strings.TrimPrefix(string(e.KV.Key), prefix), Deleted: e.Type == "DELETE"}
		if !k.Deleted {
			k.Created, k.Value = int64(e.KV.Created), string(e.KV.Value)
		}
		w.record.Add(Entry{Key: k})
	})
	return errors.Join(failed, err)
}

// recordObject records a change of an object. It is for one goroutine.
func (w *world) recordObject(o *Object) {
	w.record.Add(Entry{Object: o})
	w.objects.Store(o.Revision)
	if w.bound == nil {
		w.bound = map[string]bool{}
	}
	if w.collectors != nil {
		w.collectors.see(o)
	}
	if seen := w.seen.Load(); seen != nil {
		(*seen)(o)
	}
	if o.On != "" && !w.bound[o.UID] {
		w.bound[o.UID] = true
		w.binds.Add(1)
	}
}

// recordObjects records what changes of pods, nodes, volumes, claims and PodGroups, and of Scvs if there are any.
func (w *world) recordObjects(ctx context.Context) error {
	reader := objectReader{seen: map[string]bool{}}
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last := registryPods
	if w.collectors != nil {
		last = registryScvs
	}
	etcd := etcdClient{urls: []string{w.control.Etcd().Endpoint()}}
	err := etcd.watch(ctx, registryNode, behind(last), 1, func(e etcdEvent) {
		o, err := reader.read(e)
		if err != nil {
			failed = err
			cancel()
			return
		}
		if o != nil {
			w.recordObject(o)
		}
	})
	return errors.Join(failed, err)
}

// work is the run itself.
func (w *world) work(ctx context.Context) error {
	for _, p := range size {
		for i := range p.n {
			if err := w.crew.start(memberID(p.role, i)); err != nil {
				return err
			}
		}
	}
	if w.plugins != nil {
		if err := w.plugins.start(); err != nil {
			return err
		}
	}
	if w.yoda != nil {
		if err := w.yoda.start(); err != nil {
			return err
		}
	}
	load := newWorkload(w.store, w.record, w.cfg.seed, w.cfg.rate)
	load.seats, load.cards, load.gangs = w.plugins != nil, w.yoda != nil, w.cfg.gangs()
	starting, started := context.WithTimeout(ctx, startLimit)
	err := load.start(starting)
	started()
	if err != nil {
		return err
	}
	playing, enough := context.WithCancel(ctx)
	play := &controllers{store: w.store, seed: w.cfg.seed}
	if kube, ok := w.store.(kubeStore); ok {
		play.client = kube.client
	}
	var players sync.WaitGroup
	players.Go(func() { play.run(playing) })
	if w.collectors != nil {
		players.Go(func() { w.collectors.run(playing) })
	}
	defer players.Wait()
	defer enough()
	working, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	workers.Go(func() { load.run(working) })
	defer workers.Wait()
	defer stop()
	if err := w.await(ctx, startLimit, "the first bind", func() (bool, error) { return w.binds.Load() > 0, nil }); err != nil {
		return err
	}

	// 1. Without faults, then with.
	w.record.Add(Entry{Mark: Calm})
	sleep(ctx, calmTime)
	w.record.Add(Entry{Mark: Faulty})
	n := nemesis{
		store: w.store, crew: w.crew, etcd: w.etcd, network: w.network, api: w.api, control: w.control, ids: w.ids, record: w.record, recorded: &w.recorded, binds: &w.binds,
		controllers: play, plugins: w.plugins, yoda: w.yoda, collectors: w.collectors, seen: &w.seen,
	}
	err = n.run(ctx, NewPlan(w.cfg.seed, leaseTTL, w.cfg.only), w.cfg.duration, w.cfg.count)
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}

	// 2. Without faults again, until everything is bound that fits.
	stop()
	workers.Wait()
	w.record.Add(Entry{Mark: Healing})
	shrinking, cancel := context.WithTimeout(ctx, endLimit)
	err = load.shrink(shrinking)
	cancel()
	if err != nil {
		return err
	}
	// That something is not bound in time is for the checker to say.
	settle := func() error {
		return w.await(ctx, w.cfg.settle, "pods", func() (bool, error) { return w.settled(ctx) })
	}
	if settle() == nil { // else whoever takes the rest of the volumes would hide that
		load.claimRest(ctx)
		_ = settle()
	}
	enough()
	players.Wait()
	w.record.Add(Entry{Mark: End})

	// 3. The history has everything when it has what is written last.
	w.crew.stop()
	if err := w.etcd.put(ctx, prefix+"end", ""); err != nil {
		return err
	}
	last, err := w.etcd.get(ctx, prefix+"end")
	if err != nil {
		return err
	}
	newest := func() bool { return true }
	if kube, ok := w.store.(kubeStore); ok {
		made, err := kube.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		newest = func() bool { return fmt.Sprint(w.objects.Load()) == made.ResourceVersion }
	}
	return w.await(ctx, endLimit, "the end of the history", func() (bool, error) {
		return w.recorded.Load() >= int64(last.Mod) && newest(), nil
	})
}

// settled reports whether all pods have a node but those that fit nowhere, or of whose gang a pod lacks, or whose claims cannot be bound, these have a condition that says so,
// and all binds are decided.
func (w *world) settled(ctx context.Context) (bool, error) {
	pods, err := w.store.pods(ctx)
	if err != nil {
		return false, err
	}
	volumes, err := w.store.volumes(ctx)
	if err != nil {
		return false, err
	}
	claims, err := w.store.claims(ctx)
	if err != nil {
		return false, err
	}
	there := newStored(volumes, claims)
	if !there.quiet(pods) {
		return false, nil
	}
	for i := range pods {
		p := &pods[i]
		told := false
		for _, c := range p.Status.Conditions {
			told = told || c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}
		if p.Spec.NodeName == "" && p.Labels[labelClass] != classShort && !(told && (fitsNowhere(p) || !there.admits(p))) {
			return false, nil
		}
	}
	intents, err := w.etcd.count(ctx, prefix+keyIntents)
	return err == nil && intents == 0, err
}

// await returns when something is so, or an error when it is not in time.
func (w *world) await(ctx context.Context, limit time.Duration, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := so()
		if yes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-tick.C:
		}
	}
}
