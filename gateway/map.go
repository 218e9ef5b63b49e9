package gateway

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// How many tiles a map has at most, unless asked otherwise, and whatever is asked.
const (
	standardTiles = 6000
	maxTiles      = 20_000
)

// mapPart is of how many nodes it is found out in one go whether a pod fits.
const mapPart = 1024

// zoneLabel is the label that says where a node is.
const zoneLabel = "topology.kubernetes.io/zone"

// GetMap implements SchedulingService.
func (s *Service) GetMap(ctx context.Context, req *schedulingv1.GetMapRequest) (*schedulingv1.GetMapResponse, error) {
	violations := checkName("namespace", req.GetNamespace(), false, maxNamespace)
	violations = append(violations, checkName("pod", req.GetPod(), false, maxObject)...)
	tiles := cmp.Or(int(req.GetMaxTiles()), standardTiles)
	if tiles < 0 {
		violations = append(violations, rpc.Violation{Field: "max_tiles", Description: fmt.Sprintf("%d is negative", tiles)})
	}
	if err := rpc.Invalid(violations...); err != nil {
		return nil, err
	}
	if req.GetPod() == "" {
		var response *schedulingv1.GetMapResponse
		err := s.read(ctx, func(st *cluster.State) { response = mapOf(st, nil, min(tiles, maxTiles)) })
		return response, err
	}
	return s.feasibilityMap(ctx, podName{cmp.Or(req.GetNamespace(), "default"), req.GetPod()}, min(tiles, maxTiles))
}

// mapOf draws the nodes of a state in at most about limit tiles: one more per zone, since a tile is of one zone. feasible
// are the nodes where a pod fits; nil if none was asked for.
func mapOf(st *cluster.State, feasible cluster.Bitmap, limit int) *schedulingv1.GetMapResponse {
	zones := make(map[string][]cluster.NodeIndex)
	for i := range cluster.NodeIndex(st.Nodes.Len()) {
		if st.Nodes.Live.Has(i) {
			zone := zoneOf(st, i)
			zones[zone] = append(zones[zone], i)
		}
	}
	count := st.Nodes.Count()
	perTile := max((count+limit-1)/limit, 1)
	response := &schedulingv1.GetMapResponse{Version: versionOf(st.Version()), Nodes: int32(count), NodesPerTile: int32(perTile)}
	devices := deviceColumns(st)
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		nodes := zones[name]
		slices.SortFunc(nodes, func(a, b cluster.NodeIndex) int {
			return strings.Compare(st.Nodes.Spec[a].Name, st.Nodes.Spec[b].Name)
		})
		zone := &schedulingv1.Zone{Name: name, Nodes: int32(len(nodes))}
		for several := range slices.Chunk(nodes, perTile) {
			tile := tileOf(st, several, devices, feasible)
			response.Feasible += tile.GetFeasible()
			zone.Tiles = append(zone.Tiles, tile)
		}
		response.Zones = append(response.Zones, zone)
	}
	return response
}

func tileOf(st *cluster.State, nodes []cluster.NodeIndex, devices []cluster.ResourceID, feasible cluster.Bitmap) *schedulingv1.Tile {
	tile := &schedulingv1.Tile{Node: st.Nodes.Spec[nodes[0]].Name, Nodes: int32(len(nodes)), DevicePermille: -1}
	for _, i := range nodes {
		tile.Pods += st.Nodes.PodCount[i]
		if st.Nodes.Unschedulable.Has(i) {
			tile.Unschedulable++
		}
		if feasible != nil && feasible.Has(i) {
			tile.Feasible++
		}
	}
	tile.CpuPermille = max(permille(st, cluster.CPU, nodes), 0)
	tile.MemoryPermille = max(permille(st, cluster.Memory, nodes), 0)
	for _, device := range devices {
		tile.DevicePermille = max(tile.DevicePermille, permille(st, device, nodes))
	}
	return tile
}

// permille returns how much of a resource of these nodes is asked for, in thousandths; -1 if they have none of it.
func permille(st *cluster.State, r cluster.ResourceID, nodes []cluster.NodeIndex) int32 {
	var asked, there float64 // a sum of bytes over many nodes, times 1000, could be too large for an integer
	for _, i := range nodes {
		asked += float64(st.Nodes.Requested[r][i])
		there += float64(st.Nodes.Allocatable[r][i])
	}
	if there <= 0 {
		return -1
	}
	return int32(min(asked/there*1000, 1e6))
}

// deviceColumns returns the resources that are counted in devices: those of a domain other than kubernetes.io.
func deviceColumns(st *cluster.State) []cluster.ResourceID {
	var columns []cluster.ResourceID
	for r := range cluster.ResourceID(st.Resources()) {
		if domain, _, ok := strings.Cut(st.ResourceName(r), "/"); ok && domain != "kubernetes.io" {
			columns = append(columns, r)
		}
	}
	return columns
}

// zoneOf returns the value of a node's zone label, "" if it has none.
func zoneOf(st *cluster.State, i cluster.NodeIndex) string {
	for _, label := range st.Nodes.Labels[i] {
		if st.Symbols.Text(label.Key) == zoneLabel {
			return st.Symbols.Text(label.Value)
		}
	}
	return ""
}

// feasibilityMap is a map of the nodes on which a pod fits: of a copy of the cluster, in which a pod that is placed is not.
func (s *Service) feasibilityMap(ctx context.Context, name podName, limit int) (*schedulingv1.GetMapResponse, error) {
	var response *schedulingv1.GetMapResponse
	_, err := s.tryPod(ctx, name, func(ctx context.Context, box *whatif.Sandbox, pod cluster.PodID) error {
		return box.Try(ctx, func(w *whatif.World) error {
			id, err := displaced(w, pod)
			if err != nil {
				return err
			}
			st := w.State()
			part := cluster.NodeIndex(mapPart)
			if labels := st.Labels(st.Pod(id).Labels); labels != nil && len(labels.Claims) > 0 {
				part = cluster.NodeIndex(engine.NodesAtOnce(len(labels.Claims)))
			}
			subject, feasible := engine.SubjectOf(&st.Pod(id).Pod), cluster.NewBitmap(st.Nodes.Len())
			for i := range cluster.NodeIndex(st.Nodes.Len()) {
				if i%part == 0 {
					if err := w.Between(); err != nil {
						return err
					}
				}
				verdict, known := w.Evaluator().Node(st, subject, id, i)
				feasible.Put(i, known && verdict.Feasible())
			}
			response = mapOf(st, feasible, limit)
			response.Version = versionOf(box.Version())
			return nil
		})
	})
	return response, err
}

// displaced returns a pod as one that is pending: if it is placed, it is taken off its node.
func displaced(w *whatif.World, id cluster.PodID) (cluster.PodID, error) {
	if !w.State().Pod(id).Placed() {
		return id, nil
	}
	pod, _ := w.Pod(id)
	if err := w.RemovePod(id); err != nil {
		return cluster.NoPod, err
	}
	pod.NodeName = ""
	return w.AddPod(pod)
}
