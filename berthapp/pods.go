package berthapp

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	// goneFor is how long pods that have gone are remembered, for Berth may not have heard of that yet, and mostGone how many at most.
	goneFor  = 2 * time.Minute
	mostGone = 20_000
	// mostChanged is of how many pods is known that they have changed while nobody asked.
	mostChanged = 100_000
)

// podStore has pods by their UIDs, as the API server has told them last; for a while also those that have gone. It is safe for concurrent use.
type podStore struct {
	registration cache.ResourceEventHandlerRegistration
	hear         cache.ResourceEventHandler // hears of what has been taken up; nil: nobody does. It is set before anything is told

	mu      sync.Mutex
	pods    map[types.UID]*v1.Pod
	gone    []gonePod              // in the order in which they have
	changed map[types.UID]struct{} // since they were taken last
	lost    bool                   // there were too many: any pod may have changed
	news    chan struct{}          // closed when something has changed
}

// gonePod is a pod that has gone.
type gonePod struct {
	uid types.UID
	pod *v1.Pod
	at  time.Time
}

func newPodStore(informer cache.SharedIndexInformer) (s *podStore, err error) {
	s = &podStore{pods: make(map[types.UID]*v1.Pod), changed: make(map[types.UID]struct{}), news: make(chan struct{})}
	s.registration, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			s.set(object.(*v1.Pod))
			if s.hear != nil {
				s.hear.OnAdd(object, false)
			}
		},
		UpdateFunc: func(before, object any) {
			if was, is := before.(*v1.Pod), object.(*v1.Pod); was.UID != is.UID { // it was deleted and made again between two looks
				s.remove(was)
			}
			s.set(object.(*v1.Pod))
			if s.hear != nil {
				s.hear.OnUpdate(before, object)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if pod, ok := object.(*v1.Pod); ok {
				s.remove(pod)
				if s.hear != nil {
					s.hear.OnDelete(pod)
				}
			}
		},
	})
	return s, err
}

// ready waits until the pods are there that there were when the store was made.
func (s *podStore) ready(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.registration.HasSynced) {
		return fmt.Errorf("read the pods: %w", context.Cause(ctx))
	}
	return nil
}

func (s *podStore) set(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[pod.UID] = pod
	s.tell(pod.UID)
}

func (s *podStore) remove(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, gonePod{pod.UID, s.pods[pod.UID], time.Now()})
	for len(s.gone) > 0 && (len(s.gone) > mostGone || time.Since(s.gone[0].at) > goneFor) {
		if first := s.gone[0]; s.pods[first.uid] == first.pod { // else it is there again
			delete(s.pods, first.uid)
		}
		s.gone = s.gone[1:]
	}
}

// tell notes that a pod has changed. The caller holds the lock.
func (s *podStore) tell(uid types.UID) {
	if len(s.changed) >= mostChanged {
		s.lost = true
		clear(s.changed)
	}
	s.changed[uid] = struct{}{}
	close(s.news)
	s.news = make(chan struct{})
}

// take returns which pods have changed since it was called last. Lost: any may have.
func (s *podStore) take() (changed map[types.UID]struct{}, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed, lost = s.changed, s.lost
	s.changed, s.lost = make(map[types.UID]struct{}), false
	return changed, lost
}

// get returns a pod, nil if it is not known.
func (s *podStore) get(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[uid]
}

// placed returns the pods that are on a node.
func (s *podStore) placed() (out []*v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := make(map[*v1.Pod]bool, len(s.gone))
	for _, g := range s.gone {
		gone[g.pod] = true
	}
	for _, pod := range s.pods {
		if pod.Spec.NodeName != "" && !gone[pod] {
			out = append(out, pod)
		}
	}
	return out
}

// wait waits until there are all of some pods, and returns them, in order. An error names one that there is not when ctx ends.
func (s *podStore) wait(ctx context.Context, uids []types.UID) ([]*v1.Pod, error) {
	out := make([]*v1.Pod, len(uids))
	for {
		missing, which := 0, types.UID("")
		s.mu.Lock()
		for k, uid := range uids {
			if out[k] = s.pods[uid]; out[k] == nil {
				missing, which = missing+1, uid
			}
		}
		news := s.news
		s.mu.Unlock()
		if missing == 0 {
			return out, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, fmt.Errorf("of %d pods that Berth has on nodes, the API server has not told the plugins yet, such as that with the UID %s", missing, which)
		}
	}
}
