package quantity

import (
	"iter"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// vastScale: a quantity of 10 to that, or more, is vast. An int64 holds less, also of what is counted in thousandths, and a thousand of them
// have no more digits than are added at once.
const vastScale = 30

// Bounded returns a quantity that is quick to compute with: q, unless it is vast, and else 1e30 or -1e30. A fraction that is smaller than all
// that can be parsed is a billionth.
func Bounded(q resource.Quantity) resource.Quantity {
	if quick(&q) {
		return q
	}
	switch sign := int64(q.Sign()); {
	case sign == 0:
		return resource.Quantity{Format: q.Format}
	case q.AsApproximateFloat64() == 0:
		return *resource.NewScaledQuantity(sign, resource.Nano)
	default:
		return *resource.NewScaledQuantity(sign, vastScale)
	}
}

// quick reports whether computing with q takes no longer than with most. It writes out no digits.
func quick(q *resource.Quantity) bool {
	if q.IsZero() { // whatever the exponent
		of := *q
		scale := of.AsDec().Scale()
		return -vastScale <= scale && scale <= vastScale
	}
	size := math.Abs(q.AsApproximateFloat64()) // infinite, 0 or not a number where the exponent is out of a float64's bounds
	return 0 < size && size < 1e30
}

// Whole returns a quantity in whole units, rounded up: between 0 and the largest int64, which stands for all that is larger.
func Whole(q resource.Quantity) int64 { return scaled(q, 0, math.MaxInt64) }

// Milli returns a quantity in thousandths, as Whole does.
func Milli(q resource.Quantity) int64 { return scaled(q, resource.Milli, math.MaxInt64/1000) }

// scaled returns a quantity in units of a scale. More than so many whole units are not counted.
func scaled(q resource.Quantity, scale resource.Scale, most int64) int64 {
	if q = Bounded(q); q.Sign() <= 0 { // of which ScaledValue may say 1
		return 0
	}
	if q.CmpInt64(most) > 0 {
		return math.MaxInt64
	}
	return q.ScaledValue(scale)
}

// IsWhole reports whether a quantity has no fraction.
func IsWhole(q resource.Quantity) bool {
	q = Bounded(q)
	_, exact := q.AsScale(0)
	return exact
}

// Compare returns -1, 0 or 1 as a is less than b, equal or larger. All that is vast is equal.
func Compare(a, b resource.Quantity) int {
	a = Bounded(a)
	return a.Cmp(Bounded(b))
}

// Add adds to a sum of such as Add has added.
func Add(sum *resource.Quantity, q resource.Quantity) { sum.Add(Bounded(q)) }

// RoundUp takes away what is finer than a thousandth, away from 0.
func RoundUp(q *resource.Quantity) {
	*q = Bounded(*q)
	q.RoundUp(resource.Milli)
}

// Text returns a quantity for people: not all digits of what is vast.
func Text(q resource.Quantity) string {
	q = Bounded(q)
	switch size := q.AsApproximateFloat64(); {
	case size >= 1e30:
		return "1e30 or more"
	case size <= -1e30:
		return "-1e30 or less"
	}
	return q.String()
}

// PodRequests returns what a pod requests, as kube-scheduler sums it up by these options.
func PodRequests(pod *v1.Pod, options resourcehelper.PodResourcesOptions) v1.ResourceList {
	return resourcehelper.PodRequests(bounded(pod), options)
}

// PodLimits returns what a pod is limited to, likewise.
func PodLimits(pod *v1.Pod, options resourcehelper.PodResourcesOptions) v1.ResourceList {
	return resourcehelper.PodLimits(bounded(pod), options)
}

// Approximate returns about how much a quantity is, for metrics.
func Approximate(q resource.Quantity) float64 {
	q = Bounded(q)
	return q.AsApproximateFloat64()
}

// ContainerRequests returns what the containers of a pod request.
func ContainerRequests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.AggregateContainerRequests(bounded(pod), resourcehelper.PodResourcesOptions{})
}

// ContainerLimits returns what the containers of a pod are limited to.
func ContainerLimits(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.AggregateContainerLimits(bounded(pod), resourcehelper.PodResourcesOptions{})
}

// bounded returns a pod whose resources can be computed with, which is quick: pod itself, which others read, or a copy.
func bounded(pod *v1.Pod) *v1.Pod {
	if pod.Spec.Resources != nil && len(pod.Spec.Overhead) > 0 {
		return boundedCopy(pod) // the overhead is added to the pod's own quantities, in place if they are kept as digits
	}
	for list := range lists(pod) {
		for _, q := range list {
			if !quick(&q) {
				return boundedCopy(pod)
			}
		}
	}
	return pod
}

func boundedCopy(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	for list := range lists(pod) {
		for name, q := range list {
			list[name] = Bounded(q)
		}
	}
	return pod
}

// lists are those of resources that a pod has.
func lists(pod *v1.Pod) iter.Seq[v1.ResourceList] {
	return func(yield func(v1.ResourceList) bool) {
		of := func(r *v1.ResourceRequirements) bool { return r == nil || yield(r.Requests) && yield(r.Limits) }
		for _, containers := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				if !of(&containers[i].Resources) {
					return
				}
			}
		}
		for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
			for i := range statuses {
				if !of(statuses[i].Resources) || !yield(statuses[i].AllocatedResources) {
					return
				}
			}
		}
		if of(pod.Spec.Resources) && of(pod.Status.Resources) && yield(pod.Spec.Overhead) {
			yield(pod.Status.AllocatedResources)
		}
	}
}
