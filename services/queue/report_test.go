package queue

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

func TestReportsThatTheBinderLeavesHaveABoundTogetherWithOthers(t *testing.T) {
	m, err := newMetrics(nil, &Service{})
	if err != nil {
		t.Fatal(err)
	}
	r := newReporter(&Service{metrics: m}, nil, nil)
	add := func(id int) {
		r.add(pending.Attempt{ID: cluster.PodID(id), UID: fmt.Sprint(id)}, reasonUnschedulable, "m", false)
	}
	ids := func(reports []*binderv1.PodReport) (ids []int32) {
		for _, r := range reports {
			ids = append(ids, r.GetId())
		}
		return ids
	}
	for id := range reportBatch {
		add(id)
	}
	batch := r.take(&r.order)
	newer := 3
	add(newer)
	r.leave(batch, []int32{1, 2, int32(newer), 4, -1, reportBatch})
	r.withdraw(2)
	for id := reportBatch; len(r.reports) < maxReports; id++ {
		add(id)
	}
	add(maxReports + reportBatch) // in place of the first that was left
	if n := len(r.order) + len(r.left); n != maxReports || len(r.reports) != maxReports || len(r.left) != 1 {
		t.Errorf("%d reports, %d in order, of which %d were left", len(r.reports), n, len(r.left))
	}
	r.leave(batch, []int32{7}) // there is no room
	if got := ids(r.take(&r.left)); !slices.Equal(got, []int32{4}) || r.leaves() {
		t.Errorf("left: %v", got)
	}
	if got := ids(r.take(&r.order)); got[0] != int32(newer) {
		t.Errorf("the first is %d, want that with a newer report", got[0])
	}
}
