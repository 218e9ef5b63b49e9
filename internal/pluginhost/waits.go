package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Rejection is why a placement does not come about that a plugin has nothing to do with but to say so.
type Rejection struct{ Plugin, Reason string }

func (r Rejection) Error() string { return r.Reason }

// Wait is a placement of which services have not said yet what is to become of it. It is not safe for concurrent use.
type Wait struct{ of []waiting }

type waiting struct {
	service *service
	call    *call
	until   time.Time
	chose   bool // it has chosen something for the pod: it is not passed over
}

// excused is the service's, unless it has chosen something, which it may choose for another pod when it has failed.
func (w *waiting) excused(err error, plugins []string) error {
	if w.chose && err != nil && !errors.As(err, new(Rejection)) {
		return fmt.Errorf("plugin service %q: %w", w.service.Name, err)
	}
	return w.service.excused(context.Background(), err, plugins)
}

// Decided reports whether it is known what becomes of the placement: an error is as of [Host.Reserve].
func (w *Wait) Decided(now time.Time) (is bool, err error) {
	w.of = slices.DeleteFunc(w.of, func(on waiting) bool {
		if err != nil {
			return false
		}
		select {
		case <-on.call.last:
			err = on.excused(on.call.err, on.call.request.GetPlugins())
		default:
			if now.Before(on.until) {
				return false
			}
			err = on.excused(on.late(), nil)
		}
		return err == nil
	})
	return err != nil || len(w.of) == 0, err
}

// Plugin returns the first plugin of those that are waited for, "" if there is none.
func (w *Wait) Plugin() string {
	if w == nil || len(w.of) == 0 {
		return ""
	}
	return w.of[0].call.request.GetPlugins()[0]
}

// late returns why a placement does not come about of which nothing has been said in time.
func (w *waiting) late() error {
	if w.call.request.GetStep() == pluginv1.Step_STEP_PERMIT {
		plugin := w.call.request.GetPlugins()[0]
		return Rejection{plugin, fmt.Sprintf("rejected due to timeout after waiting %v at plugin %v", w.call.waits, plugin)}
	}
	return fmt.Errorf("no answer within its preBindTimeout of %v", w.service.PreBindTimeout)
}

// errStep is an error that a step was answered with: the stream is sound.
type errStep string

func (e errStep) Error() string { return string(e) }

// excused returns what comes of an error of a step of plugins: a service that is ignorable has its say only if it says something. What it says itself stands as it is if it names a plugin, as kube-scheduler
// would.
func (s *service) excused(ctx context.Context, err error, plugins []string) error {
	switch {
	case err == nil, errors.As(err, new(Rejection)), ctx.Err() != nil:
		return err
	case errors.As(err, new(errStep)) && s.Follows: // it has kube-scheduler's texts, in which plugins may call themselves otherwise than the configuration
		return err
	case errors.As(err, new(errStep)) && slices.ContainsFunc(plugins, func(name string) bool { return strings.Contains(err.Error(), name) }):
		return err
	case s.Ignorable && !errors.As(err, new(errStep)) && !errors.Is(err, errConfig):
		s.log.Debug("plugin service skipped: it has failed, and is ignorable", "err", err)
		return nil
	}
	return fmt.Errorf("plugin service %q: %w", s.Name, err)
}
