package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"os"
	"path/filepath"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-scheduler/berth/plugin"
	"github.com/berth-scheduler/berth/test/choice"
)

// pluginsCommand serves the foreign filter and score of the contenders that have them.
const pluginsCommand = "plugins"

// runPlugins serves the choice as a plugin service, and as an HTTP extender, until ctx ends.
func runPlugins(ctx context.Context, args []string) error {
	f := flag.NewFlagSet(pluginsCommand, flag.ContinueOnError)
	service := f.String("service", "", "`address` of the plugin service")
	extender := f.String("extender", "", "`address` of the extender")
	if err := f.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if *extender != "" {
		server := &http.Server{Addr: *extender, Handler: http.HandlerFunc(serveExtender)}
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			return err
		}
		return nil
	}
	return plugin.Serve(ctx, plugin.Config{Listen: *service, Plugins: []plugin.Plugin{{
		Name: "Choice",
		// What it says does not depend on it, but what people write does: each placement has it asked again.
		Depends: plugin.Dependencies{Requested: true},
		Filter: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (*plugin.Refusal, error) {
			if refused, _ := choice.Of(n.Name); refused {
				return &plugin.Refusal{Reason: "not chosen"}, nil
			}
			return nil, nil
		},
		Score: func(_ context.Context, _ *plugin.Kind, n *plugin.Node) (int64, error) {
			_, score := choice.Of(n.Name)
			return 10 * score, nil
		},
	}, {
		Name: "Turns",
		SortKey: func(_ context.Context, p *plugin.Placement, _ plugin.Queued) (int64, error) {
			h := fnv.New32a()
			_, _ = h.Write([]byte(p.UID))
			return int64(h.Sum32()), nil
		},
	}}})
}

// serveExtender answers as an extender that is nodeCacheCapable: with names, which is the least that one can be sent.
func serveExtender(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.NodeNames == nil {
		http.Error(w, "want ExtenderArgs with NodeNames", http.StatusBadRequest)
		return
	}
	var answer any
	switch r.URL.Path {
	case "/filter":
		left, failed := []string{}, extenderv1.FailedNodesMap{}
		for _, name := range *args.NodeNames {
			if refused, _ := choice.Of(name); refused {
				failed[name] = "not chosen"
			} else {
				left = append(left, name)
			}
		}
		answer = extenderv1.ExtenderFilterResult{NodeNames: &left, FailedNodes: failed}
	case "/prioritize":
		list := make(extenderv1.HostPriorityList, len(*args.NodeNames))
		for k, name := range *args.NodeNames {
			_, score := choice.Of(name)
			list[k] = extenderv1.HostPriority{Host: name, Score: score}
		}
		answer = list
	default:
		http.NotFound(w, r)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // who has gone does not want it
}

// berthServiceCommands runs Berth in one process, and beside it the choice as a plugin service.
func berthServiceCommands(e environment) ([]command, error) {
	return berthPluginCommands(e, "{name: Choice, points: [filter, score]}", `profiles:
- plugins:
    multiPoint:
      enabled:
      - name: Choice
`)
}

// berthSortCommands runs Berth in one process, and beside it a plugin service that sorts pods at random: they all come at once, so that no order is the one that they come in.
func berthSortCommands(e environment) ([]command, error) {
	return berthPluginCommands(e, "{name: Turns, points: [queueSort]}", `profiles:
- plugins:
    queueSort:
      enabled:
      - name: Turns
      disabled:
      - name: "*"
`)
}

// compiledInConfig enables a plugin that is compiled in.
func compiledInConfig(plugin string) string {
	return "profiles:\n- plugins:\n    multiPoint:\n      enabled:\n      - name: " + plugin + "\n"
}

// kubeCompiledInCommands runs a kube-scheduler that has the choice compiled in.
func kubeCompiledInCommands(e environment) ([]command, error) {
	file, err := e.writeConfig(kubeClient(e) + compiledInConfig("Choice"))
	if err != nil {
		return nil, err
	}
	return []command{{kubeScheduler, []string{e.compiledIn, kubeScheduler, "--config", file, "--secure-port", "0"}}}, nil
}

// berthCompiledInCommands runs a Berth in one process that has the choice compiled in, as the plugin of a name.
func berthCompiledInCommands(plugin string) func(e environment) ([]command, error) {
	return func(e environment) ([]command, error) {
		config, err := e.writeConfig(compiledInConfig(plugin))
		if err != nil {
			return nil, err
		}
		e.berth = e.compiledIn
		commands, err := berthAllCommands(e)
		if err != nil {
			return nil, err
		}
		commands[0].argv = append(commands[0].argv, "--config", config)
		return commands, nil
	}
}

// berthOneShardCommands runs Berth in one process, with a queue in one part, as where somebody else sorts it.
func berthOneShardCommands(e environment) ([]command, error) {
	commands, err := berthAllCommands(e)
	if err != nil {
		return nil, err
	}
	commands[0].argv = append(commands[0].argv, "--shards", "1")
	return commands, nil
}

// berthPluginCommands runs Berth in one process, with a configuration that has a plugin of the service beside it.
func berthPluginCommands(e environment, used, configuration string) ([]command, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	services := filepath.Join(e.dir, "services.yaml")
	err = os.WriteFile(services, fmt.Appendf(nil, `apiVersion: berth.dev/v1
kind: PluginServices
services:
- name: choice
  address: %s
  plugins:
  - %s
`, address, used), 0o600)
	if err != nil {
		return nil, err
	}
	config, err := e.writeConfig(configuration)
	if err != nil {
		return nil, err
	}
	commands, err := berthAllCommands(e)
	if err != nil {
		return nil, err
	}
	commands[0].argv = append(commands[0].argv, "--config", config, "--plugin-services", services)
	return append([]command{{pluginsCommand, []string{e.self, pluginsCommand, "--service", address}}}, commands...), nil
}

// berthExtenderCommands runs Berth in one process, and beside it the choice as an extender.
func berthExtenderCommands(e environment) ([]command, error) {
	address, config, err := e.writeExtender("")
	if err != nil {
		return nil, err
	}
	commands, err := berthAllCommands(e)
	if err != nil {
		return nil, err
	}
	commands[0].argv = append(commands[0].argv, "--config", config)
	return append([]command{{pluginsCommand, []string{e.self, pluginsCommand, "--extender", address}}}, commands...), nil
}

// kubeExtenderCommands runs kube-scheduler, and beside it the choice as an extender.
func kubeExtenderCommands(e environment) ([]command, error) {
	address, config, err := e.writeExtender(kubeClient(e))
	if err != nil {
		return nil, err
	}
	return []command{
		{pluginsCommand, []string{e.self, pluginsCommand, "--extender", address}},
		{kubeScheduler, []string{e.kubeScheduler, "--config", config, "--secure-port", "0"}},
	}, nil
}

// writeExtender writes a configuration with the choice as an extender, and returns where that is to serve.
func (e environment) writeExtender(more string) (address, config string, err error) {
	if address, err = freeAddress(); err != nil {
		return "", "", err
	}
	config, err = e.writeConfig(more + fmt.Sprintf(`extenders:
- urlPrefix: http://%s
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 1
  nodeCacheCapable: true
  httpTimeout: 30s
`, address))
	return address, config, err
}

// writeConfig writes a KubeSchedulerConfiguration.
func (e environment) writeConfig(fields string) (string, error) {
	file := filepath.Join(e.dir, "config.yaml")
	err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+fields), 0o600)
	if err != nil {
		return "", fmt.Errorf("write scheduler configuration: %w", err)
	}
	return file, nil
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
