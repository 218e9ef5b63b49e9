package source_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestRequestsAreSummedAsKubeSchedulerDoes(t *testing.T) {
	for _, test := range []struct {
		name            string
		spec            string
		requests, score []cluster.Quantity
		nonZero         [2]int64 // milli-CPU, MiB
	}{
		{
			name:  "a container that asks for nothing counts by defaults",
			spec:  `containers: [{name: a}]`,
			score: quantities("cpu", 100, "memory", 200*mi), nonZero: [2]int64{100, 200},
		}, {
			name:     "containers add up, and each that names no memory counts by default",
			spec:     `containers: [{name: a, resources: {requests: {cpu: 1500m, memory: 1Gi}}}, {name: b, resources: {requests: {cpu: "2"}}}]`,
			requests: quantities("cpu", 3500, "memory", 1024*mi),
			score:    quantities("cpu", 3500, "memory", 1224*mi), nonZero: [2]int64{3500, 1224},
		}, {
			name:  "an explicit zero is not a default",
			spec:  `containers: [{name: a, resources: {requests: {cpu: 0, memory: 0}}}]`,
			score: nil, nonZero: [2]int64{0, 0},
		}, {
			name: "the largest init container counts if it exceeds the containers' sum",
			spec: `
initContainers: [{name: i, resources: {requests: {cpu: "4", memory: 100Mi}}}, {name: j, resources: {requests: {cpu: "2", memory: 900Mi}}}]
containers: [{name: a, resources: {requests: {cpu: "1", memory: 300Mi}}}, {name: b, resources: {requests: {cpu: "1", memory: 300Mi}}}]`,
			requests: quantities("cpu", 4000, "memory", 900*mi),
			score:    quantities("cpu", 4000, "memory", 900*mi), nonZero: [2]int64{4000, 900},
		}, {
			name: "restartable init containers add to the containers and to the init containers behind them",
			spec: `
initContainers:
- {name: side, restartPolicy: Always, resources: {requests: {cpu: "1", memory: 100Mi}}}
- {name: i, resources: {requests: {cpu: "3", memory: 50Mi}}}
containers: [{name: a, resources: {requests: {cpu: "2", memory: 500Mi}}}]`,
			// containers 2+1 = 3; while i runs 3+1 = 4
			requests: quantities("cpu", 4000, "memory", 600*mi),
			score:    quantities("cpu", 4000, "memory", 600*mi), nonZero: [2]int64{4000, 600},
		}, {
			name: "a restartable init container does not add to the init containers before it",
			spec: `
initContainers:
- {name: i, resources: {requests: {cpu: "3", memory: 50Mi}}}
- {name: side, restartPolicy: Always, resources: {requests: {cpu: "1", memory: 100Mi}}}
- {name: late, restartPolicy: Always, resources: {requests: {cpu: 500m}}}
containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			// CPU: containers 1+1+0.5 = 2.5; while i runs 3; while late starts 1+0.5.
			// Memory: 100; without a request a and late count 200 each.
			requests: quantities("cpu", 3000, "memory", 100*mi),
			score:    quantities("cpu", 3000, "memory", 500*mi), nonZero: [2]int64{3000, 500},
		}, {
			name: "overhead is added",
			spec: `
overhead: {cpu: 250m, memory: 64Mi}
containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			requests: quantities("cpu", 1250, "memory", 64*mi),
			score:    quantities("cpu", 1250, "memory", 264*mi), nonZero: [2]int64{1250, 264},
		}, {
			name: "pod-level resources replace the containers' but for the score",
			spec: `
resources: {requests: {cpu: "5", memory: 2Gi}}
containers: [{name: a, resources: {requests: {cpu: "1"}}}, {name: b}]`,
			requests: quantities("cpu", 5000, "memory", 2048*mi),
			score:    quantities("cpu", 1100, "memory", 400*mi), nonZero: [2]int64{5000, 2048},
		}, {
			name: "what the pod level does not name counts by default per container",
			spec: `
resources: {requests: {cpu: "5"}}
containers: [{name: a}, {name: b}]`,
			requests: quantities("cpu", 5000),
			score:    quantities("cpu", 200, "memory", 400*mi), nonZero: [2]int64{5000, 400},
		}, {
			name: "what one container names is no default for the other if there is a pod level",
			spec: `
resources: {requests: {cpu: "5"}}
containers: [{name: a, resources: {requests: {memory: 10Mi}}}, {name: b}]`,
			requests: quantities("cpu", 5000, "memory", 10*mi),
			score:    quantities("cpu", 200, "memory", 210*mi), nonZero: [2]int64{5000, 10},
		}, {
			name: "the pod level replaces sidecars and init containers too, and overhead is added to it",
			spec: `
overhead: {cpu: 250m, memory: 10Mi}
resources: {requests: {cpu: "2", memory: 1Gi}}
initContainers:
- {name: side, restartPolicy: Always, resources: {requests: {cpu: "1", memory: 100Mi}}}
- {name: i, resources: {requests: {cpu: "3", memory: 50Mi}}}
containers: [{name: a, resources: {requests: {cpu: 500m, memory: 100Mi}}}]`,
			// For the score CPU is max(0.5+1, 3+1) + 0.25 and memory max(100+100, 50+100) + 10.
			requests: quantities("cpu", 2250, "memory", 1034*mi),
			score:    quantities("cpu", 4250, "memory", 210*mi), nonZero: [2]int64{2250, 1034},
		}, {
			name: "the pod level says nothing of devices and storage, and limits alone are no requests",
			spec: `
resources: {requests: {cpu: "2", hugepages-2Mi: 8Mi}, limits: {cpu: "4", memory: 9Gi, hugepages-2Mi: 8Mi}}
containers: [{name: a, resources: {requests: {memory: 100Mi, nvidia.com/gpu: 1, ephemeral-storage: 1Mi, hugepages-2Mi: 2Mi}}}]`,
			requests: quantities("cpu", 2000, "ephemeral-storage", mi, "hugepages-2Mi", 8*mi, "memory", 100*mi, "nvidia.com/gpu", 1),
			score:    quantities("cpu", 100, "ephemeral-storage", mi, "hugepages-2Mi", 2*mi, "memory", 100*mi, "nvidia.com/gpu", 1),
			nonZero:  [2]int64{2000, 100},
		}, {
			name: "kinds of resources are counted in their units and in order",
			spec: `
containers: [{name: a, resources: {requests: {nvidia.com/gpu: 2, hugepages-2Mi: 4Mi, ephemeral-storage: 1Gi, example.com/none: 0, cpu: 1m, memory: 1500m, storage: 5, attachable-volumes-x: 3}}}]`,
			requests: quantities("attachable-volumes-x", 3, "cpu", 1, "ephemeral-storage", 1024*mi, "hugepages-2Mi", 4*mi, "memory", 2, "nvidia.com/gpu", 2),
			score:    quantities("attachable-volumes-x", 3, "cpu", 1, "ephemeral-storage", 1024*mi, "hugepages-2Mi", 4*mi, "memory", 2, "nvidia.com/gpu", 2),
			nonZero:  [2]int64{1, 0},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			class := source.ReducePod(spec(t, test.spec)).Class
			if diff := cmp.Diff(test.requests, class.Requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.score, class.ScoreRequests); diff != "" {
				t.Errorf("score requests (-want +got):\n%s", diff)
			}
			if got := [2]int64{class.NonZeroCPU, class.NonZeroMemory / mi}; got != test.nonZero {
				t.Errorf("non-zero CPU and MiB: %v, want %v", got, test.nonZero)
			}
		})
	}
}

func TestAPodBeingResizedCountsByItsStatusOnceItIsOnANode(t *testing.T) {
	for _, test := range []struct {
		name, spec, status string
		waiting, placed    []cluster.Quantity
		nonZero            [2]int64 // milli-CPU, MiB; of the placed pod
	}{
		{
			name:   "the largest of desired, allocated and actual",
			spec:   `containers: [{name: a, resources: {requests: {cpu: "1", memory: 300Mi}}}]`,
			status: `containerStatuses: [{name: a, allocatedResources: {cpu: "3", memory: 100Mi}, resources: {requests: {cpu: "2", memory: 200Mi}}}]`,
			// what is asked for is largest in memory, what is allocated in CPU
			waiting: quantities("cpu", 1000, "memory", 300*mi), placed: quantities("cpu", 3000, "memory", 300*mi), nonZero: [2]int64{3000, 300},
		}, {
			name:    "scaled down, but the kubelet has not done it",
			spec:    `containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			status:  `containerStatuses: [{name: a, allocatedResources: {cpu: "1"}, resources: {requests: {cpu: "2"}}}]`,
			waiting: quantities("cpu", 1000), placed: quantities("cpu", 2000), nonZero: [2]int64{2000, 200},
		}, {
			name: "a resize that can never be is not counted",
			spec: `containers: [{name: a, resources: {requests: {cpu: "5"}}}, {name: b, resources: {requests: {cpu: "1"}}}]`,
			status: `
conditions: [{type: PodResizePending, status: "True", reason: Infeasible}]
containerStatuses: [{name: a, allocatedResources: {cpu: "2"}, resources: {requests: {cpu: 1500m}}}]`,
			waiting: quantities("cpu", 6000), placed: quantities("cpu", 3000), nonZero: [2]int64{3000, 400},
		}, {
			name: "one that is put off is",
			spec: `containers: [{name: a, resources: {requests: {cpu: "5"}}}, {name: b, resources: {requests: {cpu: "1"}}}]`,
			status: `
conditions: [{type: PodResizePending, status: "True", reason: Deferred}]
containerStatuses: [{name: a, allocatedResources: {cpu: "2"}, resources: {requests: {cpu: 1500m}}}]`,
			waiting: quantities("cpu", 6000), placed: quantities("cpu", 6000), nonZero: [2]int64{6000, 400},
		}, {
			name:    "a status without resources says nothing",
			spec:    `containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			status:  `containerStatuses: [{name: a, allocatedResources: {cpu: "3"}}]`,
			waiting: quantities("cpu", 1000), placed: quantities("cpu", 1000), nonZero: [2]int64{1000, 200},
		}, {
			name: "sidecars are resized, other init containers are not",
			spec: `
overhead: {cpu: 100m}
initContainers:
- {name: side, restartPolicy: Always, resources: {requests: {cpu: 500m}}}
- {name: i, resources: {requests: {cpu: 1200m}}}
containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			status: `
initContainerStatuses:
- {name: side, allocatedResources: {cpu: "1"}, resources: {requests: {cpu: 1500m}}}
- {name: i, allocatedResources: {cpu: "9"}, resources: {requests: {cpu: "9"}}}`,
			// waiting max(1+0.5, 1.2+0.5) + 0.1; placed max(1+1.5, 1.2+1.5) + 0.1; memory 200 each of max(a+side, i+side)
			waiting: quantities("cpu", 1800), placed: quantities("cpu", 2800), nonZero: [2]int64{2800, 400},
		}, {
			name: "the pod level is resized as a whole",
			spec: `
overhead: {cpu: 250m}
resources: {requests: {cpu: "4", memory: 100Mi}}
containers: [{name: a, resources: {requests: {cpu: "1"}}}]`,
			status: `
allocatedResources: {cpu: "5", memory: 300Mi}
resources: {requests: {cpu: "6", memory: 200Mi}}
containerStatuses: [{name: a, allocatedResources: {cpu: "9"}, resources: {requests: {cpu: "9"}}}]`,
			waiting: quantities("cpu", 4250, "memory", 100*mi), placed: quantities("cpu", 6250, "memory", 300*mi), nonZero: [2]int64{6250, 300},
		}, {
			name: "of a pod level that can never be, only what the status has is counted",
			spec: `
resources: {requests: {cpu: "4", memory: 100Mi}}
containers: [{name: a, resources: {requests: {cpu: "1", memory: 50Mi}}}]`,
			status: `
conditions: [{type: PodResizePending, status: "True", reason: Infeasible}]
allocatedResources: {cpu: "2"}
resources: {requests: {cpu: "1"}}`,
			waiting: quantities("cpu", 4000, "memory", 100*mi), placed: quantities("cpu", 2000), nonZero: [2]int64{2000, 0},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := spec(t, test.spec)
			if err := yaml.UnmarshalStrict([]byte(test.status), &pod.Status); err != nil {
				t.Fatal(err)
			}
			waiting := source.ReducePod(pod).Class
			if diff := cmp.Diff(test.waiting, waiting.Requests); diff != "" {
				t.Errorf("while it waits (-want +got):\n%s", diff)
			}
			pod.Spec.NodeName = "n"
			got := source.ReducePod(pod)
			if diff := cmp.Diff(test.placed, got.Class.Requests); diff != "" {
				t.Errorf("on a node (-want +got):\n%s", diff)
			}
			if nonZero := [2]int64{got.Class.NonZeroCPU, got.Class.NonZeroMemory / mi}; nonZero != test.nonZero {
				t.Errorf("non-zero CPU and MiB on a node: %v, want %v", nonZero, test.nonZero)
			}
			if diff := cmp.Diff(waiting.ScoreRequests, got.Class.ScoreRequests); diff != "" {
				t.Errorf("what it is scored with differs on a node (-waiting +placed):\n%s", diff)
			}
			if got.NodeName != "n" || got.Class.NodeName != "" {
				t.Errorf("on %q, class for %q; want n and none", got.NodeName, got.Class.NodeName)
			}
		})
	}
}
