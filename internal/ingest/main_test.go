package ingest_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
)

func TestMain(m *testing.M) {
	clustertest.KnowMade()
	m.Run()
}
