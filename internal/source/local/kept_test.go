package local

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
	"github.com/berth-scheduler/berth/internal/source/sourcetest"
)

// TestAKeptVolumeThatIsBoundStaysSoWhenItIsAppliedAgain: its manifest names the claim, and no UID.
func TestAKeptVolumeThatIsBoundStaysSoWhenItIsAppliedAgain(t *testing.T) {
	c := startCluster(t)
	c.SetObject(t, sourcetest.LateClass())
	manifest := `
apiVersion: v1
kind: PersistentVolume
metadata: {name: kept}
spec:
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: late
  claimRef: {namespace: ` + sourcetest.Namespace + `, name: first}
  csi: {driver: csi.example.com, volumeHandle: kept}
`
	c.apply(t, parse(t, manifest)...)
	c.SetObject(t, sourcetest.Claim("first"))
	s := c.Source(t)
	r := sourcetest.Record(t, s).Synced()
	var uid string
	r.View(func(v sourcetest.View) { uid = v.ClaimOf("first").UID })
	b := source.VolumeBinding{UID: "u", Namespace: sourcetest.Namespace, Name: "p", Node: "one", Choices: []cluster.VolumeChoice{{Claim: "first", UID: uid, Volume: "kept"}}}
	if o := s.BindVolumes(within(t), c.Fence(t), b); o.Result != source.BindDone {
		t.Fatalf("%+v", o)
	}
	c.apply(t, parse(t, manifest)...)
	c.SetObject(t, sourcetest.Claim("later")) // what was written before has been told when this is
	r.Await("another claim", func(v sourcetest.View) bool { return v.ClaimOf("later") != nil })
	r.View(func(v sourcetest.View) {
		if got := v.VolumeOf("kept").Claim; got.UID != uid {
			t.Errorf("applied again: %+v", got)
		}
	})
}
