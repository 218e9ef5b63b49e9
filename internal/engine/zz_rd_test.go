package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
)

func TestRDDiskGone(t *testing.T) {
	for _, n := range []int{16, 64, 256} {
		disks := func(p string) (out []cluster.Disk) {
			for k := range n {
				out = append(out, cluster.Disk{Kind: cluster.DiskRBD, ID: "image", Pool: "p", Monitors: []string{fmt.Sprintf("monitor-%s-%06d", p, k)}})
			}
			return out
		}
		d := &Demands{spec: &cluster.ClassSpec{Disks: disks("a")}}
		m := Movement{was: &unseen, disks: &cluster.Class{Spec: cluster.ClassSpec{Disks: disks("b")}}}
		start := time.Now()
		const runs = 20
		for range runs {
			diskGone(nil, d, m)
		}
		per := time.Since(start) / runs
		t.Logf("%d disks: %v a movement, %v for 4096", n, per, 4096*per)
	}
}

func TestRDSignatures(t *testing.T) {
	st := cluster.New(cluster.Version{Epoch: 1})
	ap := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			t.Fatal(err)
		}
	}
	ap(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1}})
	ap(cluster.ClassDefined{ID: 0, Spec: cluster.ClassSpec{}})
	const pods, claims = 256, 256
	for p := range pods {
		set := cluster.LabelSet{Namespace: "ns"}
		for c := range claims {
			name := fmt.Sprintf("claim-%d-%d", p, c)
			set.Claims = append(set.Claims, cluster.PodClaim{Name: name})
			ap(cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "pv-" + name, Driver: "d", Handle: name, HasClaim: true}})
			ap(cluster.ObjectSet{Object: &cluster.PersistentVolumeClaim{Namespace: "ns", Name: name, Volume: "pv-" + name, Bound: true}})
		}
		ap(cluster.LabelsDefined{ID: cluster.LabelsID(p+1), Set: set})
	}
	e := NewEvaluator(EvaluatorConfig{})
	all := func() time.Duration {
		start := time.Now()
		for p := range pods {
			e.Signature(st, Subject{Class: 0, Labels: cluster.LabelsID(p+1)})
		}
		return time.Since(start)
	}
	t.Logf("first %v", all())
	t.Logf("nothing changed %v", all())
	ap(cluster.ObjectSet{Object: &cluster.PersistentVolume{Name: "other"}})
	t.Logf("a volume changed %v", all())
}
