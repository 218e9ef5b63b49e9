package measure

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine describes, in one line, what the figures were measured on. What cannot be found out is left out.
func Machine() string {
	parts := []string{fmt.Sprintf("%d cores", runtime.NumCPU())}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		parts = append(parts, model)
	}
	if memory := field("/proc/meminfo", "MemTotal"); memory != "" {
		var kib int64
		if _, err := fmt.Sscanf(memory, "%d kB", &kib); err == nil {
			parts = append(parts, fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20)))
		}
	}
	return strings.Join(append(parts, runtime.GOOS+"/"+runtime.GOARCH, runtime.Version()), ", ")
}

// field returns the value of the first line "name: value" of a file.
func field(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
