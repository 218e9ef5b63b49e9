package quantity

import (
	"math"
	"math/big"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"pgregory.net/rapid"
)

// ordinaries are quantities that are not vast, with many digits and none, around each bound too.
var ordinaries = rapid.Custom(func(t *rapid.T) string {
	if rapid.Bool().Draw(t, "at a bound") {
		return rapid.SampledFrom([]string{
			"9223372036854775807", "9223372036854775806.5", "9223372036854775808", "9223372036854775.807", "9223372036854776", "9007199254740992",
			"9007199254740991.5", "1e29", "0.0", "0e7", "1n", "-9223372036854775808", "9Ei", "0",
		}).Draw(t, "bound")
	}
	return rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign") + rapid.StringMatching(`[0-9]{1,22}(\.[0-9]{0,12})?`).Draw(t, "number") +
		rapid.SampledFrom([]string{"", "n", "u", "m", "k", "E", "Ki", "Gi", "Ei", "e3", "e7", "E-6"}).Draw(t, "unit")
}).Filter(func(text string) bool {
	q, err := resource.ParseQuantity(text)
	return err == nil && math.Abs(q.AsApproximateFloat64()) < 1e30
})

// ordinary draws one of ordinaries.
func ordinary(t *rapid.T, name string) resource.Quantity {
	return resource.MustParse(ordinaries.Draw(t, name))
}

// exact returns a quantity times 10^scale, rounded up, or towards 0.
func exact(q resource.Quantity, scale int64) *big.Int {
	d := q.AsDec()
	places := int64(d.Scale()) - scale
	if places <= 0 {
		return new(big.Int).Mul(d.UnscaledBig(), new(big.Int).Exp(big.NewInt(10), big.NewInt(-places), nil))
	}
	whole, rest := new(big.Int).QuoRem(d.UnscaledBig(), new(big.Int).Exp(big.NewInt(10), big.NewInt(places), nil), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole
}

func TestWhatIsNotVastIsComputedWithExactly(t *testing.T) {
	largest := big.NewInt(math.MaxInt64)
	rapid.Check(t, func(t *rapid.T) {
		a, b := ordinary(t, "a"), ordinary(t, "b")
		if got := Bounded(a); !reflect.DeepEqual(got, a) {
			t.Errorf("%v is %v", a, got)
		}
		for _, in := range []struct {
			scale int64
			got   int64
		}{{0, Whole(a)}, {3, Milli(a)}} {
			want := exact(a.DeepCopy(), in.scale)
			if want.Sign() < 0 {
				want.SetInt64(0)
			}
			if want.Cmp(largest) > 0 {
				want = largest
			}
			if want.Int64() != in.got {
				t.Errorf("%v is %d in units of 10^-%d, want %v", a, in.got, in.scale, want)
			}
		}
		ac, bc := a.DeepCopy(), b.DeepCopy()
		if got := Compare(a, b); got != ac.AsDec().Cmp(bc.AsDec()) {
			t.Errorf("%v compared with %v is %d", a, b, got)
		}
		sum, want := a.DeepCopy(), a.DeepCopy()
		Add(&sum, b)
		want.Add(b.DeepCopy())
		if sum.Cmp(want) != 0 {
			t.Errorf("%v and %v are %v, want %v", a, b, sum, want)
		}
		if rest := new(big.Int).Rem(exact(a.DeepCopy(), 9), big.NewInt(1e9)); IsWhole(a) != (rest.Sign() == 0) {
			t.Errorf("%v is whole: %v", a, IsWhole(a))
		}
		if got, want := Text(a), ac.String(); strings.Contains(got, "or") {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestWhatIsVastIsLargerThanAllThatIsNot(t *testing.T) {
	for _, text := range []string{"1e30", "1e999999999", "123456789012345678901234567890E6", "1.0e-2147483648", "12345678901234567890e100000"} {
		vast, minus := resource.MustParse(text), resource.MustParse("-"+text)
		sum := resource.MustParse("-99e28")
		Add(&sum, vast)
		if Whole(vast) != math.MaxInt64 || Milli(vast) != math.MaxInt64 || !IsWhole(vast) || Compare(vast, resource.MustParse("99e28")) != 1 ||
			Compare(vast, resource.MustParse("7e77")) != 0 || sum.Sign() < 0 || Text(vast) != "1e30 or more" {
			t.Errorf("%s: %d, %d, %v, %s", text, Whole(vast), Milli(vast), IsWhole(vast), Text(vast))
		}
		if Whole(minus) != 0 || Milli(minus) != 0 || Compare(minus, vast) != -1 || Text(minus) != "-1e30 or less" {
			t.Errorf("-%s: %d, %d, %s", text, Whole(minus), Milli(minus), Text(minus))
		}
		RoundUp(&vast)
		if Whole(vast) != math.MaxInt64 {
			t.Errorf("%s is rounded to %d", text, Whole(vast))
		}
	}
	for _, nothing := range []string{"0e999999999", "0e-999999999", "-0e99999"} {
		q := resource.MustParse(nothing)
		if Whole(q) != 0 || Milli(q) != 0 || Compare(q, resource.Quantity{}) != 0 || Text(q) != "0" || !IsWhole(q) {
			t.Errorf("%s: %d, %d, %s", nothing, Whole(q), Milli(q), Text(q))
		}
	}
	if small := *resource.NewScaledQuantity(1, -999999999); Whole(small) != 1 || IsWhole(small) || Compare(small, resource.MustParse("1n")) != 0 || Text(small) != "1n" {
		t.Errorf("something small: %d, %s", Whole(small), Text(small))
	}
}

// TestAllListsOfAPodAreLookedAt: what a new version of the API adds is to be added to lists.
func TestAllListsOfAPodAreLookedAt(t *testing.T) {
	pod := new(v1.Pod)
	all := 0
	var fill func(reflect.Value)
	fill = func(v reflect.Value) {
		switch {
		case !v.CanSet():
		case v.Type() == reflect.TypeFor[v1.ResourceList]():
			all++
			v.Set(reflect.ValueOf(v1.ResourceList{"cpu": resource.MustParse("1e999999999")}))
		case v.Kind() == reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem())
		case v.Kind() == reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				if v.Type() != reflect.TypeFor[v1.EphemeralContainer]() && v.Type() != reflect.TypeFor[v1.Volume]() { // which request nothing of a node
					fill(v.Field(i))
				}
			}
		}
	}
	for _, part := range []any{&pod.Spec, &pod.Status} {
		fill(reflect.ValueOf(part).Elem())
	}
	const unread = 3 // of the statuses of ephemeral containers
	looked := 0
	for list := range lists(pod) {
		if looked++; quick(new(list["cpu"])) {
			t.Errorf("%v", list)
		}
	}
	if looked != all-unread {
		t.Errorf("%d lists of %d are looked at", looked, all)
	}
	before := pod.DeepCopy()
	for list := range lists(bounded(pod)) {
		if q := list["cpu"]; q.AsApproximateFloat64() != 1e30 {
			t.Errorf("%v", list)
		}
	}
	if !reflect.DeepEqual(pod, before) {
		t.Error("what others read is changed")
	}
	ordinary := &v1.Pod{Spec: v1.PodSpec{Overhead: v1.ResourceList{"cpu": resource.MustParse("1")}}}
	if bounded(ordinary) != ordinary {
		t.Error("an ordinary pod is copied")
	}
}

func TestToSumUpAPodChangesNothingOfIt(t *testing.T) {
	quantity := func(text string) resource.Quantity {
		q := resource.MustParse(text)
		q.AsDec() // as an API server's may be kept
		return q
	}
	pod := &v1.Pod{Spec: v1.PodSpec{
		Resources:  &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: quantity("1.5Gi")}},
		Overhead:   v1.ResourceList{v1.ResourceMemory: quantity("1Gi")},
		Containers: []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceMemory: quantity("1Gi")}}}},
	}}
	before := pod.DeepCopy()
	for range 2 {
		got := PodRequests(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceMemory]
		if want := resource.MustParse("2.5Gi"); got.Cmp(want) != 0 {
			t.Errorf("it requests %v, want %v", &got, &want)
		}
	}
	if !reflect.DeepEqual(pod, before) {
		t.Errorf("the pod is %v, was %v", pod.Spec, before.Spec)
	}
}
