package measure_test

import (
	"context"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-scheduler/berth/internal/rpc"
	"github.com/berth-scheduler/berth/test/measure"
)

func TestSamplesAreToldByTheirMedianAndSpread(t *testing.T) {
	s := measure.Sample{3, 1, 2}
	if got := s.Format("%.0f"); got != "2 (1-3)" {
		t.Errorf("three figures: %q", got)
	}
	if got := append(s, 10).Median(); got != 2.5 {
		t.Errorf("median of four: %v", got)
	}
	if got := (measure.Sample{5}).Format("%.1f"); got != "5.0" {
		t.Errorf("one figure: %q", got)
	}
	if got := (measure.Sample)(nil); got.Format("%.1f") != "-" || !math.IsNaN(got.Median()) || !math.IsNaN(got.Quantile(0.5)) {
		t.Errorf("no figure: %q, %v", got.Format("%.1f"), got.Median())
	}
	var hundred measure.Sample
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	if p99, p100 := hundred.Quantile(0.99), hundred.Quantile(1); p99 != 99 || p100 != 100 {
		t.Errorf("of 1 to 100: p99 %v, p100 %v", p99, p100)
	}
	if got := (measure.Sample{6, 8, 5}).Ratios(measure.Sample{2, 0, 5, 1}).Format("%.0f"); got != "2 (1-3)" {
		t.Errorf("ratios: %s", got)
	}
}

func TestProfilesOfARunningProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- rpc.ServeOps(ctx, l, rpc.OpsConfig{Profiling: true}) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	dir := t.TempDir()
	cpu, allocs := filepath.Join(dir, "new", "cpu"), filepath.Join(dir, "allocs")
	if err := measure.CPUProfile(ctx, l.Addr().String(), time.Second, cpu); err != nil {
		t.Fatal(err)
	}
	if err := measure.AllocsProfile(ctx, l.Addr().String(), allocs); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{cpu, allocs} {
		if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "\x1f\x8b") {
			t.Errorf("%s is no profile: %d bytes, %v", file, len(b), err)
		}
	}
	if err := measure.AllocsProfile(ctx, l.Addr().String()+"/no", allocs); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a profile that is not there: %v", err)
	}
}

func TestMachineSaysHowManyCoresThereAre(t *testing.T) {
	if got := measure.Machine(); !strings.Contains(got, " cores") || !strings.Contains(got, "go1.") {
		t.Errorf("%q", got)
	}
}
