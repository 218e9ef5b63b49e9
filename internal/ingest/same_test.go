package ingest

import (
	"reflect"
	"testing"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Every field counts: what is not compared would never reach the log.
func TestEveryFieldOfWhatASourceTellsIsCompared(t *testing.T) {
	eachChange(t, cluster.Pod{}, func(a, b cluster.Pod) bool { return samePod(&a, &b) })
	eachChange(t, cluster.Node{}, func(a, b cluster.Node) bool { return sameNode(&a, &b) })
	eachChange(t, cluster.Image{}, func(a, b cluster.Image) bool {
		return sameNode(&cluster.Node{Images: []cluster.Image{a}}, &cluster.Node{Images: []cluster.Image{b}})
	})
	eachChange(t, cluster.LabelSelector{}, func(a, b cluster.LabelSelector) bool { return sameSelector(&a, &b) })
	eachChange(t, cluster.Requirement{}, func(a, b cluster.Requirement) bool {
		return sameSelector(&cluster.LabelSelector{Requirements: []cluster.Requirement{a}}, &cluster.LabelSelector{Requirements: []cluster.Requirement{b}})
	})
}

// eachChange changes one field at a time.
func eachChange[T any](t *testing.T, zero T, same func(a, b T) bool) {
	t.Helper()
	if !same(zero, zero) {
		t.Errorf("%T is not the same as itself", zero)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		changed := zero
		field := reflect.ValueOf(&changed).Elem().Field(i)
		switch field.Kind() {
		case reflect.String:
			field.SetString("x")
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Slice:
			field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		case reflect.Struct:
			field.Field(0).Set(reflect.MakeSlice(field.Field(0).Type(), 1, 1))
		default:
			field.SetInt(1)
		}
		if same(zero, changed) {
			t.Errorf("%T.%s is not compared", zero, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}
