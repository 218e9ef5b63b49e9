package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// The files of Alibaba's trace of a GPU cluster, as the simulator of Kubernetes' scheduler by HKUST has them. They are read where they are, and never part of this project.
const (
	openbNodes = "openb_node_list_all_node.csv"
	openbPods  = "openb_pod_list_default.csv"
)

// openbMemory is the memory of each card, in MiB. The trace counts parts of cards in thousandths, whichever the card: with the same memory for all of them, a part of the memory is a part of the card, and none is rounded.
const openbMemory = 32000

// openbOffered is how many cards the pods ask for that are offered, of those there are, in percent. The trace asks for 98 %; behind its end it begins again.
const openbOffered = 120

// openb is the nodes of the trace that have cards, and the pods that ask for some, in its order.
type openb struct {
	nodes []openbNode
	pods  []openbPod
}

type openbNode struct {
	cpu, memory int64 // in thousandths, and in MiB
	cards       int
	model       string
}

type openbPod struct {
	cpu, memory int64
	number      int
	part        milli // of each card
}

// readOpenb reads the trace of a directory.
func readOpenb(dir string) (*openb, error) {
	trace := &openb{}
	err := readTable(filepath.Join(dir, openbNodes), func(r record) {
		n := openbNode{r.number("cpu_milli"), r.number("memory_mib"), int(r.number("gpu")), r.text("model")}
		if n.cards > 0 {
			trace.nodes = append(trace.nodes, n)
		}
	})
	if err != nil {
		return nil, err
	}
	err = readTable(filepath.Join(dir, openbPods), func(r record) {
		p := openbPod{r.number("cpu_milli"), r.number("memory_mib"), int(r.number("num_gpu")), r.number("gpu_milli")}
		if r.text("gpu_spec") != "" {
			r.fail("gpu_spec", "pods that want models are not read")
		}
		if p.number > 1 && p.part != wholeCard {
			r.fail("gpu_milli", "parts of several cards are not read")
		}
		if p.number > 0 {
			trace.pods = append(trace.pods, p)
		}
	})
	return trace, err
}

// record is a row of a table.
type record struct {
	columns map[string]int
	row     []string
	line    int
	err     *error // the first
}

func (r record) fail(column, why string) {
	if *r.err == nil {
		*r.err = fmt.Errorf("line %d, %s: %s", r.line, column, why)
	}
}

func (r record) text(column string) string {
	at, ok := r.columns[column]
	if !ok {
		r.fail(column, "no such column")
		return ""
	}
	return r.row[at]
}

func (r record) number(column string) int64 {
	n, err := strconv.ParseInt(r.text(column), 10, 64)
	if err != nil || n < 0 {
		r.fail(column, "want a number that is not negative")
	}
	return n
}

// readTable calls a function with each row of a file of comma-separated values, the first of which names the columns.
func readTable(path string, each func(record)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("%s: no columns", path)
	}
	columns := map[string]int{}
	for i, name := range rows[0] {
		columns[name] = i
	}
	var failed error
	for i, row := range rows[1:] {
		each(record{columns, row, i + 2, &failed})
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", path, failed)
	}
	return nil
}

// cut returns the trace with n of its nodes, of all kinds, and as many pods as are offered to them. 0: all nodes.
func (o *openb) cut(n int) *openb {
	out := &openb{nodes: o.nodes}
	if n > 0 && n < len(o.nodes) {
		out.nodes = nil
		for i := range n {
			out.nodes = append(out.nodes, o.nodes[i*len(o.nodes)/n])
		}
	}
	var cards, asked milli
	for _, n := range out.nodes {
		cards += wholeCard * milli(n.cards)
	}
	for i := 0; asked*100 < cards*openbOffered; i++ {
		p := o.pods[i%len(o.pods)]
		asked += p.part * milli(p.number)
		out.pods = append(out.pods, p)
	}
	return out
}

// openbNodeOf makes node i that of the trace.
func openbNodeOf(cfg config, node *corev1.Node, i int) {
	n := cfg.trace.nodes[i]
	node.Status.Capacity[corev1.ResourceCPU] = *resource.NewMilliQuantity(n.cpu, resource.DecimalSI)
	node.Status.Capacity[corev1.ResourceMemory] = *resource.NewQuantity(n.memory<<20, resource.BinarySI)
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
}

// openbCards returns the cards of node i: of its model, all with the same memory.
func openbCards(cfg config, node string, i int) []v1alpha1.Card {
	n := cfg.trace.nodes[i]
	m := openbModels[n.model]
	m.name, m.memory = n.model, openbMemory
	return m.cards(node, n.cards)
}

// openbModels has what the trace does not say of its models. What G2 and G3 are is not known; A10 and A100 stand in for them.
var openbModels = map[string]cardModel{
	"G2": cardModels[0], "A10": cardModels[0], "T4": cardModels[1], "P100": cardModels[2],
	"V100M16": cardModels[3], "V100M32": cardModels[3], "G3": cardModels[4],
}

// openbPodOf makes pod i that of the trace. Part of a card is asked for by memory: of Yoda as a share, and of others by the label, which is all that the original knows.
func openbPodOf(cfg config, pod *corev1.Pod, i, _ int) {
	p := cfg.trace.pods[i]
	requests := pod.Spec.Containers[0].Resources.Requests
	requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(p.cpu, resource.DecimalSI)
	requests[corev1.ResourceMemory] = *resource.NewQuantity(p.memory<<20, resource.BinarySI)
	pod.Labels = map[string]string{numberLabel: strconv.Itoa(p.number)}
	if p.part < wholeCard {
		memory := strconv.FormatInt(p.part*openbMemory/wholeCard, 10)
		pod.Labels[memoryLabel] = memory
		pod.Annotations = map[string]string{requestAnnotation: `{"share":true,"memory":"` + memory + `Mi"}`}
	}
}

// offerOpenb is the script of the trace: pods are offered one after the other, until the nodes have no room for more.
type offerOpenb struct{}

func (offerOpenb) prepare(ctx context.Context, s *stage) error { return tellCards(ctx, s) }

func (offerOpenb) play(ctx context.Context, s *stage) error {
	pods := s.plane.Client().CoreV1().Pods(metav1.NamespaceDefault)
	for i := range s.pods {
		if _, err := pods.Create(ctx, s.load.pod(i), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod: %w", err)
		}
	}
	return s.awaitSettled(ctx)
}

func (offerOpenb) judge(ctx context.Context, s *stage) (expected, error) {
	problems, err := judgeGPU(ctx, s)
	bound, _, _ := s.watcher.Bound()
	return expected{bound: bound, pending: s.pods - bound, problems: problems}, err
}

// settlePoll is how often it is looked whether pods are still bound.
const settlePoll = 100 * time.Millisecond

// awaitSettled returns nil when all pods are bound, or none was for some time since the first.
func (s *stage) awaitSettled(ctx context.Context) error {
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	seen, changed := 0, time.Now()
	for {
		bound, _, _ := s.watcher.Bound()
		if bound > seen {
			seen, changed = bound, time.Now()
		}
		if bound == s.pods || bound > 0 && time.Since(changed) >= s.settle {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until no more pods are bound, %d so far: %w", bound, ctx.Err())
		case <-tick.C:
		}
	}
}
