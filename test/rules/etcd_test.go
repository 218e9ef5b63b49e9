package rules

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shippedEtcds returns the flags of every etcd that manifests, the compose file and pages have people start, by where that is. The
// chart's is compared with the kustomization's in test/deploy, and package coord asks the embedded one itself.
func shippedEtcds(t *testing.T) map[string]map[string]string {
	t.Helper()
	all := make(map[string]map[string]string)
	for _, w := range workloads(t) {
		for _, c := range w.template.Spec.Containers {
			if len(c.Command) > 0 && c.Command[0] == "etcd" {
				all[kustomizeDir+", "+w.name] = flagsOf(c.Args)
			}
		}
	}
	for name, s := range readCompose(t).Services {
		if len(s.Command) == 0 || s.Command[0] != "etcd" {
			continue
		}
		flags := flagsOf(s.Command[1:])
		for variable, value := range s.Environment {
			if flag, ok := strings.CutPrefix(variable, "ETCD_"); ok {
				flags[strings.ReplaceAll(strings.ToLower(flag), "_", "-")] = value
			}
		}
		all[composeFile+", "+name] = flags
	}
	line := regexp.MustCompile(`(?m)^(?:\S*/)?etcd --(.*)$`)
	pair := regexp.MustCompile(`([a-z-]+)[ =](\S+)`)
	for _, name := range pages(t) {
		for _, text := range code(readFile(t, name)) {
			for _, m := range line.FindAllStringSubmatch(text, -1) {
				flags := make(map[string]string)
				for flag := range strings.SplitSeq(m[1], " --") {
					if p := pair.FindStringSubmatch(flag); p != nil {
						flags[p[1]] = p[2]
					}
				}
				all[name] = flags
			}
		}
	}
	if len(all) < 5 {
		t.Fatalf("found the etcds %v, want those of the manifests, the compose file's three and README's", all)
	}
	return all
}

// Without compaction an etcd keeps every value that a key ever had; without a quota of its own, nobody has thought about its disk.
func TestEveryEtcdThatWeShipCompactsAndHasAQuota(t *testing.T) {
	for from, flags := range shippedEtcds(t) {
		if mode := flags["auto-compaction-mode"]; mode != "periodic" {
			t.Errorf("%s compacts by %q, want periodic: what a revision holds has no bound that is worth its name", from, mode)
		}
		quota, err := strconv.ParseInt(flags["quota-backend-bytes"], 10, 64)
		if err != nil || quota < 256<<20 || quota > 8<<30 {
			t.Errorf("%s has the quota %q, want 256 MiB to 8 GiB", from, flags["quota-backend-bytes"])
		}
		// Lists of all that there is may take a minute. The rest is docs/operations.md's reckoning: etcd keeps 2.1 times what it is told to, and
		// nobody but an administrator may compact it besides.
		kept, err := time.ParseDuration(flags["auto-compaction-retention"])
		if err != nil || kept < time.Minute {
			t.Errorf("%s keeps %q of the past, want a minute or more", from, flags["auto-compaction-retention"])
		}
		const writes, overhead = 3.5 * (1 << 20), 1.4
		if needs := 2.1 * kept.Seconds() * writes * overhead; needs > float64(quota)/2 {
			t.Errorf("%s keeps %q of the past, in which %.0f MiB are written, of a quota of %d MiB", from, flags["auto-compaction-retention"], needs/(1<<20), quota>>20)
		}
	}
}

// Who is a member of etcd has all of it, whatever etcd's users may do.
func TestOnlyEtcdIsAMemberOfTheEtcdsThatWeShip(t *testing.T) {
	for from, flags := range shippedEtcds(t) {
		if flags["listen-peer-urls"] == "" {
			continue // README's, on loopback
		}
		for flag, want := range map[string]string{
			"peer-cert-allowed-cn": "etcd", "client-cert-allowed-hostname": "member.berth.internal", "enable-grpc-gateway": "false",
		} {
			if flags[flag] != want {
				t.Errorf("%s has --%s=%s, want %s", from, flag, flags[flag], want)
			}
		}
	}
}
