package pending

import (
	"math"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Standing is where an active pod stands in line.
type Standing struct {
	Position int // how many are ahead
	// Ahead are these by priority, the highest first, as many priorities as were asked for; none where a plugin of others sorts.
	Ahead []Ahead
}

// Ahead are the pods of one priority that are ahead of another pod.
type Ahead struct {
	Priority        int32
	Pods            int
	Namespace, Name string // of the first in line among them
}

// Standing returns where a pod stands in line, with who is ahead of so many priorities at most. False: it is not active.
func (q *Queue) Standing(id cluster.PodID, priorities int) (Standing, bool) {
	e := q.pods[id]
	if e == nil || e.place != Active {
		return Standing{}, false
	}
	s := Standing{Position: q.active.ahead(&e.rank)}
	if e.entrance != nil && e.entrance.sorts {
		return s, true
	}
	for told := 0; told < s.Position && len(s.Ahead) < priorities; {
		first := q.active.at(told)
		behind := q.active.ahead(&rank{priority: first.pod.Priority, entered: math.MaxInt64, arrival: math.MaxInt64}) // all of the priority
		end := min(behind, s.Position)
		s.Ahead = append(s.Ahead, Ahead{Priority: first.pod.Priority, Pods: end - told, Namespace: first.pod.Namespace, Name: first.pod.Name})
		told = end
	}
	return s, true
}
