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

var (
	// errEnded is that a stream has ended by itself, and errLeft that nobody waits any more for a response that may come still.
	errEnded = errors.New("the stream has ended")
	errLeft  = errors.New("nobody waits for the response")
)

// calls are the requests and responses of a stream, one after the other. A goroutine waits for responses as long as the stream is open, so that it is known when it is not.
type calls struct {
	ctx       context.Context // the stream's
	cancel    context.CancelCauseFunc
	stream    pluginv1.PluginService_JudgeClient
	sent      int64                        // the id of the last request
	late      *time.Timer                  // ends the stream if the response to it does not come; nil: it has come
	responses chan *pluginv1.JudgeResponse // one at most
	ended     chan struct{}                // closed behind err and at, which is when
	at        time.Time
	err       error
}

// begin begins to wait for responses, until end.
func (c *calls) begin(ctx context.Context, cancel context.CancelCauseFunc, stream pluginv1.PluginService_JudgeClient) {
	c.ctx, c.cancel, c.stream = ctx, cancel, stream
	c.responses, c.ended = make(chan *pluginv1.JudgeResponse, 1), make(chan struct{})
	go func() {
		defer func() {
			c.at = time.Now()
			close(c.ended)
		}()
		for {
			response, err := stream.Recv()
			if err != nil {
				c.err = c.because(err)
				return
			}
			select {
			case c.responses <- response:
			default:
				c.err = errors.New("a response that nobody has asked for")
				cancel(c.err)
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

// expire ends the stream if the response has not come, whether somebody has taken it or not.
func (c *calls) expire() {
	if len(c.responses) == 0 {
		c.cancel(errLate)
	}
}

// end ends the stream, and waits for that.
func (c *calls) end() {
	if c.late != nil {
		c.late.Stop()
	}
	c.cancel(context.Canceled)
	<-c.ended
}

// send sends a request. Its response is to come within that time: else the stream ends, whether somebody waits or not.
func (c *calls) send(request *pluginv1.JudgeRequest, timeout time.Duration) error {
	c.late = time.AfterFunc(timeout, c.expire)
	c.sent++
	request.Id = c.sent
	if err := c.stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // else the goroutine is told why
		return c.because(err)
	}
	return nil
}

// receive waits for the response to the request that was sent last. If ctx ends before, the error is errLeft, and it may be called again.
func (c *calls) receive(ctx context.Context, request *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
	select {
	case response := <-c.responses:
		return c.to(request, response)
	case <-ctx.Done():
		return nil, errLeft
	case <-c.ended:
	}
	select {
	case response := <-c.responses: // the last one
		return c.to(request, response)
	default:
		return nil, c.err
	}
}

// to takes a response, if it is that to a request.
func (c *calls) to(request *pluginv1.JudgeRequest, response *pluginv1.JudgeResponse) (*pluginv1.JudgeResponse, error) {
	c.late.Stop()
	if response.GetId() != request.GetId() {
		return nil, fmt.Errorf("a response with id %d to request %d", response.GetId(), request.GetId())
	}
	return response, nil
}
