package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-scheduler/berth/internal/secureport"
)

const (
	fromPolicy = "berth config convert makes a file for --config of a policy"
	toConfig   = "say it in the file of --config: "
	toMetrics  = "--metrics-listen serves /metrics, /healthz, /readyz and /livez"
	noClient   = "Berth talks protobuf to the API server, and takes JSON"
)

// removed are flags that kube-scheduler had once, or has still though they are deprecated, and Berth has not, and what to do instead.
var removed = map[string]string{
	"policy-config-file":                 fromPolicy,
	"policy-configmap":                   fromPolicy + ": its data are in the ConfigMap under policy.cfg",
	"policy-configmap-namespace":         fromPolicy + ": its data are in the ConfigMap under policy.cfg",
	"use-legacy-policy-config":           fromPolicy,
	"algorithm-provider":                 toConfig + "DefaultProvider is the default, and ClusterAutoscalerProvider is a scoringStrategy of type MostAllocated",
	"hard-pod-affinity-symmetric-weight": toConfig + "hardPodAffinityWeight, in pluginConfig",
	"failure-domains":                    "it has no meaning any more: pods have topologySpreadConstraints",
	"port":                               toMetrics,
	"address":                            toMetrics,
	"kube-api-content-type":              noClient,
	"kube-api-qps":                       "--kube-qps",
	"kube-api-burst":                     "--kube-burst",
	"lock-object-name":                   "--leader-elect-resource-name",
	"lock-object-namespace":              "--leader-elect-resource-namespace",
}

// explainRemoved has an error about such a flag say what to do instead.
func explainRemoved(c *cobra.Command, err error) error {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return err
	}
	if instead, known := removed[unknown.GetSpecifiedName()]; known {
		if instead == toMetrics && c.Name() == secureport.Component {
			instead = "--secure-port"
		}
		return fmt.Errorf("%w, which is an old one of kube-scheduler's: %s", err, instead)
	}
	return err
}
