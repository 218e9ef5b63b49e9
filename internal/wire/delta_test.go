package wire_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/cluster/clustertest"
	logv1 "github.com/berth-scheduler/berth/internal/gen/berth/log/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

var (
	// What has a selector, and what controls pods.
	kinds       = []string{cluster.KindService, cluster.KindReplicationController, cluster.KindReplicaSet, cluster.KindStatefulSet}
	controllers = []cluster.Controller{
		{}, {Kind: cluster.KindReplicationController, Name: "web"}, {Kind: cluster.KindReplicaSet, Name: ""}, {Kind: cluster.KindStatefulSet, Name: "db"},
	}
)

// good makes deltas that a binder could write: ids are not negative, host ports are ports with everything said, and
// kinds are such that there are.
var good = rapid.MakeConfig{
	Kinds: map[reflect.Kind]*rapid.Generator[any]{
		reflect.Int32: rapid.Int32Range(1, 65535).AsAny(),
	},
	Types: map[reflect.Type]*rapid.Generator[any]{ // they are deep down, where few do
		reflect.TypeFor[[]cluster.Requirement](): rapid.SliceOfN(rapid.Make[cluster.Requirement](), 0, 2).AsAny(),
	},
	Fields: map[reflect.Type]map[string]*rapid.Generator[any]{
		reflect.TypeFor[cluster.HostPort](): {
			"IP":       rapid.SampledFrom([]string{"0.0.0.0", "::", "127.0.0.1"}).AsAny(),
			"Protocol": rapid.SampledFrom([]string{"TCP", "UDP", "SCTP"}).AsAny(),
		},
		reflect.TypeFor[cluster.Pod](): {
			"Priority": rapid.Int32().AsAny(),
			"Labels": rapid.Custom(func(t *rapid.T) cluster.LabelsID {
				return cluster.LabelsID(rapid.Int32Range(0, math.MaxInt32).Draw(t, "labels"))
			}).AsAny(),
		},
		reflect.TypeFor[cluster.PreferredTerm]():   {"Weight": rapid.Int32().AsAny()},
		reflect.TypeFor[cluster.WeightedPodTerm](): {"Weight": rapid.Int32().AsAny()},
		reflect.TypeFor[cluster.Profile](): {
			"HardPodAffinityWeight": rapid.Int32().AsAny(), "PercentageOfNodesToScore": rapid.Int32().AsAny(),
		},
		reflect.TypeFor[cluster.LabelSet]():        {"Controller": rapid.SampledFrom(controllers).AsAny()},
		reflect.TypeFor[cluster.SelectorSet]():     {"Kind": rapid.SampledFrom(kinds).AsAny()},
		reflect.TypeFor[cluster.SelectorRemoved](): {"Kind": rapid.SampledFrom(kinds).AsAny()},
	},
}

func of[D cluster.Delta]() *rapid.Generator[cluster.Delta] {
	return rapid.Map(rapid.MakeCustom[D](good), func(d D) cluster.Delta { return d })
}

// deltas has one generator per type of delta.
var deltas = map[string]*rapid.Generator[cluster.Delta]{
	"settings":          of[cluster.SettingsSet](),
	"class_defined":     of[cluster.ClassDefined](),
	"node_set":          of[cluster.NodeSet](),
	"node_removed":      of[cluster.NodeRemoved](),
	"node_touched":      of[cluster.NodeTouched](),
	"pod_activated":     of[cluster.PodActivated](),
	"namespace_set":     of[cluster.NamespaceSet](),
	"namespace_removed": of[cluster.NamespaceRemoved](),
	"pod_set":           of[cluster.PodSet](),
	"pod_assumed":       of[cluster.PodAssumed](),
	"pod_bound":         of[cluster.PodBound](),
	"pod_forgotten":     of[cluster.PodForgotten](),
	"pod_removed":       of[cluster.PodRemoved](),
	"image_sized":       of[cluster.ImageSized](),
	"labels_defined":    of[cluster.LabelsDefined](),
	"selector_set":      of[cluster.SelectorSet](),
	"selector_removed":  of[cluster.SelectorRemoved](),

	"pod_nominated":      of[cluster.PodNominated](),
	"preemption_started": of[cluster.PreemptionStarted](),
	"preemption_ended":   of[cluster.PreemptionEnded](),

	"object_set": rapid.OneOf(
		object[clustertest.Made](true),
		object[cluster.Budget](true), // which has more than the release before this one knows
		rapid.Map(rapid.MakeCustom[cluster.ObjectKey](other), func(key cluster.ObjectKey) cluster.Delta {
			key.Kind = 999 // which nobody knows
			return cluster.ObjectSet{Object: cluster.NewObject(key), More: "\xff"}
		})),
	"object_removed": rapid.Map(rapid.MakeCustom[cluster.ObjectRemoved](other), func(d cluster.ObjectRemoved) cluster.Delta { return d }),
	"budget_set":     object[cluster.Budget](false),
	"budget_removed": rapid.Map(rapid.MakeCustom[cluster.ObjectRemoved](other), func(d cluster.ObjectRemoved) cluster.Delta {
		d.Kind = cluster.BudgetKind
		return d
	}),
}

// other makes names of objects of kinds that need no form of their own.
var other = rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
	reflect.TypeFor[cluster.ObjectKind](): rapid.SampledFrom([]cluster.ObjectKind{clustertest.MadeKind, cluster.BudgetKind + 1, 1023}).AsAny(),
}}

// object makes objects of a kind, with what only a later release can read or without.
func object[T any, O interface {
	*T
	cluster.Object
}](more bool) *rapid.Generator[cluster.Delta] {
	return rapid.Custom(func(t *rapid.T) cluster.Delta {
		made := rapid.MakeCustom[T](good).Draw(t, "object")
		d := cluster.ObjectSet{Object: O(&made)}
		if more {
			d.More = rapid.StringN(1, 5, 9).Draw(t, "more")
			if m, ok := d.Object.(*clustertest.Made); ok {
				m.Later += "x" // what is more follows all that this release knows
			}
		}
		return d
	})
}

func roundTrip(t interface {
	Helper()
	Fatalf(string, ...any)
}, d cluster.Delta) {
	t.Helper()
	b, err := wire.Encode(d)
	if err != nil {
		t.Fatalf("Encode(%+v): %v", d, err)
	}
	back, err := wire.Decode(b)
	if err != nil {
		t.Fatalf("Decode(Encode(%+v)): %v", d, err)
	}
	if diff := cmp.Diff(d, back, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("Decode(Encode(d)) (-want +got):\n%s", diff)
	}
}

func TestDeltasSurviveTheRoundTrip(t *testing.T) {
	for name, generator := range deltas {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) { roundTrip(t, generator.Draw(t, "delta")) }))
	}
}

func TestEveryChangeOfTheProtocolIsCovered(t *testing.T) {
	fields := (&logv1.Delta{}).ProtoReflect().Descriptor().Oneofs().ByName("change").Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); deltas[name] == nil {
			t.Errorf("change %s of berth.log.v1.Delta has no generator", name)
		}
	}
	if len(deltas) != fields.Len() {
		t.Errorf("%d generators for %d changes", len(deltas), fields.Len())
	}
	for name, generator := range deltas {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			b, err := wire.Encode(generator.Draw(t, "delta"))
			if err != nil {
				t.Fatal(err)
			}
			var m logv1.Delta
			if err := proto.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			if !m.ProtoReflect().Has(fields.ByName(protoreflect.Name(name))) {
				t.Errorf("it is sent as %v", &m)
			}
		}))
	}
}

// TestNoFieldIsForgotten sets every field, however deep, to a value of its own: a field that is added to a type of
// package cluster and forgotten here comes back as zero.
func TestNoFieldIsForgotten(t *testing.T) {
	all := []cluster.Delta{
		cluster.SettingsSet{}, cluster.ClassDefined{}, cluster.LabelsDefined{}, cluster.SelectorSet{}, cluster.SelectorRemoved{},
		cluster.NodeSet{}, cluster.NodeRemoved{}, cluster.NodeTouched{}, cluster.NamespaceSet{}, cluster.NamespaceRemoved{}, cluster.PodSet{},
		cluster.PodAssumed{}, cluster.PodBound{}, cluster.PodForgotten{}, cluster.PodRemoved{}, cluster.ImageSized{},
		cluster.PodNominated{}, cluster.PodActivated{}, cluster.PreemptionStarted{}, cluster.PreemptionEnded{},
		cluster.ObjectSet{Object: &cluster.Budget{}}, cluster.ObjectSet{Object: &clustertest.Made{}},
		cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: cluster.BudgetKind}}, cluster.ObjectRemoved{ObjectKey: cluster.ObjectKey{Kind: 999}},
	}
	if len(all) != len(deltas) {
		t.Errorf("%d deltas of %d are filled", len(all), len(deltas))
	}
	for _, zero := range all {
		t.Run(fmt.Sprintf("%T", zero), func(t *testing.T) {
			v := reflect.New(reflect.TypeOf(zero)).Elem()
			v.Set(reflect.ValueOf(zero))
			n := 0
			fill(t, v, &n)
			roundTrip(t, v.Interface().(cluster.Delta))
		})
	}
}

func fill(t *testing.T, v reflect.Value, n *int) {
	*n++
	switch v.Type() {
	case reflect.TypeFor[cluster.SelectorSet](), reflect.TypeFor[cluster.SelectorRemoved](), reflect.TypeFor[cluster.Controller]():
		defer func() { v.FieldByName("Kind").SetString(cluster.KindStatefulSet) }() // others are refused
	case reflect.TypeFor[cluster.ObjectKey]():
		kind := v.FieldByName("Kind").Int()
		defer func() { v.FieldByName("Kind").SetInt(kind) }()
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("value-%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Interface: // an object
		fill(t, v.Elem().Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	default:
		t.Fatalf("%v: teach this test to fill it", v.Type())
	}
}

func TestDefaultsOfHostPortsAreLeftOut(t *testing.T) {
	b, err := wire.Encode(cluster.ClassDefined{Spec: cluster.ClassSpec{
		HostPorts: []cluster.HostPort{{IP: "0.0.0.0", Protocol: "TCP", Port: 80}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var m logv1.Delta
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	want := &logv1.HostPort{Port: 80}
	if got := m.GetClassDefined().GetSpec().GetHostPorts()[0]; !proto.Equal(got, want) {
		t.Errorf("host port on the wire is %v, want %v", got, want)
	}
}

func TestEncodeRefusesWhatDecodeWouldNotTake(t *testing.T) {
	port := func(p cluster.HostPort) cluster.Delta {
		return cluster.ClassDefined{Spec: cluster.ClassSpec{HostPorts: []cluster.HostPort{p}}}
	}
	controlledBy := func(kind, name string) cluster.Delta {
		return cluster.LabelsDefined{ID: 1, Set: cluster.LabelSet{Controller: cluster.Controller{Kind: kind, Name: name}}}
	}
	for _, c := range []struct {
		name string
		d    cluster.Delta
		want string
	}{
		{"nil", nil, "unknown type"},
		{"settings without shards", cluster.SettingsSet{}, "settings.shards: 0"},
		{"negative class", cluster.ClassDefined{ID: -1}, "class_defined.id: -1"},
		{"negative containers", cluster.ClassDefined{Spec: cluster.ClassSpec{ImageContainers: -1}}, "image_containers: -1"},
		{"port without IP", port(cluster.HostPort{Protocol: "TCP", Port: 1}), "host port 0"},
		{"port without protocol", port(cluster.HostPort{IP: "::", Port: 1}), "host port 0"},
		{"port 0", port(cluster.HostPort{IP: "::", Protocol: "TCP"}), "host_ports[0].port: 0"},
		{"port 65536", port(cluster.HostPort{IP: "::", Protocol: "TCP", Port: 65536}), "host_ports[0].port: 65536"},
		{"label set 0", cluster.LabelsDefined{}, "labels_defined.id: 0"},
		{"controller without kind", controlledBy("", "web"), `labels_defined.controller_name: "web"`},
		{"controlled by a service", controlledBy("Service", "web"), `labels_defined.controller_kind: "Service"`},
		{"controlled by a Job", controlledBy("Job", "once"), `labels_defined.controller_kind: "Job"`},
		{"selector of nothing", cluster.SelectorSet{}, `selector_set.kind: ""`},
		{"selector of a Deployment", cluster.SelectorSet{Kind: "Deployment"}, `selector_set.kind: "Deployment"`},
		{"no selector of a Job", cluster.SelectorRemoved{Kind: "Job"}, `selector_removed.kind: "Job"`},
		{"no node", cluster.NodeSet{Index: cluster.NoNode}, "node_set.index: -1"},
		{"node out of bounds", cluster.NodeRemoved{Index: cluster.MaxIndex}, "node_removed.index: 67108864"},
		{"negative pod", cluster.PodSet{ID: -1}, "pod_set.id: -1"},
		{"pod of negative class", cluster.PodSet{Pod: cluster.Pod{Class: -1}}, "pod_set.class: -1"},
		{"pod with negative label set", cluster.PodSet{Pod: cluster.Pod{Labels: -1}}, "pod_set.labels: -1"},
		{"pod with negative attempt", cluster.PodSet{Pod: cluster.Pod{Attempt: -1}}, "pod_set.attempt: -1"},
		{"assumed on no node", cluster.PodAssumed{Node: cluster.NoNode}, "pod_assumed.node: -1"},
		{"assumed by negative attempt", cluster.PodAssumed{Attempt: -1}, "pod_assumed.attempt: -1"},
		{"negative bound", cluster.PodBound{ID: math.MinInt32}, "pod_bound.id"},
		{"negative forgotten", cluster.PodForgotten{ID: -1}, "pod_forgotten.id"},
		{"negative removed", cluster.PodRemoved{ID: -1}, "pod_removed.id"},
		{"not UTF-8", cluster.NamespaceSet{Name: "\xff"}, "UTF-8"},
		{"no object", cluster.ObjectSet{}, "no object"},
		{"an object of a kind below all", cluster.ObjectSet{Object: &cluster.Unread{}}, "object_set.kind: 0"},
		{"an object of a kind above all", cluster.ObjectSet{Object: &cluster.Unread{ObjectKey: cluster.ObjectKey{Kind: 1024}}}, "object_set.kind: 1024"},
		{"the end of an object of no kind", cluster.ObjectRemoved{}, "object_removed.kind: 0"},
		{"an object that is not UTF-8", cluster.ObjectSet{Object: &clustertest.Made{Zones: []string{"\xff"}}}, "UTF-8"},
		{"a budget that is not UTF-8", cluster.ObjectSet{Object: &cluster.Budget{Disrupted: []string{"\xff"}}}, "UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := wire.Encode(c.d); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Encode(%+v): %v, want an error with %q", c.d, err, c.want)
			}
		})
	}
}

func TestDecodeRefusesMessagesOutOfBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		m    *logv1.Delta
		want string
	}{
		{"nothing in it", &logv1.Delta{}, "no change"},
		{"no spec", &logv1.Delta{Change: &logv1.Delta_ClassDefined{ClassDefined: &logv1.ClassDefined{}}}, "class_defined.spec"},
		{"no shards", &logv1.Delta{Change: &logv1.Delta_Settings{Settings: &logv1.Settings{}}}, "settings.shards"},
		{"negative index", &logv1.Delta{Change: &logv1.Delta_NodeSet{NodeSet: &logv1.NodeSet{Index: -5}}}, "node_set.index: -5"},
		{"negative label set", &logv1.Delta{Change: &logv1.Delta_LabelsDefined{LabelsDefined: &logv1.LabelsDefined{Id: -3}}}, "labels_defined.id: -3"},
		{"unknown controller", &logv1.Delta{Change: &logv1.Delta_LabelsDefined{LabelsDefined: &logv1.LabelsDefined{
			Id: 1, ControllerKind: "Job", ControllerName: "once",
		}}}, `labels_defined.controller_kind: "Job"`},
		{"unknown kind", &logv1.Delta{Change: &logv1.Delta_SelectorSet{SelectorSet: &logv1.SelectorSet{Kind: "Job"}}}, `selector_set.kind: "Job"`},
		{"a body that nobody writes", &logv1.Delta{Change: &logv1.Delta_ObjectSet{ObjectSet: &logv1.ObjectSet{
			Kind: int32(cluster.BudgetKind), Body: []byte{2},
		}}}, "object_set.body: decode PodDisruptionBudget"},
		{"no kind", &logv1.Delta{Change: &logv1.Delta_ObjectSet{ObjectSet: &logv1.ObjectSet{Kind: -1}}}, "object_set.kind: -1"},
		{"large id", &logv1.Delta{Change: &logv1.Delta_PodSet{PodSet: &logv1.PodSet{Id: math.MaxInt32}}}, "pod_set.id: 2147483647"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := proto.Marshal(c.m)
			if err != nil {
				t.Fatal(err)
			}
			if d, err := wire.Decode(b); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Decode: %+v, %v, want an error with %q", d, err, c.want)
			}
		})
	}
}

func TestGarbageIsRefusedOrAnotherDelta(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		if rapid.Bool().Draw(t, "broken rather than random") {
			names := make([]string, 0, len(deltas))
			for name := range deltas {
				names = append(names, name)
			}
			d := deltas[rapid.SampledFrom(sorted(names)).Draw(t, "type")].Draw(t, "delta")
			var err error
			if b, err = wire.Encode(d); err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(1, 4).Draw(t, "changes") {
				if len(b) > 0 {
					b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
				}
			}
			b = b[:rapid.IntRange(0, len(b)).Draw(t, "length")]
		} else {
			b = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		}
		d, err := wire.Decode(b)
		if (d == nil) == (err == nil) {
			t.Fatalf("Decode(%x) = %v, %v: want one of them", b, d, err)
		}
		if err == nil {
			roundTrip(t, d)
		}
	})
}

func TestVersionSurvivesTheRoundTrip(t *testing.T) {
	for _, v := range []cluster.Version{{}, {Epoch: 1}, {Epoch: math.MaxInt64, Seq: math.MaxInt64}} {
		if got := wire.Version(wire.ToVersion(v)); got != v {
			t.Errorf("Version(ToVersion(%v)) = %v", v, got)
		}
	}
	if m := wire.ToVersion(cluster.Version{}); m != nil {
		t.Errorf("ToVersion of no version is %v, want nil", m)
	}
}
