// Demo-gpu shows what Yoda does, on a machine without a cluster and without a GPU: it is the program behind make demo-gpu.
//
// It starts a real API server, plays nodes with cards of five models and the collectors that tell of them, some of the cards sick, and runs a Berth with Yoda. Then it makes jobs, and prints which pods have which cards, how full the cards of each model are, and that none has been given twice; and asks Berth why a pod
// is nowhere, and how many more of a job fit. It keeps serving until it is interrupted, or ends by itself with --exit.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/internal/kubetest"
	"github.com/berth-scheduler/berth/plugins/yoda"
	"github.com/berth-scheduler/berth/plugins/yoda/fleet"
)

func main() {
	var d demo
	flag.StringVar(&d.program, "berth-yoda", filepath.Join(".bin", "berth-yoda"), "`path` of the program")
	flag.StringVar(&d.crd, "crd", filepath.Join("deploy", "kustomize", "components", "yoda", "crd.yaml"), "`path` of the definition of the custom resource")
	flag.StringVar(&d.listen, "listen", "127.0.0.1:7070", "where Berth serves its API: `host:port`")
	flag.StringVar(&d.page, "http-listen", "127.0.0.1:7080", "where Berth serves its page: `host:port`")
	flag.BoolVar(&d.exit, "exit", false, "end when all has been shown")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := d.run(ctx)
	stop()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo-gpu:", err)
		os.Exit(1)
	}
}

// shape is so many nodes, with so many cards of a model each: what openb's fleet has (Alibaba's GPU cluster of 2023), where it tells the model, a twelfth of it, with the cards' own figures.
type shape struct {
	model        string
	nodes, cards int
}

var shapes = []shape{{"Tesla T4", 33, 2}, {"Tesla P100-PCIE-16GB", 11, 2}, {"Tesla V100-SXM2-16GB", 5, 8}, {"Tesla V100-SXM2-32GB", 3, 8}, {"NVIDIA A10", 24, 8}}

// sickEach is which card of the fleet is sick, each time that so many have been counted.
const sickEach = 29

// job is some pods that ask for the same.
type job struct {
	name    string
	pods    int
	labels  map[string]string
	request string // the annotation; "": none
}

var jobs = []job{
	{"infer", 60, map[string]string{yoda.LabelNumber: "1"}, `{"memory":"5Gi","share":true}`},
	{"tune", 90, map[string]string{yoda.LabelNumber: "1", yoda.LabelMemory: "12000"}, ""},
	{"train", 20, map[string]string{yoda.LabelNumber: "4", yoda.LabelMemory: "20000"}, ""},
	{"render", 12, map[string]string{yoda.LabelNumber: "2", yoda.LabelClock: "6000"}, ""},
	{"large", 4, map[string]string{yoda.LabelNumber: "8", yoda.LabelMemory: "32000", yoda.LabelPriority: "10"}, ""},
	{"typo", 1, map[string]string{yoda.LabelNumber: "one"}, ""},
}

// within is how long each part may take.
const within = 5 * time.Minute

type demo struct {
	program, crd, listen, page string
	exit                       bool

	dir     string
	control *kubetest.ControlPlane
	fleet   *fleet.Fleet
}

func (d *demo) run(ctx context.Context) (err error) {
	if _, err := os.Stat(d.program); err != nil {
		return fmt.Errorf("%w: make demo-gpu builds it", err)
	}
	if d.dir, err = os.MkdirTemp("", "demo-gpu-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	fmt.Println("Starting an API server. The first time, it is built: some minutes.")
	if d.control, err = kubetest.Start(ctx, filepath.Join(d.dir, "control"), kubetest.Options{}); err != nil {
		return err
	}
	defer d.control.Stop()
	if err := d.makeFleet(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.Go(func() error { return d.fleet.Run(ctx) })
	g.Go(func() error {
		defer cancel()
		return d.show(ctx)
	})
	return g.Wait()
}

// makeFleet makes the nodes and their cards.
func (d *demo) makeFleet(ctx context.Context) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", d.control.Kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 1000, 1000
	if d.fleet, err = fleet.New(ctx, cfg, d.crd, 10); err != nil {
		return err
	}
	counted, sick := 0, 0
	for _, s := range shapes {
		model := fleet.Models[slices.IndexFunc(fleet.Models, func(m fleet.Model) bool { return m.Name == s.model })]
		for range s.nodes {
			name := fmt.Sprintf("node-%02d", len(d.fleet.Nodes()))
			if err := d.fleet.Add(ctx, name, model, s.cards, nil); err != nil {
				return err
			}
			err := d.fleet.Change(ctx, name, func(cards []v1alpha1.Card) {
				for i := range cards {
					if counted++; counted%sickEach == 0 {
						cards[i].Health, cards[i].Reason = v1alpha1.Unhealthy, "XID 79: it has fallen off the bus"
						sick++
					}
				}
			})
			if err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d nodes with %d cards of %d models, %d of them sick.\n", len(d.fleet.Nodes()), counted, len(shapes), sick)
	return nil
}

// show runs Berth, makes jobs, and tells what becomes of them.
func (d *demo) show(ctx context.Context) error {
	config := filepath.Join(d.dir, "config.yaml")
	if err := os.WriteFile(config, []byte(fleet.Profile), 0o600); err != nil {
		return err
	}
	berth, err := kubetest.StartProcess("berth-yoda", filepath.Join(d.dir, "berth.log"), d.program, "all", "--kubeconfig", d.control.Kubeconfig(), "--config", config, "--data-dir", filepath.Join(d.dir, "data"),
		"--listen", d.listen, "--http-listen", d.page)
	if err != nil {
		return err
	}
	defer berth.Stop()
	if err := d.makeJobs(ctx); err != nil {
		return err
	}
	pods, took, err := d.await(ctx, berth)
	if err != nil {
		return err
	}
	d.print(pods, took)
	for _, question := range [][]string{
		{"why", "large-3"}, {"why", "typo-0"}, {"scores", "train-0"}, {"capacity", "tune-0"}, {"capacity", "infer-0"}, {"capacity", "large-0"},
	} {
		fmt.Printf("\n$ berth %s\n", strings.Join(question, " "))
		answer := exec.CommandContext(ctx, d.program, append(question, "--server", d.listen)...)
		answer.Stdout, answer.Stderr = os.Stdout, os.Stdout
		if err := answer.Run(); err != nil {
			return fmt.Errorf("berth %s: %w", strings.Join(question, " "), err)
		}
	}
	if d.exit {
		return nil
	}
	fmt.Printf("\nThe page is at http://%s, the API server's kubeconfig at %s. Interrupt ends it.\n", d.page, d.control.Kubeconfig())
	select {
	case <-ctx.Done():
	case <-berth.Done():
		return fmt.Errorf("berth-yoda has ended:\n%s", berth.LogTail(4<<10))
	}
	return nil
}

func (d *demo) makeJobs(ctx context.Context) error {
	for _, j := range jobs {
		for i := range j.pods {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", j.name, i), Labels: j.labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "c", Image: "train", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}},
				}}},
			}
			if j.request != "" {
				p.Annotations = map[string]string{yoda.AnnotationRequest: j.request}
			}
			if _, err := d.control.Client().CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make pod %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// await waits until each pod has a node, or has been told why not, and nothing more happens. It returns the pods, and how long it took until the last one had its node.
func (d *demo) await(ctx context.Context, berth *kubetest.Process) ([]corev1.Pod, time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not all pods have been placed, or told why not, within %v", within))
	defer cancel()
	began, last, bound := time.Now(), time.Now(), -1
	for {
		list, err := d.control.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, 0, cmp.Or(context.Cause(ctx), err)
		}
		placed, told := 0, 0
		for i := range list.Items {
			switch p := &list.Items[i]; {
			case p.Spec.NodeName != "":
				placed++
			case slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
			}):
				told++
			}
		}
		if placed != bound {
			bound, last = placed, time.Now()
		}
		if placed+told == len(list.Items) && time.Since(last) > 3*time.Second {
			return list.Items, last.Sub(began), nil
		}
		select {
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-berth.Done():
			return nil, 0, fmt.Errorf("berth-yoda has ended:\n%s", berth.LogTail(4<<10))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// print prints which cards pods have.
func (d *demo) print(pods []corev1.Pod, took time.Duration) {
	holders := make(map[string][]string) // by card
	memory := make(map[string]int64)     // MiB that pods have of a card; all of it: that is whole
	whole := make(map[string]int)
	waiting := 0
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName == "" {
			waiting++
		}
		g, _, err := yoda.GrantOf(p.Annotations)
		if err != nil {
			fmt.Printf("pod %s: %v\n", p.Name, err)
		}
		for _, id := range g.Cards {
			holders[id] = append(holders[id], p.Name)
			if memory[id] += g.MemoryMiB; g.MemoryMiB == 0 {
				whole[id]++
			}
		}
	}
	fmt.Printf("%d pods placed in %v, %d wait.\n\n", len(pods)-waiting, took.Round(10*time.Millisecond), waiting)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tMODEL\tCARDS: who has each; - free, x sick")
	type count struct{ cards, whole, shared, free, sick int }
	counts := make(map[string]*count)
	twice := 0
	shown := make(map[string]int)
	for _, node := range d.fleet.Nodes() {
		var cells []string
		model := ""
		for _, c := range d.fleet.Cards(node) {
			if model = c.Model; counts[model] == nil {
				counts[model] = new(count)
			}
			n, has := counts[model], holders[c.ID]
			n.cards++
			if whole[c.ID] > 0 && len(has) > 1 || memory[c.ID] > c.TotalMemoryMiB {
				twice++
			}
			switch {
			case c.Health != v1alpha1.Healthy:
				n.sick++
				cells = append(cells, "x")
			case len(has) == 0:
				n.free++
				cells = append(cells, "-")
			case whole[c.ID] > 0:
				n.whole++
				cells = append(cells, strings.Join(has, "+"))
			default:
				n.shared++
				slices.Sort(has)
				cells = append(cells, strings.Join(has, "+"))
			}
		}
		if shown[model]++; shown[model] <= nodesShown {
			fmt.Fprintf(table, "%s\t%s\t%s\n", node, model, strings.Join(cells, " "))
		}
	}
	flush(table)
	fmt.Printf("…and the other nodes: `kubectl get pods -L scv/number -o custom-columns=…` shows all.\n\n")
	fmt.Fprintln(table, "MODEL\tCARDS\tWHOLE\tSHARED\tFREE\tSICK")
	for _, model := range slices.Sorted(maps.Keys(counts)) {
		n := counts[model]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\n", model, n.cards, n.whole, n.shared, n.free, n.sick)
	}
	flush(table)
	fmt.Printf("\ncards given twice: %d\n", twice)
}

// nodesShown is how many nodes of each model are shown.
const nodesShown = 2

func flush(w interface {
	io.Writer
	Flush() error
}) {
	if err := w.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "demo-gpu:", err)
	}
}
