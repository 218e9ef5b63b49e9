package system

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/test/berthtest"
)

// Constraints of pods that are spread over the shards by what they request, and meet on the same nodes.
const (
	spreadOverZones = `topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: spread}}}], `
	aloneOnNode     = `affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: alone}}}]}}, `
	inOneZone       = `affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app: together}}}]}}, `
)

// crowd is the pods of one run, in a namespace of their own.
type crowd struct {
	namespace string
	app, spec []string // by pod
}

func newCrowd(seed int) crowd {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	c := crowd{namespace: fmt.Sprintf("run-%03d", seed)}
	for range 40 + random.IntN(20) {
		app, spec := "spread", spreadOverZones
		switch random.IntN(4) {
		case 0:
			app, spec = "alone", aloneOnNode
		case 1:
			app, spec = "alone", "" // whom the others do not want beside them
		case 2:
			app, spec = "together", inOneZone
		}
		c.app, c.spec = append(c.app, app), append(c.spec, spec)
	}
	return c
}

func (c crowd) manifests() []string {
	var out []string
	for i := range c.app {
		out = append(out, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: p%02d, labels: {app: %s}}, spec: {%scontainers: [{name: c, image: i, resources: {requests: {cpu: %dm}}}]}}`,
			c.namespace, i, c.app[i], c.spec[i], 1+i%23)) // 23 classes of each constraint
	}
	return out
}

// broken returns what is wrong with the placements, given by pod.
func (c crowd) broken(nodeOf func(pod string) string, zoneOf map[string]string) []string {
	var out []string
	spread, alone, together := map[string]int{}, map[string][]int{}, map[string]int{}
	for _, zone := range zoneOf {
		spread[zone] = 0
	}
	for i, app := range c.app {
		node := nodeOf(fmt.Sprintf("%s/p%02d", c.namespace, i))
		switch {
		case node == "":
		case app == "spread":
			spread[zoneOf[node]]++
		case app == "alone":
			alone[node] = append(alone[node], i)
		case app == "together":
			together[zoneOf[node]]++
		}
	}
	var counts []int
	for _, n := range spread {
		counts = append(counts, n)
	}
	if slices.Max(counts)-slices.Min(counts) > 1 {
		out = append(out, fmt.Sprintf("maxSkew 1 is broken: %v", spread))
	}
	for node, pods := range alone {
		if len(pods) > 1 && slices.ContainsFunc(pods, func(i int) bool { return c.spec[i] != "" }) {
			out = append(out, fmt.Sprintf("pods %v on %s, and one of them wants to be alone", pods, node))
		}
	}
	if len(together) > 1 {
		out = append(out, fmt.Sprintf("pods that want to be together are in %v", together))
	}
	return out
}

func TestConcurrentShardsBreakNoHardConstraint(t *testing.T) {
	const runs, nodes = 100, 12
	b := berthtest.Start(t, berthtest.Options{Shards: 4, Queues: 2, FilterWorkers: 2, ScoreWorkers: 2, BatchSize: 8})
	zoneOf := make(map[string]string)
	var manifests []string
	for i := range nodes {
		name, zone := fmt.Sprintf("node-%02d", i), fmt.Sprintf("zone-%d", i%3)
		zoneOf[name] = zone
		manifests = append(manifests, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/hostname: %s, topology.kubernetes.io/zone: %s}}, status: {allocatable: {cpu: "1000", pods: "10000"}}}`, name, name, zone))
	}
	b.Apply(manifests...)
	decided, placed, waiting := 0, 0, 0
	for seed := range runs {
		c := newCrowd(seed)
		b.Apply(c.manifests()...)
		decided += len(c.app)
		b.AwaitDecided(decided)
		placements := b.Placements()
		for _, what := range c.broken(func(pod string) string { return placements[pod] }, zoneOf) {
			t.Errorf("seed %d: %s", seed, what)
		}
		for i := range c.app {
			switch node := placements[fmt.Sprintf("%s/p%02d", c.namespace, i)]; {
			case node != "":
				placed++
			case c.app[i] != "alone":
				t.Errorf("seed %d: %s/p%02d, %s, is not placed", seed, c.namespace, i, c.app[i])
			default:
				waiting++
			}
		}
	}
	if placed == 0 || waiting == 0 {
		t.Errorf("%d pods placed and %d kept away: the constraints were not felt", placed, waiting)
	}
}
