package config

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-scheduler/berth/internal/extender"
)

// extenderErrors finds what Berth cannot do of extenders that kube-scheduler would take. path is that of the list.
func extenderErrors(path *field.Path, extenders []configv1.Extender) (errs field.ErrorList) {
	if n := len(extenders); n > extender.MaxExtenders {
		return field.ErrorList{field.TooMany(path, n, extender.MaxExtenders)}
	}
	for i := range extenders {
		e, at := &extenders[i], path.Index(i)
		if name, value, err := extender.Check(e); err != nil {
			errs = append(errs, field.Invalid(at.Child(name), value, err.Error()))
		}
	}
	return errs
}
