package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// fault is a process that is killed during a run.
type fault struct {
	at     float64 // the part of the pods that is bound by then
	victim func(ctx context.Context, crew *crew) (name string, err error)
}

// faults returns what --kill does, spread over a run. Nothing that was killed is started again.
func faults() []fault {
	named := func(name string) func(context.Context, *crew) (string, error) {
		return func(context.Context, *crew) (string, error) { return name, nil }
	}
	return []fault{
		{0.15, named("filter-worker-0")},
		{0.35, named("score-worker-0")},
		{0.55, named("queue-0")},
		{0.75, func(ctx context.Context, crew *crew) (string, error) { return activeBinder(ctx, crew.http) }},
	}
}

const (
	statusTimeout  = 5 * time.Second  // of one request
	electionWait   = 60 * time.Second // for a binder to be active
	electionPoll   = 100 * time.Millisecond
	statusMaxBytes = 1 << 20
)

// activeBinder asks the gateway at address which binder is active, and waits for there to be one. Ids are the names of the
// processes, as contenders.go gives them.
func activeBinder(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, electionWait)
	defer cancel()
	tick := time.NewTicker(electionPoll)
	defer tick.Stop()
	for {
		leader, err := leaderOf(ctx, "http://"+address+"/v1/status")
		if err == nil && leader != "" {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("ask for the active binder: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// leaderOf reads the field leader of Berth's status.
func leaderOf(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("make request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("get %s: %s", url, resp.Status)
	}
	var status struct {
		Leader string `json:"leader"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, statusMaxBytes)).Decode(&status); err != nil {
		return "", fmt.Errorf("parse status: %w", err)
	}
	return status.Leader, nil
}
