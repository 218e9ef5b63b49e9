package scheduler

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"

	"github.com/berth-scheduler/berth/berthapp"
	"github.com/berth-scheduler/berth/test/schedulerplugins/relay"
)

// pluginsFile is the file by which a Berth finds the plugins of a test.
const pluginsFile = "plugins.json"

// pluginTimeout is what Berth has by default.
const pluginTimeout = 5 * time.Second

// inProcess are the plugins of a test that run in its process.
type inProcess struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (p *inProcess) end() {
	p.cancel()
	p.running.Wait()
}

// serve runs the plugins of the test, in this process, and says in a file where.
func (of values) serve(ctx context.Context, dir string, profiles []config.KubeSchedulerProfile, configFile, kubeconfig string) (_ *inProcess, err error) {
	var options []berthapp.Option
	is := relay.Plugins{Names: slices.Sorted(maps.Keys(of.registry)), Sockets: make(map[string]string)}
	for _, name := range is.Names {
		options = append(options, berthapp.WithPlugin(name, of.registry[name]))
	}
	host, err := berthapp.NewInProcess(configFile, kubeconfig, options...)
	if err != nil {
		return nil, err
	}
	is.Described = host.Describe(ctx)
	out := new(inProcess)
	ctx, out.cancel = context.WithCancel(context.WithoutCancel(ctx)) // Berth ends first
	defer func() {
		if err != nil {
			out.end()
		}
	}()
	for i := range profiles {
		if !of.uses(profiles[i].Plugins) {
			continue
		}
		name, socket := profiles[i].SchedulerName, filepath.Join(dir, fmt.Sprintf("%d.sock", i))
		l, err := net.Listen("unix", socket)
		if err != nil {
			return nil, err
		}
		is.Sockets[name] = socket
		out.running.Go(func() {
			if err := host.Serve(ctx, name, pluginTimeout, l); err != nil {
				fmt.Printf("plugins of the profile %s: %v\n", name, err)
			}
		})
	}
	text, err := json.Marshal(is)
	if err != nil {
		return nil, err
	}
	return out, os.WriteFile(filepath.Join(dir, pluginsFile), text, 0o600)
}

// nodeCount is what is to be seen of the cache of a Berth.
type nodeCount struct {
	internalcache.Cache // nil: nothing else
	url                 string
}

// NodeCount returns how many nodes Berth has, 0 if it does not say.
func (c *nodeCount) NodeCount() int {
	n, err := c.read()
	if err != nil {
		fmt.Printf("number of Berth's nodes: %v\n", err)
	}
	return n
}

// read asks Berth for the metric that kube-scheduler has, too.
func (c *nodeCount) read() (int, error) {
	response, err := http.Get(c.url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), `scheduler_cache_size{type="nodes"} `); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("there is no such metric"))
}
