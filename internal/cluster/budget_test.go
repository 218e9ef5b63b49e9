package cluster_test

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Members of the last release hash PodDisruptionBudgets so.
func TestTheDigestOfABudgetStaysWhatItIs(t *testing.T) {
	for _, tt := range []struct {
		of   cluster.Budget
		want uint64
	}{
		{cluster.Budget{
			Namespace: "shop", Name: "web", Allowed: 2, Disrupted: []string{"web-1", "web-2"},
			Selector: cluster.LabelSelector{Requirements: []cluster.Requirement{
				{Key: "app", Operator: "In", Values: []string{"api", "web"}}, {Key: "tier", Operator: "Exists"},
			}},
		}, 0x8f43354f89289067},
		{cluster.Budget{Selector: cluster.LabelSelector{Nothing: true}, Allowed: -1}, 0xa7f8384b4d891351},
	} {
		st := cluster.New(start)
		if err := st.Apply(cluster.ObjectSet{Object: &tt.of}); err != nil {
			t.Fatal(err)
		}
		if got := st.Digest(); got != tt.want {
			t.Errorf("the digest of %+v is %#x, want %#x", tt.of, got, tt.want)
		}
	}
}
