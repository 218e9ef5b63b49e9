package measure

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// CPUProfile records for that long, in whole seconds, what the process whose /debug/pprof/ is at an address (host:port) does,
// and writes it to a file, for go tool pprof.
func CPUProfile(ctx context.Context, address string, length time.Duration, file string) error {
	seconds := max(int(length.Seconds()), 1)
	return fetch(ctx, "http://"+address+"/debug/pprof/profile?seconds="+strconv.Itoa(seconds), file)
}

// AllocsProfile writes what the process has allocated since its start to a file, for go tool pprof.
func AllocsProfile(ctx context.Context, address, file string) error {
	return fetch(ctx, "http://"+address+"/debug/pprof/allocs", file)
}

func fetch(ctx context.Context, url, file string) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("fetch profile: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("fetch profile: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch profile: %s answers %s; does the process run with --profiling?", url, response.Status)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	defer func() {
		if closed := out.Close(); err == nil {
			err = closed
		}
	}()
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("write profile %s: %w", file, err)
	}
	return nil
}
