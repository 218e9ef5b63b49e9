package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/certs"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/manifest"
	"github.com/berth-scheduler/berth/internal/plugintest"
	"github.com/berth-scheduler/berth/internal/rpc"
)

func pluginCommand() *cobra.Command {
	c := &cobra.Command{Use: "plugin", Short: "Try out plugins that are services"}
	c.AddCommand(pluginTestCommand())
	return c
}

// pluginTestCommand asks a process with plugins what Berth would.
func pluginTestCommand() *cobra.Command {
	var access pluginAccess
	var objects string
	var arguments []string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "test ADDRESS",
		Short: "Ask a process with plugins what Berth would, and say of each case whether it answers as it has to",
		Long: "Test asks the process at an address, host:port or unix:///path, about nodes and pods that are made up, or in a file. It knows\n" +
			"nothing of what the plugins are for: whatever it has told, in whatever order, answers have to be those to a new stream that\n" +
			"is told the outcome. Plugins that take steps are told of placements of such pods, also that they are bound, though none is.\n" +
			"It fails if any case does. docs/plugins.md tells how plugins are written.",
		Example: "  berth plugin test 127.0.0.1:7200\n" +
			"  kubectl get pods,nodes -A -o json > objects.json && berth plugin test 127.0.0.1:7200 --objects objects.json\n" +
			"  berth plugin test gpu:7200 --tls-cert certs/operator.crt --tls-key certs/operator.key --tls-ca certs/ca.crt",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 {
				return fmt.Errorf("--timeout: %v: want more than 0", timeout)
			}
			cfg := plugintest.Config{Timeout: timeout, Arguments: make(map[string]string)}
			for _, text := range arguments {
				name, json, ok := strings.Cut(text, "=")
				if !ok {
					return fmt.Errorf("--args: %q: want PLUGIN=JSON", text)
				}
				cfg.Arguments[name] = json
			}
			if objects != "" {
				text, err := os.ReadFile(objects)
				if err != nil {
					return fmt.Errorf("--objects: %w", err)
				}
				if cfg.Objects, err = manifest.Parse(text); err != nil {
					return fmt.Errorf("--objects: %s: %w", objects, err)
				}
			}
			asking, err := access.config()
			if err != nil {
				return err
			}
			clients := rpc.NewClients(asking)
			defer clients.Close()
			conn, err := clients.Conn(args[0])
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			cfg.Client = pluginv1.NewPluginServiceClient(conn)
			return testPlugins(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	fs := c.Flags()
	fs.DurationVar(&timeout, "timeout", 5*time.Second, "how long one answer may take")
	fs.StringVar(&objects, "objects", "", `a file with nodes and pods to ask about, as "kubectl get pods,nodes -A -o json" writes it (default: some that are made up)`)
	fs.StringArrayVar(&arguments, "args", nil, "PLUGIN=JSON: arguments of a plugin, as in pluginConfig of a profile; may be repeated")
	fs.StringVar(&access.files.Cert, "tls-cert", "", "a file with a certificate to show, such as berth certs --role operator makes; needs --tls-key and --tls-ca (default: plaintext)")
	fs.StringVar(&access.files.Key, "tls-key", "", "the file with its private key")
	fs.StringVar(&access.files.CA, "tls-ca", "", "a file with the authorities of the plugins' certificate")
	fs.StringVar(&access.serverName, "tls-server-name", "", "what that certificate has to be of (default: the host of ADDRESS)")
	return c
}

// testPlugins writes a line for each case, and fails unless all are ok.
func testPlugins(ctx context.Context, cfg plugintest.Config, out io.Writer) error {
	ok := plugintest.Run(ctx, cfg, func(r plugintest.Result) {
		line := "ok    " + r.Case
		if r.Err != nil {
			line = "FAIL  " + r.Case + ": " + r.Err.Error()
		}
		if r.Note != "" {
			line += " (" + r.Note + ")"
		}
		fmt.Fprintln(out, strings.ReplaceAll(line, "\n", " "))
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if !ok {
		return errors.New("the plugins do not answer as they have to")
	}
	return nil
}

// pluginAccess is how plugins are reached, as binders reach them.
type pluginAccess struct {
	files      certs.Files
	serverName string
}

func (a pluginAccess) config() (rpc.Config, error) {
	if err := checkTLS(a.files); err != nil {
		return rpc.Config{}, err
	}
	cfg := rpc.Config{Net: rpc.Outside(a.serverName), Outside: true}
	if a.files != (certs.Files{}) {
		source, err := certs.Open(a.files, "", slog.New(slog.DiscardHandler))
		if err != nil {
			return rpc.Config{}, err
		}
		cfg.TLS = &rpc.TLS{Client: source.Credentials()}
	}
	return cfg, nil
}
