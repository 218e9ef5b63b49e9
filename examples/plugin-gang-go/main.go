// Command plugin-gang-go is an example of a plugin of Berth that takes steps: pods with a label example.com/gang wait until as many of that gang have a node as their label
// example.com/gang-size says, five minutes at most. It keeps nothing of those that go on: who comes later waits for as many others.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/berth-scheduler/berth/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := plugin.Serve(ctx, plugin.Config{Listen: "127.0.0.1:7200", Plugins: []plugin.Plugin{gang()}}); err != nil {
		fmt.Fprintln(os.Stderr, "plugin-gang-go:", err)
		os.Exit(1)
	}
}

func gang() plugin.Plugin {
	var mu sync.Mutex
	waiting := make(map[*plugin.Placement]string) // for others of their gang
	return plugin.Plugin{
		Name: "Gang", Depends: plugin.Dependencies{Objects: true}, // it reads labels of pods
		Permit: func(_ context.Context, p *plugin.Placement) (plugin.Permission, error) {
			pod, err := p.Pod()
			if err != nil || pod.Labels["example.com/gang"] == "" {
				return plugin.Permission{}, err
			}
			size, err := strconv.Atoi(pod.Labels["example.com/gang-size"])
			if err != nil {
				return plugin.Permission{}, err
			}
			gang := p.Namespace + "/" + pod.Labels["example.com/gang"]
			mu.Lock()
			defer mu.Unlock()
			waiting[p] = gang
			members := slices.DeleteFunc(slices.Collect(maps.Keys(waiting)), func(p *plugin.Placement) bool { return waiting[p] != gang })
			if len(members) < size {
				return plugin.Permission{Wait: 5 * time.Minute}, nil
			}
			for _, member := range members {
				member.Allow()
				delete(waiting, member)
			}
			return plugin.Permission{}, nil
		},
		Reserve: func(context.Context, *plugin.Placement) (*plugin.Rejection, error) { return nil, nil },
		Unreserve: func(_ context.Context, p *plugin.Placement) { // time is up for it, say
			mu.Lock()
			defer mu.Unlock()
			delete(waiting, p)
		},
	}
}
