package explain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/whatif"
)

const (
	// mostLike is how many nodes are added at most to see whether a PodGroup fits then.
	mostLike = 64
	// mostTried and mostChanged bound for how many of its pods that wait a group is tried here, and what would help is looked for: nodes, and pods in each domain, are looked at each time.
	mostTried   = 4096
	mostChanged = 256
)

// Group is a PodGroup, and how far it would come if it were tried.
type Group struct {
	Name string
	// Lacking is why it is not tried, "" if it may be.
	Lacking string
	// Fits says that as many of its pods fit as it wants. Fit is how many do, with those that are placed, in the best domain if it has a topology; Wants is how many a gang wants, and Pods how many there are.
	Fits                     bool
	Fit, Wants, Pods, Placed int
	Topology                 []string
	Preferred                []string
	Domain                   string // of one of which a pod is explained that is placed: where that is
	// Missing is what keeps the first of its pods that finds no node from all nodes, with the others where they would be, as kube-scheduler words it.
	Missing string
	// Alone says that as many of its pods are placed as it wants, and where its others go does not depend on that: such a pod is explained as if it were of no group.
	Alone   bool
	Changes []string // single changes each of which would make it fit, the smallest first
}

// groupOf explains the PodGroup of a pod, nil if it names none.
func groupOf(w *whatif.World, row *cluster.PodRow) (*Group, error) {
	st := w.State()
	key, named := cluster.GroupOf(&row.Pod)
	if !named {
		return nil, nil
	}
	all := slices.Sorted(slices.Values(st.GroupPods(key)))
	g := &Group{Name: key.Name, Pods: len(all), Placed: st.GroupPlaced(key)}
	is := st.PodGroup(key)
	if row.Placed() {
		g.placed(st, is, row)
		return g, nil
	}
	switch {
	case is == nil && st.Unserved(key.Resource()) != nil:
		g.Lacking = fmt.Sprintf("%s cannot be read: %s", key.Resource(), st.Unserved(key.Resource()).Why)
	case is == nil:
		g.Lacking = fmt.Sprintf("its PodGroup %s does not exist", key.Name)
	case is.Untold != "":
		g.Lacking = is.Untold
	case is.Gang && len(all) < int(is.MinCount):
		g.Lacking = fmt.Sprintf("its PodGroup %s wants at least %d pods, and %s", key.Name, is.MinCount, there(len(all)))
	case is.Gang && len(all)-st.GroupGated(key) < int(is.MinCount):
		g.Lacking = fmt.Sprintf("its PodGroup %s wants at least %d pods, and of %d that are there %d have scheduling gates", key.Name, is.MinCount, len(all), st.GroupGated(key))
	case st.GroupPreempting(key):
		g.Lacking = fmt.Sprintf("pods of lower priority are being evicted for its PodGroup %s", key.Name)
	}
	if g.Lacking != "" {
		return g, nil
	}
	g.Topology, g.Preferred = is.Topology, is.Preferred
	if is.Gang {
		g.Wants = int(is.MinCount)
	}
	pods := slices.DeleteFunc(all, func(id cluster.PodID) bool {
		p := st.Pod(id)
		return p.Placed() || p.Deleting || len(p.Gates) > 0 || st.Profile(st.Class(p.Class).Spec.SchedulerName) == nil || st.Yields(p.Class)
	})
	if g.Lacking = whatif.GroupApart(st, whatif.SchedulersOf(st, pods)); g.Lacking != "" {
		return g, nil
	}
	if len(pods) == 0 || len(pods) > mostTried {
		return nil, nil // what there is to say is said of the pod
	}
	if g.enough() && len(is.Topology) == 0 {
		g.Alone, g.Fits, g.Fit = true, true, g.Placed
		return g, nil
	}
	out, err := tryGroup(w, key, pods)
	if err != nil {
		return nil, err
	}
	g.Fits, g.Fit, g.Domain = out.Placed, out.Fit, out.Domain
	if first := slices.IndexFunc(out.Pods, func(p whatif.PodOutcome) bool { return p.Outcome != whatif.Placed && len(p.Verdicts) > 0 }); first >= 0 && !g.Fits {
		g.Missing = out.Pods[first].FitMessage()
	}
	if g.Fits || len(pods) > mostChanged {
		return g, nil
	}
	g.Changes, err = g.changes(w, key, pods)
	return g, err
}

// enough reports whether as many of its pods are placed as it wants, so that each other one is placed if it fits.
func (g *Group) enough() bool { return g.Placed >= max(g.Wants, 1) }

// placed says where the group of a placed pod is, which need not exist any more.
func (g *Group) placed(st *cluster.State, is *cluster.PodGroup, row *cluster.PodRow) {
	g.Fits, g.Fit = true, g.Placed
	if is == nil {
		return
	}
	g.Topology = is.Topology
	if is.Gang {
		g.Wants = int(is.MinCount)
	}
	if len(g.Topology) > 0 {
		g.Domain, _ = whatif.DomainOf(st, g.Topology, row.Node)
	}
}

// reserved says where room is held for the PodGroup of a pod, and what is awaited there; nothing: no room is.
func reserved(w *whatif.World, row *cluster.PodRow) ([]string, error) {
	st := w.State()
	key, _ := cluster.GroupOf(&row.Pod)
	var pods []cluster.PodID
	var nodes []string
	for _, id := range slices.Sorted(slices.Values(st.GroupPods(key))) {
		if p := st.Pod(id); !p.Placed() && !p.Deleting && len(p.Gates) == 0 {
			if pods = append(pods, id); p.Nominated != "" {
				nodes = append(nodes, p.Nominated)
			}
		}
	}
	if len(nodes) == 0 {
		return nil, nil
	}
	found, ok, err := whatif.AwaitGroup(w, key, pods, time.Now().UnixNano())
	if err != nil || !ok || !slices.ContainsFunc(found.Awaits, func(id cluster.PodID) bool { return st.Pod(id).Ends != cluster.NeverEnds }) { // else it is held for whom others are evicted
		return nil, err
	}
	return []string{fmt.Sprintf("room is held for its PodGroup %s on %s", key.Name, found.Says(nodes))}, nil
}

func there(n int) string { return nAre(n) + " there" }

// tryGroup places a group, and takes that back.
func tryGroup(w *whatif.World, key cluster.GroupKey, pods []cluster.PodID) (out whatif.GroupOutcome, err error) {
	err = w.Try(func() (err error) {
		out, err = whatif.PlaceGroup(w, key, pods)
		return err
	})
	return out, err
}

// changes finds what would make the group fit: more nodes, of each kind of those where pods of it would be or that are like the most, and fewer pods.
func (g *Group) changes(w *whatif.World, key cluster.GroupKey, pods []cluster.PodID) (out []string, err error) {
	st := w.State()
	like := g.likely(w, key, pods)
	for n := 1; like.Name != "" && n <= mostLike; n *= 2 {
		if err := w.Between(); err != nil {
			return nil, err
		}
		fits := false
		err := w.Try(func() error {
			if err := w.AddNodesLike(like, n); err != nil {
				return err
			}
			tried, err := tryGroup(w, key, pods)
			fits = tried.Placed
			return err
		})
		if errors.Is(err, whatif.ErrSpoiled) || errors.Is(err, whatif.ErrTooMuch) || w.Context().Err() != nil {
			return nil, err
		}
		if err != nil {
			break // there may be no such nodes
		}
		if fits {
			low, least := n/2, n // it does not with low, if that is not 0
			for least-low > 1 {
				k := (low + least) / 2
				enough := false
				if err := w.Try(func() error {
					if err := w.AddNodesLike(like, k); err != nil {
						return err
					}
					tried, err := tryGroup(w, key, pods)
					enough = tried.Placed
					return err
				}); err != nil {
					return nil, err
				}
				if enough {
					least = k
				} else {
					low = k
				}
			}
			out = append(out, fmt.Sprintf("%s like %s", more(least, "node"), like.Name))
			break
		}
	}
	if is := st.PodGroup(key); is.Gang && g.Fit > 0 && g.Fit < g.Wants {
		minimum := "minCount"
		if key.Coscheduling() {
			minimum = "minMember"
		}
		out = append(out, fmt.Sprintf("a %s of %d", minimum, g.Fit))
	}
	return out, nil
}

// likely returns a node where pods of the group would be, in its best domain, or else the one with most of what the first of its pods requests; without a name if there is none.
func (g *Group) likely(w *whatif.World, key cluster.GroupKey, pods []cluster.PodID) cluster.Node {
	st := w.State()
	found := cluster.NoNode
	_ = w.Try(func() error {
		out, err := whatif.PlaceGroup(w, key, pods)
		for _, p := range out.Pods {
			if p.Outcome == whatif.Placed && found == cluster.NoNode {
				found = st.Nodes.ByName(p.Node)
			}
		}
		return err
	})
	if found == cluster.NoNode {
		var most int64 = -1
		for i := range cluster.NodeIndex(st.Nodes.Len()) {
			if has := st.Nodes.Allocatable[cluster.CPU][i]; st.Nodes.Live.Has(i) && !st.Nodes.Unschedulable.Has(i) && has > most {
				found, most = i, has
			}
		}
	}
	if found == cluster.NoNode {
		return cluster.Node{}
	}
	return st.Node(found)
}

func more(n int, what string) string {
	if n == 1 {
		return "1 more " + what
	}
	return fmt.Sprintf("%d more %ss", n, what)
}

// says is how far the group comes, in a few words.
func (g *Group) says() string {
	where := ""
	if g.Domain != "" {
		where = ", in " + g.Domain
	}
	if g.enough() {
		return fmt.Sprintf("%s placed of %s, which wants no more, and no other fits%s", nAre(g.Placed), g.Name, where)
	}
	if g.Wants == 0 {
		return fmt.Sprintf("no pod of %s fits%s", g.Name, where)
	}
	return fmt.Sprintf("%d of at least %d pods of %s fit%s", g.Fit, g.Wants, g.Name, where)
}

// Text is what is known of the group, and what would help, in lines; "" of one that is not tried.
func (g *Group) Text() string {
	if g.Lacking != "" {
		return ""
	}
	var b strings.Builder
	wants := ""
	if g.Wants > 0 {
		wants = fmt.Sprintf(", of which it wants at least %d placed together", g.Wants)
	}
	fmt.Fprintf(&b, "PodGroup %s has %s%s", g.Name, counted(g.Pods, "pod"), wants)
	if len(g.Topology) > 0 {
		fmt.Fprintf(&b, ", all with the same %s", strings.Join(g.Topology, " and "))
	}
	if len(g.Preferred) > 0 {
		fmt.Fprintf(&b, ", in as few domains of %s as they fit in", strings.Join(g.Preferred, ", "))
	}
	fmt.Fprintln(&b, ".")
	if g.Placed > 0 {
		fmt.Fprintf(&b, "%s placed", nAre(g.Placed))
		if g.Domain != "" {
			fmt.Fprintf(&b, ", in %s", g.Domain)
		}
		fmt.Fprintln(&b, ".")
	}
	if g.Missing != "" {
		fmt.Fprintf(&b, "The next of its pods: %s\n", g.Missing)
	}
	if len(g.Changes) > 0 {
		fmt.Fprintf(&b, "It would fit with %s.\n", strings.Join(g.Changes, ", or "))
	}
	return b.String()
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func nAre(n int) string {
	if n == 1 {
		return "1 is"
	}
	return fmt.Sprintf("%d are", n)
}
