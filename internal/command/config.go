package command

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-scheduler/berth/internal/config"
)

func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Work with scheduler configurations"}
	c.AddCommand(convertCommand())
	return c
}

func convertCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "convert -f FILE",
		Short: "Print an older KubeSchedulerConfiguration, or a Policy, as v1",
		Long: "Print a KubeSchedulerConfiguration of v1alpha1 to v1beta3, or a legacy Policy in JSON or YAML, as " +
			"kubescheduler.config.k8s.io/v1 on stdout. What has no equivalent is reported on stderr.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := readFile(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			out, report, err := config.Convert(data)
			if err != nil {
				return err
			}
			for _, line := range report {
				fmt.Fprintln(cmd.ErrOrStderr(), "berth:", line)
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	c.Flags().StringVarP(&file, "filename", "f", "", "the file to convert; - reads standard input")
	return c
}

func readFile(name string, in io.Reader) ([]byte, error) {
	switch name {
	case "":
		return nil, errors.New("--filename: name the file to convert")
	case "-":
		return io.ReadAll(in)
	}
	return os.ReadFile(name)
}
