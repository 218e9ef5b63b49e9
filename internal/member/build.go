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
	return setting(info, "vcs.revision")
}

// Revision returns the commit of the repository that this program was built in; "" if the build does not say.
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return setting(info, "vcs.revision")
}

// setting returns what a program was built with; "" if that does not say.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
