// Package v1alpha1 has the custom resource in which a collector tells what the cards of a node are: scvs.yoda.berth.dev, cluster-scoped, each named after its node. Collectors write it (cmd/berth-scv), and it is for Yoda to place pods by (plugins/yoda). It has
// data only, in JSON as Kubernetes has it: nothing here reads or writes.
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// What the resource is called.
const (
	Group    = "yoda.berth.dev"
	Version  = "v1alpha1"
	Kind     = "Scv"
	Resource = "scvs"
)

// Scv is what the cards of a node are. Its metadata.name is the node's.
type Scv struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status Status `json:"status,omitempty"`
}

// Status is what the collector of a node has seen last.
type Status struct {
	// Heartbeat is when the collector wrote last, by the node's clock. It writes when something has changed beyond a step, and else each HeartbeatSeconds: who has not seen it change for three times as long takes the cards for stale, and gives none of them.
	Heartbeat metav1.MicroTime `json:"heartbeat"`
	// HeartbeatSeconds is after how long the collector writes at the latest. 1 to 3600.
	HeartbeatSeconds int32 `json:"heartbeatSeconds"`
	// Driver is the version of the driver, "" if it is not known.
	Driver string `json:"driver,omitempty"`
	// Cards are all the cards that the collector knows of since it has begun, in the order of Index. One that has fallen off its bus stays, unhealthy. A node without a card has none.
	Cards []Card `json:"cards"`
	// CardNumber is how many cards there are, and HealthyNumber how many of them are healthy: for people, as kubectl prints them.
	CardNumber    int32 `json:"cardNumber"`
	HealthyNumber int32 `json:"healthyNumber"`
	// FreeMemoryMiB and TotalMemoryMiB are the sums over healthy cards, for people.
	FreeMemoryMiB  int64 `json:"freeMemoryMiB"`
	TotalMemoryMiB int64 `json:"totalMemoryMiB"`
}

// Health says whether a card may be used.
type Health string

const (
	Healthy   Health = "Healthy"
	Unhealthy Health = "Unhealthy"
)

// Card is one card.
type Card struct {
	// ID is the card's own name, by which programs choose it (CUDA_VISIBLE_DEVICES): NVML's UUID, GPU-…. No two cards of a node have the same.
	ID string `json:"id"`
	// Index is the card's number on its node, as the driver counts. It may be another one after a restart of the node; nothing goes by it.
	Index int32 `json:"index"`
	// Model is what it is called: "NVIDIA A100-SXM4-40GB".
	Model string `json:"model"`
	// Health, and why it is unhealthy, in words: "" if it is healthy.
	Health Health `json:"health"`
	Reason string `json:"reason,omitempty"`
	// TotalMemoryMiB and FreeMemoryMiB are of the card's memory, in MiB. What the driver reserves for itself is in neither, if it tells that.
	TotalMemoryMiB int64 `json:"totalMemoryMiB"`
	FreeMemoryMiB  int64 `json:"freeMemoryMiB"`
	// ClockMHz is the highest clock of its memory, CoreMHz the highest of its processors.
	ClockMHz int64 `json:"clockMHz"`
	CoreMHz  int64 `json:"coreMHz"`
	// BandwidthMBps is what its link to the node can carry in one direction, in 10^6 bytes per second.
	BandwidthMBps int64 `json:"bandwidthMBps"`
	// PowerWatts is the most power it may draw, in W.
	PowerWatts int64 `json:"powerWatts"`
}
