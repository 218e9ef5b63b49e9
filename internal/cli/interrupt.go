package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that ends with the first SIGINT or SIGTERM. The second calls exit with 1: whoever does not want to
// wait for the end need not. stop ends both.
func Interruptible(ctx context.Context, exit func(code int)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, stopped, done := make(chan os.Signal, 2), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			select {
			case <-signals:
			case <-stopped:
				return
			}
			if cancel(); n == 2 {
				exit(1)
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		<-done
		cancel()
	}
}
