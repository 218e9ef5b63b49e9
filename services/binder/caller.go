package binder

import "context"

// caller makes one call after the other, in a goroutine of its own, so that a worker may leave a call that is late to itself. The
// goroutine lasts as long as no call is left: a new one for each would grow its stack each time, which is a twentieth of what a binder
// computes. A caller is for one worker.
type caller struct {
	spawn func(func() error) // starts a goroutine that somebody waits for, and whose error ends ctx
	calls chan func() error  // of the goroutine that waits for the next call; nil: there is none
}

// do begins a call, and returns a channel that is closed when it has ended.
func (c *caller) do(ctx context.Context, call func() error) (ended <-chan struct{}) {
	done := make(chan struct{})
	closing := func() error {
		defer close(done)
		return call()
	}
	if c.calls == nil {
		calls := make(chan func() error)
		c.calls = calls
		c.spawn(func() error {
			for call := range calls {
				if err := call(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	select {
	case c.calls <- closing:
	case <-ctx.Done(): // the goroutine may have ended with it
		c.spawn(closing)
	}
	return done
}

// leave leaves the last call to itself: the next has another goroutine. A worker that ends leaves its last one, too.
func (c *caller) leave() {
	if c.calls != nil {
		close(c.calls)
		c.calls = nil
	}
}
