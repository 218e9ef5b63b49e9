package engine

import "github.com/berth-scheduler/berth/internal/cluster"

// NodeDeclaredFeatures keeps pods off nodes that do not declare a feature that the pod's spec needs: what it needs must be
// a subset of status.declaredFeatures. It fails unresolvably.
const NodeDeclaredFeatures = "NodeDeclaredFeatures"

// ReasonFeatures is NodeDeclaredFeatures' reason.
const ReasonFeatures = "node(s) didn't match Pod's required features"

type nodeDeclaredFeatures struct{ required []string } // in alphabetical order

func compileNodeDeclaredFeatures(spec *cluster.ClassSpec) nodeDeclaredFeatures {
	return nodeDeclaredFeatures{spec.Features}
}

// filter reports whether the node declares all that is required. Both lists are sorted, so one pass finds out.
func (p *nodeDeclaredFeatures) filter(n *cluster.Nodes, i cluster.NodeIndex) bool {
	declared := n.Spec[i].Features
	for _, want := range p.required {
		for len(declared) > 0 && declared[0] < want {
			declared = declared[1:]
		}
		if len(declared) == 0 || declared[0] != want {
			return false
		}
	}
	return true
}
