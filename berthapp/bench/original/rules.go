package original

import (
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Labels that the original reads.
const (
	numberLabel   = "scv/number"
	memoryLabel   = "scv/memory"
	clockLabel    = "scv/clock"
	priorityLabel = "scv/priority"
)

// uintOf reads a label: a text that is no number is 0, and a negative number wraps around.
func uintOf(text string) uint64 {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return uint64(n)
}

// fitsNumber says whether a node has as many cards as a pod asks for, healthy or not, and how many these are.
func fitsNumber(pod *v1.Pod, told *v1alpha1.Status) (bool, uint64) {
	if number, ok := pod.Labels[numberLabel]; ok {
		return uintOf(number) <= uint64(told.CardNumber), uintOf(number)
	}
	return told.CardNumber > 0, 1
}

// fitsMemory says whether enough healthy cards have the memory that a pod asks for, and how much that is.
func fitsMemory(number uint64, pod *v1.Pod, told *v1alpha1.Status) (bool, uint64) {
	text, ok := pod.Labels[memoryLabel]
	if !ok {
		return true, 0
	}
	memory := uintOf(text)
	return count(told, func(c *v1alpha1.Card) bool { return uint64(c.FreeMemoryMiB) >= memory }) >= number, memory
}

// fitsClock says whether enough healthy cards have exactly the clock that a pod asks for. They need not be those with the memory.
func fitsClock(number uint64, pod *v1.Pod, told *v1alpha1.Status) (bool, uint64) {
	text, ok := pod.Labels[clockLabel]
	if !ok {
		return true, 0
	}
	clock := uintOf(text)
	return count(told, func(c *v1alpha1.Card) bool { return uint64(c.ClockMHz) == clock }) >= number, clock
}

// count returns how many healthy cards meet something.
func count(told *v1alpha1.Status, meets func(*v1alpha1.Card) bool) (n uint64) {
	for i := range told.Cards {
		if c := &told.Cards[i]; c.Health == v1alpha1.Healthy && meets(c) {
			n++
		}
	}
	return n
}

// fits says whether a pod may go to a node.
func fits(pod *v1.Pod, told *v1alpha1.Status) bool {
	ok, _, _ := asked(pod, told)
	return ok
}

// asked says whether a pod may go to a node, and what memory and clock it asks for.
func asked(pod *v1.Pod, told *v1alpha1.Status) (ok bool, memory, clock uint64) {
	ok, number := fitsNumber(pod, told)
	if !ok {
		return false, 0, 0
	}
	enoughMemory, memory := fitsMemory(number, pod, told)
	enoughClock, clock := fitsClock(number, pod, told)
	return enoughMemory && enoughClock, memory, clock
}

// qualifying calls a function with each card that counts for a pod, of a node that it may go to. Health is not looked at, and a higher clock will do.
func qualifying(pod *v1.Pod, told *v1alpha1.Status, each func(*v1alpha1.Card)) {
	ok, memory, clock := asked(pod, told)
	if !ok {
		return
	}
	for i := range told.Cards {
		if c := &told.Cards[i]; uint64(c.FreeMemoryMiB) >= memory && uint64(c.ClockMHz) >= clock {
			each(c)
		}
	}
}

// maxima are the most that any qualifying card of any node has, and 1 at least.
type maxima struct{ bandwidth, clock, core, freeMemory, power, totalMemory uint64 }

func newMaxima() *maxima { return &maxima{1, 1, 1, 1, 1, 1} }

// add takes the cards of a node into account.
func (m *maxima) add(pod *v1.Pod, told *v1alpha1.Status) {
	qualifying(pod, told, func(c *v1alpha1.Card) {
		m.bandwidth = max(m.bandwidth, uint64(c.BandwidthMBps))
		m.clock = max(m.clock, uint64(c.ClockMHz))
		m.core = max(m.core, uint64(c.CoreMHz))
		m.freeMemory = max(m.freeMemory, uint64(c.FreeMemoryMiB))
		m.power = max(m.power, uint64(c.PowerWatts))
		m.totalMemory = max(m.totalMemory, uint64(c.TotalMemoryMiB))
	})
}

// score returns how good a node is: a sum over all qualifying cards, with the clock in proportion to the bandwidth, and what of its memory is neither promised nor in use.
func score(m *maxima, pod *v1.Pod, told *v1alpha1.Status, others []*v1.Pod) uint64 {
	var cards uint64
	qualifying(pod, told, func(c *v1alpha1.Card) {
		cards += uint64(c.BandwidthMBps)*100/m.bandwidth +
			uint64(c.ClockMHz)*100/m.bandwidth +
			uint64(c.CoreMHz)*100/m.core +
			uint64(c.PowerWatts)*100/m.power +
			uint64(c.FreeMemoryMiB)*100/m.freeMemory*2 +
			uint64(c.TotalMemoryMiB)*100/m.totalMemory
	})
	return cards + allocateScore(told, others) + actualScore(told)
}

// allocateScore counts the label for memory of each pod of a node once, however many cards the pod has. A node without memory is a division by 0.
func allocateScore(told *v1alpha1.Status, pods []*v1.Pod) uint64 {
	total, promised := uint64(told.TotalMemoryMiB), uint64(0)
	for _, pod := range pods {
		if memory, ok := pod.Labels[memoryLabel]; ok {
			promised += uintOf(memory)
		}
	}
	if total < promised {
		return 0
	}
	return (total - promised) * 100 / total * 3
}

func actualScore(told *v1alpha1.Status) uint64 {
	return uint64(told.FreeMemoryMiB) * 100 / uint64(told.TotalMemoryMiB) * 2
}

// priority returns a pod's place in the queue, the highest first.
func priority(pod *v1.Pod) int {
	n, _ := strconv.Atoi(pod.Labels[priorityLabel])
	return n
}
