package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// writes counts the requests that change something, by what they are for. Leases are left out: they go with time and
// not with pods.
type writes struct {
	binds, events, status, other float64
	refused                      float64 // of the binds, those that were not answered with success
}

func (w writes) total() float64 { return w.binds + w.events + w.status + w.other }

func (w writes) minus(v writes) writes {
	return writes{w.binds - v.binds, w.events - v.events, w.status - v.status, w.other - v.other, w.refused - v.refused}
}

// readWrites asks the API server how many writes it has answered since it started.
func readWrites(ctx context.Context, client *kubernetes.Clientset) (writes, error) {
	metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return writes{}, fmt.Errorf("read API server's metrics: %w", err)
	}
	return parseWrites(metrics)
}

var (
	sample = regexp.MustCompile(`^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)
	label  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// parseWrites reads the text format of Prometheus.
func parseWrites(metrics []byte) (writes, error) {
	var w writes
	for line := range bytes.Lines(metrics) {
		found := sample.FindSubmatch(bytes.TrimSpace(line))
		if found == nil {
			continue
		}
		labels := map[string]string{}
		for _, pair := range label.FindAllSubmatch(found[1], -1) {
			labels[string(pair[1])] = string(pair[2])
		}
		n, err := strconv.ParseFloat(string(found[2]), 64)
		if err != nil {
			return writes{}, fmt.Errorf("parse API server's metrics: %w", err)
		}
		w.count(labels, n)
	}
	return w, nil
}

// count adds n requests of the given labels.
func (w *writes) count(labels map[string]string, n float64) {
	switch labels["verb"] {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
	default:
		return
	}
	switch kind := labels["resource"] + "/" + labels["subresource"]; kind {
	case "leases/":
	case "pods/binding":
		w.binds += n
		if !strings.HasPrefix(labels["code"], "2") {
			w.refused += n
		}
	case "events/":
		w.events += n
	case "pods/status":
		w.status += n
	default:
		w.other += n
	}
}

const (
	quietFor  = 2 * time.Second // without a write is the end of the writes, but in tests
	quietPoll = 500 * time.Millisecond
	quietMax  = 60 * time.Second // is waited for it
)

// awaitQuiet returns the count of writes when it has not changed for some time, or as it is after a minute.
func awaitQuiet(ctx context.Context, client *kubernetes.Clientset, quiet time.Duration) (writes, error) {
	tick := time.NewTicker(quietPoll)
	defer tick.Stop()
	began := time.Now()
	var last writes
	changed := began
	for {
		now, err := readWrites(ctx, client)
		if err != nil {
			return writes{}, err
		}
		if now != last {
			last, changed = now, time.Now()
		}
		if time.Since(changed) >= quiet || time.Since(began) >= quietMax {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return writes{}, fmt.Errorf("wait for the last write: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
