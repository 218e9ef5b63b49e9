package binder

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/source"
)

// reportGroup hands the report lane what an attempt to place a PodGroup has come to, unless that is nothing, and it is made again.
func (t *term) reportGroup(g *grouped, err error) {
	reason, message := g.decision(err)
	if reason == "" || g.uid == "" {
		return
	}
	if !t.reports.add(source.Report{UID: g.uid, Namespace: g.key.Namespace, Name: g.key.Name, Reason: reason, Message: message, Group: true}) {
		t.metrics.laneDropped.WithLabelValues(laneReports).Inc()
	}
}

// decision returns what is said of a group after an attempt, as kube-scheduler words it; no reason: nothing.
func (g *grouped) decision(err error) (reason, message string) {
	switch {
	case errors.Is(err, errUntried) && status.Code(err) == codes.Internal:
		return reasonError, status.Convert(err).Message()
	case err != nil:
		return "", ""
	}
	for i := range g.outcomes {
		if g.outcomes[i].Outcome.Result == binderv1.Outcome_RESULT_FAILED {
			return reasonError, g.outcomes[i].Error
		}
	}
	switch {
	case len(g.open) == 0:
		return "", ""
	case g.found.Placed:
		return source.Scheduled, ""
	}
	return reasonUnschedulable, g.found.Message
}
