// Command example is a Berth with a plugin compiled in that is written for kube-scheduler, as its own plugins are: it imports nothing of Berth's.
package main

import (
	"os"

	"github.com/berth-scheduler/berth/berthapp"
	"github.com/berth-scheduler/berth/berthapp/example/cheapest"
)

func main() {
	os.Exit(berthapp.Run(berthapp.NewCommand(berthapp.WithPlugin(cheapest.Name, cheapest.New))))
}
