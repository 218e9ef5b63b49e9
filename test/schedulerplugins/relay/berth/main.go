// Command berth is a Berth whose compiled-in plugins run in the process of the test that starts it.
package main

import (
	"fmt"
	"os"

	"github.com/berth-scheduler/berth/internal/command"
	"github.com/berth-scheduler/berth/test/schedulerplugins/relay"
)

func main() {
	p, err := relay.Read()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(command.Run(command.New(&command.CompiledIn{Names: p.Names, Host: p.Host()}), os.Exit))
}
