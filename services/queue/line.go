package queue

import (
	"cmp"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Ahead are the pods of one priority that are ahead of another pod.
type Ahead struct {
	Priority        int32
	Pods            int
	Namespace, Name string // of the first in line among them
}

// Line says who is ahead of some active pods. It is made by [Queue.Line] and filled by [Queue.Walk].
type Line struct {
	asked []asked // in line order
	next  int     // how much of the line has been walked
}

// asked is a pod that is asked about, as it stood when the walk began.
type asked struct {
	rank
	id cluster.PodID
	// between are the pods that are ahead of it, but not of the one asked about before it, by priority.
	between map[int32]*group
	last    *group // of between: most often the next pod's too
}

type group struct {
	first rank
	Ahead
}

// Line begins a walk along the active pods that tells who is ahead of those of the pods that are active.
func (q *Queue) Line(ids []cluster.PodID) *Line {
	l := &Line{}
	for _, id := range ids {
		if e := q.pods[id]; e != nil && e.place == Active {
			l.asked = append(l.asked, asked{rank: q.active.ranked[e.index].rank, id: id, between: make(map[int32]*group)})
		}
	}
	slices.SortFunc(l.asked, func(a, b asked) int { return a.compare(&b.rank) })
	l.asked = slices.CompactFunc(l.asked, func(a, b asked) bool { return a.id == b.id })
	return l
}

// Walk goes on along the line, by so many pods at most, and reports whether there are more. A line may be long: who walks it in
// parts need not lock the queue for all of it. A pod that comes, goes or moves up between two parts may be counted or not.
func (q *Queue) Walk(l *Line, most int) (more bool) {
	if len(l.asked) == 0 {
		return false
	}
	line := q.active.ranked
	last := &l.asked[len(l.asked)-1].rank
	end := min(l.next+most, len(line))
	for i := l.next; i < end; i++ {
		if p := &line[i]; p.compare(last) < 0 {
			l.count(p)
		}
	}
	l.next = end
	return end < len(line)
}

// count counts a pod at the first one asked about that it is ahead of.
func (l *Line) count(p *rankedPod) {
	k, found := 0, false
	if len(l.asked) > 1 {
		if k, found = slices.BinarySearchFunc(l.asked, &p.rank, func(a asked, r *rank) int { return a.compare(r) }); found {
			k++
		}
	}
	at := &l.asked[k]
	if at.last == nil || at.last.Priority != p.priority {
		if at.last = at.between[p.priority]; at.last == nil {
			at.last = &group{first: p.rank, Ahead: Ahead{Priority: p.priority}}
			at.between[p.priority] = at.last
		}
	}
	g := at.last
	g.Pods++
	if g.Name == "" || p.compare(&g.first) < 0 {
		g.first, g.Namespace, g.Name = p.rank, p.entry.pod.Namespace, p.entry.pod.Name
	}
}

// Standing is where an active pod stands in line.
type Standing struct {
	Position int     // how many are ahead
	Ahead    []Ahead // these, the highest priority first
}

// Standings returns where each pod stands that was asked about and was active.
func (l *Line) Standings() map[cluster.PodID]Standing {
	out := make(map[cluster.PodID]Standing, len(l.asked))
	var ahead []Ahead
	position := 0
	for k := range l.asked {
		for priority, g := range l.asked[k].between {
			position += g.Pods
			at, found := slices.BinarySearchFunc(ahead, priority, func(a Ahead, p int32) int { return cmp.Compare(p, a.Priority) })
			if found { // the first of them was counted earlier
				ahead[at].Pods += g.Pods
			} else {
				ahead = slices.Insert(ahead, at, g.Ahead)
			}
		}
		out[l.asked[k].id] = Standing{Position: position, Ahead: slices.Clone(ahead)}
	}
	return out
}
