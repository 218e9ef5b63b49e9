package engine

import (
	"math"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// score returns what a live node is worth by a shape: see VolumeBinding.
func (p *awaiting) score(st *cluster.State, i cluster.NodeIndex, shape []cluster.ShapePoint) int64 {
	type storage struct {
		class               string
		requested, capacity int64
	}
	var bound, made []storage
	of := func(all *[]storage, class string) *storage {
		k := slices.IndexFunc(*all, func(s storage) bool { return s.class == class })
		if k < 0 {
			k, *all = len(*all), append(*all, storage{class: class})
		}
		return &(*all)[k]
	}
	p.find(st, i, nil, func(k int, v *cluster.PersistentVolume) {
		a := &p.asks[k]
		switch {
		case v != nil:
			s := of(&bound, v.ScoredClass())
			s.requested += a.claim.Request
			s.capacity += v.Capacity
		case a.counted: // kube-scheduler takes what it was told last
			s := of(&made, a.class.Name)
			s.requested += a.claim.Request
			s.capacity = mostRoom(st, i, a)
		}
	})
	if len(bound) == 0 {
		bound = made
	}
	if len(bound) == 0 {
		return 0
	}
	sum := int64(0)
	for _, s := range bound {
		utilization := int64(maxUtilization)
		if s.capacity != 0 && s.requested <= s.capacity {
			utilization = s.requested * maxUtilization / s.capacity
		}
		sum += shapeAt(shape, utilization)
	}
	return int64(math.Round(float64(sum) / float64(len(bound))))
}

// mostRoom returns how much room there is for a claim on a live node, of all CSIStorageCapacities by which a volume that is so large can be provisioned there the most.
func mostRoom(st *cluster.State, i cluster.NodeIndex, a *ask) (most int64) {
	for c := range st.StorageCapacities(a.class.Name, i) {
		if c.HasLimit && c.Limit >= a.claim.Request && !c.Topology.Nothing && c.Capacity > most && conditionsAdmit(st, i, c.Topology.Requirements) {
			most = c.Capacity
		}
	}
	return most
}
