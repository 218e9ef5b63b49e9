package cluster

// Unserved says that the objects of a resource cannot be read: the API server does not serve it, or not to Berth. What there is of it is not known, so pods for which it matters wait.
type Unserved struct {
	Name string // of the resource, in lower case, as the API has it in its paths
	Why  string // for people
}

// Key returns the name.
func (u *Unserved) Key() ObjectKey { return ObjectKey{UnservedKind, "", u.Name} }

// Encode writes why.
func (u *Unserved) Encode(e *Encoder) { e.Text(u.Why) }

// Decode reads what Encode has written.
func (u *Unserved) Decode(d *Decoder) { u.Why = d.Text() }

// Unsupported returns one that does not say why.
func (u *Unserved) Unsupported(string) Object { return &Unserved{Name: u.Name} }

// BudgetResource is the resource that preemption needs.
const BudgetResource = "poddisruptionbudgets"

// volumeResources are those that pods with volumes need, in alphabetical order.
var volumeResources = []string{
	"csidrivers", "csinodes", "csistoragecapacities", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "volumeattachments",
}

// Unserved returns what says that a resource cannot be read, nil if it can.
func (s *State) Unserved(resource string) *Unserved {
	return ObjectAt[*Unserved](s, ObjectKey{UnservedKind, "", resource})
}

// VolumesUnserved returns the first resource of volumes, in alphabetical order, that cannot be read, nil if all can.
func (s *State) VolumesUnserved() *Unserved {
	if s.ObjectsModified(UnservedKind) == 0 { // there never was any
		return nil
	}
	for _, name := range volumeResources {
		if u := s.Unserved(name); u != nil {
			return u
		}
	}
	return nil
}
