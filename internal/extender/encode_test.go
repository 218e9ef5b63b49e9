package extender

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"pgregory.net/rapid"
)

// texts are names and values of labels, with what JSON escapes, and with what is no text.
var texts = rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "<b>&</b>", "\"\\\n\t", "\u2028", "a\xffb", "ü"}))

// drawMeta draws what a node or a pod may have before its spec.
func drawMeta(t *rapid.T) (m metav1.ObjectMeta) {
	m.Name = texts.Draw(t, "name")
	m.Labels = rapid.MapOfN(texts, texts, 0, 3).Draw(t, "labels")
	if rapid.Bool().Draw(t, "managed") {
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: texts.Draw(t, "manager"), FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec": {"a<b": 1}}`)}}}
	}
	return m
}

// TestBodiesAreWhatIsMarshalled compares bodies of questions, put together from parts, with what encoding/json makes of the whole.
func TestBodiesAreWhatIsMarshalled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{ObjectMeta: drawMeta(t)}
		pod.Spec.Containers = []corev1.Container{{Args: rapid.SliceOfN(texts, 0, 3).Draw(t, "args")}}
		args, list := extenderv1.ExtenderArgs{Pod: pod}, corev1.NodeList{}
		var nodes []*Node
		names := []string{}
		for range rapid.IntRange(0, 4).Draw(t, "nodes") {
			n := corev1.Node{ObjectMeta: drawMeta(t)}
			n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse(rapid.SampledFrom([]string{"0", "1500m", "1e3", "1.5Gi", "1e999999999"}).Draw(t, "cpu"))}
			list.Items, nodes, names = append(list.Items, n), append(nodes, NewNode(&n)), append(names, n.Name)
		}
		q := ask(NewPod(pod), nodes)
		for range 2 { // the second time, everything has been encoded
			args.Nodes, args.NodeNames = &list, nil
			same(t, args, q.inFull)
			args.Nodes, args.NodeNames = nil, &names
			same(t, args, q.byName)
			q = ask(NewPod(pod), nodes)
		}
	})
}

func same(t *rapid.T, args extenderv1.ExtenderArgs, made func() ([]byte, error)) {
	t.Helper()
	want, wanted := json.Marshal(args)
	got, err := made()
	if (err == nil) != (wanted == nil) || string(got) != string(want) {
		t.Fatalf("the body is\n%s (%v), want\n%s (%v)", got, err, want, wanted)
	}
	if cap(got) > len(got)+len(got)/4+64 {
		t.Errorf("a body of %d bytes has room for %d", len(got), cap(got))
	}
}

func TestWhatCannotBeEncodedIsAnError(t *testing.T) {
	bad := metav1.ObjectMeta{Name: "n", ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: &metav1.FieldsV1{Raw: []byte("{")}}}}
	h := newSet(t, byName("http://nowhere"))
	if _, err := h.Filter(hangs(t), NewPod(&corev1.Pod{ObjectMeta: bad}), testNodes("a")); err == nil {
		t.Error("a pod that cannot be encoded is sent")
	}
	cfg := byName("http://nowhere")
	cfg.NodeCacheCapable = false
	if _, err := newSet(t, cfg).Filter(hangs(t), NewPod(testPod("p")), []*Node{NewNode(&corev1.Node{ObjectMeta: bad})}); err == nil {
		t.Error("a node that cannot be encoded is sent")
	}
}

func TestResourceNamesAreThoseOfContainers(t *testing.T) {
	of := func(names ...corev1.ResourceName) corev1.ResourceList {
		out := make(corev1.ResourceList)
		for _, n := range names {
			out[n] = resource.Quantity{}
		}
		return out
	}
	pod := new(corev1.Pod)
	pod.Spec.Containers = []corev1.Container{{}, {Resources: corev1.ResourceRequirements{Requests: of("a"), Limits: of("b")}}}
	pod.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: of("c"), Limits: of("a", "d")}}}
	pod.Spec.Overhead, pod.Spec.Resources = of("e"), &corev1.ResourceRequirements{Requests: of("f")}
	got := slices.Compact(slices.Sorted(ResourceNames(pod)))
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("the resources are %v, want %v", got, want)
	}
	for range ResourceNames(pod) {
		break // whoever has heard enough ends
	}
}

// BenchmarkQuestion makes the body of a question about 5,000 nodes in full: the first time, and when its nodes have been encoded.
func BenchmarkQuestion(b *testing.B) {
	objects := make([]*corev1.Node, 5000)
	for i := range objects {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"kubernetes.io/hostname": "node", "topology.kubernetes.io/zone": "a"}}}
		for range 50 {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{"registry.example/image@sha256:0123456789abcdef"}, SizeBytes: 1 << 30})
		}
		objects[i] = n
	}
	pod := NewPod(testPod("p"))
	of := func() (out []*Node) {
		for _, o := range objects {
			out = append(out, NewNode(o))
		}
		return out
	}
	size := func(b *testing.B, nodes []*Node) {
		body, err := ask(pod, nodes).inFull()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(body)))
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			size(b, of())
		}
	})
	b.Run("again", func(b *testing.B) {
		nodes := of()
		for b.Loop() {
			size(b, nodes)
		}
	})
}
