package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// pluginProcess is the argument by which this binary is a plugin service instead of tests; behind it comes where to serve.
const pluginProcess = "plugin-service"

// servePlugin is that process.
func servePlugin(address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return plugin.Serve(ctx, plugin.Config{Listen: address, Plugins: []plugin.Plugin{seats("Seats"), seats("Unsecured")}})
}

// seats is a plugin by which a node has as many seats for pods of a profile as its label says, and the more, the better it is. It counts who sits there, and no other pods.
func seats(name string) plugin.Plugin {
	of := func(n *plugin.Node) int {
		have, _ := strconv.Atoi(n.Labels["seats"])
		return have
	}
	return plugin.Plugin{
		Name: name, Depends: plugin.Dependencies{Pods: true},
		Filter: func(_ context.Context, kind *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			taken := 0
			for _, p := range n.Pods {
				if p.Kind.SchedulerName == kind.SchedulerName {
					taken++
				}
			}
			switch have := of(n); {
			case have == 0:
				return &plugin.Refusal{Reason: "node(s) had no seats", Unresolvable: true}, nil
			case taken >= have:
				return &plugin.Refusal{Reason: "node(s) had all seats taken"}, nil
			}
			return nil, nil
		},
		Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) { return int64(10 * of(n)), nil },
	}
}

// loud is a service that answers what no service may: its plugin scores 101.
type loud struct {
	pluginv1.UnimplementedPluginServiceServer
}

func (loud) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Plugins: []*pluginv1.PluginDescription{{Name: "Loud", Scores: true}}}, nil
}

func (loud) Judge(stream pluginv1.PluginService_JudgeServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		resp := &pluginv1.JudgeResponse{Id: req.GetId()}
		for _, q := range req.GetQuestions() {
			resp.Answers = append(resp.Answers, &pluginv1.Answer{Scores: []*pluginv1.Scores{{Scores: slices.Repeat([]int32{101}, len(q.GetNodes()))}}})
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// seated is a Berth whose profiles use plugin services, on an API server.
type seated struct {
	t  *testing.T
	cp *kubetest.ControlPlane
}

// create makes a pod of a profile.
func (s *seated) create(profile, name string) {
	s.t.Helper()
	err := s.cp.CreatePods(s.t.Context(), 1, func(i int) *corev1.Pod {
		p := kubetest.PlainPod(i)
		p.Name, p.GenerateName, p.Spec.SchedulerName = name, "", profile
		return p
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// on returns where pods are whose names begin so, by name; "" of one that is nowhere.
func (s *seated) on(ctx context.Context, prefix string) (map[string]string, error) {
	pods, err := s.cp.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	on := make(map[string]string)
	for _, p := range pods.Items {
		if strings.HasPrefix(p.Name, prefix) {
			on[p.Name] = p.Spec.NodeName
		}
	}
	return on, nil
}

// awaitOn waits until pods whose names begin so are on nodes, so many on each; those that are nowhere are not counted.
func (s *seated) awaitOn(prefix string, want map[string]int) {
	s.t.Helper()
	berthtest.Await(s.t, berthtest.Patience, fmt.Sprintf("pods %s to be on %v", prefix, want), func(ctx context.Context) error {
		on, err := s.on(ctx, prefix)
		if err != nil {
			return err
		}
		got := make(map[string]int)
		for _, node := range on {
			if node != "" {
				got[node]++
			}
		}
		for node, n := range got {
			if n > want[node] {
				s.t.Fatalf("pods %s are on %v, want %v", prefix, on, want)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("they are on %v", on)
		}
		return nil
	})
}

// awaitTold waits until a pod is told why it has no node, by its condition, and by an event with the same words.
func (s *seated) awaitTold(name, reason, want string) {
	s.t.Helper()
	berthtest.Await(s.t, berthtest.Patience, fmt.Sprintf("pod %s to be told %s", name, want), func(ctx context.Context) error {
		p, err := s.cp.Client().CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
		if at < 0 {
			return errors.New("it has no condition")
		}
		if c := p.Status.Conditions[at]; c.Status != corev1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, want) {
			return fmt.Errorf("its condition says %s %s: %q", c.Status, c.Reason, c.Message)
		}
		events, err := s.cp.Client().CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var told []string
		for _, e := range events.Items {
			if told = append(told, e.Message); e.Reason == "FailedScheduling" && strings.Contains(e.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("its events say %q", told)
	})
}

// serve runs a server until the test ends.
func serve(t *testing.T, run func(context.Context, net.Listener) error) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve %s: %v", l.Addr(), err)
		}
	})
	return l.Addr().String()
}

// One Berth, and services that are what services can be: well, dead and alive again, of nonsense, without the plugin, with TLS, and with TLS on one side only. Each has a profile of its own.
func TestPluginServicesDecideWhereTheirPodsGoAndWhatIsWrongWithOneHoldsUpNobodyElse(t *testing.T) {
	s := &seated{t, kubetest.StartT(t, kubetest.Options{})}
	berth, dir := berthtest.Binary(t), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }

	// 1. The services.
	ports, err := kubetest.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + ports[0]
	begin := func() *kubetest.Process {
		t.Helper()
		p, err := kubetest.StartProcess("plugin service", file("plugin.log"), os.Args[0], pluginProcess, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		return p
	}
	service := begin()
	nonsense := serve(t, func(ctx context.Context, l net.Listener) error {
		server := grpc.NewServer()
		pluginv1.RegisterPluginServiceServer(server, loud{})
		defer context.AfterFunc(ctx, server.Stop)()
		return server.Serve(l)
	})
	if out, err := exec.Command(berth, "certs", "--dir", dir, "--role", "binder,plugin").CombinedOutput(); err != nil {
		t.Fatalf("berth certs: %v\n%s", err, out)
	}
	secured := serve(t, func(ctx context.Context, l net.Listener) error {
		return plugin.Serve(ctx, plugin.Config{
			Listener: l, TLS: plugin.TLSFiles{Cert: file("plugin.crt"), Key: file("plugin.key"), CA: file("ca.crt")},
			Plugins: []plugin.Plugin{seats("Secured"), seats("Unproven")},
		})
	})

	// 2. Nodes, and Berth.
	for i, seats := range []string{"3", "2", "0"} {
		if err := s.cp.CreateNodes(t.Context(), 1, func(int) *corev1.Node {
			n := kubetest.PlainNode(i)
			n.Name = fmt.Sprint("seats-", seats)
			n.Labels[corev1.LabelHostname], n.Labels["seats"] = n.Name, seats
			return n
		}); err != nil {
			t.Fatal(err)
		}
	}
	var services, profiles strings.Builder
	for _, of := range []struct{ name, address, plugin, points, more string }{
		{"dining", address, "Seats", "filter, score", ""},
		{"nonsense", nonsense, "Loud", "score", ""},
		{"lacking", nonsense, "Missing", "filter", ""},
		{"secured", secured, "Secured", "filter, score", "tls"},
		{"unproven", secured, "Unproven", "filter", ""},
		{"unsecured", address, "Unsecured", "filter", "tls"},
	} {
		fmt.Fprintf(&services, "- name: %s\n  address: %s\n  plugins: [{name: %s, points: [%s]}]\n", of.name, of.address, of.plugin, of.points)
		if of.more != "" {
			fmt.Fprintf(&services, "  tls: {ca: %s, cert: %s, key: %s}\n", file("ca.crt"), file("binder.crt"), file("binder.key"))
		}
		fmt.Fprintf(&profiles, "- schedulerName: %s\n  plugins: {multiPoint: {enabled: [{name: %s, weight: 20}]}}\n", of.name, of.plugin)
	}
	for name, text := range map[string]string{
		"services.yaml": "apiVersion: berth.dev/v1\nkind: PluginServices\nservices:\n" + services.String(),
		"config.yaml":   "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: default-scheduler\n" + profiles.String(),
	} {
		if err := os.WriteFile(file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := kubetest.StartProcess("berth", file("berth.log"), berth, "all", "--data-dir", file("data"), "--listen", "127.0.0.1:"+ports[1], "--http-listen", "127.0.0.1:"+ports[2],
		"--kubeconfig", s.cp.Kubeconfig(), "--plugin-services", file("services.yaml"), "--config", file("config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all.Stop()
		if t.Failed() {
			t.Logf("Berth:\n%s", all.LogTail(8<<10))
		}
	})

	// 3. What is amiss takes a while to be told: these wait meanwhile.
	for _, profile := range []string{"nonsense", "lacking", "unproven", "unsecured"} {
		s.create(profile, "at-"+profile)
	}
	s.create("secured", "at-secured")

	// 4. Two go where the score has them, though Berth's own plugins would spread them; then the seats are taken one by one, until there is none.
	for i := range 2 {
		s.create("dining", fmt.Sprintf("diner-%d", i))
	}
	s.awaitOn("diner-", map[string]int{"seats-3": 2})
	for i := range 4 {
		s.create("dining", fmt.Sprintf("diner-%d", 2+i))
	}
	s.awaitOn("diner-", map[string]int{"seats-3": 3, "seats-2": 2})
	on, err := s.on(t.Context(), "diner-")
	if err != nil {
		t.Fatal(err)
	}
	for name, node := range on {
		if node == "" {
			s.awaitTold(name, corev1.PodReasonUnschedulable, "0/3 nodes are available: 1 node(s) had no seats, 2 node(s) had all seats taken. no new claims to deallocate, "+
				"preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod.")
		}
	}
	// A node gets a seat: only the plugin knows what that label means.
	if _, err := s.cp.Client().CoreV1().Nodes().Patch(t.Context(), "seats-0", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"seats":"1"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitOn("diner-", map[string]int{"seats-3": 3, "seats-2": 2, "seats-0": 1})

	// 5. What is wrong with the others is told with the service's name, and what is wrong.
	for profile, want := range map[string]string{
		"nonsense":  `plugin service "nonsense": its answer makes no sense: answers[0]: scores[0]: Loud scores 101, want 0 to 100`,
		"lacking":   `plugin service "lacking": does not fit the configuration: profiles have plugin "Missing" filter nodes, and the service describes none of that name that does`,
		"unproven":  `plugin service "unproven": describe: Unavailable: `,
		"unsecured": `plugin service "unsecured": describe: Unavailable: `,
	} {
		s.awaitTold("at-"+profile, "SchedulerError", want)
	}
	s.awaitOn("at-", map[string]int{"seats-3": 1}) // that of the secured service, and no other
	s.awaitOn("at-secured", map[string]int{"seats-3": 1})

	// 6. The service dies. Its pods wait, and are told for whom; others do not.
	service.Kill()
	if _, err := s.cp.Client().CoreV1().Nodes().Patch(t.Context(), "seats-0", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"seats":"4"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.create("dining", fmt.Sprintf("late-%d", i))
		s.create("default-scheduler", fmt.Sprintf("plain-%d", i))
		s.create("secured", fmt.Sprintf("other-%d", i))
	}
	for i := range 3 {
		s.awaitTold(fmt.Sprintf("late-%d", i), "SchedulerError", `plugin service "dining": describe: Unavailable: `)
	}
	berthtest.Await(t, berthtest.Patience, "the others to be bound", func(ctx context.Context) error {
		for _, prefix := range []string{"plain-", "other-"} {
			on, err := s.on(ctx, prefix)
			if err != nil {
				return err
			}
			for name, node := range on {
				if node == "" {
					return fmt.Errorf("%s is not", name)
				}
			}
		}
		return nil
	})
	s.awaitOn("late-", map[string]int{})

	// 7. It is back, and they are placed without anything else that happens.
	began := time.Now()
	begin()
	s.awaitOn("late-", map[string]int{"seats-0": 3})
	t.Logf("placed %v after the service was started again", time.Since(began).Round(10*time.Millisecond))
	checkCluster(t, s.cp)
}
