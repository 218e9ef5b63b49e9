//go:build needs

package schedulerplugins

// What the copies need that integration makes of kube-scheduler's tests: go mod tidy sees no other file that imports it.
import (
	_ "k8s.io/kubernetes/test/integration/framework"
	_ "k8s.io/kubernetes/test/integration/util"
)
