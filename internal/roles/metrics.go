package roles

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berth-scheduler/berth/internal/config"
	"github.com/berth-scheduler/berth/internal/member"
	"github.com/berth-scheduler/berth/internal/secureport"
	"github.com/berth-scheduler/berth/internal/source/kube"
)

// kubePrefixes begin the names of the metrics of members that kube-scheduler has too.
var kubePrefixes = []string{"scheduler_", "leader_election_"}

// isKubes reports whether a metric is one of these.
func isKubes(name string) bool {
	return slices.ContainsFunc(kubePrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// memberMetrics is what the members of one process measure, together. A process may run several members of a role, all
// of which have the same metrics: Berth's own are told apart by the label member; those that are kube-scheduler's too
// have kube-scheduler's labels and no other, and are summed.
type memberMetrics struct {
	common   *prometheus.Registry            // what is the process's and no member's
	members  map[string]*prometheus.Registry // by member; complete before anybody gathers
	disabled []string                        // names of metrics that are not told
	// libraries are what is gathered of Kubernetes' libraries, in which a process has one of each metric; complete before anybody gathers.
	libraries kube.LibraryMetrics
}

func newMemberMetrics() *memberMetrics {
	return &memberMetrics{common: prometheus.NewRegistry(), members: make(map[string]*prometheus.Registry)}
}

// buildInfo says what the process was built from, by its labels.
func buildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "1. The labels say what the process was built from: its version, or a commit instead; the commit, if that is known; what with, and for.",
	}, []string{"version", "revision", "goversion", "platform"})
	info.WithLabelValues(cmp.Or(member.Build(), "unknown"), cmp.Or(member.Revision(), "unknown"), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	return info
}

// kubeBuildInfo says, in kube-scheduler's place, which release of Kubernetes that is of, and what Berth was built from.
func kubeBuildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_build_info", Help: "1. The labels are of the release of Kubernetes in whose scheduler's place Berth is, with Berth's version in git_version, and of how Berth was built.",
	}, []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"})
	major, minor, _ := strings.Cut(secureport.Release, ".")
	tree := ""
	switch {
	case member.Modified():
		tree = "dirty"
	case member.Revision() != "":
		tree = "clean"
	}
	info.WithLabelValues(major, minor, "v"+secureport.Release+"+berth."+cmp.Or(member.Build(), "unknown"), member.Revision(), tree, member.Built(), runtime.Version(), runtime.Compiler,
		runtime.GOOS+"/"+runtime.GOARCH).Set(1)
	return info
}

// inPlaceMetrics are what is gathered of Kubernetes' libraries in kube-scheduler's place: what they measure there of what Berth has them do too, to know callers, to read certificates, and to
// ask the API server. Of the rest, which is an API server's, all is zero, as in kube-scheduler.
var inPlaceMetrics = slices.Concat(kube.ClientMetrics, kube.LibraryMetrics{
	"apiserver_client_certificate_expiration_seconds", "apiserver_delegated_authn_*", "apiserver_webhooks_x509_*", "authentication_token_cache_*", "workqueue_*",
})

// gatesEnabled says which feature gates are on, as kube-scheduler does.
func gatesEnabled(gates []config.Gate) prometheus.Collector {
	enabled := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled", Help: "1 for a feature gate that is on, 0 for one that is off, of those that kube-scheduler reads, by its name, and its stage: ALPHA, BETA, or nothing of what is for general use.",
	}, []string{"name", "stage"})
	for _, g := range gates {
		on := 0.0
		if g.On {
			on = 1
		}
		enabled.WithLabelValues(g.Name, g.Stage).Set(on)
	}
	return enabled
}

// asksAPIServer has it told what is measured of requests to an API server.
func (m *memberMetrics) asksAPIServer() {
	if len(m.libraries) == 0 {
		m.libraries = kube.ClientMetrics
	}
}

// of returns where a member registers its metrics.
func (m *memberMetrics) of(member string) *prometheus.Registry {
	if m.members[member] == nil {
		m.members[member] = prometheus.NewRegistry()
	}
	return m.members[member]
}

// Gather implements prometheus.Gatherer.
func (m *memberMetrics) Gather() ([]*dto.MetricFamily, error) {
	families := make(map[string]*dto.MetricFamily)
	var errs prometheus.MultiError
	common, err := m.common.Gather()
	errs.Append(err)
	for _, f := range common {
		families[f.GetName()] = f
	}
	for member, registry := range m.members {
		gathered, err := registry.Gather()
		errs.Append(err)
		for _, f := range gathered {
			errs.Append(merge(families, member, f))
		}
	}
	if len(m.libraries) > 0 {
		gathered, err := m.libraries.Gather()
		errs.Append(err)
		for _, f := range gathered {
			if families[f.GetName()] == nil { // else Berth says it itself
				families[f.GetName()] = f
			}
		}
	}
	out := make([]*dto.MetricFamily, 0, len(families))
	for _, f := range families {
		if slices.Contains(m.disabled, f.GetName()) {
			continue
		}
		slices.SortFunc(f.Metric, func(a, b *dto.Metric) int { return cmp.Compare(labelsKey(a), labelsKey(b)) })
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out, errs.MaybeUnwrap()
}

// merge adds what one member says of a family to what others say.
func merge(families map[string]*dto.MetricFamily, member string, f *dto.MetricFamily) error {
	whole := families[f.GetName()]
	if whole == nil {
		whole = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type, Unit: f.Unit}
		families[f.GetName()] = whole
	}
	if whole.GetType() != f.GetType() {
		return fmt.Errorf("metric %s is a %v of member %s and a %v elsewhere", f.GetName(), f.GetType(), member, whole.GetType())
	}
	for _, metric := range f.Metric {
		if !isKubes(f.GetName()) {
			name := "member"
			metric.Label = append(metric.Label, &dto.LabelPair{Name: &name, Value: &member})
			slices.SortFunc(metric.Label, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
			whole.Metric = append(whole.Metric, metric)
			continue
		}
		at := slices.IndexFunc(whole.Metric, func(other *dto.Metric) bool { return labelsKey(other) == labelsKey(metric) })
		if at < 0 {
			whole.Metric = append(whole.Metric, metric)
			continue
		}
		add(whole.Metric[at], metric)
	}
	return nil
}

// labelsKey is the same for the same labels, which are sorted by name.
func labelsKey(m *dto.Metric) string {
	var b strings.Builder
	for _, l := range m.Label {
		fmt.Fprintf(&b, "%q=%q,", l.GetName(), l.GetValue())
	}
	return b.String()
}

// add adds a metric of the same family and labels: members count different things, so sums are what the process counts.
func add(to, from *dto.Metric) {
	sum := func(a, b float64) *float64 { a += b; return &a }
	switch {
	case to.Counter != nil:
		to.Counter.Value = sum(to.Counter.GetValue(), from.Counter.GetValue())
	case to.Gauge != nil:
		to.Gauge.Value = sum(to.Gauge.GetValue(), from.Gauge.GetValue())
	case to.Histogram != nil: // of the same buckets, since of the same code
		a, b := to.Histogram, from.Histogram
		count := a.GetSampleCount() + b.GetSampleCount()
		a.SampleCount, a.SampleSum = &count, sum(a.GetSampleSum(), b.GetSampleSum())
		for i, bucket := range a.Bucket {
			n := bucket.GetCumulativeCount() + b.Bucket[i].GetCumulativeCount()
			bucket.CumulativeCount = &n
		}
	}
}
