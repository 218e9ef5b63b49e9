// Package demo makes a cluster in the shape of a real fleet of GPU machines, hands it to a running Berth through the
// public API, and shows what becomes of it.
//
// The figures are those published with the openb trace (Alibaba's GPU cluster of 2023; see FGD, USENIX ATC'23): how
// many nodes of which GPU model, how many pods with how many GPUs, and the totals. The nodes and pods themselves are
// generated from a seed.
package demo

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// GPU is the extended resource of the demo's GPUs, in thousandths of one.
const GPU = "demo.berth/gpu-milli"

// The fleet's size.
const (
	Nodes = 1523
	Pods  = 8152
	GPUs  = 6212
)

// model is a kind of node.
type model struct {
	name     string // of its GPU; "" for none
	nodes    int
	gpus     int
	cores    int
	gibibyte int
}

// models add up to Nodes nodes, GPUs GPUs, and the trace's cores and memory to within a hundredth.
var models = []model{
	{"", 310, 0, 64, 256},
	{"G2", 549, 8, 96, 512},
	{"T4", 404, 2, 96, 384},
	{"P100", 134, 2, 64, 384},
	{"V100M16", 55, 8, 64, 384},
	{"G3", 23, 2, 32, 128},
	{"G3", 16, 1, 32, 128},
	{"V100M32", 30, 8, 32, 128},
	{"A10", 2, 1, 32, 128},
}

// shape is a kind of pod: how many, and which share of a GPU, or how many, each asks for.
type shape struct {
	name  string
	pods  int
	milli []int // picked from evenly
	cores []int
	gib   []int
}

// shapes add up to Pods pods, and ask for about 98 % of the GPUs, 68 % of the cores and half of the memory.
var shapes = []shape{
	{"cpu", 1088, []int{0}, []int{4, 8, 16, 32}, []int{8, 16, 32, 64}},
	{"share", 3078, []int{810, 470, 320, 650}, []int{4, 8, 8, 12}, []int{16, 24, 32, 40}},
	{"gpu", 3911, []int{1000}, []int{6, 8, 12, 16}, []int{24, 32, 48, 64}},
	{"gpu2", 16, []int{2000}, []int{16, 24}, []int{64, 96}},
	{"gpu4", 15, []int{4000}, []int{32}, []int{128}},
	{"gpu8", 44, []int{8000}, []int{32, 64}, []int{128, 256}},
}

// NodeManifests yields the nodes as manifests, one YAML document each.
func NodeManifests() []string {
	var out []string
	for _, m := range models {
		for range m.nodes {
			var b strings.Builder
			fmt.Fprintf(&b, "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-%04d\n  labels:\n    topology.kubernetes.io/zone: zone-%d\n", len(out), len(out)%3)
			if m.name != "" {
				fmt.Fprintf(&b, "    demo.berth/gpu-model: %s\n", m.name)
			}
			fmt.Fprintf(&b, "status:\n  allocatable:\n    cpu: %q\n    memory: %dGi\n    pods: \"110\"\n", fmt.Sprint(m.cores), m.gibibyte)
			if m.gpus > 0 {
				fmt.Fprintf(&b, "    %s: \"%d\"\n", GPU, m.gpus*1000)
			}
			out = append(out, b.String())
		}
	}
	return out
}

// PodManifests yields the pods as manifests, one YAML document each, in an order that the seed decides.
func PodManifests(seed uint64) []string {
	random := rand.New(rand.NewPCG(seed, 1))
	pick := func(from []int) int { return from[random.IntN(len(from))] }
	var out []string
	for _, s := range shapes {
		for i := range s.pods {
			var b strings.Builder
			fmt.Fprintf(&b, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s-%04d\n  namespace: default\nspec:\n", s.name, i)
			if s.name == "gpu" && i%10 == 0 { // a tenth of the one-GPU pods is picky
				fmt.Fprintf(&b, "  nodeSelector:\n    demo.berth/gpu-model: %s\n", []string{"T4", "P100", "V100M16"}[random.IntN(3)])
			}
			fmt.Fprintf(&b, "  containers:\n  - name: work\n    image: demo.berth/work\n    resources:\n      requests:\n        cpu: %q\n        memory: %dGi\n",
				fmt.Sprint(pick(s.cores)), pick(s.gib))
			if milli := pick(s.milli); milli > 0 {
				fmt.Fprintf(&b, "        %s: \"%d\"\n      limits:\n        %s: \"%d\"\n", GPU, milli, GPU, milli)
			}
			out = append(out, b.String())
		}
	}
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
