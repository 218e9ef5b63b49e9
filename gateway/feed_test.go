package gateway

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// script drives a feed with a ledger that changes at random.
type script struct {
	t    *rapid.T
	st   *cluster.State
	feed *feed
	pods int // uids that were used
}

func (s *script) apply(d cluster.Delta) {
	if err := s.st.Apply(d); err != nil {
		s.t.Fatal(err)
	}
	s.feed.Applied(s.st, d)
}

func (s *script) fresh() cluster.Pod {
	s.pods++
	return cluster.Pod{UID: fmt.Sprintf("uid-%d", s.pods), Namespace: "default", Name: fmt.Sprintf("pod-%d", s.pods), Class: 1}
}

func (s *script) node() string { return fmt.Sprintf("node-%d", rapid.IntRange(0, 3).Draw(s.t, "node")) }

// step changes one pod, or adds one.
func (s *script) step() {
	var ids []cluster.PodID
	for id := range s.st.Pods() {
		ids = append(ids, id)
	}
	if len(ids) <= 1 || rapid.IntRange(0, 3).Draw(s.t, "add") == 0 { // the last pod stays, for its class
		p := s.fresh()
		if rapid.Bool().Draw(s.t, "placed elsewhere") {
			p.NodeName = s.node()
		}
		s.apply(cluster.PodSet{ID: s.st.FreePod(), Pod: p})
		return
	}
	id := rapid.SampledFrom(ids).Draw(s.t, "pod")
	row := s.st.Pod(id)
	if rapid.IntRange(0, 4).Draw(s.t, "removed") == 0 {
		s.apply(cluster.PodRemoved{ID: id})
		return
	}
	switch row.Phase {
	case cluster.Pending:
		s.apply(cluster.PodAssumed{ID: id, Node: s.st.Nodes.ByName(s.node()), Attempt: row.Attempt + 1})
	case cluster.Assumed:
		switch rapid.IntRange(0, 2).Draw(s.t, "then") {
		case 0:
			s.apply(cluster.PodBound{ID: id})
		case 1:
			s.apply(cluster.PodForgotten{ID: id})
		default: // somebody else was first
			p := row.Pod
			p.NodeName = s.node()
			s.apply(cluster.PodSet{ID: id, Pod: p})
		}
	case cluster.Bound: // the cluster shows it unplaced, or elsewhere: not what Kubernetes does, but nothing forbids it
		p := row.Pod
		if p.NodeName = ""; rapid.Bool().Draw(s.t, "moved") {
			p.NodeName = s.node()
		}
		s.apply(cluster.PodSet{ID: id, Pod: p})
	}
}

// takeover begins an epoch with a state in which some pods are gone, new, or elsewhere.
func (s *script) takeover() {
	next := newTestState(s.t, s.st.Version().Epoch+1)
	apply := func(d cluster.Delta) {
		if err := next.Apply(d); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, row := range s.st.Pods() {
		p := row.Pod
		switch rapid.IntRange(0, 3).Draw(s.t, "after takeover") {
		case 0:
			continue
		case 1:
			p.NodeName = ""
		case 2:
			p.NodeName = s.node()
		}
		apply(cluster.PodSet{ID: next.FreePod(), Pod: p})
	}
	apply(cluster.PodSet{ID: next.FreePod(), Pod: s.fresh()})
	next.Restore(cluster.Version{Epoch: s.st.Version().Epoch + 1})
	s.st = next
	s.feed.Reset(next)
}

func newTestState(t *rapid.T, epoch cluster.Epoch) *cluster.State {
	st := cluster.New(cluster.Version{Epoch: epoch})
	deltas := []cluster.Delta{
		cluster.SettingsSet{Settings: cluster.Settings{Shards: 1}}, cluster.ClassDefined{ID: 1},
	}
	for i := range 4 {
		deltas = append(deltas, cluster.NodeSet{Index: cluster.NodeIndex(i), Node: cluster.Node{Name: fmt.Sprintf("node-%d", i)}})
	}
	for _, d := range deltas {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

// placements returns where the pods of a state are, by uid.
func placements(st *cluster.State) map[string]string {
	all := make(map[string]string)
	for _, p := range st.Pods() {
		if p.NodeName != "" {
			all[p.UID] = p.NodeName
		}
	}
	return all
}

// TestWatcherAlwaysKnowsEveryPlacement: whoever lists, watches from the version listed, breaks off anywhere and resumes
// from the last version it got, or lists again where it must, knows where every pod is, over any number of epochs.
func TestWatcherAlwaysKnowsEveryPlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &script{t: t, st: newTestState(t, 1), feed: newFeed(rapid.IntRange(1, 12).Draw(t, "history"))}
		s.st.Restore(cluster.Version{Epoch: 1})
		s.feed.Reset(s.st)

		var known map[string]string
		var position uint64
		var at cluster.Version // of the last message
		list := func() {
			known, at = placements(s.st), s.st.Version()
			var err error
			if position, _, err = s.feed.open(&at); err != nil {
				t.Fatalf("watch from the version listed: %v", err)
			}
		}
		list()
		check := func() {
			for uid := range known { // pods that are gone took their placement along
				if _, there := s.st.PodByUID(uid); !there {
					delete(known, uid)
				}
			}
			if diff := cmp.Diff(placements(s.st), known); diff != "" {
				t.Fatalf("placements at %v (-state +watcher):\n%s", s.st.Version(), diff)
			}
		}
		read := func(limit int) {
			buffer := make([]placement, 1)
			for range limit {
				n, version, _, err := s.feed.next(position, buffer)
				switch {
				case status.Code(err) == codes.ResourceExhausted, status.Code(err) == codes.OutOfRange:
					list()
					continue
				case err != nil:
					t.Fatal(err)
				case n == 0: // it has caught up, and gets a heartbeat
					check()
					at = version
					return
				}
				position++
				p := buffer[0]
				at = p.resume
				switch {
				case p.uid == "":
				case p.placed:
					if node, twice := known[p.uid]; twice {
						t.Fatalf("%s placed on %s while on %s", p.uid, p.node, node)
					}
					known[p.uid] = p.node
				default:
					// The first message of a move is told again to a watcher that broke off right behind it.
					if node, there := known[p.uid]; there && node != p.node {
						t.Fatalf("%s taken back from %s while on %s", p.uid, p.node, node)
					}
					delete(known, p.uid)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.takeover()
			case 1: // the stream breaks
				var err error
				if position, _, err = s.feed.open(&at); status.Code(err) == codes.OutOfRange {
					list()
				} else if err != nil {
					t.Fatal(err)
				}
			case 2, 3, 4:
				read(rapid.IntRange(1, 4).Draw(t, "messages"))
			default:
				s.step()
			}
		}
		read(1000)
		if at != s.st.Version() {
			t.Fatalf("the watcher may resume from %v, the state is at %v", at, s.st.Version())
		}
	})
}

func TestWatchEndsWhereTheNewStateCannotBeToldFromTheOld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &script{t: t, st: newTestState(t, 1), feed: newFeed(8)}
		s.feed.Reset(s.st)
		version := s.st.Version()
		position, _, err := s.feed.open(nil)
		if err != nil {
			t.Fatal(err)
		}
		other := newTestState(t, 1) // another state of the same version: the first one was wrong
		p := s.fresh()
		p.NodeName = s.node()
		if err := other.Apply(cluster.PodSet{ID: 0, Pod: p}); err != nil {
			t.Fatal(err)
		}
		other.Restore(version)
		s.feed.Reset(other)
		if _, _, _, err := s.feed.next(position, make([]placement, 1)); status.Code(err) != codes.OutOfRange {
			t.Errorf("next: %v, want OUT_OF_RANGE", err)
		}
	})
}

func TestOldEpochsCannotBeResumed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &script{t: t, st: newTestState(t, 5), feed: newFeed(8)}
		s.feed.Reset(s.st)
		s.step()
		old := s.st.Version()
		if _, _, err := s.feed.open(&old); err != nil {
			t.Fatal(err)
		}
		s.takeover()
		if _, _, err := s.feed.open(&old); status.Code(err) != codes.OutOfRange {
			t.Errorf("open at %v in epoch %d: %v, want OUT_OF_RANGE", old, s.st.Version().Epoch, err)
		}
		future := cluster.Version{Epoch: 7}
		if _, behind, err := s.feed.open(&future); !behind || err != nil {
			t.Errorf("open at %v in epoch 6: behind %t, %v; want behind", future, behind, err)
		}
	})
}

// However many watch, a placement costs the gateway one encoding.
func TestAPlacementIsEncodedOnceForAllWhoWatch(t *testing.T) {
	f := newFeed(4)
	st := cluster.New(cluster.Version{Epoch: 7})
	apply := func(deltas ...cluster.Delta) {
		t.Helper()
		for _, d := range deltas {
			if err := st.Apply(d); err != nil {
				t.Fatal(err)
			}
			f.Applied(st, d)
		}
	}
	apply(cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: "berth"}}, cluster.PodSet{ID: 0, Pod: cluster.Pod{UID: "u", Namespace: "n", Name: "p", Class: 1, NodeName: "node"}})
	var encoded [][]byte
	for range 2 {
		read := make([]placement, 4)
		n, _, _, err := f.next(0, read)
		if err != nil || n != 1 {
			t.Fatalf("%d placements, %v", n, err)
		}
		message, ok := read[0].encoded.(mem.BufferSlice)
		if !ok {
			t.Fatalf("a watcher gets %T", read[0].encoded)
		}
		encoded = append(encoded, message[0].ReadOnlyData())
	}
	if &encoded[0][0] != &encoded[1][0] {
		t.Error("two who watch have an encoding each")
	}
	// What comes into the ring in its place is encoded anew.
	for i := range cluster.PodID(4) {
		apply(cluster.PodSet{ID: i + 1, Pod: cluster.Pod{UID: fmt.Sprint("u", i), Namespace: "n", Name: "p", Class: 1, NodeName: "node"}})
	}
	read := make([]placement, 4)
	if _, _, _, err := f.next(1, read); err != nil {
		t.Fatal(err)
	}
	for i, p := range read {
		m := &schedulingv1.WatchPlacementsResponse{}
		if err := proto.Unmarshal(p.encoded.(mem.BufferSlice).Materialize(), m); err != nil || m.GetUid() != fmt.Sprint("u", i) {
			t.Errorf("%v, %v; want u%d", m, err, i)
		}
	}
}
