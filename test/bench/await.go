package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// awaitReady waits until all processes of roles say that they are ready.
func (c *crew) awaitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, role := range slices.Sorted(maps.Keys(c.ops)) {
		err := c.await(ctx, "berth "+role+" to be ready", func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.ops[role]+"/readyz", nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("it answers %s", response.Status)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// await asks again and again until ok returns nil, or ctx or a process of the crew ends.
func (c *crew) await(ctx context.Context, what string, ok func(context.Context) error) error {
	err := await(ctx, c.ended, what, ok)
	if errors.Is(err, errEnded) {
		return c.whyEnded()
	}
	return err
}

// errEnded is the end of a process that was to go on, be it with exit status 0.
var errEnded = errors.New("nobody asked it to")

// await asks again and again until ok returns nil, ctx ends, or ended is closed.
func await(ctx context.Context, ended <-chan struct{}, what string, ok func(context.Context) error) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), err)
		case <-ended:
			return fmt.Errorf("wait for %s: %w; last: %w", what, errEnded, err)
		case <-tick.C:
		}
	}
}
