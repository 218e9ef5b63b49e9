// Package manifest reads Kubernetes manifests strictly: YAML of one or more documents, JSON, or a v1 List, of nodes,
// pods, namespaces, the services and controllers whose selectors scheduling reads, PodDisruptionBudgets, and what volumes are made of. It fills in the defaults that
// scheduling reads, as the API server does, and says of everything that is wrong in which document, object and field it is.
//
// It is stricter than it need be where leniency would hide a mistake (unknown fields, duplicate keys), and more lenient
// than the API server where scheduling does not read: it does not look into probes, the volumes of pods or security contexts,
// nor, of services and controllers, at anything but names, labels and selectors.
// It neither stores objects nor decides what may change of one that is stored.
package manifest
