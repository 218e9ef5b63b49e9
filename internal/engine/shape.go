package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// maxUtilization is the largest argument of a shape, in percent.
const maxUtilization = 100

// tenfold returns a shape of a profile with scores up to maxScore.
func tenfold(shape []cluster.ShapePoint) (out []cluster.ShapePoint) {
	for _, point := range shape {
		out = append(out, cluster.ShapePoint{Utilization: point.Utilization, Score: point.Score * 10})
	}
	return out
}

// shapeAt is the broken line through the points, flat outside.
func shapeAt(shape []cluster.ShapePoint, utilization int64) int64 {
	for k := range shape {
		to := &shape[k]
		if utilization > int64(to.Utilization) {
			continue
		}
		if k == 0 {
			return int64(to.Score)
		}
		from := &shape[k-1]
		return int64(from.Score) + int64(to.Score-from.Score)*(utilization-int64(from.Utilization))/
			int64(to.Utilization-from.Utilization)
	}
	if len(shape) == 0 {
		return 0
	}
	return int64(shape[len(shape)-1].Score)
}
