package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/internal/kubetest"
)

// The contenders that are known by name elsewhere.
const (
	kubeScheduler = "kube-scheduler"
	nullBinder    = "null"
	berthAll      = "berth-all"    // Berth in one process
	berthSplit    = "berth-split"  // Berth with each role in processes of its own
	berthBefore   = "berth-before" // as berth-all, with another binary
	// With a filter and a score of others, which are next to no work: see test/choice.
	berthService  = "berth-service"  // berth-all, with these as a plugin service
	berthExtender = "berth-extender" // berth-all, with these as an HTTP extender
	kubeExtender  = "kube-extender"  // kube-scheduler, with these as an HTTP extender
	// Berth with these compiled in, another binary: signed, so that what is said of a pod is taken for the next one alike, and not.
	berthSigned     = "berth-signed"
	berthCompiledIn = "berth-compiled-in"
	kubeCompiledIn  = "kube-compiled-in" // kube-scheduler with these compiled in, not signed
	// With a plugin service that sorts the queue, and with a queue in one part, as it is then.
	berthSort     = "berth-sort"
	berthOneShard = "berth-one-shard"
)

// contender is a scheduler to be measured.
type contender struct {
	name  string
	berth bool // it needs the berth binary
	// compiledIn: it needs one that has the choice compiled in.
	compiledIn bool
	yoda       bool  // it needs one that has Yoda compiled in, and can serve it
	cards      giver // who gives cards to pods that ask for some
	blind      bool  // it does not look at where pods may go, so an overcommitted node or a broken constraint is no fault of it
	etcd       bool  // it needs an etcd beside the API server's, which counts as one of its processes
	// commands returns the processes to start, in order, after writing the files they need.
	commands func(e environment) ([]command, error)
}

// command is a process of a contender. Names are unique in a contender.
type command struct {
	name string
	argv []string
}

// environment is what command lines are made of.
type environment struct {
	config
	claims        bool   // pods have some
	groups        bool   // pods name PodGroups
	dir           string // for files and logs
	kubeconfig    string
	kubeScheduler string // paths of binaries
	self          string
	etcd          string // endpoint of the contender's own etcd, if it has one
	http          string // address of a free loopback port, for the gateway's JSON
	ops           string // address of another, for profiles; empty: none are taken
}

// contenders returns all contenders. This is the only place that knows their command lines.
func contenders() []contender {
	return []contender{
		{name: kubeScheduler, commands: kubeSchedulerCommands},
		{name: nullBinder, blind: true, commands: nullCommands},
		{name: berthAll, berth: true, commands: berthAllCommands},
		{name: berthSplit, berth: true, etcd: true, commands: berthSplitCommands},
		{name: berthBefore, berth: true, commands: func(e environment) ([]command, error) {
			e.berth = e.before
			return berthAllCommands(e)
		}},
		{name: berthService, berth: true, commands: berthServiceCommands},
		{name: berthExtender, berth: true, commands: berthExtenderCommands},
		{name: kubeExtender, commands: kubeExtenderCommands},
		{name: berthSigned, compiledIn: true, commands: berthCompiledInCommands("SignedChoice")},
		{name: berthCompiledIn, compiledIn: true, commands: berthCompiledInCommands("Choice")},
		{name: kubeCompiledIn, compiledIn: true, commands: kubeCompiledInCommands},
		{name: berthSort, berth: true, commands: berthSortCommands},
		{name: berthOneShard, berth: true, commands: berthOneShardCommands},
		{name: berthAllAgain, berth: true, commands: berthAllCommands},
		{name: berthYoda, yoda: true, cards: yodaGives, commands: berthYodaCommands},
		{name: berthYodaService, berth: true, yoda: true, cards: yodaGives, commands: berthYodaServiceCommands},
		{name: kubeYoda, compiledIn: true, commands: kubeYodaCommands},
		{name: kubeDevicePlugin, cards: devicePluginGives, commands: kubeSchedulerCommands},
	}
}

// judges names one contender of each scheduler that judges nodes.
func judges() []string { return []string{kubeScheduler, berthAll} }

func contenderNames() []string {
	var names []string
	for _, c := range contenders() {
		names = append(names, c.name)
	}
	return names
}

func contenderNamed(name string) (contender, error) {
	for _, c := range contenders() {
		if c.name == name {
			return c, nil
		}
	}
	return contender{}, fmt.Errorf("no contender %q; there are %s", name, strings.Join(contenderNames(), ", "))
}

// kubeSchedulerCommands runs kube-scheduler with its defaults, but with a client that is not rate-limited and without
// waiting for an election.
func kubeSchedulerCommands(e environment) ([]command, error) {
	file, err := e.writeConfig(kubeClient(e))
	if err != nil {
		return nil, err
	}
	argv := []string{e.kubeScheduler, "--config", file, "--secure-port", "0"}
	if e.groups {
		argv = append(argv, kubetest.PodGroups[0])
	}
	return []command{{kubeScheduler, argv}}, nil
}

// kubeClient is what kube-scheduler's configuration says of its client and its election.
func kubeClient(e environment) string {
	return fmt.Sprintf(`clientConnection:
  kubeconfig: %s
  qps: %d
  burst: %d
leaderElection:
  leaderElect: false
`, e.kubeconfig, e.kubeQPS, e.kubeQPS)
}

// nullCommands runs the null binder of this program.
func nullCommands(e environment) ([]command, error) {
	argv := []string{e.self, nullBinderCommand, "--kubeconfig", e.kubeconfig, "--concurrency", strconv.Itoa(e.bindConcurrency)}
	if e.claims {
		argv = append(argv, "--claims")
	}
	return []command{{nullBinderCommand, argv}}, nil
}

// berthAllCommands runs every role of Berth, and its etcd, in one process.
func berthAllCommands(e environment) ([]command, error) {
	argv := append([]string{e.berth, "all", "--data-dir", filepath.Join(e.dir, "berth"),
		"--listen", "127.0.0.1:0", "--http-listen", ""}, berthClusterFlags(e)...)
	if e.ops != "" {
		argv = append(argv, "--metrics-listen", e.ops, "--profiling")
	}
	return []command{{"all", argv}}, nil
}

// berthClusterFlags are the flags of the binders, and of berth all. The API client has the same limits as kube-scheduler's.
func berthClusterFlags(e environment) []string {
	qps := strconv.Itoa(e.kubeQPS)
	return []string{"--kubeconfig", e.kubeconfig, "--kube-qps", qps, "--kube-burst", qps, "--seed", strconv.FormatUint(e.seed, 10)}
}

// berthSplitCommands runs 2 binders, 2 queues, 3 filter-workers, 2 score-workers and a gateway.
func berthSplitCommands(e environment) ([]command, error) {
	var commands []command
	add := func(role string, count int, flags ...string) {
		for i := range count {
			id := fmt.Sprintf("%s-%d", role, i)
			argv := []string{e.berth, role, "--id", id, "--etcd-endpoints", e.etcd,
				"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"}
			commands = append(commands, command{id, append(argv, flags...)})
		}
	}
	add("binder", 2, berthClusterFlags(e)...)
	add("queue", 2)
	add("filter-worker", 3)
	add("score-worker", 2)
	add("gateway", 1, "--http-listen", e.http)
	return commands, nil
}
