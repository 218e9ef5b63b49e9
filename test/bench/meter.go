package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// sampleEvery is how often it is read what processes have used: of the kernel, which costs them nothing.
	sampleEvery = 20 * time.Millisecond
	// askEvery is how often, in samples, the binder is asked how many pods it has bound. Its process answers with all its
	// metrics.
	askEvery = 25
)

// binds is what a binder says about its binds.
type binds struct {
	done  int           // pods
	calls int           // of one or more binds
	took  time.Duration // all calls together
}

// mean returns how long a call took.
func (b binds) mean() time.Duration { return b.took / time.Duration(max(b.calls, 1)) }

// follow samples a crew until want pods are bound, or ctx or a process of the crew ends, which is an error. binding is
// called once when some are bound.
func (c *crew) follow(ctx context.Context, want int, binding func()) ([]sample, binds, error) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var samples []sample
	var last binds
	for i := 0; ; i++ {
		at := time.Since(c.began)
		if cpu, err := c.cpu(); err == nil { // else a process is ending, which c.ended tells
			samples = append(samples, sample{at, cpu})
		}
		if last.done >= want {
			return samples, last, nil
		}
		if i%askEvery == 0 {
			now, err := scrape(ctx, c.metrics)
			if err == nil { // else it does not serve yet, or not any more, which c.ended tells
				if now.done > 0 && last.done == 0 {
					binding()
				}
				last = now
			}
		}
		select {
		case <-ctx.Done():
			return samples, last, fmt.Errorf("wait until %d pods are bound, %d are: %w", want, last.done, context.Cause(ctx))
		case <-c.ended:
			return samples, last, c.whyEnded()
		case <-tick.C:
		}
	}
}

// scrape reads what the binder at an address says about its binds.
func scrape(ctx context.Context, address string) (binds, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return binds{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return binds{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return binds{}, err
	}
	if response.StatusCode != http.StatusOK {
		return binds{}, fmt.Errorf("read metrics: %s", response.Status)
	}
	return bindsIn(body)
}

// bindsIn reads metrics, whose text format is one line for each: name{labels} value.
func bindsIn(text []byte) (binds, error) {
	var b binds
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, rest, labelled := strings.Cut(lines.Text(), "{")
		labels, value, _ := strings.Cut(rest, "} ")
		if !labelled || !strings.HasPrefix(name, "berth_binder_bind") {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return binds{}, fmt.Errorf("parse metric %q: %w", lines.Text(), err)
		}
		switch {
		case name == "berth_binder_binds_total" && strings.Contains(labels, `result="done"`):
			b.done += int(n)
		case name == "berth_binder_bind_seconds_count":
			b.calls += int(n)
		case name == "berth_binder_bind_seconds_sum":
			b.took += time.Duration(n * float64(time.Second))
		}
	}
	return b, nil
}
