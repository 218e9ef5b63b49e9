// Command plugin-go is an example of plugins of Berth that are written in Go.
//
// GPUModel runs pods that have the label example.com/gpu-model only on nodes that have it with the same value. FewestPods prefers nodes with few pods.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-scheduler/berth/plugin"
)

// gpuModel is a label of pods, and of nodes.
const gpuModel = "example.com/gpu-model"

func main() {
	var files plugin.TLSFiles
	listen := flag.String("listen", listenByDefault(), "where to serve, as host:port or unix:///path; empty: where Berth says that runs this process")
	flag.StringVar(&files.Cert, "tls-cert", "", "a file with this process's certificate, as berth certs --role plugin makes it (default: plaintext)")
	flag.StringVar(&files.Key, "tls-key", "", "the file with its private key")
	flag.StringVar(&files.CA, "tls-ca", "", "a file with the authorities of Berth's certificates")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := plugin.Serve(ctx, plugin.Config{
		Listen: *listen,
		TLS:    files,
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Plugins: []plugin.Plugin{
			{Name: "GPUModel", Filter: rightModel}, // depends on nothing but the node and what the pod is
			{Name: "FewestPods", Score: fewestPods, Depends: plugin.Dependencies{Requested: true}},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "plugin-go:", err)
		os.Exit(1)
	}
}

// listenByDefault is where Berth says that runs this process; else an address of this machine.
func listenByDefault() string {
	if os.Getenv("BERTH_PLUGIN_SOCKET") != "" {
		return ""
	}
	return "127.0.0.1:7200"
}

// rightModel refuses nodes that have not the GPU that pods of the kind want. Evictions would not change that.
func rightModel(_ context.Context, kind *plugin.Kind, node *plugin.Node) (*plugin.Refusal, error) {
	wanted, ok := kind.Labels[gpuModel]
	if !ok || node.Labels[gpuModel] == wanted {
		return nil, nil
	}
	return &plugin.Refusal{Reason: "node(s) had no GPU of model " + wanted, Unresolvable: true}, nil
}

// fewestPods scores a node by the part of its places for pods that is free.
func fewestPods(_ context.Context, _ *plugin.Kind, node *plugin.Node) (int64, error) {
	places := node.Allocatable["pods"]
	if places == 0 {
		return 0, nil
	}
	return max(0, 100*(places-int64(node.PodCount))/places), nil
}
