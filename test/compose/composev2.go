package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The version of Compose v2. It speaks to Debian's Docker 20.10 too.
const (
	composeV2Module  = "github.com/docker/compose/v2"
	composeV2Version = "v2.40.3"
)

// buildComposeV2 returns the path of docker-compose v2. It is built in its module's own folder, since its go.mod excludes
// modules, which go install refuses. That takes minutes; the binary is kept in the user's cache directory.
func buildComposeV2(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	name := fmt.Sprintf("compose-%s-%s-%s", composeV2Version, runtime.Version(), runtime.GOARCH)
	binary := filepath.Join(cache, "berth", name, "docker-compose")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(filepath.Dir(binary), 0o755); err != nil {
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", composeV2Module+"@"+composeV2Version).Output()
	var module struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		return "", fmt.Errorf("download %s: %s: %w", composeV2Module, module.Error, err)
	}
	partial := binary + ".partial"
	ldflags := "-s -w -X " + composeV2Module + "/internal.Version=" + composeV2Version
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags="+ldflags, "-o", partial, "./cmd")
	cmd.Dir, cmd.Env = module.Dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", composeV2Module, err, strings.TrimSpace(string(out)))
	}
	return binary, os.Rename(partial, binary)
}
