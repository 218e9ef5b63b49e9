package binder

import (
	"context"
	"fmt"
	"time"
)

// A binder asks its source for an answer several times per lease TTL. A candidate that has had none for one TTL stands
// for election no more. The active binder gives its term up after three, but only to a candidate that still stands: if
// the source answers nobody, all others have withdrawn by then, and the term stays where the ledger is loaded.
const (
	probesPerTTL  = 5
	withdrawAfter = 1 // lease TTLs
	resignAfter   = 3 // lease TTLs
)

// probe asks the source for an answer, whatever it may be: there need be no such pod.
func (s *Service) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/2)
	defer cancel()
	_, _, _, err := s.cfg.Source.Lookup(ctx, "default", "berth-probe")
	return err
}

// awaitSource waits until the source answers. An error is ctx's.
func (s *Service) awaitSource(ctx context.Context) error {
	for {
		err := s.probe(ctx)
		if err == nil {
			return nil
		}
		s.wait(fmt.Sprintf("waiting for the source to answer: %v", err))
		if !sleep(ctx, s.cfg.LeaseTTL/probesPerTTL) {
			return context.Cause(ctx)
		}
	}
}

// keepContact probes the source until ctx ends, and then returns nil. It returns an error when the source has not
// answered for so many lease TTLs and may says that the binder may leave. That is asked before the last probe, so
// that a candidate which hears the source's return first takes nothing from a binder that hears it too.
func (s *Service) keepContact(ctx context.Context, ttls int, may func(context.Context) bool) error {
	limit := time.Duration(ttls) * s.cfg.LeaseTTL
	heard := time.Now()
	for {
		leave := time.Since(heard) >= limit && may(ctx)
		err := s.probe(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			heard = time.Now()
		case leave:
			return fmt.Errorf("no answer from the source for %v: %w", time.Since(heard).Round(time.Millisecond), err)
		}
		if !sleep(ctx, s.cfg.LeaseTTL/probesPerTTL) {
			return nil
		}
	}
}

// sleep reports false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
