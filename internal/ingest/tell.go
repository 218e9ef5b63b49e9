package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/source"
)

// PluginPodUnsupported stands where a plugin's name stands, for pods that cannot be told to replicas.
const PluginPodUnsupported = "PodUnsupported"

const (
	// maxText is the longest text, in bytes, that is told of an object which cannot be told as it is. No name is longer.
	maxText = 1024
	// keptRequests is how many resources such a pod goes on to request if nothing else helps, besides those that all nodes have,
	// and how many a node goes on to have that cannot be told.
	keptRequests = 64
	// keptVolumes is how many claims and how many disks such a pod goes on to use then, and keptMonitors how many monitors a disk has.
	keptVolumes  = 32
	keptMonitors = 8
	// maxNodeResources is how many resources a node may have besides those that all have, and maxResources how many all nodes may have
	// together: each is a column with a place for every node, in every process.
	maxNodeResources = 128
	maxResources     = 2048
	// maxReason bounds what is said of it.
	maxReason = 256
)

// Telling makes the fold ask, before it applies anything of what a source tells, whether it can be told to replicas; see
// wire.Tellable. What cannot is told otherwise:
//
//   - A pod becomes one of a class that is unsupported, which says why. If it is on a node already, its requests, its host
//     ports and volumes, and what others' selectors see of it, count on.
//   - Of a node, what its images are is left out if that is all that is in the way. Else the node is unsupported: no pod is
//     placed on it, and those that are there count.
//   - Of a node with more than 128 resources of its own, or with new ones where all nodes together have 2,048 already, those beyond
//     are left out: pods that ask for them fit nowhere there. Kubernetes' own are kept before others, and then those whose names come first.
//   - Any other object is told with texts that can be told, or, if it is too large, as one that says nothing of any pod, or as its
//     kind's cluster.Object.Unsupported has it.
//
// A text that cannot be told is replaced by another, the same for the same text and another one for another text, so that what
// is told later of the same object finds it. Unsupported hears of every object that is so, but of pods, when its delta has been
// applied.
func Telling(tellable func(cluster.Delta) error, unsupported func(source.Unsupported)) Option {
	return func(f *Fold) {
		f.tellable, f.unsupported = tellable, unsupported
		f.resources.node, f.resources.all = maxNodeResources, maxResources
	}
}

// Sound returns a text that can be told to replicas: the text itself, unless it is not valid UTF-8 or very long.
func Sound(text string) string { return sound(text) }

// Reason returns what can be told to replicas of why something is so: Sound, and at most 256 bytes of it.
func Reason(text string) string { return startOf(sound(text), maxReason) }

func sound(text string) string {
	if len(text) <= maxText && utf8.ValidString(text) {
		return text
	}
	if !utf8.ValidString(text) {
		text = strconv.QuoteToASCII(text)
	}
	if len(text) <= maxText {
		return text
	}
	h := fnv.New64a()
	h.Write([]byte(text)) // it never fails
	return fmt.Sprintf("%s...%016x", startOf(text, maxText-19), h.Sum64())
}

// startOf returns at most n bytes of a text that is valid, and valid.
func startOf(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// mended returns a deep copy of a value in which every text is sound, and which was not: the first, "" if all were.
func mended[T any](value T) (out T, bad string) {
	mend(reflect.ValueOf(&value).Elem(), "", &bad)
	return value, bad
}

// mend changes a value that can be set. What it points to is copied before.
func mend(v reflect.Value, path string, bad *string) {
	switch v.Kind() {
	case reflect.String:
		was := v.String()
		is := sound(was)
		if is == was {
			return
		}
		if v.SetString(is); *bad == "" {
			what := "is too long"
			if !utf8.ValidString(was) {
				what = "is not valid UTF-8"
			}
			*bad = fmt.Sprintf("%s %s: %s", path, what, startOf(is, 64))
		}
	case reflect.Slice:
		if v.Len() == 0 {
			return
		}
		v.Set(reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, v.Len()), v))
		for i := range v.Len() {
			mend(v.Index(i), fmt.Sprintf("%s[%d]", path, i), bad)
		}
	case reflect.Interface: // an object, which is called by its type
		if v.IsNil() {
			return
		}
		was := v.Elem().Elem()
		is := reflect.New(was.Type())
		is.Elem().Set(was)
		mend(is.Elem(), was.Type().Name(), bad)
		v.Set(is)
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if path != "" && !v.Type().Field(i).Anonymous {
				name = path + "." + name
			}
			mend(v.Field(i), name, bad)
		}
	}
}

// reason says why something cannot be told.
func reason(bad string, why error) string {
	if bad == "" {
		bad = why.Error()
	}
	return Reason("Berth cannot tell its parts of it: " + sound(bad))
}

var errUntellable = errors.New("cannot be told to replicas, nor can what stands for it")

// tell returns a delta that can be told, and what was in the way of telling it as it is. If it is too large, shrink leaves out
// what makes it so; it is told what is in the way.
func tell[D cluster.Delta](f *Fold, d D, shrink func(*D, string)) (D, string, error) {
	first := f.tellable(d)
	if first == nil {
		return d, "", nil
	}
	d, bad := mended(d)
	why := f.tellable(d)
	if why != nil {
		shrink(&d, reason(bad, first))
		why = f.tellable(d)
	}
	if why != nil {
		return d, "", fmt.Errorf("%T: %w: %w", d, errUntellable, why)
	}
	return d, reason(bad, first), nil
}

// untoldNode says why a node cannot be told, if it cannot.
func (f *Fold) untoldNode(n *cluster.Node) error { return f.tellable(cluster.NodeSet{Node: *n}) }

// TooManyResources says why a state should not take a node for the resources that it brings, nil if it may: it has more than 128 of its
// own, or all nodes would have more than 2,048.
func TooManyResources(st *cluster.State, n *cluster.Node) error {
	_, err := fewEnough(st, n.Allocatable, maxNodeResources, maxResources)
	return err
}

// fewEnough returns those of a node's resources, in their order, that a state should take, and why not all; ofNode and ofAll bound those of
// the node and those of all nodes, but 0 bounds none. Those that all nodes have do not count.
func fewEnough(st *cluster.State, all []cluster.Quantity, ofNode, ofAll int) ([]cluster.Quantity, error) {
	// 1. How many are there?
	fresh := func(name string) bool {
		_, known := st.Resource(sound(name))
		return !known
	}
	own, unknown := 0, 0
	for _, q := range all {
		if basic(q.Name) {
			continue
		}
		if own++; fresh(q.Name) {
			unknown++
		}
	}
	var why error
	switch {
	case ofNode > 0 && own > ofNode:
		why = fmt.Errorf("it has %d different resources, which is more than %d", own, ofNode)
	case ofAll > 0 && unknown > 0 && st.Resources()+unknown > ofAll:
		why = fmt.Errorf("it has %d resources that no other node has, and with them there are more than %d", unknown, ofAll)
	default:
		return all, nil
	}
	// 2. Kubernetes' own come first: they matter to more pods than others.
	ranked := slices.SortedFunc(slices.Values(all), func(a, b cluster.Quantity) int {
		return cmp.Or(cmp.Compare(rank(a.Name), rank(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	room := ofAll - st.Resources()
	keep := make(map[string]bool)
	own = 0
	for _, q := range ranked {
		switch {
		case basic(q.Name):
		case ofNode > 0 && own == ofNode:
			continue
		case ofAll > 0 && fresh(q.Name):
			if room <= 0 {
				continue
			}
			room--
			own++
		default:
			own++
		}
		keep[q.Name] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(q cluster.Quantity) bool { return !keep[q.Name] }), why
}

// rank orders resources by whose they are: 0 for those that all nodes have, 1 for other ones of Kubernetes' own, 2 for all others.
func rank(name string) int {
	switch {
	case basic(name):
		return 0
	case !strings.Contains(name, "/"), strings.Contains(name, "kubernetes.io/"):
		return 1
	}
	return 2
}

// tellableNode returns what is told of a node that cannot be told as it is.
func (f *Fold) tellableNode(seen cluster.Node, first error) (cluster.Node, error) {
	untold := f.untoldNode
	// 1. Without the images: they decide nothing but a score.
	plain := seen
	plain.Images = nil
	for _, image := range seen.Images {
		if _, bad := mended(image); bad == "" {
			plain.Images = append(plain.Images, image)
		}
	}
	if untold(&plain) == nil {
		return plain, nil
	}
	plain.Images = nil
	why := untold(&plain)
	if why == nil {
		return plain, nil
	}
	// 2. With other texts.
	node, bad := mended(plain)
	node.Unsupported = reason(bad, first)
	if untold(&node) == nil {
		return node, nil
	}
	// 3. With the name, and what its pods are counted against.
	node.Labels, node.Taints, node.Features = nil, nil, nil
	node.Allocatable = fewer(node.Allocatable)
	if why := untold(&node); why != nil {
		return node, fmt.Errorf("node %q: %w: %w", node.Name, errUntellable, why)
	}
	return node, nil
}

// basic reports whether a resource is one that all nodes have.
func basic(name string) bool {
	return slices.Contains([]string{"cpu", "memory", "ephemeral-storage", "pods"}, name)
}

// fewer returns those of some quantities that all nodes have, and some of the others.
func fewer(all []cluster.Quantity) []cluster.Quantity {
	var out []cluster.Quantity
	others := 0
	for _, q := range all {
		if !basic(q.Name) {
			if others++; others > keptRequests {
				continue
			}
		}
		out = append(out, q)
	}
	return out
}

// tellablePod asks about all deltas that a pod may need.
func (f *Fold) tellablePod(seen *source.Pod, ids *identity) error {
	if err := f.tellable(cluster.PodSet{Pod: seen.Pod}); err != nil {
		return err
	}
	if ids.newClass {
		if err := f.tellable(cluster.ClassDefined{ID: ids.class, Spec: seen.Class}); err != nil {
			return err
		}
	}
	if ids.newSet {
		return f.tellable(cluster.LabelsDefined{ID: ids.labels, Set: seen.Labels})
	}
	return nil
}

// substitute returns what is told of a pod that cannot be told as it is.
func (f *Fold) substitute(seen source.Pod, first error) (source.Pod, identity, error) {
	untold := func(seen *source.Pod) (identity, error) {
		ids := f.identify(seen)
		return ids, f.tellablePod(seen, &ids)
	}
	// 1. With other texts, and without ports that are none.
	pod, bad := mended(seen)
	pod.Class.HostPorts = slices.DeleteFunc(pod.Class.HostPorts, func(p cluster.HostPort) bool { return p.Port < 1 || p.Port > 1<<16-1 })
	pod.Class.UnsupportedPlugin, pod.Class.Unsupported = PluginPodUnsupported, reason(bad, first)
	ids, why := untold(&pod)
	if why == nil {
		return pod, ids, nil
	}
	// 2. With what it takes from its node, and what others' selectors see of it.
	pod.Gates = pod.Gates[:min(len(pod.Gates), 1)]
	ports := pod.Class.HostPorts
	pod.Class = cluster.ClassSpec{
		SchedulerName: pod.Class.SchedulerName,
		Requests:      pod.Class.Requests, NonZeroCPU: pod.Class.NonZeroCPU, NonZeroMemory: pod.Class.NonZeroMemory, HostPorts: ports,
		Disks:             pod.Class.Disks,
		UnsupportedPlugin: pod.Class.UnsupportedPlugin, Unsupported: pod.Class.Unsupported,
	}
	if ids, why = untold(&pod); why == nil {
		return pod, ids, nil
	}
	// 3. With less of that.
	pod.Labels = cluster.LabelSet{Namespace: pod.Labels.Namespace, Claims: pod.Labels.Claims[:min(len(pod.Labels.Claims), keptVolumes)]}
	pod.Class.Requests = fewer(pod.Class.Requests)
	pod.Class.HostPorts = ports[:min(len(ports), keptRequests)]
	pod.Class.Disks = pod.Class.Disks[:min(len(pod.Class.Disks), keptVolumes)]
	for i := range pod.Class.Disks { // mended has made them the pod's own
		disk := &pod.Class.Disks[i]
		disk.Monitors = disk.Monitors[:min(len(disk.Monitors), keptMonitors)]
	}
	if ids, why = untold(&pod); why != nil {
		return pod, ids, fmt.Errorf("pod %s/%s: %w: %w", pod.Namespace, pod.Name, errUntellable, why)
	}
	return pod, ids, nil
}
