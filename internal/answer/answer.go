package answer

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/internal/whatif"
)

// try asks in a sandbox. What is too much to ask is the asker's error.
func try(ctx context.Context, box *whatif.Sandbox, ask func(*whatif.World) error) error {
	err := box.Try(ctx, ask)
	switch {
	case err == nil, rpc.ReasonOf(err) != "":
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, whatif.ErrTooLong):
		return errTooLong()
	case errors.Is(err, whatif.ErrTooMuch):
		return rpc.Error(codes.InvalidArgument, rpc.ReasonInvalid, "%v", err)
	}
	return err
}

// Find returns a pod of a sandbox's cluster, pods of the namespace default if none is named.
func Find(ctx context.Context, box *whatif.Sandbox, namespace, name string) (pod cluster.PodID, err error) {
	err = try(ctx, box, func(w *whatif.World) error {
		pod, err = find(w.State(), namespace, name)
		return err
	})
	return pod, err
}

// find returns a pod, pods of the namespace default if none is named.
func find(st *cluster.State, namespace, name string) (cluster.PodID, error) {
	namespace = cmp.Or(namespace, "default")
	for id, row := range st.Pods() {
		if row.Name == name && row.Namespace == namespace {
			return id, nil
		}
	}
	return cluster.NoPod, rpc.Error(codes.NotFound, rpc.ReasonNotFound, "pod %s/%s not found", namespace, name)
}

func version(box *whatif.Sandbox) *schedulingv1.Version {
	v := box.Version()
	if v.IsZero() {
		return nil
	}
	return &schedulingv1.Version{Epoch: int64(v.Epoch), Seq: int64(v.Seq)}
}

func verdicts(counts []engine.VerdictCount) []*schedulingv1.Verdict {
	out := make([]*schedulingv1.Verdict, 0, len(counts))
	for _, c := range counts {
		out = append(out, &schedulingv1.Verdict{
			Plugin: c.Plugin, Reason: c.Reason, Unresolvable: c.Unresolvable, Nodes: c.Count, Examples: c.Examples,
		})
	}
	return out
}

// skipped is why a pod was not tried.
var skipped = map[whatif.Outcome]string{
	whatif.Gated:   "it has scheduling gates",
	whatif.NotOurs: "it is being deleted, or no profile has its spec.schedulerName",
	whatif.Evicted: "it had to go for another pod",
	whatif.Yielded: "pods of its spec.schedulerName are left to another scheduler",
}

// outcomeBytes is how large the outcomes of an answer may be, encoded. A connection may leave as much unread.
const outcomeBytes = 16 << 20

func errTooLong() error {
	return rpc.Error(codes.InvalidArgument, rpc.ReasonTooLarge,
		"the answer would have more than %d MiB: ask for counts (summary_only), or about fewer pods", outcomeBytes>>20)
}

// outcomes are those of an answer, while it is made.
type outcomes struct {
	names   bool // pods that would be evicted are named
	list    []*schedulingv1.Outcome
	bytes   int
	because map[*engine.VerdictCount][]*schedulingv1.Verdict // pods that fail alike share them
}

// add adds an outcome, unless they are too large.
func (a *outcomes) add(o *schedulingv1.Outcome) error {
	if a.bytes += proto.Size(o) + 4; a.bytes > outcomeBytes { // with tag and length
		return errTooLong()
	}
	a.list = append(a.list, o)
	return nil
}

// outcome describes what becomes of a pod.
func (a *outcomes) outcome(o *whatif.PodOutcome) *schedulingv1.Outcome {
	out := &schedulingv1.Outcome{Namespace: o.Namespace, Name: o.Name, Node: o.Node, Message: o.Message, Skipped: skipped[o.Outcome]}
	if len(o.Verdicts) > 0 {
		key := &o.Verdicts[0]
		if a.because[key] == nil {
			if a.because == nil {
				a.because = make(map[*engine.VerdictCount][]*schedulingv1.Verdict)
			}
			a.because[key] = verdicts(o.Verdicts)
		}
		out.Verdicts = a.because[key]
	}
	if o.Outcome == whatif.Yielded {
		out.Skipped, out.Message = out.Skipped+": "+o.Message, ""
	}
	for _, v := range o.Victims {
		name := withheld
		if a.names {
			name = nameOf(v.Namespace, v.Name)
		}
		out.Victims = append(out.Victims, name)
	}
	return out
}

// withheld stands for the name of a pod that whoever asks may not be told.
const withheld = "(withheld)"

func nameOf(namespace, name string) string {
	if name == "" {
		return withheld
	}
	return namespace + "/" + name
}

func utilization(u whatif.Usage) *schedulingv1.Utilization {
	out := &schedulingv1.Utilization{Nodes: int32(u.Nodes), Pods: int32(u.Pods)}
	for _, r := range u.Resources {
		out.Resources = append(out.Resources, &schedulingv1.ResourceUse{
			Name: r.Name, Allocatable: r.Allocatable, Requested: r.Requested,
			MaxPermille: int32(min(r.MaxPermille, 1e6)), MeanPermille: int32(min(r.MeanPermille, 1e6)),
		})
	}
	for _, z := range u.Zones {
		out.Zones = append(out.Zones, &schedulingv1.ZoneUse{Zone: z.Zone, Nodes: int32(z.Nodes), Pods: int32(z.Pods)})
	}
	return out
}
