package source_test

import (
	"math"
	"reflect"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// vast are quantities that, compared with or added to another, take longer than anybody waits.
var vast = map[string]resource.Quantity{
	"large":                resource.MustParse("1e999999999"),
	"larger":               resource.MustParse("1.0e-2147483648"), // which is parsed as 10e2147483647
	"small":                *resource.NewScaledQuantity(1, -999999999),
	"less than nothing":    resource.MustParse("-1e999999999"),
	"nothing":              resource.MustParse("0e999999999"),
	"nothing, with places": resource.MustParse("0e-999999999"),
	"of many digits":       resource.MustParse("12345678901234567890e100000"),
}

// fill sets all quantities of a value, where there are none in lists of some names, and puts one thing into each list that is empty.
func fill(v reflect.Value, with resource.Quantity, depth int) (filled int) {
	switch {
	case depth > 12 || !v.CanSet():
		return 0
	case v.Type() == reflect.TypeFor[resource.Quantity]():
		v.Set(reflect.ValueOf(with.DeepCopy()))
		return 1
	case v.Type() == reflect.TypeFor[v1.ResourceList]():
		list := v1.ResourceList{}
		for _, name := range []v1.ResourceName{"cpu", "memory", "ephemeral-storage", "pods", "storage", "hugepages-2Mi", "example.com/gpu"} {
			list[name] = with.DeepCopy()
		}
		v.Set(reflect.ValueOf(list))
		return 1
	}
	switch v.Kind() {
	case reflect.Pointer:
		into := reflect.New(v.Type().Elem())
		if filled = fill(into.Elem(), with, depth+1); filled > 0 {
			v.Set(into)
		}
	case reflect.Slice:
		list := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range 2 {
			filled += fill(list.Index(i), with, depth+1)
		}
		if filled > 0 {
			v.Set(list)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			filled += fill(v.Field(i), with, depth+1)
		}
	}
	return filled
}

// TestWhatIsVastIsReducedAtOnce fails by never ending.
func TestWhatIsVastIsReducedAtOnce(t *testing.T) {
	kinds := map[string]func() any{
		cluster.KindService: func() any { return new(v1.Service) }, cluster.KindReplicationController: func() any { return new(v1.ReplicationController) },
		cluster.KindReplicaSet: func() any { return new(appsv1.ReplicaSet) }, cluster.KindStatefulSet: func() any { return new(appsv1.StatefulSet) },
		cluster.BudgetKind.String():                func() any { return new(policyv1.PodDisruptionBudget) },
		cluster.PersistentVolumeKind.String():      func() any { return new(v1.PersistentVolume) },
		cluster.PersistentVolumeClaimKind.String(): func() any { return new(v1.PersistentVolumeClaim) },
		cluster.StorageClassKind.String():          func() any { return new(storagev1.StorageClass) },
		cluster.CSINodeKind.String():               func() any { return new(storagev1.CSINode) },
		cluster.CSIDriverKind.String():             func() any { return new(storagev1.CSIDriver) },
		cluster.CSIStorageCapacityKind.String():    func() any { return new(storagev1.CSIStorageCapacity) },
		cluster.VolumeAttachmentKind.String():      func() any { return new(storagev1.VolumeAttachment) },
		cluster.PodGroupKind.String():              func() any { return new(schedulingv1alpha2.PodGroup) },
	}
	for what, with := range vast {
		t.Run(what, func(t *testing.T) {
			for kind, reduction := range source.Reductions {
				if kinds[kind] == nil {
					t.Fatalf("%s is not tried", kind)
				}
				o := kinds[kind]()
				fill(reflect.ValueOf(o).Elem(), with, 0)
				reduction.Reduce(o)
			}
			node := new(v1.Node)
			fill(reflect.ValueOf(node).Elem(), with, 0)
			source.ReduceNode(node)
			pod := new(v1.Pod)
			if n := fill(reflect.ValueOf(pod).Elem(), with, 0); n < 30 || pod.Status.ContainerStatuses[1].AllocatedResources == nil {
				t.Fatalf("a pod has %d quantities", n)
			}
			before := pod.DeepCopy()
			always := v1.ContainerRestartPolicyAlways
			for _, node := range []string{"", "n"} {
				for _, policy := range []*v1.ContainerRestartPolicy{nil, &always} {
					pod.Spec.NodeName, pod.Spec.InitContainers[0].RestartPolicy = node, policy
					source.ReducePod(pod)
				}
			}
			pod.Spec.NodeName, pod.Spec.InitContainers[0].RestartPolicy = "", nil
			if !reflect.DeepEqual(pod, before) {
				t.Error("the pod is changed, which others read")
			}
			pod.Spec.InitContainers, pod.Spec.Overhead, pod.Spec.Resources = nil, nil, nil
			source.ReducePod(pod)
		})
	}
}

// The most that is counted is what anything vast counts as, alone and beside others.
func TestWhatIsVastCountsAsTheMost(t *testing.T) {
	const most = 1<<53 + 1
	gpu := func(amount string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{"example.com/gpu": resource.MustParse(amount)}}
	}
	for what, test := range map[string]struct {
		spec v1.PodSpec
		want int64
	}{
		"alone":               {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("1e999999999")}}}, most},
		"of many digits":      {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("12345678901234567890e100000")}}}, most},
		"beside another":      {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("1e999999999")}, {Resources: gpu("1")}}}, most},
		"behind another":      {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("1")}, {Resources: gpu("1e999999999")}}}, most},
		"twice":               {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("1e999999999")}, {Resources: gpu("1e999999998")}}}, most},
		"of an init":          {v1.PodSpec{InitContainers: []v1.Container{{Resources: gpu("1e999999999")}}, Containers: []v1.Container{{Resources: gpu("1")}}}, most},
		"overhead":            {v1.PodSpec{Overhead: gpu("1e999999999").Requests, Containers: []v1.Container{{Resources: gpu("1")}}}, most},
		"nothing":             {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("0e999999999")}, {Resources: gpu("3")}}}, 3},
		"nothing, and others": {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("3")}, {Resources: gpu("0e-999999999")}, {Resources: gpu("4")}}}, 7},
		"large, but not vast": {v1.PodSpec{Containers: []v1.Container{{Resources: gpu("9007199254740990")}, {Resources: gpu("1100m")}}}, 1 << 53},
	} {
		got := source.ReducePod(&v1.Pod{Spec: test.spec}).Class.Requests
		if !cmp.Equal(got, []cluster.Quantity{{Name: "example.com/gpu", Value: test.want}}) {
			t.Errorf("%s: %v, want %d", what, got, test.want)
		}
	}
	storage := func(q resource.Quantity) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: q} }
	for what, want := range map[string]int64{
		"large": math.MaxInt64, "larger": math.MaxInt64, "of many digits": math.MaxInt64, "small": 1, "less than nothing": 0, "nothing": 0, "nothing, with places": 0,
	} {
		claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{Requests: storage(vast[what])}}}
		if got := source.ReducePersistentVolumeClaim(claim).Request; got != want {
			t.Errorf("%s: a claim of %d, want %d", what, got, want)
		}
		limit := vast[what]
		if got := source.ReduceCSIStorageCapacity(&storagev1.CSIStorageCapacity{Capacity: &limit}).Limit; got != want {
			t.Errorf("%s: room for %d, want %d", what, got, want)
		}
		node := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{"example.com/gpu": vast[what]}}}
		var has int64
		for _, q := range source.ReduceNode(node).Allocatable {
			has = q.Value
		}
		if has != min(want, 1<<53) {
			t.Errorf("%s: a node has %d, want %d", what, has, min(want, 1<<53))
		}
	}
}
