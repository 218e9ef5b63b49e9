package berthapp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-scheduler/berth/berthapp/annotate"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/placeserver"
	"github.com/berth-scheduler/berth/internal/pluginproto"
)

// judged is the state in which plugins have judged nodes for a pod last: its steps go on with it.
type judged struct {
	uid   types.UID
	state fwk.CycleState
	saw   *view
}

// newState returns the state of an attempt that begins, as kube-scheduler's has it.
func newState() fwk.CycleState {
	state := framework.NewCycleState()
	measures(state)
	state.Write(framework.PodsToActivateKey, framework.NewPodsToActivate())
	return state
}

// Place has plugins take the steps of one stream.
func (h *host) Place(stream pluginv1.PluginService_PlaceServer) error {
	profile := h.profile.Load()
	if profile == nil {
		return errMaking
	}
	return h.placing.Serve(stream, &steps{profile, h.timeout})
}

// steps takes the steps of a stream by kube-scheduler's framework, which has the plugins of the profile that are compiled in at each point, and no others: those that requests name.
type steps struct {
	profile *profile
	timeout time.Duration // of an answer
}

// placement is what is kept of a placement.
type placement struct {
	object []byte // nil: it has been decoded, or was not told
	pod    *v1.Pod
	state  fwk.CycleState

	reserved bool
}

// stepPoints are where plugins take steps, in the words of a profile.
var stepPoints = map[pluginv1.Step]string{
	pluginv1.Step_STEP_RESERVE: "reserve", pluginv1.Step_STEP_UNRESERVE: "reserve", pluginv1.Step_STEP_PERMIT: "permit", pluginv1.Step_STEP_PRE_BIND: "preBind", pluginv1.Step_STEP_POST_BIND: "postBind",
	pluginv1.Step_STEP_BIND: "bind", pluginv1.Step_STEP_PRE_ENQUEUE: "preEnqueue", pluginv1.Step_STEP_QUEUE_SORT: "queueSort",
}

// Tell has plugins see the cluster as it is, until somebody judges. The process has read the profiles.
func (s *steps) Tell(*pluginv1.PlaceRequest) error {
	s.profile.outdated()
	return nil
}

// Takes reports whether a plugin takes a step, or says whether pods may be tried.
func (s *steps) Takes(plugin string, step pluginv1.Step) bool {
	return slices.Contains(s.profile.points[plugin], stepPoints[step])
}

// Keep keeps the pod as it was told.
func (s *steps) Keep(told *pluginv1.Placement) any { return &placement{object: told.GetObject()} }

// begin has a placement have a pod, on its node, and a state, unless it has.
func (s *steps) begin(of *placement, at *placeserver.Placement) error {
	if of.pod != nil {
		return nil
	}
	told := at.Told
	uid := types.UID(told.GetUid())
	switch {
	case of.object != nil:
		pod := new(v1.Pod)
		if err := json.Unmarshal(of.object, pod); err != nil {
			return fmt.Errorf("decode the pod: %w", err)
		}
		of.object, of.pod = nil, pod
	default: // it is bound, or given back, and an earlier stream had reserved it
		if of.pod = s.profile.pods.get(uid).DeepCopy(); of.pod == nil {
			of.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: told.GetNamespace(), Name: told.GetName()}, Spec: v1.PodSpec{SchedulerName: told.GetSchedulerName()}}
		}
	}
	of.pod.Spec.NodeName = told.GetNode()
	if of.state = s.profile.takeJudged(uid); of.state == nil {
		of.state = newState()
	}
	annotate.With(of.state, at)
	return nil
}

// Take has the framework take a step.
func (s *steps) Take(step *placeserver.Step, waits func(most time.Duration)) (*pluginv1.Rejection, error) {
	switch step.Kind {
	case pluginv1.Step_STEP_PRE_ENQUEUE:
		return s.preEnqueue(step)
	case pluginv1.Step_STEP_QUEUE_SORT:
		return nil, s.queueSort(step)
	}
	of := step.Placement.Of.(*placement)
	if err := s.begin(of, step.Placement); err != nil {
		return nil, err
	}
	if step.Kind == pluginv1.Step_STEP_RESERVE { // later ones may come when it has been judged again
		s.profile.hints.forget(of.pod.UID)
	}
	if len(step.Plugins) == 0 { // it is only told
		s.taken(step.Kind, of, nil)
		return nil, nil
	}
	ctx, done, err := step.Context()
	if err != nil {
		return nil, fmt.Errorf("running plugins at %s: %w", stepPoints[step.Kind], err)
	}
	waiting, status := s.take(ctx, step, of)
	done()
	s.taken(step.Kind, of, status)
	if waiting != nil {
		status = s.wait(step.Placement.Context(), of.pod, waiting, waits)
	}
	return s.verdict(status, step.Plugins)
}

// taken does what comes of a step that has been taken, for other pods.
func (s *steps) taken(step pluginv1.Step, of *placement, status *fwk.Status) {
	switch {
	case step == pluginv1.Step_STEP_RESERVE:
		of.reserved = status.IsSuccess()
	case step == pluginv1.Step_STEP_UNRESERVE && of.reserved:
		s.profile.hints.givenBack(of.pod)
	}
	if status.IsSuccess() {
		s.activate(step, of.state)
	}
}

// take has the framework take a step. If the pod waits for plugins to permit it, it returns for how long, by plugin.
func (s *steps) take(ctx context.Context, step *placeserver.Step, of *placement) (waiting map[string]time.Duration, status *fwk.Status) {
	defer watch(ctx)()
	f, node := s.profile.framework, step.Placement.Told.GetNode()
	switch step.Kind {
	case pluginv1.Step_STEP_RESERVE:
		status = s.inCycle(ctx, func() *fwk.Status { return f.RunReservePluginsReserve(ctx, of.state, of.pod, node) })
	case pluginv1.Step_STEP_PERMIT:
		status = s.inCycle(ctx, func() (status *fwk.Status) {
			if waiting, status = f.RunPermitPlugins(ctx, of.state, of.pod, node); status.IsWait() {
				f.AddWaitingPod(of.pod, waiting) // before a plugin is asked about another pod, which may be the one that this waits for
				return nil
			}
			waiting = nil
			return status
		})
	case pluginv1.Step_STEP_PRE_BIND:
		if err := s.see(ctx); err != nil {
			return nil, fwk.AsStatus(err)
		}
		status = s.preBind(ctx, of, node)
	case pluginv1.Step_STEP_BIND:
		if err := s.see(ctx); err != nil {
			return nil, fwk.AsStatus(err)
		}
		status = s.bind(ctx, step, of, node)
	case pluginv1.Step_STEP_UNRESERVE: // in any case, whatever there is to be seen
		f.RunReservePluginsUnreserve(ctx, of.state, of.pod, node)
	case pluginv1.Step_STEP_POST_BIND: // the same
		_ = s.see(ctx)
		f.RunPostBindPlugins(ctx, of.state, of.pod, node)
	}
	return waiting, status
}

// activate has pods tried now that plugins have put into the state of an attempt for that, if a scheduling cycle or a binding cycle ends well with a step: as kube-scheduler does then.
func (s *steps) activate(step pluginv1.Step, state fwk.CycleState) {
	switch step {
	case pluginv1.Step_STEP_PERMIT, pluginv1.Step_STEP_POST_BIND:
	case pluginv1.Step_STEP_RESERVE:
		if s.profile.permits {
			return
		}
	default:
		return
	}
	written, err := state.Read(framework.PodsToActivateKey)
	if err != nil {
		return
	}
	if pods, ok := written.(*framework.PodsToActivate); ok {
		pods.Lock()
		defer pods.Unlock()
		s.profile.Activate(klog.Logger{}, pods.Map)
		pods.Map = make(map[string]*v1.Pod)
	}
}

// inCycle runs what belongs to a scheduling cycle: nothing else of one is under way meanwhile.
func (s *steps) inCycle(ctx context.Context, run func() *fwk.Status) *fwk.Status {
	leave, err := s.profile.enterCycle(ctx)
	if err != nil {
		return fwk.AsStatus(err)
	}
	defer leave()
	if err := s.profile.refresh(ctx); err != nil {
		return fwk.AsStatus(fmt.Errorf("read the cluster: %w", err))
	}
	return run()
}

// see has plugins see the cluster at steps that belong to no cycle, if nothing of it has been told yet, or is any more.
func (s *steps) see(ctx context.Context) error {
	if !s.profile.shown.Load().ended {
		return nil
	}
	return s.inCycle(ctx, func() *fwk.Status { return nil }).AsError()
}

// wait waits until a pod is permitted or rejected, or the placement is over.
func (s *steps) wait(ctx context.Context, pod *v1.Pod, waiting map[string]time.Duration, tell func(most time.Duration)) *fwk.Status {
	most := time.Millisecond
	for _, d := range waiting {
		most = max(most, d)
	}
	tell(most)
	if is := s.profile.framework.GetWaitingPod(pod.UID); is != nil {
		defer context.AfterFunc(ctx, func() { is.Preempt("", context.Cause(ctx).Error()) })()
	}
	return s.profile.framework.WaitOnPermit(ctx, pod)
}

// preBind has plugins do what they do before the bind, but for those that say there is nothing to do, as kube-scheduler has it.
func (s *steps) preBind(ctx context.Context, of *placement, node string) *fwk.Status {
	f := s.profile.framework
	switch status := f.RunPreBindPreFlights(ctx, of.state, of.pod, node); {
	case status.IsSkip():
		return nil
	case !status.IsSuccess():
		return status
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.AddPodInPreBind(of.pod.UID, cancel)
	defer f.RemovePodInPreBind(of.pod.UID)
	status := f.RunPreBindPlugins(ctx, of.state, of.pod, node)
	if is := f.GetPodInPreBind(of.pod.UID); status.IsSuccess() && is != nil && !is.MarkPrebound() { // a plugin has canceled it
		return fwk.AsStatus(context.Cause(ctx))
	}
	return status
}

// bind has the first plugin bind that does not skip the pod: kube-scheduler's RunBindPlugins, but for the DefaultBinder, which is Berth itself.
func (s *steps) bind(ctx context.Context, step *placeserver.Step, of *placement, node string) *fwk.Status {
	for _, name := range step.Plugins {
		plugin := s.profile.made[name].(fwk.BindPlugin)
		status := plugin.Bind(ctx, of.state, of.pod, node)
		switch {
		case status.IsSkip():
		case status.IsSuccess():
			return nil
		case status.IsRejected():
			return status.WithPlugin(plugin.Name())
		default:
			return fwk.AsStatus(fmt.Errorf("running Bind plugin %q: %w", plugin.Name(), status.AsError()))
		}
	}
	return fwk.NewStatus(fwk.Skip)
}

// verdict returns the status of a step of some plugins as berth.plugin.v1 has it.
func (s *steps) verdict(status *fwk.Status, plugins []string) (*pluginv1.Rejection, error) {
	switch {
	case status.IsSuccess():
		return nil, nil
	case status.IsSkip(): // of a bind
		return nil, placeserver.ErrSkipped
	case !status.IsRejected():
		return nil, status.AsError()
	}
	by := s.profile.called(status.Plugin(), "")
	if !slices.Contains(plugins, by) { // any may reject a pod that waits for another one
		by = plugins[0]
	}
	return rejectedBy(by, status), nil
}

// rejectedBy returns the rejection of a plugin, by what the configuration calls it.
func rejectedBy(plugin string, status *fwk.Status) *pluginv1.Rejection {
	return &pluginv1.Rejection{Plugin: plugin, Reason: cmp.Or(pluginproto.Cut(status.Message()), "rejected by plugin "+plugin)}
}
