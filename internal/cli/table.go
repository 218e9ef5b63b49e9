package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	schedulingv1 "github.com/berth-scheduler/berth/internal/gen/berth/scheduling/v1"
)

// table gathers aligned rows.
type table struct {
	wide   bool
	now    time.Time
	buffer bytes.Buffer
	writer *tabwriter.Writer
}

func newTable(wide bool, now time.Time) *table {
	t := &table{wide: wide, now: now}
	t.writer = tabwriter.NewWriter(&t.buffer, 0, 8, 3, ' ', 0)
	return t
}

// row writes cells. What comes from a server cannot break the table, nor send control characters to a terminal.
func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(printable(cell), "-")
	}
	fmt.Fprintln(t.writer, strings.Join(cells, "\t")) // a buffer takes everything
}

// cells writes the beginning of a row.
func (t *table) cells(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	fmt.Fprintln(t.writer, strings.Join(cells, "\t")) // a buffer takes everything
}

// line ends a table and writes a line of text.
func (t *table) line(format string, args ...any) {
	t.writer.Flush() // a buffer takes everything
	t.buffer.WriteString(printable(fmt.Sprintf(format, args...)) + "\n")
}

// gap ends a table and leaves an empty line before the next.
func (t *table) gap() {
	t.writer.Flush() // a buffer takes everything
	t.buffer.WriteByte('\n')
}

func (t *table) bytes() []byte {
	t.writer.Flush() // a buffer takes everything
	// Cells at the end of a row are padded if a longer row follows.
	lines := strings.Split(t.buffer.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return []byte(strings.Join(lines, "\n"))
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

func (t *table) pods(pods []*schedulingv1.Pod, withNamespace bool) {
	header := []string{"NAME", "STATE", "NODE", "ATTEMPTS", "SINCE"}
	if withNamespace {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if t.wide {
		header = append(header, "PRIORITY", "SHARD", "POSITION", "REQUESTS", "MESSAGE")
	}
	t.row(header...)
	for _, p := range pods {
		cells := []string{p.GetName(), stateName(p.GetState()), p.GetNode(), strconv.Itoa(int(p.GetAttempts())), t.age(p.GetSince())}
		if withNamespace {
			cells = append([]string{p.GetNamespace()}, cells...)
		}
		if t.wide {
			shard, position := "", ""
			if p.GetShard() >= 0 {
				shard = strconv.Itoa(int(p.GetShard()))
			}
			if p.GetState() == schedulingv1.PodState_POD_STATE_ACTIVE {
				position = strconv.Itoa(int(p.GetPosition()))
			}
			message := p.GetMessage()
			if len(p.GetGates()) > 0 && message == "" {
				message = "gates: " + strings.Join(p.GetGates(), ", ")
			}
			cells = append(cells, strconv.Itoa(int(p.GetPriority())), shard, position, amounts(p.GetRequests()), message)
		}
		t.row(cells...)
	}
}

// stateName is the last part of the state's name, in lower case: unknown if there is none.
func stateName(s schedulingv1.PodState) string {
	if s == schedulingv1.PodState_POD_STATE_UNSPECIFIED {
		return "unknown"
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "POD_STATE_"), "_", "-"))
}

func (t *table) nodes(nodes []*schedulingv1.Node) {
	header := []string{"NAME", "STATUS", "PODS", "CPU", "MEMORY", "OTHER"}
	if t.wide {
		header = append(header, "TAINTS", "LABELS")
	}
	t.row(header...)
	for _, n := range nodes {
		state := "schedulable"
		if n.GetUnschedulable() {
			state = "cordoned"
		}
		requested := byName(n.GetRequested())
		var other []string
		for _, r := range n.GetAllocatable() {
			switch r.GetName() {
			case "cpu", "memory", "pods":
			case "ephemeral-storage":
				if t.wide {
					other = append(other, r.GetName()+"="+share(r.GetName(), requested[r.GetName()], r.GetValue()))
				}
			default:
				other = append(other, r.GetName()+"="+share(r.GetName(), requested[r.GetName()], r.GetValue()))
			}
		}
		allocatable := byName(n.GetAllocatable())
		cells := []string{
			n.GetName(), state,
			fmt.Sprintf("%d/%d", n.GetPodCount(), allocatable["pods"]),
			share("cpu", requested["cpu"], allocatable["cpu"]),
			share("memory", requested["memory"], allocatable["memory"]),
			strings.Join(other, ","),
		}
		if t.wide {
			cells = append(cells, strings.Join(n.GetTaints(), ","), labels(n.GetLabels()))
		}
		t.row(cells...)
	}
}

func byName(resources []*schedulingv1.Resource) map[string]int64 {
	values := make(map[string]int64, len(resources))
	for _, r := range resources {
		values[r.GetName()] = r.GetValue()
	}
	return values
}

// share is what is requested of what there is.
func share(name string, requested, allocatable int64) string {
	return amount(name, requested) + "/" + amount(name, allocatable)
}

// amount writes a quantity as Kubernetes does, with the largest unit that loses nothing.
func amount(name string, value int64) string {
	switch {
	case name == "cpu" && value%1000 != 0:
		return strconv.FormatInt(value, 10) + "m"
	case name == "cpu":
		return strconv.FormatInt(value/1000, 10)
	case isBytes(name):
		units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
		unit := 0
		for value != 0 && value%1024 == 0 && unit < len(units)-1 {
			value /= 1024
			unit++
		}
		return strconv.FormatInt(value, 10) + units[unit]
	}
	return strconv.FormatInt(value, 10)
}

// isBytes reports whether a resource is counted in bytes.
func isBytes(name string) bool {
	return name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(name, "hugepages-")
}

// rough writes a quantity of many nodes in three digits or so.
func rough(name string, value int64) string {
	x, units, step := float64(value), []string{"", "k", "M", "G"}, 1000.0
	if name == "cpu" {
		x /= 1000
	}
	if isBytes(name) {
		units, step = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}, 1024
	}
	unit := 0
	for x >= step && unit < len(units)-1 {
		x /= step
		unit++
	}
	digits := 1
	if x >= 100 || x == math.Trunc(x) {
		digits = 0
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + units[unit]
}

func amounts(resources []*schedulingv1.Resource) string {
	parts := make([]string, 0, len(resources))
	for _, r := range resources {
		parts = append(parts, r.GetName()+"="+amount(r.GetName(), r.GetValue()))
	}
	return strings.Join(parts, ",")
}

func (t *table) status(s *schedulingv1.GetStatusResponse) {
	version := versionText(s.GetVersion())
	if s.GetVersion() != nil {
		version += fmt.Sprintf(" (heard %v ago)", time.Duration(s.GetAgeMillis())*time.Millisecond)
	}
	leader := cmp.Or(s.GetLeader(), "none")
	t.row("version", version)
	t.row("leader", leader)
	t.row("source", s.GetSource())
	t.row("nodes", strconv.Itoa(int(s.GetNodes())))
	if e := s.GetEtcd(); e != nil {
		t.row("etcd", etcdText(e))
	}
	t.row("pods", fmt.Sprintf("%d pending, %d assumed, %d bound", s.GetPods().GetPending(), s.GetPods().GetAssumed(), s.GetPods().GetBound()))
	t.gap()
	t.row("ROLE", "ID", "ADDRESS", "VERSION", "LAG", "READY", "WHY NOT")
	for _, m := range s.GetMembers() {
		lag, ready := lagAndReady(m)
		t.row(m.GetRole(), m.GetId(), m.GetAddress(), versionText(m.GetVersion()), lag, ready, m.GetNotReadyBecause())
	}
	t.gap()
	t.shards(s.GetShards())
}

// etcdText says how full etcd is.
func etcdText(e *schedulingv1.Etcd) string {
	text := fmt.Sprintf("%d MiB in use, file %d MiB", e.GetInUseBytes()>>20, e.GetSizeBytes()>>20)
	if e.GetQuotaBytes() > 0 {
		text += fmt.Sprintf(" of %d MiB", e.GetQuotaBytes()>>20)
	}
	if e.GetFull() {
		text += "; FULL: nothing is placed until it has room"
	}
	return text
}

func versionText(v *schedulingv1.Version) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf("%d/%d", v.GetEpoch(), v.GetSeq())
}

// age is how long ago a time was, coarsely, as kubectl writes it.
func (t *table) age(since *timestamppb.Timestamp) string {
	if !since.IsValid() {
		return ""
	}
	d := max(t.now.Sub(since.AsTime()), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func labels(all map[string]string) string {
	parts := make([]string, 0, len(all))
	for _, key := range sortedKeys(all) {
		parts = append(parts, key+"="+all[key])
	}
	return strings.Join(parts, ",")
}
