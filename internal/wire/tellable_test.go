package wire_test

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/wire"
)

// What Tellable passes must encode, whatever field somebody adds.
func TestEveryTextOfAPodIsAskedAbout(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[cluster.Pod]()) {
		var pod cluster.Pod
		switch v := reflect.ValueOf(&pod).Elem().FieldByIndex(field.Index); v.Interface().(type) {
		case string:
			v.SetString("a\xff")
		case []string:
			v.Set(reflect.ValueOf([]string{"a", "b\xff"}))
		default:
			if kind := v.Kind(); kind != reflect.Bool && !v.CanInt() {
				t.Errorf("field %s is a %v: does Tellable ask about it?", field.Name, v.Type())
			}
			continue
		}
		if err := wire.Tellable(cluster.PodSet{Pod: pod}); err == nil {
			t.Errorf("a pod whose %s is not valid UTF-8 is tellable", field.Name)
		}
	}
}

func TestWhatIsTellableEncodes(t *testing.T) {
	for name, generator := range deltas {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			d := generator.Draw(t, "delta")
			if err := wire.Tellable(d); err != nil {
				t.Fatalf("Tellable(%+v): %v", d, err)
			}
		}))
	}
}

func TestWhatIsTooLargeIsNotTellable(t *testing.T) {
	large := strings.Repeat("x", wire.MaxTold)
	for _, d := range []cluster.Delta{
		cluster.PodSet{Pod: cluster.Pod{Gates: []string{large}}},
		cluster.NodeSet{Node: cluster.Node{Name: large}},
		cluster.ClassDefined{Spec: cluster.ClassSpec{Images: []string{large}}},
		cluster.NamespaceSet{Name: "n", Labels: []cluster.Label{{Key: "k", Value: large}}},
	} {
		if wire.Tellable(d) == nil {
			t.Errorf("a %T of a megabyte is tellable", d)
		}
	}
}
