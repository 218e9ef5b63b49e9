package source

import (
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
	"k8s.io/csi-translation-lib/plugins"
)

// Workers do without the library: what a class of an in-tree plugin counts as is a table in cluster.
func TestTheDriversOfProvisionersAreThoseOfTheLibrary(t *testing.T) {
	taken := map[string]bool{ // those that kube-scheduler's NodeVolumeLimits takes to be replaced
		plugins.AWSEBSInTreePluginName: true, plugins.PortworxVolumePluginName: true, plugins.GCEPDInTreePluginName: true,
		plugins.AzureDiskInTreePluginName: true, plugins.CinderInTreePluginName: true,
	}
	known := 0
	for _, name := range []string{
		plugins.AWSEBSInTreePluginName, plugins.PortworxVolumePluginName, plugins.GCEPDInTreePluginName, plugins.AzureDiskInTreePluginName,
		plugins.CinderInTreePluginName, plugins.AzureFileInTreePluginName, plugins.VSphereInTreePluginName,
		"kubernetes.io/no-provisioner", "kubernetes.io/rbd", "kubernetes.io/glusterfs", "kubernetes.io/quobyte", "kubernetes.io/scaleio",
		"kubernetes.io/storageos", "kubernetes.io/flocker", "kubernetes.io/host-path", "example.com/nfs",
	} {
		st := cluster.New(cluster.Version{Epoch: 1})
		for _, o := range []cluster.Object{
			&cluster.StorageClass{Name: "s", Provisioner: name}, &cluster.PersistentVolumeClaim{Namespace: "shop", Name: "c", Class: "s"},
		} {
			if err := st.Apply(cluster.ObjectSet{Object: o}); err != nil {
				t.Fatal(err)
			}
		}
		want := cluster.ClaimVolume{Driver: name, Handle: cluster.ClaimHandle("shop", "c")}
		if translator.IsMigratableIntreePluginByName(name) {
			known++
			if want = (cluster.ClaimVolume{}); taken[name] {
				driver, err := translator.GetCSINameFromInTreeName(name)
				if err != nil {
					t.Fatal(err)
				}
				want = cluster.ClaimVolume{Driver: driver, Handle: cluster.ClaimHandle("shop", "c"), Migrated: true}
			}
		}
		if got := st.ClaimVolume("shop", "c"); got != want {
			t.Errorf("a claim of %s counts as %+v, want %+v", name, got, want)
		}
	}
	if known != 7 {
		t.Errorf("the library has replacements for %d of these plugins, want 7", known)
	}
}
