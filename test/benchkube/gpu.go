package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
	"github.com/berth-scheduler/berth/internal/kubetest"
)

// The workloads of pods that ask for cards.
const (
	gpuWorkload   = "gpu"
	openbWorkload = "gpu-openb"
)

// What pods ask for cards by, and are told by which ones they have, as in plugins/yoda.
const (
	numberLabel           = "scv/number"
	memoryLabel           = "scv/memory"
	clockLabel            = "scv/clock"
	requestAnnotation     = "yoda.berth.dev/request"
	cardsAnnotation       = "yoda.berth.dev/cards"
	cardsMemoryAnnotation = "yoda.berth.dev/cards-memory"
)

// devicePluginCards is the resource by which a device plugin counts cards.
const devicePluginCards corev1.ResourceName = "nvidia.com/gpu"

// cardsOfNode is how many cards a node of the workload has.
const cardsOfNode = 8

// heartbeatSeconds is the longest that there may be: nobody writes a second time what cards are, and a run takes less.
const heartbeatSeconds = 3600

// cardModel is a card as its collector tells of it.
type cardModel struct {
	name                                  string
	nodes                                 int // of each 100, that have it
	memory, clock, core, bandwidth, power int64
}

// cardModels are those of the workload. Which part of the nodes has one is as in Alibaba's trace of a GPU cluster, openb, roughly: there 45 % of nodes with cards have G2, 33 % T4, 11 % P100, 7 % V100, 3 % G3. What G2 and G3 are it does not say; here they are A10 and A100.
var cardModels = []cardModel{
	{"NVIDIA A10", 45, 23028, 6251, 1695, 31504, 150},
	{"Tesla T4", 34, 15360, 5001, 1590, 15752, 70},
	{"Tesla P100-PCIE-16GB", 11, 16280, 715, 1328, 15752, 250},
	{"Tesla V100-SXM2-32GB", 7, 32510, 877, 1530, 15752, 300},
	{"NVIDIA A100-SXM4-40GB", 3, 40536, 1215, 1410, 31504, 400},
}

// modelOf returns the model of the cards of node i. Models are spread evenly: any 100 nodes in a row have all of them as often as they should.
func modelOf(i int) cardModel {
	at := i * 37 % 100
	for _, m := range cardModels {
		if at -= m.nodes; at < 0 {
			return m
		}
	}
	panic("models are of less than 100 nodes")
}

// cards returns n healthy cards of a node, of which nothing is in use.
func (m cardModel) cards(node string, n int) []v1alpha1.Card {
	out := make([]v1alpha1.Card, n)
	for k := range out {
		out[k] = v1alpha1.Card{
			ID: fmt.Sprintf("GPU-%s-%d", node, k), Index: int32(k), Model: m.name, Health: v1alpha1.Healthy,
			TotalMemoryMiB: m.memory, FreeMemoryMiB: m.memory, ClockMHz: m.clock, CoreMHz: m.core, BandwidthMBps: m.bandwidth, PowerWatts: m.power,
		}
	}
	return out
}

func gpuCards(_ config, node string, i int) []v1alpha1.Card {
	return modelOf(i).cards(node, cardsOfNode)
}

// cardKind is what a pod of the workload asks for. 0: not said.
type cardKind struct {
	number        int
	memory, clock int64
}

// cardKinds are as many as there are kinds of plain pods. For the original's sake clocks are those that some card has, for it wants them exactly.
var cardKinds = [maxClasses]cardKind{
	{1, 0, 0}, {2, 8000, 0}, {1, 8000, 5001}, {4, 12000, 0},
	{1, 20000, 0}, {2, 0, 0}, {1, 0, 5001}, {4, 0, 0},
	{1, 8000, 0}, {2, 12000, 0}, {1, 0, 877}, {4, 8000, 0},
	{1, 12000, 0}, {2, 0, 5001}, {1, 12000, 877}, {4, 14000, 0},
}

// fits reports whether cards of a model do, with at least the clock or, as the original has it, exactly.
func (k cardKind) fits(m cardModel, exactly bool) bool {
	return m.memory >= k.memory && (m.clock >= k.clock && !exactly || k.clock == 0 || m.clock == k.clock)
}

// ofKinds has a pod ask for cards. It requests as much else as pods with constraints do, of which a node has room for more pods than it has cards: what keeps pods off a node is its cards, or nothing.
func ofKinds(_ config, pod *corev1.Pod, _, class int) {
	k := cardKinds[class]
	pod.Labels = map[string]string{numberLabel: strconv.Itoa(k.number)}
	if k.memory > 0 {
		pod.Labels[memoryLabel] = strconv.FormatInt(k.memory, 10)
	}
	if k.clock > 0 {
		pod.Labels[clockLabel] = strconv.FormatInt(k.clock, 10)
	}
}

// gpuRoom returns how many of the pods can be bound whichever choices are made, each with cards of its own; and with the clock exactly, where only CPU and memory count, of which a node has enough for perNode pods.
func gpuRoom(cfg config, perNode int) int {
	most, pods := math.MaxInt, cfg.pods
	for _, k := range cardKinds[:cfg.classes] {
		nodes, exact := 0, 0
		for i := range cfg.nodes {
			if k.fits(modelOf(i), false) {
				nodes++
			}
			if k.fits(modelOf(i), true) {
				exact++
			}
		}
		// There is no room once each node has fewer cards left than are asked for.
		most = min(most, nodes*(cardsOfNode-k.number+1)+k.number-1)
		pods = min(pods, exact*perNode)
	}
	cards := 0
	for i, class := range newLoad(cfg, workload{}).classOf[:pods] {
		if cards += cardKinds[class].number; cards > most {
			return i
		}
	}
	return pods
}

// countByDevicePlugin gives a node its cards as a device plugin does.
func countByDevicePlugin(node *corev1.Node, cards int) {
	n := *resource.NewQuantity(int64(cards), resource.DecimalSI)
	node.Status.Capacity[devicePluginCards], node.Status.Allocatable[devicePluginCards] = n, n
}

// askDevicePlugin has a pod ask a device plugin for as many cards as its label says. There are no parts of cards there.
func askDevicePlugin(pod *corev1.Pod) {
	n := resource.MustParse(pod.Labels[numberLabel])
	r := &pod.Spec.Containers[0].Resources
	r.Requests[devicePluginCards] = n
	r.Limits = corev1.ResourceList{devicePluginCards: n}
}

// gpu is a script of pods that ask for cards. All of them can be bound.
type gpu struct{ bindAll }

func (g gpu) prepare(ctx context.Context, s *stage) error {
	if err := tellCards(ctx, s); err != nil {
		return err
	}
	return g.bindAll.prepare(ctx, s)
}

func (gpu) judge(ctx context.Context, s *stage) (expected, error) {
	problems, err := judgeGPU(ctx, s)
	return expected{bound: s.pods, problems: problems}, err
}

// tellCards plays the collectors of all nodes, once: it creates the custom resource, and one object for each node.
func tellCards(ctx context.Context, s *stage) error {
	client := s.plane.Client()
	if err := createScvResource(ctx, client, s.scvCRD); err != nil {
		return err
	}
	return kubetest.ForEach(ctx, s.nodes, func(ctx context.Context, i int) error {
		node := s.load.node(i).Name
		if err := tellCardsOf(ctx, client, node, s.load.cards(s.config, node, i)); err != nil {
			return fmt.Errorf("tell cards of node %s: %w", node, err)
		}
		return nil
	})
}

// scvPath is where the objects are.
const scvPath = "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/" + v1alpha1.Resource

// scvServedWithin is how long the API server may take to serve a resource that it has been told of.
const scvServedWithin = time.Minute

// createScvResource creates the custom resource of a file, and returns when it is served.
func createScvResource(ctx context.Context, client *kubernetes.Clientset, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read custom resource: %w", err)
	}
	body, err := yaml.YAMLToJSON(text)
	if err != nil {
		return fmt.Errorf("read custom resource of %s: %w", file, err)
	}
	if _, err := postJSON(ctx, client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body); err != nil {
		return fmt.Errorf("create custom resource: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, quietPoll, scvServedWithin, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().RESTClient().Get().AbsPath(scvPath).DoRaw(ctx)
		return err == nil, nil // until then it is not found
	})
	if err != nil {
		return fmt.Errorf("wait until %s are served: %w", v1alpha1.Resource, err)
	}
	return nil
}

// tellCardsOf creates the object of a node, and then its status, which cannot come with it.
func tellCardsOf(ctx context.Context, client *kubernetes.Clientset, node string, cards []v1alpha1.Card) error {
	scv := scvOf(node, cards)
	body, err := json.Marshal(metav1.PartialObjectMetadata{TypeMeta: scv.TypeMeta, ObjectMeta: scv.ObjectMeta})
	if err != nil {
		return err
	}
	made, err := postJSON(ctx, client, scvPath, body)
	if err != nil {
		return err
	}
	var created v1alpha1.Scv
	if err := json.Unmarshal(made, &created); err != nil {
		return err
	}
	created.Status = scv.Status
	if body, err = json.Marshal(created); err != nil {
		return err
	}
	_, err = client.CoreV1().RESTClient().Put().AbsPath(scvPath, node, "status").SetHeader("Content-Type", "application/json").Body(body).DoRaw(ctx)
	return err
}

func postJSON(ctx context.Context, client *kubernetes.Clientset, path string, body []byte) ([]byte, error) {
	return client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).DoRaw(ctx)
}

// scvOf returns what the collector of a node tells.
func scvOf(node string, cards []v1alpha1.Card) *v1alpha1.Scv {
	scv := &v1alpha1.Scv{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status: v1alpha1.Status{
			Heartbeat: metav1.NowMicro(), HeartbeatSeconds: heartbeatSeconds, Cards: cards, CardNumber: int32(len(cards)), HealthyNumber: int32(len(cards)),
		},
	}
	for _, c := range cards {
		scv.Status.FreeMemoryMiB += c.FreeMemoryMiB
		scv.Status.TotalMemoryMiB += c.TotalMemoryMiB
	}
	return scv
}
