package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// sight is one pod: as its cluster stores it, and as Berth sees it, nil if it does not.
type sight struct {
	stored *corev1.Pod
	berth  *schedulingv1.Pod
}

// look returns all pods by name.
func (s *story) look(ctx context.Context) (map[string]*sight, error) {
	stored, err := s.users.pods(ctx)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]*schedulingv1.Pod)
	for token := ""; ; {
		page, err := s.berth.ListPods(ctx, &schedulingv1.ListPodsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, p := range page.GetPods() {
			seen[p.GetName()] = p
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	out := make(map[string]*sight, len(stored))
	for name, p := range stored {
		out[name] = &sight{stored: p, berth: seen[name]}
		delete(seen, name)
	}
	for name := range seen {
		return nil, fmt.Errorf("Berth still sees %s", name)
	}
	return out, nil
}

// state is where the pod is, as far as that does not depend on timing.
func (p *sight) state() string {
	switch p.berth.GetState() {
	case schedulingv1.PodState_POD_STATE_GATED:
		if !p.berth.GetPreempting() { // else it is held back for a moment
			return "gated"
		}
	case schedulingv1.PodState_POD_STATE_UNSCHEDULABLE:
		return "unschedulable"
	case schedulingv1.PodState_POD_STATE_BOUND:
		return "bound"
	}
	if p.foreign() {
		return "of another scheduler"
	}
	return "waiting"
}

// foreign reports whether the pod is another scheduler's. Of such pods Berth knows those that are on a node; of others it
// may know, but they are in no queue.
func (p *sight) foreign() bool { return p.stored.Spec.SchedulerName != corev1.DefaultSchedulerName }

// backoff returns how long after its last attempt the pod has none any more: a second, doubled with each attempt up to ten,
// and one for rounding.
func (p *sight) backoff() time.Duration {
	return min(time.Second<<min(p.berth.GetAttempts()-1, 4), 10*time.Second) + time.Second
}

// agrees returns an error unless the pod's object says what Berth knows.
func (p *sight) agrees() error {
	switch {
	case p.berth == nil && p.foreign() && p.stored.Spec.NodeName == "":
		return nil
	case p.berth == nil:
		return errors.New("Berth does not see it")
	}
	if p.berth.GetUid() != string(p.stored.UID) {
		return fmt.Errorf("its uid is %s, for Berth %s", p.stored.UID, p.berth.GetUid())
	}
	if p.berth.GetNode() != p.stored.Spec.NodeName {
		return fmt.Errorf("it is on %q, for Berth on %q", p.stored.Spec.NodeName, p.berth.GetNode())
	}
	if said := p.stored.Status.NominatedNodeName; said != p.berth.GetNominatedNode() {
		return fmt.Errorf("it is nominated to %q, for Berth to %q", said, p.berth.GetNominatedNode())
	}
	if said := condition(p.stored, corev1.PodScheduled).Message; p.state() == "unschedulable" && said != p.berth.GetMessage() {
		return fmt.Errorf("its condition says %q, Berth %q", said, p.berth.GetMessage())
	}
	return nil
}

// settle waits until every member has folded the whole log, every pod is gated, unschedulable or bound, and all objects
// agree: three times in a row at the same version, since a driver looks at what it has been told a moment later.
func (s *story) settle() {
	s.t.Helper()
	quiet, at := 0, int64(0)
	s.await("Berth to settle", func(ctx context.Context) error {
		seq, err := s.idle(ctx)
		if err != nil || seq != at {
			quiet, at = 0, seq
		}
		if err != nil {
			return err
		}
		if quiet++; quiet < 3 {
			return errors.New("only just")
		}
		return nil
	})
}

// idle returns an error unless Berth has nothing to do, and the position of its log.
func (s *story) idle(ctx context.Context) (int64, error) {
	status, err := s.berth.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
	if err != nil {
		return 0, err
	}
	for _, m := range status.GetMembers() {
		if m.GetLag() != 0 {
			return 0, fmt.Errorf("%s lags %d behind", m.GetId(), m.GetLag())
		}
	}
	for _, shard := range status.GetShards() {
		if d := shard.GetDepth(); d.GetActive()+d.GetBackoff()+d.GetInFlight() > 0 {
			return 0, fmt.Errorf("shard %d has %v", shard.GetShard(), d)
		}
	}
	pods, err := s.look(ctx)
	if err != nil {
		return 0, err
	}
	for name, p := range pods {
		if err := p.agrees(); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		if p.state() == "waiting" {
			return 0, fmt.Errorf("%s: it is %v", name, p.berth.GetState())
		}
	}
	return status.GetVersion().GetSeq(), nil
}

// pick returns the pods of a list by name, all if it is empty, in order.
func pick(all map[string]*sight, text string) ([]string, error) {
	if text == "" {
		return slices.Sorted(maps.Keys(all)), nil
	}
	list, err := names(text)
	for _, name := range list {
		if all[name] == nil {
			return nil, fmt.Errorf("no pod %s", name)
		}
	}
	return list, err
}

// show prints pods as their users see them.
func (s *story) show(ctx context.Context, list string) ([]string, error) {
	all, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	shown, err := pick(all, list)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, name := range shown {
		p := all[name]
		line := name + ": " + p.state()
		if node := p.stored.Spec.NodeName; node != "" {
			line += " to " + node
		}
		if node := p.stored.Status.NominatedNodeName; node != "" {
			line += ", nominated to " + node
		}
		if p.stored.DeletionTimestamp != nil {
			line += ", terminating"
		}
		out = append(out, line)
		if c := condition(p.stored, corev1.PodScheduled); p.state() == "unschedulable" || p.state() == "waiting" && c.Reason != "" {
			out = append(out, "  "+c.Reason+": "+c.Message)
		}
		if c := condition(p.stored, corev1.DisruptionTarget); c.Status == corev1.ConditionTrue {
			out = append(out, "  DisruptionTarget, "+c.Reason+": "+c.Message)
		}
	}
	if len(out) == 0 {
		out = append(out, "no pods")
	}
	return out, nil
}

// count prints how many pods are in each state, and on each node.
func (s *story) count(ctx context.Context) ([]string, error) {
	all, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int)
	for _, p := range all {
		state := p.state()
		if node := p.stored.Spec.NodeName; node != "" {
			state += " to " + node
		}
		counts[state]++
	}
	var out []string
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%d %s", counts[state], state))
	}
	return out, nil
}

// nodes prints what Berth believes is on the nodes.
func (s *story) nodes(ctx context.Context) ([]string, error) {
	page, err := s.berth.ListNodes(ctx, &schedulingv1.ListNodesRequest{PageSize: 1000})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range page.GetNodes() {
		answer, err := s.berth.GetNode(ctx, &schedulingv1.GetNodeRequest{Name: n.GetName()})
		if err != nil {
			return nil, err
		}
		cpu := func(list []*schedulingv1.Resource) (milli int64) {
			for _, r := range list {
				if r.GetName() == "cpu" {
					milli = r.GetValue()
				}
			}
			return milli
		}
		line := fmt.Sprintf("%s: %dm of %dm cpu", n.GetName(), cpu(n.GetRequested()), cpu(n.GetAllocatable()))
		for _, p := range answer.GetNode().GetPods() {
			line += " " + strings.TrimPrefix(p, namespace+"/")
		}
		out = append(out, line)
	}
	if out == nil {
		out = []string{"no nodes"}
	}
	return out, nil
}

// queue prints what the queue knows of the pods that wait.
func (s *story) queue(ctx context.Context, list string) ([]string, error) {
	all, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	shown, err := pick(all, list)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, name := range shown {
		p := all[name]
		if state := p.state(); state != "gated" && state != "unschedulable" {
			continue
		}
		out = append(out, fmt.Sprintf("%s: %s, attempts: %d", name, p.state(), p.berth.GetAttempts()))
		for _, v := range p.berth.GetVerdicts() {
			line := fmt.Sprintf("  %s on %d: %s", v.GetPlugin(), v.GetNodes(), v.GetReason())
			if v.GetUnresolvable() {
				line += ", unresolvable"
			}
			out = append(out, line)
		}
	}
	if len(out) == 0 {
		out = append(out, "nothing waits")
	}
	return out, nil
}

// events prints the events of a pod, each once, with pods' names for their uids.
func (s *story) events(ctx context.Context, name string) ([]string, error) {
	events, err := s.users.events(ctx, s.uids[name])
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range events {
		line := fmt.Sprintf("%s %s: %s", e.kind, e.reason, e.note)
		for pod, uid := range s.uids {
			line = strings.ReplaceAll(line, uid, "<uid of "+pod+">")
		}
		if !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	if out == nil {
		out = []string{"none"}
	}
	return out, nil
}

// metrics prints a metric's sum over members and shards, by its other labels; of a histogram how many values there were,
// and their sum unless they are times.
func (s *story) metrics(ctx context.Context, name string) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metricsAt+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, err
	}
	type value struct {
		count uint64
		sum   float64
	}
	values := make(map[string]value)
	for _, m := range families[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			if l.GetName() != "member" && l.GetName() != "shard" {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
		}
		v := values[strings.Join(labels, " ")]
		v.count += m.GetHistogram().GetSampleCount()
		v.sum += m.GetHistogram().GetSampleSum() + m.GetCounter().GetValue() + m.GetGauge().GetValue()
		values[strings.Join(labels, " ")] = v
	}
	var out []string
	for _, labels := range slices.Sorted(maps.Keys(values)) {
		v := values[labels]
		line := fmt.Sprint(v.sum)
		switch {
		case strings.HasSuffix(name, "_seconds"):
			line = fmt.Sprintf("%d times", v.count)
		case families[name].GetType() == dto.MetricType_HISTOGRAM:
			line = fmt.Sprintf("%d times, %v together", v.count, v.sum)
		}
		out = append(out, strings.TrimSpace(labels+" "+line))
	}
	if out == nil {
		out = []string{"none"}
	}
	return out, nil
}
