package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	corev1 "k8s.io/api/core/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/plugin"
)

// Seated pods are of two profiles. Each has a plugin service of its own, by name, with the same rule: only nodes with seats will do, and no node has more seated pods, of
// either profile, than seats. Both prefer the node with the most, so that they want the same one; and as each service has turns of its own, what one says may be void before the pod
// is placed, by what the other has just had placed. Nothing but the plugins keeps these pods from the other nodes.
const (
	seatNodes   = 6
	seatsEach   = 3
	seatPool    = "seats"
	classSeated = "seated"
)

// How many seated pods there are, at most, and at the end.
const (
	mostSeated  = seatNodes*seatsEach + 8
	finalSeated = seatNodes * seatsEach / 2
)

// seatedProfiles are the scheduler names of seated pods, which the services are called too.
var seatedProfiles = [...]string{"seated-a", "seated-b"}

// seatNode returns the node with seats of number i.
func seatNode(i int) *corev1.Node {
	n := node(plainNodes + probeNodes + storageNodes + i)
	n.Labels[pool] = seatPool
	n.Spec.Taints = []corev1.Taint{{Key: pool, Value: seatPool, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

// seated returns a seated pod of a profile.
func seated(name, profile string) *corev1.Pod {
	p := pod(classSeated, name, 10)
	p.Spec.SchedulerName = profile
	p.Spec.Tolerations = []corev1.Toleration{{Key: pool, Operator: corev1.TolerationOpExists}}
	return p
}

// pluginName is the plugin of a profile's service.
func pluginName(profile string) string { return "Seats-" + profile }

// judging is how long the plugins take for a node. So pods that wait for others' turns pile up.
const judging = 8 * time.Millisecond

// seatPlugins are the plugins of the process.
func seatPlugins() (out []plugin.Plugin) {
	taken := func(n *plugin.Node) (count int) {
		for _, p := range n.Pods {
			if p.Kind.Labels[labelClass] == classSeated {
				count++
			}
		}
		return count
	}
	for _, profile := range seatedProfiles {
		out = append(out, plugin.Plugin{
			Name: pluginName(profile), Depends: plugin.Dependencies{Pods: true},
			Filter: func(ctx context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
				if n.Labels[pool] != seatPool {
					return &plugin.Refusal{Reason: "node(s) had no seats", Unresolvable: true}, nil
				}
				sleep(ctx, judging)
				if taken(n) >= seatsEach {
					return &plugin.Refusal{Reason: "node(s) had all seats taken"}, nil
				}
				return nil, nil
			},
			Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) {
				return int64(100 * taken(n) / seatsEach), nil
			},
		})
	}
	return out
}

// pluginCommand is the argument by which this program is the process of the plugin services. Behind it come where it serves, and a file: as long as that is there, it lies.
const pluginCommand = "plugin-services"

// asPlugin runs that process if the arguments of the program say so.
func asPlugin(args []string) (is bool, err error) {
	if len(args) != 4 || args[1] != pluginCommand {
		return false, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("tcp", args[2])
	if err != nil {
		return true, err
	}
	lying := &liar{file: args[3]}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(2*mostAnswer), grpc.StreamInterceptor(lying.intercept),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	if err := plugin.Register(server, nil, seatPlugins()...); err != nil {
		return true, errors.Join(err, l.Close())
	}
	defer context.AfterFunc(ctx, server.Stop)()
	return true, server.Serve(l)
}

// liar changes what is answered to what no client may believe, one time in honestEvery excepted.
type liar struct {
	file string
	told atomic.Int64
}

const (
	honestEvery = 4
	mostAnswer  = 16 << 20 // bytes that a client takes
)

func (l *liar) intercept(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(service, lyingStream{stream, l})
}

type lyingStream struct {
	grpc.ServerStream
	liar *liar
}

var errStreamBroken = errors.New("the stream is broken off")

// SendMsg sends a message, or a lie.
func (s lyingStream) SendMsg(m any) error {
	if _, err := os.Stat(s.liar.file); err == nil {
		n := s.liar.told.Add(1)
		if resp, ok := m.(*pluginv1.JudgeResponse); ok && n%honestEvery != 0 {
			if lie := lies[int(n-n/honestEvery)%len(lies)]; lie.change == nil {
				return errStreamBroken
			} else {
				lie.change(resp)
			}
		}
	}
	return s.ServerStream.SendMsg(m)
}

// lies are what no client may take for an answer: each can be seen to be none.
var lies = []struct {
	name   string
	change func(*pluginv1.JudgeResponse) // nil: the stream is broken off instead
}{
	{"a score above 100", func(r *pluginv1.JudgeResponse) { score(r, 101) }},
	{"a score below 0", func(r *pluginv1.JudgeResponse) { score(r, -1) }},
	{"the stream ends", nil},
	{"a verdict too many", eachAnswer(func(a *pluginv1.Answer) { a.Verdicts = make([]uint32, len(a.GetScores()[0].GetScores())+1) })},
	{"an answer too many", func(r *pluginv1.JudgeResponse) { r.Answers = append(r.Answers, &pluginv1.Answer{}) }},
	{"an answer to another request", func(r *pluginv1.JudgeResponse) { r.Id += 7 }},
	{"an unknown refusal", eachAnswer(func(a *pluginv1.Answer) {
		a.Verdicts, a.Refusals = make([]uint32, len(a.GetScores()[0].GetScores())), nil
		for i := range a.Verdicts {
			a.Verdicts[i] = 9_999
		}
	})},
	{"a refusal of nobody", eachAnswer(func(a *pluginv1.Answer) {
		a.Refusals = append(a.Refusals, &pluginv1.Refusal{Plugin: "Nobody", Reason: "nothing"})
	})},
	{"no scores", eachAnswer(func(a *pluginv1.Answer) { a.Scores = nil })},
	{"a score too few", eachAnswer(func(a *pluginv1.Answer) {
		if s := a.GetScores()[0]; len(s.Scores) > 0 {
			s.Scores = s.Scores[1:]
		}
	})},
	{"an error", eachAnswer(func(a *pluginv1.Answer) { a.Error = "no idea" })},
	{"more than a message may have", func(r *pluginv1.JudgeResponse) {
		r.Answers = append(r.Answers, &pluginv1.Answer{Error: strings.Repeat("!", mostAnswer)})
	}},
}

// eachAnswer changes all answers of a response; one without any is given one too many.
func eachAnswer(change func(*pluginv1.Answer)) func(*pluginv1.JudgeResponse) {
	return func(r *pluginv1.JudgeResponse) {
		if len(r.GetAnswers()) == 0 {
			r.Answers = append(r.Answers, &pluginv1.Answer{})
			return
		}
		for _, a := range r.GetAnswers() {
			if a.GetError() == "" {
				change(a)
			}
		}
	}
}

// score has all nodes score so much, and none refused: of those that are, anything may be said.
func score(r *pluginv1.JudgeResponse, to int32) {
	eachAnswer(func(a *pluginv1.Answer) {
		a.Verdicts = nil
		for i := range a.GetScores()[0].GetScores() {
			a.Scores[0].Scores[i] = to
		}
	})(r)
}

// pluginProcess is the process of the plugin services of seated pods.
type pluginProcess struct {
	*serviceProcess
	dir, address string
}

// newPluginProcess finds an address. Nothing runs yet.
func newPluginProcess(dir string, record *Recorder) (*pluginProcess, error) {
	ports, err := kubetest.FreePorts(1)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &pluginProcess{dir: dir, address: "127.0.0.1:" + ports[0]}
	p.serviceProcess = &serviceProcess{party: pluginParty, dir: dir, argv: []string{self, pluginCommand, p.address, p.lies()}, record: record}
	return p, nil
}

const (
	pluginTimeout = 500 * time.Millisecond
	pluginParty   = "plugin services"
)

// lies is the file that has it lie.
func (p *pluginProcess) lies() string { return filepath.Join(p.dir, "lies") }

// services are its entries in the file that says which services there are.
func (p *pluginProcess) services() string {
	var text strings.Builder
	for _, profile := range seatedProfiles {
		fmt.Fprintf(&text, "- {name: %s, address: %q, timeout: %v, plugins: [{name: %s, points: [filter, score]}]}\n", profile, p.address, pluginTimeout, pluginName(profile))
	}
	return text.String()
}

// profiles are those of a configuration that use the services.
func (p *pluginProcess) profiles() string {
	var text strings.Builder
	for _, profile := range seatedProfiles {
		fmt.Fprintf(&text, "- schedulerName: %s\n  plugins: {multiPoint: {enabled: [{name: %s, weight: 20}]}}\n", profile, pluginName(profile))
	}
	return text.String()
}

// knowsPlugins reports whether a binary of Berth has plugin services.
func knowsPlugins(binary string) bool {
	help, _ := exec.Command(binary, roleBinder, "--help").CombinedOutput() // it exits 2 then
	return strings.Contains(string(help), "-plugin-services")
}

// begin does a fault to the services, and returns what undoes it.
func (p *pluginProcess) begin(kind Kind) (undo func() error, err error) {
	if p == nil {
		return nil, errors.New("this Berth has no plugin services")
	}
	if kind != pluginLie {
		return p.serviceProcess.begin(kind)
	}
	if p.running() == nil {
		return nil, errors.New("the plugin services do not run")
	}
	return func() error { return os.Remove(p.lies()) }, os.WriteFile(p.lies(), nil, 0o600)
}

// changeSeated deletes seated pods, a number that it draws, and creates others, until there are more than seats: so many are placed at a time, and some wait.
func (w *workload) changeSeated(ctx context.Context) {
	w.change(ctx, classSeated, 0, mostSeated, func() *corev1.Pod {
		profile := seatedProfiles[w.rng.IntN(len(seatedProfiles))]
		return seated(fmt.Sprintf("%s-%d", profile, w.number), profile)
	})
}

// change deletes pods of a class, so that a number of them is left that it draws, least or more, and creates others, until there are most.
func (w *workload) change(ctx context.Context, class string, least, most int, draw func() *corev1.Pod) {
	all := func() (at []int) {
		for i, l := range w.live {
			if l.class == class {
				at = append(at, i)
			}
		}
		return at
	}
	for keep, there := least+w.rng.IntN(most-least), all(); len(there) > keep; there = all() {
		if !w.delete(ctx, there[w.rng.IntN(len(there))]) {
			return // the API server does not answer
		}
	}
	for range most - len(all()) {
		w.number++
		w.create(ctx, 0, draw())
	}
}

// seated judges where a seated pod is bound, with those that are there.
func (c *checker) seated(at Micros, revision int64, p *podState, n *nodeState) {
	if p.pod.Labels[labelClass] != classSeated {
		return
	}
	on, taken := p.pod.Spec.NodeName, 0
	for _, other := range n.pods {
		if other.pod.Labels[labelClass] == classSeated {
			taken++
		}
	}
	if last := n.versions[len(n.versions)-1].node; last != nil && last.Labels[pool] != seatPool {
		c.report(RulePlugin, at, "pod %s was bound to %s at resource version %d, which has no seats", p.name, on, revision)
	} else if taken > seatsEach {
		c.report(RulePlugin, at, "pod %s was bound to %s at resource version %d: %d are seated there, on %d seats", p.name, on, revision, taken, seatsEach)
	}
}
