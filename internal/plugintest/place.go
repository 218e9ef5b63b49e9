package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-scheduler/berth/internal/annotations"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const (
	reserve   = pluginv1.Step_STEP_RESERVE
	unreserve = pluginv1.Step_STEP_UNRESERVE
	permit    = pluginv1.Step_STEP_PERMIT
	preBind   = pluginv1.Step_STEP_PRE_BIND
	postBind  = pluginv1.Step_STEP_POST_BIND

	preEnqueue = pluginv1.Step_STEP_PRE_ENQUEUE
	queueSort  = pluginv1.Step_STEP_QUEUE_SORT

	maxWait = 900_000 // milliseconds, of a permit
	// atOnce are as many placements as are under way at a time: more than a server has threads, so that it shows whether one that waits holds one.
	atOnce = 100
	// atOnceEntering are as many pods of a profile as Berth asks about at a time whether they may be tried.
	atOnceEntering = 64
	// tryAgain is how long it takes until it is looked again whether a stream that was cut has been taken back.
	tryAgain = 20 * time.Millisecond
)

// takers are the plugins that take a step, by the step.
type takers map[pluginv1.Step][]string

// note notes which steps a plugin takes.
func (t takers) note(p *pluginv1.PluginDescription) (any bool) {
	for step, takes := range map[pluginv1.Step]bool{
		reserve: p.GetReserves(), unreserve: p.GetReserves(), permit: p.GetPermits(), preBind: p.GetPreBinds(), postBind: p.GetPostBinds(), preEnqueue: p.GetPreEnqueues(), queueSort: p.GetQueueSorts(),
	} {
		switch {
		case !takes:
		case step == unreserve: // the other way round
			t[step] = append([]string{p.GetName()}, t[step]...)
		default:
			t[step] = append(t[step], p.GetName())
		}
		any = any || takes
	}
	return any
}

// places reports whether there is a step of placements, and not only of pods that come.
func (t takers) places() bool {
	for step := range t {
		if step != preEnqueue && step != queueSort {
			return true
		}
	}
	return false
}

// placing is a stream of Place.
type placing struct {
	suite  *suite
	place  grpc.BidiStreamingClient[pluginv1.PlaceRequest, pluginv1.PlaceResponse]
	last   int64 // request
	asked  map[int64]*pluginv1.PlaceRequest
	waits  map[int64]bool                    // permits that are to have another response
	said   map[int64]*pluginv1.PlaceResponse // the last ones
	cause  func() error
	cancel context.CancelCauseFunc
}

// openPlacing opens a stream, and tells it of profiles.
func (s *suite) openPlacing(ctx context.Context) (*placing, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	place, err := s.client.Place(ctx)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	c := &placing{
		suite: s, place: place, asked: make(map[int64]*pluginv1.PlaceRequest), waits: make(map[int64]bool), said: make(map[int64]*pluginv1.PlaceResponse),
		cause: func() error { return context.Cause(ctx) }, cancel: cancel,
	}
	if _, err := c.send(&pluginv1.PlaceRequest{Profiles: s.profiles(), HearsAnnotations: true, TellsAnnotations: true}); err != nil {
		cancel(nil)
		return nil, err
	}
	return c, nil
}

// close ends the stream, whatever is still to come.
func (c *placing) close() { c.cancel(nil) }

// bounded is as that of stream.
func (c *placing) bounded(what string, call func() error) error {
	return (&stream{timeout: c.suite.timeout, cause: c.cause, cancel: c.cancel}).bounded(what, call)
}

func (c *placing) send(req *pluginv1.PlaceRequest) (int64, error) {
	c.last++
	req.Id = c.last
	if req.GetStep() != pluginv1.Step_STEP_UNSPECIFIED {
		c.asked[req.Id] = req
	}
	return req.Id, c.bounded(fmt.Sprintf("send request %d", req.Id), func() error {
		err := c.place.Send(req)
		if !errors.Is(err, io.EOF) {
			return err
		}
		for { // why, Recv knows, behind what has been answered
			if _, why := c.place.Recv(); why != nil {
				return why
			}
		}
	})
}

// step sends a step of a placement, to all plugins that take it.
func (c *placing) step(step pluginv1.Step, of *pluginv1.Placement) (int64, error) {
	told := &pluginv1.Placement{Uid: of.GetUid(), Namespace: of.GetNamespace(), Name: of.GetName(), SchedulerName: of.GetSchedulerName(), Node: of.GetNode()}
	switch step {
	case reserve:
		told.Stands, told.Annotations = of.GetStands(), of.GetAnnotations()
		tellPod(told, of)
	case preEnqueue:
		told.Node = ""
		tellPod(told, of)
	}
	return c.send(&pluginv1.PlaceRequest{Placement: told, Step: step, Plugins: c.suite.steps[step]})
}

// tellPod tells of the pod what plugins depend on.
func tellPod(told, of *pluginv1.Placement) {
	told.Object, told.PodLabels, told.PodAnnotations = of.GetObject(), of.GetPodLabels(), of.GetPodAnnotations()
}

// sort asks a plugin where a pod belongs in the queue, which has come as so manyth.
func (c *placing) sort(plugin string, of *pluginv1.Placement, arrival int) (int64, error) {
	told := &pluginv1.Placement{Uid: of.GetUid(), Namespace: of.GetNamespace(), Name: of.GetName(), SchedulerName: of.GetSchedulerName()}
	tellPod(told, of)
	queued := &pluginv1.Queued{SinceUnixNanos: c.suite.began.UnixNano(), FirstUnixNanos: c.suite.began.UnixNano() + int64(arrival), Arrival: int64(arrival)}
	return c.send(&pluginv1.PlaceRequest{Placement: told, Step: queueSort, Plugins: []string{plugin}, Queued: queued})
}

// receive takes in the next response, which may be to any request.
func (c *placing) receive(what string) (*pluginv1.PlaceResponse, error) {
	var resp *pluginv1.PlaceResponse
	err := c.bounded(what, func() (err error) {
		resp, err = c.place.Recv()
		return err
	})
	if err != nil {
		return nil, err
	}
	id := resp.GetId()
	req := c.asked[id]
	switch {
	case req == nil:
		return nil, fmt.Errorf("a response has id %d, and no step has it", id)
	case c.said[id] != nil:
		return nil, fmt.Errorf("%s: there is another response behind the last one", named(req))
	}
	if err := c.check(req, resp); err != nil {
		return nil, fmt.Errorf("%s: %w", named(req), err)
	}
	if resp.GetWaitsMilliseconds() > 0 {
		c.waits[id] = true
		return resp, nil
	}
	c.said[id] = resp
	return resp, nil
}

// named is a request for people.
func named(req *pluginv1.PlaceRequest) string {
	return fmt.Sprintf("request %d, %s of %s", req.GetId(), req.GetStep(), req.GetPlacement().GetUid())
}

// check returns what is wrong with a response.
func (c *placing) check(req *pluginv1.PlaceRequest, resp *pluginv1.PlaceResponse) error {
	waits, rejection := resp.GetWaitsMilliseconds(), resp.GetRejection()
	switch {
	case waits < 0 || waits > maxWait:
		return fmt.Errorf("it waits for %d milliseconds: want 0 to %d", waits, maxWait)
	case waits > 0 && req.GetStep() != permit:
		return fmt.Errorf("it waits for %d milliseconds: only a permit does", waits)
	case waits > 0 && c.waits[req.GetId()]:
		return errors.New("it is said twice that it waits")
	case waits > 0 && (rejection != nil || resp.GetError() != ""):
		return errors.New("it waits, and has a rejection or an error")
	case rejection != nil && resp.GetError() != "":
		return errors.New("it has a rejection and an error")
	case rejection != nil && !slices.Contains(req.GetPlugins(), rejection.GetPlugin()):
		return fmt.Errorf("it is rejected by plugin %q: want one of the request's, which are %q", rejection.GetPlugin(), req.GetPlugins())
	case rejection != nil:
		return text("the reason of the rejection", rejection.GetReason())
	case resp.GetError() != "":
		return text("the error", resp.GetError())
	case len(resp.GetAnnotations()) > 0 && req.GetStep() != reserve:
		return errors.New("it has annotations: they are chosen when a pod is reserved")
	}
	for name, value := range resp.GetAnnotations() {
		if is, ok := req.GetPlacement().GetAnnotations()[name]; req.GetPlacement().GetStands() && (!ok || is != value) {
			return fmt.Errorf("it chooses annotation %q, and what was chosen for the pod before stands", name)
		}
	}
	return annotations.Check(resp.GetAnnotations())
}

// await returns the last response to a request; of a permit that waits, the one that says so.
func (c *placing) await(id int64) (*pluginv1.PlaceResponse, error) {
	for c.said[id] == nil {
		resp, err := c.receive("answer " + named(c.asked[id]))
		if err != nil {
			return nil, err
		}
		if resp.GetId() == id {
			return resp, nil
		}
	}
	return c.said[id], nil
}

// do sends a step, and awaits the response.
func (c *placing) do(step pluginv1.Step, of *pluginv1.Placement) (*pluginv1.PlaceResponse, error) {
	id, err := c.step(step, of)
	if err != nil {
		return nil, err
	}
	return c.await(id)
}

// succeeded reports whether a response says that the step has been taken.
func succeeded(resp *pluginv1.PlaceResponse) bool {
	return resp.GetRejection() == nil && resp.GetError() == "" && resp.GetWaitsMilliseconds() == 0
}

// outcome is what a response says, for people.
func outcome(resp *pluginv1.PlaceResponse) string {
	switch {
	case resp.GetWaitsMilliseconds() > 0:
		return "waits"
	case resp.GetRejection() != nil:
		return fmt.Sprintf("rejected by %s: %s", resp.GetRejection().GetPlugin(), resp.GetRejection().GetReason())
	case resp.GetError() != "":
		return "not taken: " + resp.GetError()
	}
	return "taken"
}

// placement is a pod of the sample on a node of it, by a name and a UID that no other case has.
func (s *suite) placement(i int) *pluginv1.Placement {
	pod := s.sample.pods[i%len(s.sample.pods)].DeepCopy()
	s.placed++
	uid := fmt.Sprint("berth-plugin-test-", s.placed)
	pod.UID, pod.Name, pod.ManagedFields = types.UID(uid), uid, nil
	of := &pluginv1.Placement{Uid: uid, Namespace: pod.Namespace, Name: pod.Name, SchedulerName: pod.Spec.SchedulerName, Node: s.sample.nodes[i%len(s.sample.nodes)].Name}
	if s.sample.objects {
		of.Object = encoded(pod)
	}
	if s.sample.annotations {
		of.PodLabels, of.PodAnnotations = pod.Labels, pod.Annotations
	}
	return of
}

// placements are several.
func (s *suite) placements(n int) []*pluginv1.Placement {
	out := make([]*pluginv1.Placement, n)
	for i := range out {
		out[i] = s.placement(i)
	}
	return out
}

// eachStep takes all steps of a placement of each pod, as far as they succeed.
func (s *suite) eachStep(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	var notes []string
	for i, pod := range s.sample.pods {
		of, end := s.placement(i), unreserve
		if i%2 == 0 {
			end = postBind
		}
		resp, err := c.do(reserve, of)
		if err == nil && succeeded(resp) && len(s.steps[permit]) > 0 {
			resp, err = c.do(permit, of)
		}
		if err != nil {
			return "", err
		}
		if !succeeded(resp) {
			notes, end = append(notes, fmt.Sprintf("pod %s: %s", pod.Name, outcome(resp))), unreserve
		} else if end == unreserve && len(s.steps[preBind]) > 0 { // it may take minutes, and is answered in any case
			if _, err := c.step(preBind, of); err != nil {
				return "", err
			}
		}
		if resp, err := c.do(end, of); err != nil {
			return "", err
		} else if !succeeded(resp) {
			return "", fmt.Errorf("%s of %s was %s", end, of.GetUid(), outcome(resp))
		}
	}
	return strings.Join(notes, "; "), nil
}

// entering asks about as many pods at once as may be under way of a profile, and about the same again.
func (s *suite) entering(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	all := s.placements(atOnceEntering)
	out := make(map[string]int)
	for range 2 {
		ids := make([]int64, len(all))
		for i, of := range all {
			if ids[i], err = c.step(preEnqueue, of); err != nil {
				return "", err
			}
		}
		for _, id := range ids {
			resp, err := c.await(id)
			if err != nil {
				return "", err
			}
			if !succeeded(resp) {
				out[outcome(resp)]++
			}
		}
	}
	var notes []string
	for _, what := range slices.Sorted(maps.Keys(out)) {
		notes = append(notes, fmt.Sprintf("%d of %d times %s", out[what], 2*len(all), what))
	}
	return strings.Join(notes[:min(len(notes), 3)], "; "), nil
}

// sorted asks each plugin that sorts where as many pods belong as may be under way of a profile, and about the same again.
func (s *suite) sorted(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	var notes []string
	for _, plugin := range s.steps[queueSort] {
		all := s.placements(atOnceEntering)
		keys, differ, failed := make([]int64, len(all)), 0, 0
		for round := range 2 {
			ids := make([]int64, len(all))
			for i, of := range all {
				if ids[i], err = c.sort(plugin, of, i); err != nil {
					return "", err
				}
			}
			for i, id := range ids {
				resp, err := c.await(id)
				switch {
				case err != nil:
					return "", err
				case resp.GetRejection() != nil:
					return "", fmt.Errorf("%s rejects %s: who sorts rejects nothing", plugin, all[i].GetUid())
				case resp.GetSortOrder() != 0:
					return "", fmt.Errorf("%s gives %s a key of order %d: all keys can be compared, but of plugins that are compiled in", plugin, all[i].GetUid(), resp.GetSortOrder())
				case !succeeded(resp):
					failed++
				case round > 0 && keys[i] != resp.GetSortKey():
					differ++
				}
				keys[i] = resp.GetSortKey()
			}
		}
		slices.Sort(keys)
		note := fmt.Sprintf("%s: %d different keys of %d pods", plugin, len(slices.Compact(keys)), len(all))
		if failed > 0 {
			note += fmt.Sprintf("; %d of %d times failed", failed, 2*len(all))
		}
		if differ > 0 {
			note += fmt.Sprintf("; %d of them others when asked again", differ)
		}
		notes = append(notes, note)
	}
	return strings.Join(notes, "; "), nil
}

// takenBack ends permits and pre-binds.
func (s *suite) takenBack(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	shown := false
	for i, step := range []pluginv1.Step{permit, preBind} {
		if len(s.steps[step]) == 0 {
			continue
		}
		of := s.placement(i)
		if resp, err := c.do(reserve, of); err != nil {
			return "", err
		} else if !succeeded(resp) {
			continue
		}
		id, err := c.step(step, of)
		if err != nil {
			return "", err
		}
		if step == permit {
			if _, err := c.await(id); err != nil {
				return "", err
			}
		}
		shown = shown || c.said[id] == nil
		last, err := c.step(unreserve, of)
		if err != nil {
			return "", err
		}
		if _, err := c.await(last); err != nil {
			return "", err
		}
		if c.said[id] == nil {
			return "", fmt.Errorf("%s is answered, and %s, which it ends, is not", named(c.asked[last]), named(c.asked[id]))
		}
		if resp, err := c.do(reserve, of); err != nil { // it can come again
			return "", err
		} else if !succeeded(resp) {
			return "", fmt.Errorf("it was taken back, and reserved again it was %s", outcome(resp))
		}
	}
	if !shown {
		return "nothing was under way: no permit waits for these pods, and nobody acts before a bind", nil
	}
	return "", nil
}

// chosen reserves a placement, takes it back, and reserves it again as one that stands.
func (s *suite) chosen(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	of := s.placement(0)
	first, err := c.do(reserve, of)
	if err != nil {
		return "", err
	}
	if _, err := c.do(unreserve, of); err != nil {
		return "", err
	}
	if !succeeded(first) || len(first.GetAnnotations()) == 0 {
		return "nothing was chosen", nil
	}
	of.Stands, of.Annotations = true, first.GetAnnotations()
	again, err := c.do(reserve, of)
	if err != nil {
		return "", err
	}
	if !succeeded(again) {
		return "", fmt.Errorf("it had chosen %v, and reserved again it was %s", first.GetAnnotations(), outcome(again))
	}
	_, err = c.do(unreserve, of)
	return "", err
}

// apart has many placements under way at a time, and looks whether one more is answered.
func (s *suite) apart(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	all := s.placements(atOnce)
	ids := make([]int64, len(all))
	for i, of := range all {
		if ids[i], err = c.step(reserve, of); err != nil {
			return "", err
		}
	}
	under, longest := 0, permit
	if len(s.steps[permit]) == 0 {
		longest = preBind
	}
	for i, of := range all {
		resp, err := c.await(ids[i])
		if err != nil {
			return "", err
		}
		if succeeded(resp) && len(s.steps[longest]) > 0 {
			under++
			if _, err := c.step(longest, of); err != nil {
				return "", err
			}
		}
	}
	if _, err := c.do(reserve, s.placement(0)); err != nil {
		return "", fmt.Errorf("with %d placements under way: %w", under, err)
	}
	return "", nil
}

// unknown ends placements that have not been reserved.
func (s *suite) unknown(ctx context.Context) (string, error) {
	c, err := s.openPlacing(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	for i, step := range []pluginv1.Step{unreserve, postBind} {
		if resp, err := c.do(step, s.placement(i)); err != nil {
			return "", err
		} else if !succeeded(resp) {
			return "", fmt.Errorf("%s of a placement that has not been reserved was %s", step, outcome(resp))
		}
	}
	return "", nil
}

// cutOff cuts streams with placements in several states, and reserves the same on the next. That may fail as long as the stream before is not taken back.
func (s *suite) cutOff(ctx context.Context) (string, error) {
	all := s.placements(3)
	var first []bool
	until := time.Now().Add(s.timeout)
	for round := 0; ; round++ {
		c, err := s.openPlacing(ctx)
		if err != nil {
			return "", err
		}
		var again []bool
		failed := ""
		for i, of := range all {
			var resp *pluginv1.PlaceResponse
			if resp, err = c.do(reserve, of); err != nil {
				break
			}
			if again = append(again, succeeded(resp)); round > 0 && first[i] && !again[i] {
				failed = fmt.Sprintf("%s was reserved first, and then %s", of.GetUid(), outcome(resp))
			}
			if step := []pluginv1.Step{reserve, permit, preBind}[i]; i > 0 && len(s.steps[step]) > 0 && succeeded(resp) {
				if _, err = c.step(step, of); err != nil {
					break
				}
			}
		}
		c.close()
		switch {
		case err != nil && round > 0:
			return "", fmt.Errorf("the stream behind one that was cut: %w", err)
		case err != nil:
			return "", err
		case round == 0:
			first = again
		case failed == "" && round >= 3:
			return "", nil
		case failed != "" && time.Now().After(until):
			return "", fmt.Errorf("what was reserved on a stream that was cut is not taken back within %v: %s", s.timeout, failed)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(tryAgain):
		}
	}
}

// streamsOfPlacements reserves the same on two streams, and ends one.
func (s *suite) streamsOfPlacements(ctx context.Context) (string, error) {
	of := s.placement(0)
	var opened [2]*placing
	for i := range opened {
		c, err := s.openPlacing(ctx)
		if err != nil {
			return "", err
		}
		defer c.close()
		opened[i] = c
		if _, err := c.do(reserve, of); err != nil {
			return "", fmt.Errorf("stream %d of %d: %w", i+1, len(opened), err)
		}
	}
	if _, err := opened[0].do(unreserve, of); err != nil {
		return "", err
	}
	opened[0].close()
	for _, step := range []pluginv1.Step{unreserve, reserve, unreserve} {
		if _, err := opened[1].do(step, of); err != nil {
			return "", fmt.Errorf("when the other stream has ended: %w", err)
		}
	}
	return "", nil
}
