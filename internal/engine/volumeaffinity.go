package engine

import (
	"fmt"
	"slices"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// termsAdmit reports whether a node meets one of some terms, of which only the conditions on labels count: the terms of a volume. Volumes come and go
// too often for their terms to be compiled.
func termsAdmit(st *cluster.State, i cluster.NodeIndex, terms []cluster.NodeSelectorTerm) bool {
	for k := range terms {
		if !isEmptyTerm(&terms[k]) && conditionsAdmit(st, i, terms[k].Expressions) {
			return true
		}
	}
	return false
}

func conditionsAdmit(st *cluster.State, i cluster.NodeIndex, all []cluster.Requirement) bool {
	for k := range all {
		r := &all[k]
		key, has, value := st.Symbols.Lookup(r.Key), false, ""
		if key != cluster.NoSymbol {
			var symbol cluster.Symbol
			if symbol, has = labelOf(st.Nodes.Labels[i], key); has {
				value = st.Symbols.Text(symbol)
			}
		}
		if !meets(r, value, has) {
			return false
		}
	}
	return true
}

// meets reports whether a label that there is, or is not, meets a condition.
func meets(r *cluster.Requirement, value string, has bool) bool {
	switch r.Operator {
	case "In":
		return has && slices.Contains(r.Values, value)
	case "NotIn":
		return !has || !slices.Contains(r.Values, value)
	case "Exists":
		return has
	case "DoesNotExist":
		return !has
	case "Gt", "Lt":
		if !has || len(r.Values) != 1 {
			return false
		}
		number, ok := parseInt(value)
		bound, valid := parseInt(r.Values[0])
		return ok && valid && (r.Operator == "Gt" && number > bound || r.Operator == "Lt" && number < bound)
	}
	return false
}

// Meets reports whether a node that has these labels meets a requirement of labels.
func Meets(r *cluster.Requirement, labels []cluster.Label) bool {
	value, has := cluster.ValueOf(labels, r.Key)
	return meets(r, value, has)
}

// reaches returns why a volume cannot be reached from a live node.
func reaches(st *cluster.State, i cluster.NodeIndex, v *cluster.PersistentVolume) error {
	has, terms, broken := affinityOn(st, i, v)
	switch {
	case broken != "":
		return fmt.Errorf("failed to translate pv to csi: could not translate pv: %s", broken)
	case has && !termsAdmit(st, i, terms):
		return fmt.Errorf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", v.Name, st.Nodes.Spec[i].Name)
	}
	return nil
}

// affinityOn returns the affinity of a volume as it counts on a live node: that of the CSI volume that it is where its plugin is replaced. Broken is
// why that cannot be told.
func affinityOn(st *cluster.State, i cluster.NodeIndex, v *cluster.PersistentVolume) (has bool, terms []cluster.NodeSelectorTerm, broken string) {
	if node := st.CSINode(st.Nodes.Spec[i].Name); v.Migration.Plugin != "" && node != nil && slices.Contains(node.Migrated, v.Migration.Plugin) {
		return v.HasMigratedAffinity, v.MigratedAffinity, v.Migration.Error
	}
	return v.HasAffinity, v.Affinity, ""
}
