// Berth-yoda is a Berth with Yoda compiled in: it has all commands of berth. A profile of its --config that enables the plugin Yoda has pods go where the cards are good, and "berth-yoda plugin serve yoda" serves the same to a Berth elsewhere. docs/gpu.md tells how.
package main

import (
	"os"

	"github.com/berth-scheduler/berth/app"
	"github.com/berth-scheduler/berth/plugins/yoda/service"
)

func main() {
	os.Exit(app.Run(app.NewCommand(app.WithService(service.Service()))))
}
