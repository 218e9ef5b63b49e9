package kube

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-scheduler/berth/internal/quantity"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// podPage is how many pods are asked for at a time where all of them are gone through.
const podPage = 5000

// listTries is how often a list in pages is begun, which is too old to be gone on with if it takes long.
const listTries = 3

// PodResources is what pods request, and are limited to, as kube-scheduler tells at /metrics/resources. The zero value has no pods. One goroutine at a time may use it.
//
// Of a pod some 300 bytes are kept. What the mirror keeps of pods would not do: it has not what they are limited to, nor those that others are to schedule.
type PodResources struct {
	pods      []podUse
	uses      []use             // of all pods, one after the other
	texts     map[string]string // names that many pods share, once
	resources map[v1.ResourceName]*v1.ResourceName
}

type podUse struct {
	namespace, name, node, scheduler string
	priority                         int32
	prioritized                      bool
	from, to                         int // of uses
}

// use is how much of a resource a pod requests, or is limited to.
type use struct {
	resource *v1.ResourceName
	limit    bool
	amount   float64
}

// PodResources lists the pods of the cluster, but for those that have come to their end, in pages. An error is the API server's, or ctx's.
func (s *Source) PodResources(ctx context.Context) (*PodResources, error) {
	return s.podResources(ctx, podPage)
}

func (s *Source) podResources(ctx context.Context, page int64) (*PodResources, error) {
	for try := 1; ; try++ {
		all, err := s.podsByPages(ctx, page)
		if err == nil || try == listTries || !apierrors.IsResourceExpired(err) {
			return all, err
		}
	}
}

func (s *Source) podsByPages(ctx context.Context, page int64) (*PodResources, error) {
	all := new(PodResources)
	// Without a resource version: with "0" an API server leaves the limit out of account, and sends all pods at once. From release 1.34 on, pages are of its cache too.
	for options := (metav1.ListOptions{FieldSelector: livePods, Limit: page}); ; {
		call, done := context.WithTimeout(ctx, listTimeout)
		list, err := s.scrapes.CoreV1().Pods(metav1.NamespaceAll).List(call, options)
		done()
		if err != nil {
			return nil, fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			all.Add(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

// Add adds a pod, of which nothing is kept but what is told, unless it has come to its end.
func (p *PodResources) Add(pod *v1.Pod) {
	if pod.Spec.NodeName != "" && (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed) {
		return
	}
	u := podUse{
		namespace: p.shared(pod.Namespace), name: strings.Clone(pod.Name), node: p.shared(pod.Spec.NodeName), scheduler: p.shared(pod.Spec.SchedulerName), from: len(p.uses),
	}
	if pod.Spec.Priority != nil {
		u.priority, u.prioritized = *pod.Spec.Priority, true
	}
	p.use(quantity.PodRequests(pod, resourcehelper.PodResourcesOptions{}), false)
	p.use(quantity.PodLimits(pod, resourcehelper.PodResourcesOptions{}), true)
	u.to = len(p.uses)
	slices.SortFunc(p.uses[u.from:], func(a, b use) int { return cmp.Compare(*a.resource, *b.resource) })
	p.pods = append(p.pods, u)
}

func (p *PodResources) use(list v1.ResourceList, limit bool) {
	for name, q := range list {
		if q.IsZero() {
			continue
		}
		of := p.resources[name]
		if of == nil {
			if p.resources == nil {
				p.resources = make(map[v1.ResourceName]*v1.ResourceName)
			}
			is := v1.ResourceName(strings.Clone(string(name)))
			of, p.resources[is] = &is, &is
		}
		p.uses = append(p.uses, use{of, limit, quantity.Approximate(q)})
	}
}

// shared returns a text that is kept once.
func (p *PodResources) shared(text string) string {
	is, ok := p.texts[text]
	if !ok {
		if p.texts == nil {
			p.texts = make(map[string]string)
		}
		is = strings.Clone(text)
		p.texts[is] = is
	}
	return is
}

// WriteTo writes Prometheus' text, in Prometheus' order.
func (p *PodResources) WriteTo(w io.Writer) (int64, error) {
	slices.SortFunc(p.pods, func(a, b podUse) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.node, b.node), cmp.Compare(a.name, b.name))
	})
	counted := &counting{w: w}
	b := bufio.NewWriterSize(counted, 64<<10)
	p.family(b, true, "kube_pod_resource_limit", "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.")
	p.family(b, false, "kube_pod_resource_request", "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.")
	err := b.Flush() // which has the error of each write before
	return counted.n, err
}

// counting counts what is written.
type counting struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (p *PodResources) family(b *bufio.Writer, limits bool, name, help string) {
	said := false
	for i := range p.pods {
		pod := &p.pods[i]
		for _, u := range p.uses[pod.from:pod.to] {
			if u.limit != limits {
				continue
			}
			if !said {
				said = true
				fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
			}
			priority := ""
			if pod.prioritized {
				priority = strconv.Itoa(int(pod.priority))
			}
			_, _ = b.WriteString(name)
			for k, label := range [...][2]string{ // sorted
				{"namespace", pod.namespace}, {"node", pod.node}, {"pod", pod.name}, {"priority", priority}, {"resource", string(*u.resource)}, {"scheduler", pod.scheduler}, {"unit", unitOf(*u.resource)},
			} {
				_ = b.WriteByte("{,"[min(k, 1)])
				_, _ = b.WriteString(label[0])
				_, _ = b.WriteString(`="`)
				_, _ = escaped.WriteString(b, label[1])
				_ = b.WriteByte('"')
			}
			_, _ = b.WriteString("} ")
			_, _ = b.Write(strconv.AppendFloat(b.AvailableBuffer(), u.amount, 'g', -1, 64))
			_ = b.WriteByte('\n')
		}
	}
}

// unitOf returns what kube-scheduler says a resource is counted in; "": nothing.
func unitOf(name v1.ResourceName) string {
	switch {
	case name == v1.ResourceCPU:
		return "cores"
	case name == v1.ResourceMemory, name == v1.ResourceStorage, name == v1.ResourceEphemeralStorage, strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), v1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}
