package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The contenders of workloads with cards, by name.
const (
	berthAllAgain    = "berth-all-again"           // berth-all a second time, in the same repetition: how fast the machine is by then
	berthYoda        = "berth-yoda"                // Berth in one process that has Yoda compiled in: another binary
	berthYodaService = "berth-yoda-service"        // berth-all, with Yoda as a plugin service
	kubeYoda         = "kube-scheduler-yoda"       // kube-scheduler with the rules of the original Yoda compiled in: berthapp/bench/original
	kubeDevicePlugin = "kube-scheduler-nvidia-gpu" // kube-scheduler on nodes whose cards a device plugin counts
)

// yodaFeatures are the plugins of Yoda that score, with the weights of its features.
var yodaFeatures = []struct {
	name   string
	weight int
}{
	{"YodaBandwidth", 1}, {"YodaClock", 1}, {"YodaCore", 1}, {"YodaPower", 1},
	{"YodaFreeMemory", 2}, {"YodaTotalMemory", 1}, {"YodaAllocate", 3}, {"YodaActual", 2},
}

// yodaProfile enables Yoda, which sorts the queue too.
func yodaProfile() string {
	var b strings.Builder
	b.WriteString(`profiles:
- plugins:
    multiPoint:
      enabled:
      - name: Yoda
    queueSort:
      disabled:
      - name: PrioritySort
    score:
      enabled:
`)
	for _, f := range yodaFeatures {
		fmt.Fprintf(&b, "      - name: %s\n        weight: %d\n", f.name, f.weight)
	}
	return b.String()
}

// yodaServices is the file of the service that has Yoda.
func yodaServices(address string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: berth.dev/v1
kind: PluginServices
services:
- name: yoda
  address: %s
  objects: true
  annotations: [yoda.berth.dev]
  plugins:
  - {name: Yoda, points: [queueSort, filter, reserve]}
`, address)
	for _, f := range yodaFeatures {
		fmt.Fprintf(&b, "  - {name: %s, points: [score]}\n", f.name)
	}
	return b.String()
}

// originalProfile enables the original's plugin at the points, and with the weight, of its deployment.
const originalProfile = `profiles:
- plugins:
    filter:
      enabled:
      - name: yoda
    preScore:
      enabled:
      - name: yoda
    score:
      enabled:
      - name: yoda
        weight: 300
`

// berthYodaCommands runs the Berth that has Yoda compiled in, in one process.
func berthYodaCommands(e environment) ([]command, error) {
	e.berth = e.yoda
	return berthWith(e, yodaProfile())
}

// berthYodaServiceCommands runs Berth in one process, and beside it Yoda as a plugin service.
func berthYodaServiceCommands(e environment) ([]command, error) {
	address := "unix://" + filepath.Join(e.dir, "yoda.sock")
	services := filepath.Join(e.dir, "services.yaml")
	if err := os.WriteFile(services, []byte(yodaServices(address)), 0o600); err != nil {
		return nil, fmt.Errorf("write plugin services: %w", err)
	}
	commands, err := berthWith(e, yodaProfile(), "--plugin-services", services)
	if err != nil {
		return nil, err
	}
	service := command{"yoda", []string{e.yoda, "plugin", "serve", "yoda", "--listen", address, "--kubeconfig", e.kubeconfig}}
	return append([]command{service}, commands...), nil
}

// berthWith runs Berth in one process, with a configuration.
func berthWith(e environment, configuration string, flags ...string) ([]command, error) {
	config, err := e.writeConfig(configuration)
	if err != nil {
		return nil, err
	}
	commands, err := berthAllCommands(e)
	if err != nil {
		return nil, err
	}
	commands[0].argv = append(append(commands[0].argv, "--config", config), flags...)
	return commands, nil
}

// kubeYodaCommands runs a kube-scheduler that has the original's rules compiled in.
func kubeYodaCommands(e environment) ([]command, error) {
	file, err := e.writeConfig(kubeClient(e) + originalProfile)
	if err != nil {
		return nil, err
	}
	return []command{{kubeScheduler, []string{e.compiledIn, kubeScheduler, "--config", file, "--secure-port", "0"}}}, nil
}
