package cluster_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

// What holds for objects holds for those of a kind that has nothing but its row.
func TestMain(m *testing.M) {
	clustertest.KnowMade()
	m.Run()
}
