package pending

import (
	"slices"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
)

// volumes finds the pods that a change of what volumes are made of concerns. Pods without claims are not in it. It takes as much room as
// the pods of the queue have claims, and a delta takes constant time, or as much as a pod has claims.
//
// Of pods that are concerned the judge is asked nothing: they are tried again, whatever has rejected them. What the last attempt has said may
// be true no more; a node may have come to be feasible but for the claim since then, or one that has not changed may be one to preempt on. To
// find out would take a question about all nodes, for each pod, which is what an attempt takes; and as a pod that has been tried again backs
// off, storage that changes all the time makes no look long.
//
// What is about a node is not here: a node counts as changed if something else is attached to it, or if its CSINode is another.
type volumes struct {
	claims            map[claimKey]*claim
	all               claimList
	byVolume, byClass map[string]*sharing
	// The last changes that concern all claims, all without a volume, and all that only one pod may use.
	any, unbound, single event
}

type claimKey struct{ namespace, name string }

// claim is a PersistentVolumeClaim that pods of the queue use. It need not exist.
type claim struct {
	key     claimKey
	uses    int
	at      [listsOfAClaim]int // where it is in the lists that it is in
	waiting pods               // of those who use it the unschedulable ones that are not held back, and not waiting for something else

	// As it was when it was read last:
	volume, class *sharing // what it names, which need not exist; nil: none, or there is no such claim
	request       int64
	single        bool // only one pod may use it

	changed event // the last change that concerns its users
}

// sharing are the claims that have a volume or a class in common.
type sharing struct {
	name    string
	claims  claimList
	changed event // of the volume or the class
	room    rooms // for claims of the class that have no volume
}

// The lists that a claim can be in.
const (
	inAll = iota
	inVolume
	inClass
	listsOfAClaim
)

// claimList is claims in no order. As to add one, or to take one out, moves no more than the last to where another was, what goes through it
// from the last to the first, in parts, meets all that were there when it began and still are.
type claimList struct {
	kind   int // which of the lists that a claim can be in
	claims []*claim
}

func (l *claimList) add(c *claim) {
	c.at[l.kind] = len(l.claims)
	l.claims = append(l.claims, c)
}

func (l *claimList) remove(c *claim) {
	i, last := c.at[l.kind], len(l.claims)-1
	l.claims[i] = l.claims[last]
	l.claims[i].at[l.kind] = i
	l.claims[last] = nil
	l.claims = l.claims[:last]
}

// rooms are the times at which there may have been more room than before: each later than the one before, and for less, since what came before
// for as little does not matter any more. There are mostRooms at most.
type rooms []room

type room struct {
	event
	amount int64
}

// mostRooms bounds what is kept of rooms. Beyond that, two become one, of the later time and the larger amount: a wake-up may be superfluous.
const mostRooms = 8

func (r *rooms) add(ev event, amount int64) {
	kept := *r
	for len(kept) > 0 && kept[len(kept)-1].amount <= amount {
		kept = kept[:len(kept)-1]
	}
	if len(kept) == mostRooms {
		kept[1].amount = kept[0].amount
		kept = slices.Delete(kept, 0, 1)
	}
	*r = append(kept, room{ev, amount})
}

// last returns the last time that there may have been so much more.
func (r rooms) last(amount int64) (last event) {
	for _, one := range r {
		if one.amount >= amount {
			last = one.event
		}
	}
	return last
}

// readWriteOncePod is the access mode of claims that only one pod may use.
const readWriteOncePod = "ReadWriteOncePod"

func newVolumes() volumes {
	return volumes{claims: make(map[claimKey]*claim), byVolume: make(map[string]*sharing), byClass: make(map[string]*sharing)}
}

// use returns the claims of a pod with those labels, for disuse to take back.
func (q *Queue) use(st *cluster.State, labels cluster.LabelsID) (claims []*claim) {
	set := st.Labels(labels)
	if set == nil {
		return nil
	}
	for _, by := range set.Claims {
		key := claimKey{set.Namespace, by.Name}
		c := q.volumes.claims[key]
		if c == nil {
			c = &claim{key: key}
			q.volumes.claims[key] = c
			q.volumes.all.add(c)
			q.read(st, c)
		}
		c.uses++
		claims = append(claims, c)
	}
	return claims
}

func (q *Queue) disuse(claims []*claim) {
	for _, c := range claims {
		if c.uses--; c.uses == 0 {
			q.join(q.volumes.byVolume, inVolume, &c.volume, c, "", false)
			q.join(q.volumes.byClass, inClass, &c.class, c, "", false)
			q.volumes.all.remove(c)
			delete(q.volumes.claims, c.key)
			q.notes.claims.remove(c)
		}
	}
}

// read brings a claim up to date.
func (q *Queue) read(st *cluster.State, c *claim) {
	is := st.PersistentVolumeClaim(c.key.namespace, c.key.name)
	exists := is != nil
	if !exists {
		is = new(cluster.PersistentVolumeClaim)
	}
	q.join(q.volumes.byVolume, inVolume, &c.volume, c, is.Volume, is.Volume != "")
	q.join(q.volumes.byClass, inClass, &c.class, c, is.Class, exists)
	c.request, c.single = is.Request, slices.Contains(is.AccessModes, readWriteOncePod)
}

// join takes a claim from those that share something to those that share what is called so, or to none.
func (q *Queue) join(all map[string]*sharing, kind int, among **sharing, c *claim, name string, any bool) {
	if was := *among; was != nil {
		if any && was.name == name {
			return
		}
		if was.claims.remove(c); len(was.claims.claims) == 0 {
			delete(all, was.name)
			q.notes.sharing.remove(was)
		}
	}
	*among = nil
	if any {
		if all[name] == nil {
			all[name] = &sharing{name: name, claims: claimList{kind: kind}}
		}
		all[name].claims.add(c)
		*among = all[name]
	}
}

// noteVolume notes what the last delta has done to an object that volumes are made of; nil: it is gone.
func (q *Queue) noteVolume(st *cluster.State, key cluster.ObjectKey, is cluster.Object) {
	v, c := &q.volumes, engine.VolumeChange{Was: st.Before().Object, Is: is}
	switch key.Kind {
	case cluster.PersistentVolumeClaimKind:
		if claim := v.claims[claimKey{key.Namespace, key.Name}]; claim != nil {
			q.read(st, claim)
			q.noteClaim(claim)
		}
	case cluster.PersistentVolumeKind:
		q.noteSharing(v.byVolume[key.Name])
		if namespace, name, ok := st.Promised(key.Name); ok { // and that claim gets no other
			q.noteClaim(v.claims[claimKey{namespace, name}])
		}
		for _, o := range []cluster.Object{c.Was, c.Is} {
			if pv, ok := o.(*cluster.PersistentVolume); ok && pv.HasClaim {
				q.noteClaim(v.claims[claimKey{pv.Claim.Namespace, pv.Claim.Name}])
			}
		}
		if pv, ok := is.(*cluster.PersistentVolume); ok && !pv.HasClaim && pv.Available && !pv.Deleting {
			q.noteRoom(pv.Class, pv.Capacity)
		}
	case cluster.StorageClassKind:
		if c.Helps() {
			q.noteSharing(v.byClass[key.Name])
		}
	case cluster.CSIStorageCapacityKind:
		if room, ok := is.(*cluster.CSIStorageCapacity); ok && c.Helps() {
			q.noteRoom(room.Class, room.Limit)
		}
	case cluster.UnservedKind:
		if is == nil && len(v.claims) > 0 { // it can be read again; for others, all nodes have changed
			v.any, q.notes.anyClaim = q.now(), true
		}
	case cluster.CSIDriverKind:
		if c.Helps() && len(v.claims) > 0 {
			v.unbound, q.notes.anyClaim = q.now(), true
		}
		q.noteHinted(c)
	case cluster.CSINodeKind, cluster.VolumeAttachmentKind:
		q.noteHinted(c)
	}
}

// noteHinted notes a change that hints are given for.
func (q *Queue) noteHinted(c engine.VolumeChange) {
	if q.listeners.len() > 0 && c.Hinted() {
		q.notes.happens(happening{event: q.now(), volume: &c}, q.most)
	}
}

// noteUsers notes that the claims of a pod have a user less, if the last delta has taken it from its node.
func (q *Queue) noteUsers(st *cluster.State, id cluster.PodID) {
	b := st.Before()
	if st.VolumeUsesModified() != q.version.Seq || b.Labels == nil || b.Pod.Node == cluster.NoNode {
		return
	}
	if row := st.Pod(id); row != nil && row.Node != cluster.NoNode && row.Labels == b.Pod.Labels {
		return
	}
	for _, by := range b.Labels.Claims {
		if c := q.volumes.claims[claimKey{b.Labels.Namespace, by.Name}]; c != nil && c.single {
			q.noteClaim(c)
		}
	}
}

// notePromises notes that claims are promised nothing any more, if the last delta has ended what had been chosen for a pod: they may get something else, and
// a volume that is kept for another claim is that one's again. That a volume is free again says its nodes.
func (q *Queue) notePromises(st *cluster.State, id cluster.PodID) {
	b := st.Before()
	if len(b.Chosen) == 0 || len(st.Chosen(id)) > 0 {
		return
	}
	for _, c := range b.Chosen {
		q.noteClaim(q.volumes.claims[claimKey{b.Pod.Namespace, c.Claim}])
		if v := st.PersistentVolume(c.Volume); v != nil && v.HasClaim {
			q.noteClaim(q.volumes.claims[claimKey{v.Claim.Namespace, v.Claim.Name}])
		}
	}
}

// noteAnyUsers notes that pods may have left which used claims that only one may use, with their node.
func (q *Queue) noteAnyUsers(st *cluster.State) {
	if st.VolumeUsesModified() == q.version.Seq && len(q.volumes.claims) > 0 {
		q.volumes.single, q.notes.anyClaim = q.now(), true
	}
}

// noteClaim notes a change that concerns those who use a claim; nil: that nobody does.
func (q *Queue) noteClaim(c *claim) {
	if c == nil {
		return
	}
	c.changed = q.now()
	if c.waiting.len() > 0 {
		q.notes.claims.put(c, c)
	}
}

// noteSharing notes a change that concerns those who use one of several claims; nil: that nobody does.
func (q *Queue) noteSharing(s *sharing) {
	if s != nil {
		s.changed = q.now()
		q.notes.sharing.put(s, s)
	}
}

// noteRoom notes that there may be so much more room for a claim of a class that has no volume.
func (q *Queue) noteRoom(class string, amount int64) {
	if s := q.volumes.byClass[class]; s != nil {
		s.room.add(q.now(), amount)
		q.notes.sharing.put(s, s)
	}
}

// latest returns the last change that concerns those who use a claim.
func (v *volumes) latest(c *claim) event {
	last := later(c.changed, v.any)
	if c.volume != nil {
		last = later(last, c.volume.changed)
	}
	if c.class != nil {
		last = later(last, c.class.changed)
		if c.volume == nil {
			last = later(last, v.unbound)
			last = later(last, c.class.room.last(c.request))
		}
	}
	if c.single {
		last = later(last, v.single)
	}
	return last
}

// concerned reports whether a change after a version concerns a pod by its claims.
func (q *Queue) concerned(e *entry, since cluster.Seq) bool {
	return slices.ContainsFunc(e.claims, func(c *claim) bool { return q.volumes.latest(c).after(since) })
}

// beginWithClaims adds the pods that changes of volumes concern.
func (q *Queue) beginWithClaims(l *look) {
	n := &q.notes
	claims, lists := n.claims, n.sharing
	n.claims, n.sharing = table[*claim, *claim]{}, table[*sharing, *sharing]{}
	if lists.len() > 0 {
		l.stages.add(through(&lists, func(s *sharing) stage { return q.usersOfAll(&s.claims) }))
	}
	if n.anyClaim {
		n.anyClaim = false
		l.stages.add(q.usersOfAll(&q.volumes.all))
	}
	if claims.len() > 0 {
		l.stages.add(through(&claims, q.usersOf))
	}
}

// usersOf brings back the users of a claim that changes concern.
func (q *Queue) usersOf(c *claim) stage {
	return each(&c.waiting, func(now time.Time, _ *cluster.State, e *entry) {
		if ev := q.volumes.latest(c); ev.after(e.evaluated.Seq) {
			q.requeue(now, e, ev.name)
		}
	})
}

// usersOfAll is usersOf all claims of a list.
func (q *Queue) usersOfAll(list *claimList) stage {
	left, begun := 0, false
	var of stage
	return func(now time.Time, st *cluster.State, enough func() bool) bool {
		if !begun {
			left, begun = len(list.claims), true
		}
		for {
			if of == nil {
				if left = min(left, len(list.claims)); left == 0 {
					return true
				}
				left--
				of = q.usersOf(list.claims[left])
			}
			if !of(now, st, enough) {
				return false
			}
			if of = nil; enough() {
				return false
			}
		}
	}
}
