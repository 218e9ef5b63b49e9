package gateway

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/rpc"
)

// Reasons that only the gateway gives.
const (
	// ReasonNotLocal: FAILED_PRECONDITION: the cluster is Kubernetes, whose objects are not Berth's to change.
	ReasonNotLocal rpc.Reason = "NOT_LOCAL"
	// ReasonTooSlow: RESOURCE_EXHAUSTED: the watcher did not keep up; list, and watch again.
	ReasonTooSlow rpc.Reason = "TOO_SLOW"
	// ReasonTooManyWatchers: RESOURCE_EXHAUSTED: come back later, or elsewhere.
	ReasonTooManyWatchers rpc.Reason = "TOO_MANY_WATCHERS"
	// ReasonTooLarge: INVALID_ARGUMENT: the HTTP request is too large.
	ReasonTooLarge rpc.Reason = "TOO_LARGE"
	// ReasonCrossOrigin: PERMISSION_DENIED: the HTTP request is from a web page of another origin.
	ReasonCrossOrigin rpc.Reason = "CROSS_ORIGIN"
	// ReasonHostNotAllowed: PERMISSION_DENIED: the HTTP request is for a host that the gateway is not known as.
	ReasonHostNotAllowed rpc.Reason = "HOST_NOT_ALLOWED"
	// ReasonOutcomeUnknown: UNAVAILABLE: the objects may or may not be written; send them again.
	ReasonOutcomeUnknown rpc.Reason = "OUTCOME_UNKNOWN"
)

func errNotFound(format string, args ...any) error {
	return rpc.Error(codes.NotFound, rpc.ReasonNotFound, format, args...)
}

func errPodNotFound(n podName) error { return errNotFound("pod %s/%s not found", n.namespace, n.name) }

func errNotLocal() error {
	return rpc.Error(codes.FailedPrecondition, ReasonNotLocal, "the cluster of this Berth is Kubernetes: use kubectl")
}

func errStopping() error {
	return rpc.Error(codes.Unavailable, rpc.ReasonDraining, "the gateway is stopping")
}

func errTooManyWatchers(limit int) error {
	return rpc.Exhausted(ReasonTooManyWatchers, time.Second, "%d clients may watch, and of one caller %d and as many as leave room for as many again", limit, watchesOfOne)
}

func errTooSlow() error {
	return rpc.Exhausted(ReasonTooSlow, 0, "the client reads too slowly: list the pods, and watch from the version listed")
}

func errTooOld(from, since cluster.Version) error {
	if from.Epoch != since.Epoch {
		return rpc.Error(codes.OutOfRange, rpc.ReasonLogCompacted,
			"version %v is of another epoch than the current %d: list the pods, and watch from the version listed", from, since.Epoch)
	}
	return rpc.Error(codes.OutOfRange, rpc.ReasonLogCompacted,
		"placements are kept since version %v, not %v: list the pods, and watch from the version listed", since, from)
}

func errGap(version cluster.Version) error {
	return rpc.Error(codes.OutOfRange, rpc.ReasonLogCompacted,
		"the placements between the last version sent and %v are not known: list the pods, and watch from the version listed", version)
}

func errBehind(want, have cluster.Version) error {
	return rpc.Error(codes.Unavailable, rpc.ReasonReplicaBehind, "the gateway is at version %v, not yet at %v", have, want)
}
