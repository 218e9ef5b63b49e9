package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand(opt Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Say which version this program is",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			version := opt.Version
			if version == "" {
				version = "unknown"
			}
			if _, err := fmt.Fprintf(opt.Out, "%s %s (%s, %s/%s)\n", opt.Program, version, runtime.Version(), runtime.GOOS, runtime.GOARCH); err != nil {
				return fmt.Errorf("write answer: %w", err)
			}
			return nil
		},
	}
}
