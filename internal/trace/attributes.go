package trace

import "go.opentelemetry.io/otel/attribute"

// The attributes of spans. Those that OpenTelemetry has a name for have that name.
const (
	PodUID       = attribute.Key("k8s.pod.uid")
	PodName      = attribute.Key("k8s.pod.name")
	PodNamespace = attribute.Key("k8s.namespace.name")
	Node         = attribute.Key("k8s.node.name") // where the pod was placed, or was to be

	Number     = attribute.Key("berth.attempt") // of the attempt, from 1
	Class      = attribute.Key("berth.class")   // id of the pod's class, in the epoch
	Shard      = attribute.Key("berth.shard")
	Epoch      = attribute.Key("berth.epoch")
	Result     = attribute.Key("berth.result")
	Message    = attribute.Key("berth.message")     // why nothing was placed, as in the pod's condition
	Pods       = attribute.Key("berth.pods")        // of the batch
	Signatures = attribute.Key("berth.signatures")  // of the batch that workers are asked about
	RangeFirst = attribute.Key("berth.range.first") // index of the first node
	RangeEnd   = attribute.Key("berth.range.end")   // and of the first one behind the range
	Worker     = attribute.Key("berth.worker")      // address of who answered
	Batch      = attribute.Key("berth.batch")       // id of the record
	Try        = attribute.Key("berth.try")         // of the bind, from 1

	Group   = attribute.Key("berth.group")   // namespace/name of the PodGroup whose pods the batch is
	Fit     = attribute.Key("berth.fit")     // how many of its pods are on nodes, or could be
	Wants   = attribute.Key("berth.wants")   // how many it wants at least; 0: it is no gang
	Domain  = attribute.Key("berth.domain")  // where it is, or would be, by the values of its topology's labels
	Tries   = attribute.Key("berth.tries")   // how often places have been looked for
	Victims = attribute.Key("berth.victims") // pods that are to be evicted for it
)
