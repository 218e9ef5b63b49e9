package pluginhost

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
	"github.com/berth-scheduler/berth/internal/quantity"
)

// Passage passes on to a service what an [Inquiry] elsewhere asks it, on streams of their own: it uses the connection to the service, and nothing else of what the host has. It is safe for concurrent use.
type Passage struct{ service *service }

// Passages returns those to the services that may be asked about what might be. Those that one profile alone uses are not asked: their plugins are kube-scheduler's, and look at all nodes for one pod.
func (h *Host) Passages() (all []Passage) {
	for _, s := range h.services {
		if s.Profile == "" {
			all = append(all, Passage{s})
		}
	}
	return all
}

// Service returns what the configuration says of the service.
func (p Passage) Service() Service { return p.service.Service }

// Describe asks which plugins the service has.
func (p Passage) Describe(ctx context.Context) (*pluginv1.DescribeResponse, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.service.Timeout, errLate)
	defer cancel()
	return pluginv1.NewPluginServiceClient(p.service.Conn).Describe(ctx, &pluginv1.DescribeRequest{})
}

// Judging is a stream to a service about what might be.
type Judging struct {
	pluginv1.PluginService_JudgeClient
	service *service
	depends dependencies // of the plugins that are asked
}

// Judge begins a stream, which ends with ctx.
func (p Passage) Judge(ctx context.Context) (*Judging, error) {
	described, err := p.Describe(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := pluginv1.NewPluginServiceClient(p.service.Conn).Judge(ctx, grpc.MaxCallRecvMsgSize(LargestMessage), grpc.MaxCallSendMsgSize(LargestMessage))
	if err != nil {
		return nil, err
	}
	return &Judging{stream, p.service, p.service.asked(described)}, nil
}

// asked returns what those plugins depend on that an [Inquiry] asks.
func (s *service) asked(described *pluginv1.DescribeResponse) (d dependencies) {
	plugins := make(map[string]*pluginv1.PluginDescription)
	for _, p := range described.GetPlugins() {
		plugins[p.GetName()] = p
	}
	plugins = judging(plugins)
	for _, u := range s.used {
		of := u.judging(plugins)
		for _, name := range of.names() {
			d.add(plugins[name])
		}
	}
	return d
}

// Complete adds to a request what only the host knows: that it is about what might be, and the arguments of plugins, if it is the first of a stream; and what the plugins depend on of Kubernetes' objects, if the service may be sent these: objects of nodes as the request has these, and
// objects or annotations of pods that the objects of kinds stand for ([Stands]), as pod finds them.
func (p *Judging) Complete(request *pluginv1.JudgeRequest, pod func(like *corev1.Pod) (*corev1.Pod, error)) error {
	request.Profiles, request.Hypothetical, request.TellsAnnotations = nil, request.GetId() == 1, request.GetId() == 1
	if request.Hypothetical {
		request.Profiles = p.service.profiles
	}
	for _, k := range request.GetKinds() {
		if err := p.completeKind(k, pod); err != nil {
			return fmt.Errorf("kind %d: %w", k.GetId(), err)
		}
	}
	for _, n := range request.GetNodes() {
		if n.GetSpec() == nil {
			continue
		}
		n.Spec.Object = nil
		if p.service.Objects && p.depends.object {
			object, err := encodeNode(nodeAs(n.GetSpec(), p.service.host.objects.Node(n.GetSpec().GetName())))
			if err != nil {
				return err
			}
			n.Spec.Object = object
		}
	}
	return nil
}

// completeKind has a kind with what the service may be sent of the pod, and that alone: of the pod that its object stands for, if it does, as one that has no node.
func (p *Judging) completeKind(k *pluginv1.Kind, pod func(*corev1.Pod) (*corev1.Pod, error)) error {
	if !p.service.Objects {
		k.Object, k.Annotations = nil, nil
	}
	if len(k.GetObject()) == 0 {
		return nil
	}
	is := new(corev1.Pod)
	if err := json.Unmarshal(k.GetObject(), is); err == nil && Stands(is) { // what is no pod is for whoever reads it to say
		found, err := pod(is)
		if err != nil {
			return err
		}
		if found != nil && p.depends.annotations {
			k.Annotations = sentAnnotations(found)
		}
		if found != nil && p.depends.object {
			found = found.DeepCopy()
			found.Spec.NodeName, found.Status, found.ManagedFields = "", corev1.PodStatus{}, nil
			if k.Object, err = json.Marshal(found); err != nil {
				return err
			}
		}
	}
	if !p.depends.object {
		k.Object = nil
	}
	return nil
}

// nodeAs returns the object of a node that is what the spec says; nil: there is none of that name yet. Nobody has changed the object.
func nodeAs(spec *pluginv1.NodeSpec, object *corev1.Node) *corev1.Node {
	if object == nil {
		object = new(corev1.Node)
		object.Name, object.UID = spec.GetName(), ""
	} else {
		object = object.DeepCopy()
	}
	object.ManagedFields = nil
	if !maps.Equal(object.Labels, spec.GetLabels()) {
		object.Labels = spec.GetLabels()
	}
	object.Spec.Unschedulable = spec.GetUnschedulable()
	same := func(is corev1.Taint, told *pluginv1.Taint) bool {
		return is.Key == told.GetKey() && is.Value == told.GetValue() && string(is.Effect) == told.GetEffect()
	}
	if !slices.EqualFunc(object.Spec.Taints, spec.GetTaints(), same) {
		object.Spec.Taints = nil
		for _, t := range spec.GetTaints() {
			object.Spec.Taints = append(object.Spec.Taints, corev1.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: corev1.TaintEffect(t.GetEffect())})
		}
	}
	if object.Status.Allocatable == nil {
		object.Status.Allocatable = make(corev1.ResourceList)
	}
	for name, value := range spec.GetAllocatable() {
		is := object.Status.Allocatable[corev1.ResourceName(name)]
		if told := quantityOf(name, value); quantity.Compare(is, told) != 0 {
			object.Status.Allocatable[corev1.ResourceName(name)] = told
		}
	}
	return object
}

func quantityOf(name string, value int64) resource.Quantity {
	switch corev1.ResourceName(name) {
	case corev1.ResourceCPU:
		return *resource.NewMilliQuantity(value, resource.DecimalSI)
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return *resource.NewQuantity(value, resource.BinarySI)
	}
	return *resource.NewQuantity(value, resource.DecimalSI)
}
