package queue

import (
	"time"

	binderv1 "github.com/berth-scheduler/berth/internal/gen/berth/binder/v1"
	"github.com/berth-scheduler/berth/internal/logs"
)

// logGroup logs that a PodGroup is tried. What becomes of it, the binder logs.
func (c *cycle) logGroup() {
	if log := logs.V(c.log, logs.Attempts); log != nil {
		log.Info("Attempting to schedule pod group", "podGroup", c.group.String())
	}
}

// groupResult returns what has come of an attempt to place a PodGroup, as kube-scheduler counts it; "": nothing, and it is made again.
func groupResult(response *binderv1.PlaceGroupResponse) string {
	n := make(map[binderv1.Outcome_Result]int)
	for _, is := range response.GetPods() {
		n[is.GetOutcome().GetResult()]++
	}
	switch {
	case n[binderv1.Outcome_RESULT_FAILED] > 0:
		return resultError
	case n[binderv1.Outcome_RESULT_ASSUMED] > 0:
		return resultScheduled
	case n[binderv1.Outcome_RESULT_NO_FIT] > 0:
		return resultUnschedulable
	}
	return ""
}

// groupDecided counts an attempt to place a PodGroup that has come to something.
func (c *cycle) groupDecided(result string) {
	profile := c.attempts[0].signature.profile
	c.s.metrics.groupAttempts.WithLabelValues(result, profile).Inc()
	c.s.metrics.groupSeconds.WithLabelValues(result, profile).Observe(time.Since(c.popped).Seconds())
}
