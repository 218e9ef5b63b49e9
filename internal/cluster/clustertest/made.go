package clustertest

import "github.com/berth-scheduler/berth/internal/cluster"

// MadeKind is the kind of Made.
const MadeKind cluster.ObjectKind = 1000

// Made is an object of a kind that only tests know.
type Made struct {
	Namespace, Name string
	Size            int64
	Ready           bool
	Zones           []string
	Parts           []Part
	Why             string // why it is not told as it is
	Later           string // of the release after the one that had the others first
}

// Part is a part of a Made.
type Part struct{ Name string }

// KnowMade makes MadeKind known until the function that it returns is called, as if a row of cluster's table said it.
func KnowMade() (forget func()) {
	return cluster.AddObjectKind(MadeKind, "Made", func(k cluster.ObjectKey) cluster.Object { return &Made{Namespace: k.Namespace, Name: k.Name} })
}

// Key returns the name of the object.
func (m *Made) Key() cluster.ObjectKey {
	return cluster.ObjectKey{Kind: MadeKind, Namespace: m.Namespace, Name: m.Name}
}

// Encode writes what it says.
func (m *Made) Encode(e *cluster.Encoder) {
	e.Int(m.Size)
	e.Bool(m.Ready)
	e.Texts(m.Zones)
	e.Int(int64(len(m.Parts)))
	for _, part := range m.Parts {
		e.Text(part.Name)
	}
	e.Text(m.Why)
	if m.Later != "" {
		e.Text(m.Later)
	}
}

// Decode reads what Encode has written.
func (m *Made) Decode(d *cluster.Decoder) {
	m.Size = d.Int()
	m.Ready = d.Bool()
	m.Zones = d.Texts()
	for n := d.Int(); n > 0 && d.More(); n-- {
		m.Parts = append(m.Parts, Part{d.Text()})
	}
	m.Why = d.Text()
	if d.More() {
		m.Later = d.Text()
	}
}

// Unsupported returns one that says why.
func (m *Made) Unsupported(why string) cluster.Object {
	return &Made{Namespace: m.Namespace, Name: m.Name, Why: why}
}
