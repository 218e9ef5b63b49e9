package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/test/berthtest"
)

// patience is how long a command waits for what it waits for.
const patience = 5 * time.Minute

// story is a script that is being played.
type story struct {
	t     testing.TB
	berth *berthtest.Berth
	users userCluster
	kube  bool // the users' cluster is an API server

	metricsAt string            // host:port
	at        string            // where the script is
	uids      map[string]string // by pod, the latest of the name
}

// await waits until ok returns nil.
func (s *story) await(what string, ok func(context.Context) error) {
	s.t.Helper()
	berthtest.Await(s.t, patience, what+" at "+s.at, ok)
}

// command runs a command and returns what it prints.
func (s *story) command(words []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	verb, words := words[0], words[1:]
	switch verb {
	case "settle":
		s.settle()
		return nil, nil
	case "count":
		return s.count(ctx)
	case "nodes":
		return s.nodes(ctx)
	case "show", "queue":
		list := ""
		if len(words) > 0 {
			list = words[0]
		}
		if verb == "show" {
			return s.show(ctx, list)
		}
		return s.queue(ctx, list)
	}
	if verb == "update" || verb == "delete" {
		if len(words) == 0 {
			return nil, errors.New("of what?")
		}
		verb, words = verb+" "+words[0], words[1:]
	}
	if len(words) == 0 {
		return nil, errors.New("of which?")
	}
	if verb == "metrics" {
		return s.metrics(ctx, words[0])
	}
	list, err := names(words[0])
	if err != nil {
		return nil, err
	}
	if verb == "await" {
		return nil, s.awaitPods(list, words[1:])
	}
	var printed []string
	for _, name := range list {
		lines, err := s.one(ctx, verb, name, words[1:])
		if errors.Is(err, errRefused) {
			lines, err = []string{"refused"}, nil
		}
		if err != nil {
			return nil, err
		}
		printed = append(printed, lines...)
	}
	return printed, nil
}

// one runs a command on one object, and returns when Berth knows of the change.
func (s *story) one(ctx context.Context, verb, name string, words []string) ([]string, error) {
	a := parseAttributes(words)
	switch verb {
	case "node":
		n := newNode(name)
		if err := errors.Join(shapeNode(n, a), s.users.createNode(ctx, n)); err != nil {
			return nil, err
		}
		s.awaitNode(name, n)
	case "update node":
		var changed *corev1.Node
		err := s.users.editNode(ctx, name, func(n *corev1.Node) error {
			changed = n
			return shapeNode(n, a)
		})
		if err != nil {
			return nil, err
		}
		s.awaitNode(name, changed)
	case "delete node":
		if err := s.users.remove(ctx, "Node", name, false); err != nil {
			return nil, err
		}
		s.awaitNode(name, nil)
	case "pod":
		p := newPod(name)
		if err := errors.Join(shapePod(p, a), s.users.createPod(ctx, p)); err != nil {
			return nil, err
		}
		return nil, s.awaitCreated(ctx, name)
	case "update pod":
		if err := s.users.editPod(ctx, name, func(p *corev1.Pod) error { return shapePod(p, a) }); err != nil {
			return nil, err
		}
		return nil, s.awaitPodsTold(ctx)
	case "resize":
		if err := s.users.resizePod(ctx, name, func(p *corev1.Pod) error { return shapePod(p, a) }); err != nil {
			return nil, err
		}
		return nil, s.awaitPodsTold(ctx)
	case "delete pod":
		_, now := a["now"]
		if err := s.users.remove(ctx, "Pod", name, now); err != nil {
			return nil, err
		}
		return nil, s.awaitPodsTold(ctx)
	case "budget":
		b, err := newBudget(name, a)
		if err != nil {
			return nil, err
		}
		return nil, s.setBudget(ctx, b)
	case "delete budget":
		return nil, s.awaitDelta(func() error { return s.users.remove(ctx, "PodDisruptionBudget", name, false) })
	case "bind":
		if len(words) != 1 {
			return nil, errors.New("want a pod and a node")
		}
		if err := s.users.bind(ctx, name, words[0]); err != nil {
			return nil, err
		}
		return nil, s.awaitPodsTold(ctx)
	case "events":
		return s.events(ctx, name)
	default:
		return nil, fmt.Errorf("unknown command %q", verb)
	}
	return nil, nil
}

// awaitNode waits until Berth knows the node as it is, or that there is none.
func (s *story) awaitNode(name string, want *corev1.Node) {
	s.t.Helper()
	s.await("Berth to see the node", func(ctx context.Context) error {
		answer, err := s.berth.GetNode(ctx, &schedulingv1.GetNodeRequest{Name: name})
		if status.Code(err) == codes.NotFound && want == nil {
			return nil
		}
		if err != nil {
			return err
		}
		if want == nil {
			return errors.New("it is still there")
		}
		got := answer.GetNode()
		var taints []string
		for _, t := range want.Spec.Taints {
			taints = append(taints, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
		}
		allocatable := make(map[string]int64)
		for _, r := range got.GetAllocatable() {
			allocatable[r.GetName()] = r.GetValue()
		}
		same := got.GetUnschedulable() == want.Spec.Unschedulable && maps.Equal(got.GetLabels(), want.Labels) &&
			slices.Equal(got.GetTaints(), taints) &&
			allocatable["cpu"] == want.Status.Allocatable.Cpu().MilliValue() &&
			allocatable["memory"] == want.Status.Allocatable.Memory().Value() &&
			allocatable["pods"] == want.Status.Allocatable.Pods().Value()
		if !same {
			return fmt.Errorf("it sees %v", got)
		}
		return nil
	})
}

// awaitCreated remembers the uid of a new pod, and waits until Berth knows it; not if it is another scheduler's.
func (s *story) awaitCreated(ctx context.Context, name string) error {
	pods, err := s.users.pods(ctx)
	if err != nil {
		return err
	}
	p := pods[name]
	if p == nil {
		return errors.New("the pod is not there")
	}
	if s.uids == nil {
		s.uids = make(map[string]string)
	}
	s.uids[name] = string(p.UID)
	if p.Spec.SchedulerName != corev1.DefaultSchedulerName {
		return s.awaitPodsTold(ctx)
	}
	s.await("Berth to see the pod", func(ctx context.Context) error {
		answer, err := s.berth.GetPod(ctx, &schedulingv1.GetPodRequest{Name: name})
		if err == nil && answer.GetPod().GetUid() != string(p.UID) {
			err = fmt.Errorf("it still sees %s", answer.GetPod().GetUid())
		}
		return err
	})
	return nil
}

// awaitPodsTold waits until Berth knows all changes of pods so far. Not all of them can be seen, so a gated pod is
// created after them, which it sees later, and removed.
func (s *story) awaitPodsTold(ctx context.Context) error {
	const name = "last"
	p := newPod(name)
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	if err := s.users.createPod(ctx, p); err != nil {
		return err
	}
	get := func(ctx context.Context) error {
		_, err := s.berth.GetPod(ctx, &schedulingv1.GetPodRequest{Name: name})
		return err
	}
	s.await("Berth to see the change", get)
	if err := s.users.remove(ctx, "Pod", name, true); err != nil {
		return err
	}
	s.await("Berth to see the change", func(ctx context.Context) error {
		if err := get(ctx); status.Code(err) != codes.NotFound {
			return fmt.Errorf("the pod that comes last is still there: %w", err)
		}
		return nil
	})
	return nil
}

// setBudget waits for its delta: Berth tells nobody what budgets it knows.
func (s *story) setBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	return s.awaitDelta(func() error { return s.users.setBudget(ctx, b) })
}

// awaitDelta makes a change while Berth is idle, and waits until its log has grown and it is idle again.
func (s *story) awaitDelta(change func() error) error {
	s.settle()
	before, err := s.berth.GetStatus(s.berth.Context(), &schedulingv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	s.await("Berth to see the change", func(ctx context.Context) error {
		now, err := s.berth.GetStatus(ctx, &schedulingv1.GetStatusRequest{})
		if err == nil && now.GetVersion().GetSeq() == before.GetVersion().GetSeq() {
			err = fmt.Errorf("it is still at %v", before.GetVersion())
		}
		return err
	})
	s.settle()
	return nil
}

// awaitPods waits until all pods are as the words say.
func (s *story) awaitPods(list, words []string) error {
	if len(words) == 0 || len(words) > 2 {
		return errors.New("want pods, a state and perhaps a node")
	}
	state, more := words[0], strings.Join(words[1:], "")
	s.await("it", func(ctx context.Context) error {
		sight, err := s.look(ctx)
		if err != nil {
			return err
		}
		for _, name := range list {
			if err := s.is(ctx, sight[name], name, state, more); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
	return nil
}

// is returns an error unless the pod is as is said.
func (s *story) is(ctx context.Context, p *sight, name, state, more string) error {
	if state == "event" {
		events, err := s.users.events(ctx, s.uids[name])
		if err == nil && !slices.ContainsFunc(events, func(e event) bool { return e.reason == more }) {
			err = fmt.Errorf("events %v", events)
		}
		return err
	}
	if p == nil {
		if state == "gone" {
			return nil
		}
		return errors.New("there is no such pod")
	}
	if err := p.agrees(); err != nil {
		return err
	}
	have, node := p.state(), p.stored.Spec.NodeName
	switch {
	case state == "nominated" && p.stored.Status.NominatedNodeName != "":
		have, node = state, p.stored.Status.NominatedNodeName
	case state == "rested" && have == "unschedulable" && time.Since(p.berth.GetSince().AsTime()) > p.backoff():
		have = state
	}
	if have != state || more != "" && more != node {
		return fmt.Errorf("it is %s %s: %s", have, node, condition(p.stored, corev1.PodScheduled).Message)
	}
	return nil
}
