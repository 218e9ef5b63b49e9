package source

import (
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
)

// Kube-scheduler takes five in-tree plugins to be replaced by a CSI driver. There are translations for others too, which it has no use
// for. Only the source of one of the five is given to the translator: of a volume with several it takes any, and some translations
// expect an API server to have checked and completed what they read.

var translator = csitranslation.New()

// migration returns what the volume is to CSI, and the volume as it is then; nil if it is none to CSI.
func migration(volume *v1.PersistentVolume) (cluster.Migration, *v1.PersistentVolume) {
	var plugin string
	var one v1.PersistentVolumeSource
	switch all := &volume.Spec.PersistentVolumeSource; {
	case all.AWSElasticBlockStore != nil:
		plugin, one.AWSElasticBlockStore = plugins.AWSEBSInTreePluginName, all.AWSElasticBlockStore
	case all.GCEPersistentDisk != nil:
		plugin, one.GCEPersistentDisk = plugins.GCEPDInTreePluginName, all.GCEPersistentDisk
	case all.AzureDisk != nil:
		plugin, one.AzureDisk = plugins.AzureDiskInTreePluginName, all.AzureDisk
	case all.Cinder != nil:
		plugin, one.Cinder = plugins.CinderInTreePluginName, all.Cinder
	case all.PortworxVolume != nil:
		plugin, one.PortworxVolume = plugins.PortworxVolumePluginName, all.PortworxVolume
	default:
		return cluster.Migration{}, nil
	}
	of := *volume
	of.Spec.PersistentVolumeSource = one
	translated, err := translator.TranslateInTreePVToCSI(logr.Discard(), &of) // which works on a copy
	if err != nil {
		return cluster.Migration{Plugin: plugin, Error: err.Error()}, nil
	}
	return migratedTo(plugin, translated), translated
}

// inlineMigration returns what a volume in the spec of a pod is to CSI.
func inlineMigration(volume *v1.Volume) cluster.Migration {
	var plugin string
	var one v1.VolumeSource // not yet a v1.Volume to point to, which most volumes need none of
	switch all := &volume.VolumeSource; {
	case all.AWSElasticBlockStore != nil:
		plugin, one.AWSElasticBlockStore = plugins.AWSEBSInTreePluginName, all.AWSElasticBlockStore
	case all.GCEPersistentDisk != nil:
		plugin, one.GCEPersistentDisk = plugins.GCEPDInTreePluginName, all.GCEPersistentDisk
	case all.AzureDisk != nil:
		plugin, one.AzureDisk = plugins.AzureDiskInTreePluginName, all.AzureDisk
	case all.Cinder != nil:
		plugin, one.Cinder = plugins.CinderInTreePluginName, all.Cinder
	case all.PortworxVolume != nil:
		plugin, one.PortworxVolume = plugins.PortworxVolumePluginName, all.PortworxVolume
	default:
		return cluster.Migration{}
	}
	translated, err := translator.TranslateInTreeInlineVolumeToCSI(logr.Discard(), &v1.Volume{Name: volume.Name, VolumeSource: one}, "") // none asks for the namespace
	if err != nil {
		return cluster.Migration{Plugin: plugin, Error: fmt.Sprintf("converting volume(%s) from inline to csi: %v", volume.Name, err)}
	}
	return migratedTo(plugin, translated)
}

func migratedTo(plugin string, translated *v1.PersistentVolume) cluster.Migration {
	csi := translated.Spec.CSI
	return cluster.Migration{Plugin: plugin, Driver: csi.Driver, Handle: csi.VolumeHandle}
}
