// Command berth is Berth: every role of it, alone or together, and the client.
package main

import (
	"os"

	"github.com/berth-scheduler/berth/internal/command"
)

func main() { os.Exit(command.Run(command.New(nil), os.Exit)) }
