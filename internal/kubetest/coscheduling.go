package kubetest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// coschedulingDefinition is the CustomResourceDefinition of Coscheduling's PodGroup, as sigs.k8s.io/scheduler-plugins v0.35.4-devel has it, without descriptions.
//
//go:embed coscheduling.json
var coschedulingDefinition []byte

const (
	definitions       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	coschedulingPaths = "/apis/scheduling.x-k8s.io/v1alpha1/"
)

// ServeCoscheduling has the API server serve Coscheduling's PodGroups, and returns when it does.
func (c *ControlPlane) ServeCoscheduling(ctx context.Context) error {
	if err := c.post(ctx, definitions, coschedulingDefinition); err != nil {
		return fmt.Errorf("define Coscheduling's PodGroups: %w", err)
	}
	return awaitReady(ctx, c.api, func() error {
		_, err := c.client.RESTClient().Get().AbsPath(coschedulingPaths+"podgroups").SetHeader("Accept", "application/json").DoRaw(ctx)
		return err
	})
}

// CreateCoschedulingGroup creates a PodGroup of Coscheduling.
func (c *ControlPlane) CreateCoschedulingGroup(ctx context.Context, namespace, name string, minMember int) error {
	group, err := json.Marshal(map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": metav1.ObjectMeta{Namespace: namespace, Name: name},
		"spec": map[string]any{"minMember": minMember, "scheduleTimeoutSeconds": 10},
	})
	if err != nil {
		return fmt.Errorf("encode the PodGroup %s/%s: %w", namespace, name, err)
	}
	if err := c.post(ctx, coschedulingPaths+"namespaces/"+namespace+"/podgroups", group); err != nil {
		return fmt.Errorf("create Coscheduling's PodGroup %s/%s: %w", namespace, name, err)
	}
	return nil
}

// post creates an object of a kind that the client does not know.
func (c *ControlPlane) post(ctx context.Context, path string, object []byte) error {
	_, err := c.client.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(object).DoRaw(ctx)
	return err
}
