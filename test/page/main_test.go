package page

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
)

var (
	update = flag.Bool("update", false, "write the pictures of docs/images")
	many   = flag.Int("nodes", 12_000, "how many nodes there are where several share a tile of the map; more than 6000")
	built  = flag.String("berth", "", "the binary to test (default: one that is built from the repository)")
)

// What the tests share.
var (
	binary  string          // berth
	browser context.Context // a running Chromium
	shared  *berth          // with the fleet on it
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "berth-page-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	path, err := findChromium()
	if err != nil {
		return 1, err
	}
	var end context.CancelFunc
	if browser, end, err = startBrowser(path); err != nil {
		return 1, err
	}
	defer end()
	if binary = *built; binary == "" {
		if binary, err = buildBerth(dir); err != nil {
			return 1, err
		}
	}
	if shared, err = run(dir, "127.0.0.1:0"); err != nil {
		return 1, err
	}
	defer shared.stop()
	if err := shared.apply(fleet()...); err != nil {
		return 1, fmt.Errorf("apply the fleet: %w", err)
	}
	if err := shared.settle(unplaceable); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
