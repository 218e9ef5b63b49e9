package cluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// IsScalar reports whether kube-scheduler counts the resource besides cpu, memory, ephemeral-storage and pods: extended
// resources, huge pages, attachable volumes and names in a domain of Kubernetes.
func IsScalar(name string) bool {
	return strings.HasPrefix(name, "hugepages-") || strings.HasPrefix(name, "attachable-volumes-") ||
		strings.Contains(name, "kubernetes.io/") || IsExtended(name)
}

// IsExtended reports whether the resource is of a domain other than those of Kubernetes, such as nvidia.com/gpu.
func IsExtended(name string) bool {
	return strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") && !strings.HasPrefix(name, "requests.") &&
		len(validation.IsQualifiedName("requests."+name)) == 0
}
