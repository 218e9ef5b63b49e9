package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-scheduler/berth/internal/source"
)

// The releases of Kubernetes, 1.x, whose API servers Berth is for.
const oldest, newest = 34, 36

// versions finds whether the API server is of a release that Berth knows.
func (x *examined) versions(ctx context.Context) ([]Finding, error) {
	response, text, err := x.get(ctx, "/version", "")
	if err != nil {
		return nil, err
	}
	var v version.Info
	if response.StatusCode != http.StatusOK || json.Unmarshal(text, &v) != nil {
		return nil, fmt.Errorf("/version is answered with %s", response.Status)
	}
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil || v.Major != "1" {
		return []Finding{{Level: Note, What: fmt.Sprintf("the API server is %s, and Berth does not know what that is", v.GitVersion)}}, nil
	}
	is := fmt.Sprintf("the API server is of Kubernetes 1.%d (%s)", minor, v.GitVersion)
	switch {
	case minor < oldest:
		return []Finding{{Level: Fail, What: fmt.Sprintf("%s: Berth decides as kube-scheduler 1.%d, and reads what API servers from 1.%d on serve", is, newest, oldest), Fix: "upgrade the control plane first"}}, nil
	case minor > newest:
		return []Finding{{Level: Note, What: fmt.Sprintf("%s, newer than 1.%d, as which Berth decides: what kube-scheduler has learnt since, it does not do", is, newest)}}, nil
	}
	return []Finding{{Level: OK, What: is}}, nil
}

// pods finds pods that Berth would be asked to place, and cannot judge, and such as wait for somebody else.
func (x *examined) pods(ctx context.Context) ([]Finding, error) {
	devices := make(map[string]string) // DeviceClasses by the extended resource that they stand for
	classes, err := x.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err == nil {
		for i := range classes.Items {
			if name := classes.Items[i].Spec.ExtendedResourceName; name != nil {
				devices[*name] = classes.Items[i].Name
			}
		}
	}
	var total int
	unsupported, byDevice, others := make(map[string][]string), make(map[string][]string), make(map[string][]string)
	each := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return x.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	})
	each.PageSize = pageSize
	listErr := each.EachListItem(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"}, func(o runtime.Object) error {
		pod := o.(*corev1.Pod)
		name := pod.Namespace + "/" + pod.Name
		if !slices.Contains(x.cfg.Names, pod.Spec.SchedulerName) {
			if pod.Spec.NodeName == "" {
				others[pod.Spec.SchedulerName] = append(others[pod.Spec.SchedulerName], name)
			}
			return nil
		}
		total++
		if why := source.ReducePod(pod).Class.Unsupported; why != "" {
			unsupported[why] = append(unsupported[why], name)
		} else if resource := askedDevice(pod, devices); resource != "" {
			byDevice[resource] = append(byDevice[resource], name)
		}
		return nil
	})
	if listErr != nil {
		listErr = fmt.Errorf("list pods, of which %d were read: %w", total, listErr)
	}
	told := make(map[string]bool) // resources that nodes have, by a device plugin
	if len(byDevice) > 0 {
		nodes := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return x.client.CoreV1().Nodes().List(ctx, o)
		})
		if err := nodes.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			for name, n := range o.(*corev1.Node).Status.Allocatable {
				told[string(name)] = told[string(name)] || !n.IsZero()
			}
			return nil
		}); err != nil {
			listErr = errors.Join(listErr, fmt.Errorf("list nodes: %w", err))
		}
	}
	var out []Finding
	for why, names := range unsupported {
		out = append(out, Finding{Level: Fail, What: fmt.Sprintf("%d pods ask for what Berth does not judge (%s): %s", len(names), why, named(names)),
			Fix: "leave them to another scheduler, by spec.schedulerName: of Berth they stay pending, when they are created anew"})
	}
	for resource, names := range byDevice {
		if told[resource] {
			out = append(out, Finding{Level: Note, What: fmt.Sprintf("%d pods ask for %s, which the DeviceClass %s stands for: Berth takes what device plugins tell of it, and no devices: %s", len(names), resource, devices[resource], named(names))})
			continue
		}
		out = append(out, Finding{Level: Fail, What: fmt.Sprintf("%d pods ask for %s, which the DeviceClass %s stands for: Berth does not read these: %s", len(names), resource, devices[resource], named(names)),
			Fix: "leave them to another scheduler, by spec.schedulerName, or have a device plugin tell the resource"})
	}
	for scheduler, names := range others {
		out = append(out, Finding{Level: Note, What: fmt.Sprintf("%d pods wait for the scheduler %q, which Berth is not: %s", len(names), scheduler, named(names)),
			Fix: "keep that one, or give Berth's configuration a profile of its name"})
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(string(a.Level)+a.What, string(b.Level)+b.What) })
	if err != nil && !apierrors.IsNotFound(err) {
		listErr = errors.Join(listErr, fmt.Errorf("list device classes, of which extended resources may be: %w", err))
	}
	if listErr == nil && !slices.ContainsFunc(out, func(f Finding) bool { return f.Level == Fail }) {
		out = append(out, Finding{Level: OK, What: fmt.Sprintf("of %d pods of %s, Berth can judge all", total, strings.Join(x.cfg.Names, ", "))})
	}
	return out, listErr
}

// askedDevice returns a resource that a pod asks for and that a DeviceClass stands for.
func askedDevice(pod *corev1.Pod, devices map[string]string) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if devices[string(name)] != "" {
				return string(name)
			}
		}
	}
	return ""
}

// schedulers finds who else may place the same pods.
func (x *examined) schedulers(ctx context.Context) ([]Finding, error) {
	if x.cfg.LeaseName == "" {
		return []Finding{{Level: Fail, What: "leader election is off: nothing keeps kube-scheduler, or another Berth, from placing the same pods", Fix: "leave it on: --leader-elect, or leaderElection of the configuration"}}, nil
	}
	name := x.cfg.LeaseNamespace + "/" + x.cfg.LeaseName
	var out []Finding
	if name != "kube-system/kube-scheduler" {
		out = append(out, Finding{Level: Note, What: fmt.Sprintf("the Lease is %s: a kube-scheduler with its own, kube-system/kube-scheduler, places the same pods", name), Fix: "take the default, unless the names of the profiles are Berth's alone"})
	}
	lease, err := x.client.CoordinationV1().Leases(x.cfg.LeaseNamespace).Get(ctx, x.cfg.LeaseName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return append(out, Finding{Level: OK, What: fmt.Sprintf("nobody has the Lease %s", name)}), nil
	case err != nil:
		return out, fmt.Errorf("read the Lease %s: %w", name, err)
	}
	holder, lasts := "", time.Duration(0)
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		lasts = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	now := x.now().Add(x.skew) // about as who holds it has it
	switch {
	case holder == "":
		out = append(out, Finding{Level: OK, What: fmt.Sprintf("nobody holds the Lease %s", name)})
	case lease.Spec.RenewTime != nil && now.Sub(lease.Spec.RenewTime.Time) > lasts+mostSkew:
		out = append(out, Finding{Level: OK, What: fmt.Sprintf("%s held the Lease %s, and has not renewed it for %v", holder, name, now.Sub(lease.Spec.RenewTime.Time).Round(time.Second))})
	default:
		out = append(out, Finding{Level: Note, What: fmt.Sprintf("%s holds the Lease %s: Berth stands by, ready, until that one gives it up, or has not renewed it for %v", holder, name, lasts)})
	}
	return out, nil
}

// probe asks for a node, which costs the API server little, and is let through or refused as others of the user's requests are.
func (x *examined) probe(ctx context.Context) (*http.Response, error) {
	response, _, err := x.get(ctx, "/api/v1/nodes", "limit=1")
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusForbidden {
		err = fmt.Errorf("/api/v1/nodes is answered with %s", response.Status)
	}
	return response, err
}

// unfair are the priority levels in which requests of everybody wait.
var unfair = []string{"catch-all", "global-default", "workload-low"}

// fairness finds how the API server lets the user's requests through.
func (x *examined) fairness(ctx context.Context) ([]Finding, error) {
	response, err := x.probe(ctx)
	if err != nil {
		return nil, err
	}
	schema, level := response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid"), response.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
	if schema == "" {
		return []Finding{{Level: Note, What: "the API server has no priority and fairness: requests of all users wait in one line"}}, nil
	}
	schemas, err := x.client.FlowcontrolV1().FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return []Finding{{Level: Note, What: fmt.Sprintf("the user's requests are of the FlowSchema with the uid %s, and which that is it may not see: %v", schema, err)}}, nil
	}
	levels, err := x.client.FlowcontrolV1().PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := make(map[string]string)
	for i := range schemas.Items {
		names[string(schemas.Items[i].UID)] = schemas.Items[i].Name
	}
	for i := range levels.Items {
		names[string(levels.Items[i].UID)] = levels.Items[i].Name
	}
	found := Finding{Level: OK, What: fmt.Sprintf("the user's requests are of the FlowSchema %s, at the priority level %s", names[schema], names[level])}
	if slices.Contains(unfair, names[level]) {
		found.Level, found.What = Note, found.What+", where others' wait too: binds wait with them when the API server is busy"
		found.Fix = "make a FlowSchema for the user with the priority level workload-high, as the one named kube-scheduler is for system:kube-scheduler"
	}
	return []Finding{found}, nil
}

const (
	probes      = 20
	slowAnswer  = 100 * time.Millisecond // in the median
	mostSkew    = 2 * time.Second        // that nobody has to care about, the seconds of a header included
	wrongClock  = time.Minute
	slowWrite   = 0.1     // s, at which etcd is slow for 99 of 100 writes
	largeEtcd   = 6 << 30 // of the 8 GiB that etcd recommends at most
	defaultSize = 2 << 30 // what etcd takes if nothing else is said
)

// latency finds how fast the API server answers, and what time it has.
func (x *examined) latency(ctx context.Context) ([]Finding, error) {
	var took []time.Duration
	var skew time.Duration
	for range probes {
		began := x.now()
		response, err := x.probe(ctx)
		if err != nil {
			return nil, err
		}
		ended := x.now()
		took = append(took, ended.Sub(began))
		if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			skew = at.Add(500 * time.Millisecond).Sub(began.Add(ended.Sub(began) / 2)) // the header has whole seconds
		}
	}
	x.skew = skew
	slices.Sort(took)
	median := took[len(took)/2]
	answers := Finding{Level: OK, What: fmt.Sprintf("the API server answers in %v (median of %d)", median.Round(10*time.Microsecond), probes)}
	if median > slowAnswer {
		answers.Level, answers.Fix = Note, "run Berth near it: each bind is a request"
	}
	clock := Finding{Level: OK, What: "this machine's clock is that of the API server, by a second"}
	switch {
	case skew.Abs() > wrongClock:
		clock = Finding{Level: Fail, What: fmt.Sprintf("this machine's clock differs from the API server's by %v", skew.Round(time.Second)), Fix: "set it: certificates and tokens are judged by it, and the ages of pods"}
	case skew.Abs() > mostSkew:
		clock = Finding{Level: Note, What: fmt.Sprintf("this machine's clock differs from the API server's by %v", skew.Round(time.Second)), Fix: "set it: the times of events are its own. Leases go by how long something takes, and not by it"}
	}
	return []Finding{answers, clock}, nil
}
