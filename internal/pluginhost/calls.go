package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// errEnded is that a stream has ended by itself.
var errEnded = errors.New("the stream has ended")

// calls are the requests and responses of a stream, one after the other. A goroutine waits for responses as long as the stream is open, so that it is known when it is not.
type calls struct {
	ctx       context.Context // the stream's
	cancel    context.CancelCauseFunc
	stream    pluginv1.PluginService_JudgeClient
	sent      int64 // the id of the last request
	asked     bool  // it has been sent already
	responses chan *pluginv1.JudgeResponse
	ended     chan struct{} // closed behind err
	err       error
}

// begin begins to wait for responses, until end.
func (c *calls) begin(ctx context.Context, cancel context.CancelCauseFunc, stream pluginv1.PluginService_JudgeClient) {
	c.ctx, c.cancel, c.stream = ctx, cancel, stream
	c.responses, c.ended = make(chan *pluginv1.JudgeResponse), make(chan struct{})
	go func() {
		defer close(c.ended)
		for {
			response, err := stream.Recv()
			if err != nil {
				c.err = c.because(err)
				return
			}
			select {
			case c.responses <- response:
			case <-ctx.Done():
				c.err = context.Cause(ctx)
				return
			}
		}
	}()
}

// because returns why a stream has ended.
func (c *calls) because(err error) error {
	switch code := status.Code(err); {
	case errors.Is(context.Cause(c.ctx), errLate):
		return errLate
	case errors.Is(err, io.EOF):
		return errEnded
	case code == codes.Unavailable, code == codes.Canceled:
		return fmt.Errorf("%w: %w", errEnded, short(err))
	}
	return short(err)
}

// over returns why the stream has ended, nil if it has not.
func (c *calls) over() error {
	select {
	case <-c.ended:
		return c.err
	default:
		return nil
	}
}

// end ends the stream, and waits for that.
func (c *calls) end() {
	c.cancel(context.Canceled)
	<-c.ended
}

// resume has the next call wait for the response to a request that was sent in one that its caller has left.
func (c *calls) resume() { c.asked = true }

// call sends a request, and waits for its response, no longer than that: then the stream ends. If ctx ends before, the stream goes on.
func (c *calls) call(ctx context.Context, request *pluginv1.JudgeRequest, timeout time.Duration) (*pluginv1.JudgeResponse, error) {
	if c.asked { // it may have come while nobody was there
		select {
		case response := <-c.responses:
			c.asked = false
			return c.to(request, response)
		default:
		}
	}
	late := time.AfterFunc(timeout, func() { c.cancel(errLate) })
	defer late.Stop()
	if !c.asked {
		c.sent++
		request.Id = c.sent
		if err := c.stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // else the goroutine is told why
			return nil, c.because(err)
		}
	}
	c.asked = false
	select {
	case response := <-c.responses:
		return c.to(request, response)
	case <-c.ended:
		return nil, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// to checks that a response is that to a request.
func (c *calls) to(request *pluginv1.JudgeRequest, response *pluginv1.JudgeResponse) (*pluginv1.JudgeResponse, error) {
	if response.GetId() != request.GetId() {
		return nil, fmt.Errorf("a response with id %d to request %d", response.GetId(), request.GetId())
	}
	return response, nil
}
