package member

import "runtime/debug"

// version is set by the linker where the build sees no repository: -X github.com/berth-scheduler/berth/internal/member.version=….
var version string

// Build returns what this program was built from: the module's version, or else the commit; "" if the build does not say.
func Build() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
