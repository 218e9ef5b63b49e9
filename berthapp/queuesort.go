package berthapp

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
)

// queueSort has the plugin that sorts say where a pod belongs, as kube-scheduler's queue does when it takes a pod up: with one pod at a time, and no other plugin that it asks with its queue locked.
func (s *steps) queueSort(step *placeserver.Step) error {
	pod, leave, err := s.begins(step)
	if err != nil {
		return err
	}
	defer leave()
	ctx, done, err := step.Context()
	if err != nil {
		return fmt.Errorf("running plugins at %s: %w", stepPoints[step.Kind], err)
	}
	defer done()
	defer watch(ctx)()
	if err := s.seeUnlessInCycle(ctx); err != nil {
		return err
	}
	plugin, ok := s.profile.made[step.Plugins[0]].(fwk.QueueSortPlugin)
	if !ok {
		return fmt.Errorf("there is no plugin %q that sorts the queue", step.Plugins[0])
	}
	waits := func() bool { return s.profile.hints.get(cache.MetaObjectToName(pod).String(), pod.UID) != nil }
	step.Key, step.Order = s.profile.hints.line.put(plugin.Less, queuedPod(pod, step.Queued), step.Queued.GetArrival(), waits)
	return nil
}

// queuedPod returns how a pod waits, as kube-scheduler has it.
func queuedPod(pod *v1.Pod, q *pluginv1.Queued) *framework.QueuedPodInfo {
	info, _ := framework.NewPodInfo(pod) // the API server has checked the pod's terms
	first := time.Unix(0, q.GetFirstUnixNanos())
	return &framework.QueuedPodInfo{
		PodInfo: info, Timestamp: time.Unix(0, q.GetSinceUnixNanos()), InitialAttemptTimestamp: &first, Attempts: int(q.GetAttempts()), UnschedulableCount: int(q.GetUnschedulable()), ConsecutiveErrorsCount: int(q.GetErrors()),
		UnschedulablePlugins: sets.New[string](), PendingPlugins: sets.New[string](),
	}
}

// line are the pods that wait, in the order in which a plugin sorts them, each with a key: an earlier one has a lower one. So the queue needs to know the keys only, which hold until there is no number left between two pods that another one belongs
// between: then all get new keys, and the order is another one. It has the pods that have been put there and wait still. The zero line is empty. It is safe for concurrent use.
type line struct {
	mu    sync.Mutex
	order int64
	puts  int64
	pods  []*inLine             // by key
	by    map[types.UID]*inLine // the same
}

// inLine is a pod of a line.
type inLine struct {
	fwk.QueuedPodInfo
	uid     types.UID
	arrival int64 // tells those apart of which the plugin says that none is before the other
	key     int64
	put     int64 // as how manyth
	run     int   // how many have been put right behind the one that was put before, or right before it, one after the other
}

const (
	// keyStep is between keys at the ends of the line.
	keyStep = 1 << 36
	// longestRun bounds how little of what is left between two keys is taken.
	longestRun = 16
)

// put has a pod stand in line, where less says that it belongs. It is taken out again if it does not wait any more: who hears of that calls remove behind it, and may have before.
func (l *line) put(less fwk.LessFunc, pod fwk.QueuedPodInfo, arrival int64, waits func() bool) (key, order int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := pod.GetPodInfo().GetPod().UID
	was := l.by[uid]
	l.take(uid)
	p := &inLine{QueuedPodInfo: pod, uid: uid, arrival: arrival}
	at, _ := slices.BinarySearchFunc(l.pods, p, func(other, p *inLine) int {
		if less(other, p) || !less(p, other) && other.arrival < p.arrival {
			return -1
		}
		return 1
	})
	if was != nil && (at == 0 || l.pods[at-1].key < was.key) && (at == len(l.pods) || was.key < l.pods[at].key) { // it stands where it has
		p.key, p.run, p.put = was.key, was.run, was.put
	} else {
		l.puts++
		p.put = l.puts
		if !l.number(p, at) {
			l.renumber()
			l.number(p, at) // there is room
		}
	}
	l.pods = slices.Insert(l.pods, at, p)
	if l.by == nil {
		l.by = make(map[types.UID]*inLine)
	}
	l.by[uid] = p
	if !waits() {
		l.take(uid)
	}
	return p.key, l.order
}

// number gives a pod a key by which it is ahead of the one at an index. False: there is no number left.
//
// Most come behind the one that has been put last of those around them, or, of some plugins, before it. So of what is left there a part is taken that is the smaller, the longer that has gone on.
func (l *line) number(p *inLine, at int) bool {
	if len(l.pods) == 0 {
		p.key = 0
		return true
	}
	switch {
	case at == len(l.pods):
		last := l.pods[at-1].key
		p.key = last + keyStep
		return last < math.MaxInt64-keyStep
	case at == 0:
		first := l.pods[0].key
		p.key = first - keyStep
		return first > math.MinInt64+keyStep
	}
	before, behind := l.pods[at-1], l.pods[at]
	left := uint64(behind.key) - uint64(before.key)
	if left < 2 {
		return false
	}
	if follows := before.put > behind.put; follows {
		p.run = max(before.run, 0) + 1
	} else {
		p.run = min(behind.run, 0) - 1
	}
	part := int64(max(1, left>>min(longestRun, max(p.run, -p.run))))
	if p.run > 0 {
		p.key = before.key + part
	} else {
		p.key = behind.key - part
	}
	return true
}

// renumber gives all new keys, with as much as can be between them.
func (l *line) renumber() {
	l.order++
	step := uint64(keyStep)
	if most := math.MaxUint64 / 4 / uint64(len(l.pods)); step > most {
		step = most
	}
	first := -int64(step * uint64(len(l.pods)) / 2)
	for i, p := range l.pods {
		p.key, p.run = first+int64(uint64(i)*step), 0
	}
}

// remove takes a pod out of the line that does not wait any more, if it is there.
func (l *line) remove(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take(uid)
}

// take is remove; mu is held.
func (l *line) take(uid types.UID) {
	p := l.by[uid]
	if p == nil {
		return
	}
	at, _ := slices.BinarySearchFunc(l.pods, p, func(other, p *inLine) int {
		if other.key < p.key {
			return -1
		}
		if other.key > p.key {
			return 1
		}
		return 0
	})
	l.pods = slices.Delete(l.pods, at, at+1)
	delete(l.by, uid)
}

// begins waits until it can be asked about a pod that has no node yet, what kube-scheduler asks with its queue locked, until leave is called. The pod is as the informers have it. What is not there, or not its turn, in half of the time is an error: Berth asks again.
func (s *steps) begins(step *placeserver.Step) (pod *v1.Pod, leave func(), err error) {
	told := step.Placement.Told
	within, cancel := context.WithTimeout(step.Placement.Context(), s.timeout/2)
	defer cancel()
	pods, err := s.profile.pods.wait(within, []types.UID{types.UID(told.GetUid())})
	if err != nil {
		return nil, nil, fmt.Errorf("the API server has not told the plugins of pod %s/%s yet", told.GetNamespace(), told.GetName())
	}
	select {
	case s.profile.hints.turn <- struct{}{}:
		return pods[0], func() { <-s.profile.hints.turn }, nil
	case <-within.Done():
		return nil, nil, fmt.Errorf("plugins that run at PreEnqueue say of other pods whether they may be tried, and not of %s/%s in time", told.GetNamespace(), told.GetName())
	}
}
