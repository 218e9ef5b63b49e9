package source

import (
	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
)

// judgedAs is the version of kube-scheduler whose demands on nodes a pod has: a feature is demanded up to the version in
// which every node has it.
var judgedAs = version.MustParseSemantic("1.36.3")

// reduceFeatures fills the features that the pod needs its node to declare.
func reduceFeatures(pod *v1.Pod, class *cluster.ClassSpec) {
	framework := nodedeclaredfeatures.DefaultFramework
	needed, err := framework.InferForPodScheduling(&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec}, judgedAs)
	if err == nil && !needed.IsEmpty() {
		class.Features, err = framework.Unmap(needed)
	}
	if err != nil {
		refuse(class, engine.Features, "the features that the pod needs cannot be told: "+err.Error())
	}
}
