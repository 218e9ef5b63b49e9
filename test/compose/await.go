package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pause is that between two looks.
const pause = 200 * time.Millisecond

// fatal is an error after which there is nothing to wait for.
type fatal struct{ error }

// await looks until there is no error, or a fatal one, or ctx ends.
func await(ctx context.Context, what string, look func(context.Context) error) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, &fatal{}) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ctx.Err() == nil {
			last = err // the cause, not that its time ran out
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), last)
		case <-tick.C:
		}
	}
}
