// Package relay is for a Berth whose compiled-in plugins run in the process of a test, which looks into their memory: where Berth starts a process for the plugins of a profile, the relay leads it to the test's.
package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/command"
)

// At is the environment variable that names the file with the [Plugins].
const At = "PLUGINS_AT"

// Plugins are those that run in a test's process.
type Plugins struct {
	// Names are those of all.
	Names []string
	// Described is what they are.
	Described command.Described
	// Sockets are where they are served, by the scheduler name of the profile.
	Sockets map[string]string
}

// Read returns what the file says that the environment names.
func Read() (*Plugins, error) {
	text, err := os.ReadFile(os.Getenv(At))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", At, err)
	}
	p := new(Plugins)
	return p, json.Unmarshal(text, p)
}

// Host is what runs the plugins of a profile, as far as Berth can tell.
func (p *Plugins) Host() *cobra.Command {
	var profile, socket string
	var describe bool
	c := &cobra.Command{
		Use: "plugin-host", Args: cobra.NoArgs, FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}, // what the test's process knows
		RunE: func(cmd *cobra.Command, _ []string) error {
			if describe {
				out := os.NewFile(command.DescribedFile, "described")
				return errors.Join(json.NewEncoder(out).Encode(p.Described), out.Close())
			}
			if err := os.Symlink(p.Sockets[profile], socket); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			_, err := io.Copy(io.Discard, cmd.InOrStdin())
			return err
		},
	}
	c.Flags().StringVar(&profile, "profile", "", "the scheduler name of the profile")
	c.Flags().StringVar(&socket, "socket", "", "where Berth expects it to be served")
	c.Flags().BoolVar(&describe, "describe", false, "say what the plugins are")
	return c
}
