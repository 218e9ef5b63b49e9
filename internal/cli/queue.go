package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

func queueCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Show the pods that wait, by priority and shard, and how fast they come and go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return c.with(cmd.Context(), opt, func(s *session) error {
				response, err := ask(cmd.Context(), s, s.GetQueue, &schedulingv1.GetQueueRequest{})
				if err != nil {
					return err
				}
				return o.show(opt, answer{response, func() []string { return shardNames(response) }, func(t *table) { t.queue(response) }})
			})
		},
	}
	c.add(cmd, opt)
	o.add(cmd)
	return cmd
}

func shardNames(q *schedulingv1.GetQueueResponse) []string {
	names := make([]string, 0, len(q.GetShards()))
	for _, s := range q.GetShards() {
		names = append(names, fmt.Sprintf("shard/%d", s.GetShard()))
	}
	return names
}

func (t *table) queue(q *schedulingv1.GetQueueResponse) {
	t.rates(q)
	t.line("As of version %s.", versionText(q.GetVersion()))
	t.gap()
	t.priorities(q.GetPriorities(), len(q.GetPriorities()))
	t.gap()
	t.shards(q.GetShards())
}

func (t *table) rates(q *schedulingv1.GetQueueResponse) {
	t.row("PER SECOND", "LAST 10 S", "LAST 60 S")
	t.row("arrived", rate(q.GetArrived_10S(), 10), rate(q.GetArrived_60S(), 60))
	t.row("placed", rate(q.GetPlaced_10S(), 10), rate(q.GetPlaced_60S(), 60))
}

func rate(n int32, seconds float64) string {
	return strconv.FormatFloat(float64(n)/seconds, 'f', 1, 64)
}

// priorities writes the first of the priorities, highest first.
func (t *table) priorities(counts []*schedulingv1.PriorityCount, limit int) {
	if len(counts) == 0 {
		t.line("No pod is pending.")
		return
	}
	t.row("PRIORITY", "PENDING", "SHARDS AT WORK")
	for _, b := range counts[:min(limit, len(counts))] {
		shards := make([]string, 0, len(b.GetShards()))
		for _, s := range b.GetShards() {
			shards = append(shards, strconv.Itoa(int(s)))
		}
		t.row(strconv.Itoa(int(b.GetPriority())), count(b.GetPending()), cmp.Or(strings.Join(shards, ","), "none"))
	}
	if more := len(counts) - limit; more > 0 {
		t.line("and %s", counted(int32(more), "lower priority", "lower priorities"))
	}
}

func (t *table) shards(shards []*schedulingv1.Shard) {
	t.row("SHARD", "OWNER", "WORKS AT", "GATED", "ACTIVE", "BACKOFF", "UNSCHEDULABLE", "IN FLIGHT")
	for _, shard := range shards {
		floor := ""
		if shard.PriorityFloor != nil {
			floor = strconv.Itoa(int(shard.GetPriorityFloor()))
		}
		cells := []string{strconv.Itoa(int(shard.GetShard())), cmp.Or(shard.GetOwner(), "none"), floor}
		if d := shard.GetDepth(); d != nil {
			for _, n := range []int32{d.GetGated(), d.GetActive(), d.GetBackoff(), d.GetUnschedulable(), d.GetInFlight()} {
				cells = append(cells, count(n))
			}
		} else {
			cells = append(cells, "", "", "", "", "")
		}
		t.row(cells...)
	}
}

func workersCommand(opt Options) *cobra.Command {
	var c connection
	var o output
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the processes of Berth: role, work, lag, and whether they are ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return c.with(cmd.Context(), opt, func(s *session) error { return s.workers(cmd.Context(), opt, o) })
		},
	}
	c.add(cmd, opt)
	o.add(cmd)
	return cmd
}

func (s *session) workers(ctx context.Context, opt Options, o output) error {
	response, err := ask(ctx, s, s.GetStatus, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	return o.show(opt, answer{response, func() []string { return memberNames(response) }, func(t *table) { t.members(response) }})
}

func (t *table) members(s *schedulingv1.GetStatusResponse) {
	header := []string{"ROLE", "ID", "WORK", "LAG", "READY", "WHY NOT"}
	if t.wide {
		header = append(header, "ADDRESS", "VERSION", "BUILD", "AGE")
	}
	t.row(header...)
	for _, m := range s.GetMembers() {
		lag, ready := lagAndReady(m)
		cells := []string{m.GetRole(), m.GetId(), work(s, m), lag, ready, m.GetNotReadyBecause()}
		if t.wide {
			cells = append(cells, m.GetAddress(), versionText(m.GetVersion()), buildName(m.GetBuild()), t.age(m.GetStarted()))
		}
		t.row(cells...)
	}
}

func lagAndReady(m *schedulingv1.Member) (lag, ready string) {
	lag, ready = "unknown", "no"
	if m.GetLag() >= 0 {
		lag = strconv.FormatInt(m.GetLag(), 10)
	}
	if m.GetReady() {
		ready = "yes"
	}
	return lag, ready
}

// work says what a member does now. The nodes of a worker are told by their indexes: they are cut anew when workers or nodes
// come and go.
func work(s *schedulingv1.GetStatusResponse, m *schedulingv1.Member) string {
	switch m.GetRole() {
	case "binder":
		if m.GetId() == s.GetLeader() {
			return "active"
		}
		return "stands by"
	case "queue":
		var owned []string
		for _, shard := range s.GetShards() {
			if shard.GetOwner() == m.GetId() {
				owned = append(owned, strconv.Itoa(int(shard.GetShard())))
			}
		}
		if len(owned) == 0 {
			return "no shard"
		}
		return "shards " + strings.Join(owned, ",")
	case "filter-worker", "score-worker":
		if r := m.GetRange(); r != nil {
			return fmt.Sprintf("nodes %d-%d", r.GetFirst(), r.GetEnd()-1)
		}
		return "no nodes"
	}
	return ""
}

// unready counts the members that are not ready, but for binders that stand by.
func unready(s *schedulingv1.GetStatusResponse) int {
	n := 0
	for _, m := range s.GetMembers() {
		if !m.GetReady() && (m.GetRole() != "binder" || m.GetId() == s.GetLeader()) {
			n++
		}
	}
	return n
}

// roles counts members by role: "binder 2, queue 1".
func roles(s *schedulingv1.GetStatusResponse) string {
	n := make(map[string]int)
	for _, m := range s.GetMembers() {
		n[m.GetRole()]++
	}
	var names []string
	for _, m := range s.GetMembers() {
		if !slices.Contains(names, m.GetRole()) {
			names = append(names, m.GetRole())
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, n[name])
	}
	return strings.Join(names, ", ")
}
