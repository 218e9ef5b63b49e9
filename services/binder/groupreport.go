package binder

import (
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/logs"
	"github.com/berth-scheduler/berth/internal/source"
)

// reportGroup hands the report lane what an attempt to place a PodGroup has come to, unless that is nothing, and it is made again.
func (t *term) reportGroup(g *grouped, placed int, err error) {
	reason, message := g.decision(err)
	if reason == "" || g.uid == "" {
		return
	}
	g.log(t.log, reason, message, placed)
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
	case g.found.Placed, g.found.Message == "": // enough of it have nodes, whatever keeps others from theirs
		return source.Scheduled, ""
	}
	return reasonUnschedulable, g.found.Message
}

// log says what has come of a group as kube-scheduler does.
func (g *grouped) log(to *slog.Logger, reason, message string, placed int) {
	if reason == reasonError {
		to.Error("Error scheduling pod group", "podGroup", g.key.String(), "errorPods", len(g.req.GetPods()), "err", message) // at any verbosity
		return
	}
	log := logs.V(to, logs.Outcomes)
	if log == nil {
		return
	}
	unplaced := 0
	for i := range g.outcomes {
		if r := g.outcomes[i].Outcome.Result; r == binderv1.Outcome_RESULT_NO_FIT || placed > 0 && r == binderv1.Outcome_RESULT_RETRY {
			unplaced++
		}
	}
	if placed > 0 {
		log.Info("Successfully scheduled a pod group", "podGroup", g.key.String(), "scheduledPods", placed, "unschedulablePods", unplaced)
		return
	}
	log.Info("Unable to schedule a pod group", "podGroup", g.key.String(), "unschedulablePods", unplaced, "why", message)
}
