package member

import "runtime/debug"

// Kubernetes is the release of Kubernetes whose kube-scheduler Berth decides as, and in whose place it may be.
const Kubernetes = "1.36"

// version and revision are set by the linker where the build sees no repository, or shall not depend on what it sees of one:
// -X github.com/berth-scheduler/berth/internal/member.version=….
var version, revision string

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
	return setting("vcs.revision")
}

// Built returns when that commit was made, as RFC 3339 has it, since builds are the same whenever they are made; "" if the build does not say.
func Built() string { return setting("vcs.time") }

// Modified reports whether files were changed since that commit, for all that the build says.
func Modified() bool { return setting("vcs.modified") == "true" }

// Revision returns the commit of the repository that this program was built in; "" if the build does not say.
func Revision() string {
	if revision != "" {
		return revision
	}
	return setting("vcs.revision")
}

// setting returns what the program was built with; "" if that does not say.
func setting(key string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
