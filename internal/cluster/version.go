package cluster

import (
	"cmp"
	"fmt"
)

// Epoch is the etcd revision at which the active binder was elected. It grows with each election.
type Epoch int64

// Seq is a position in the log of an epoch: the number of deltas applied since the epoch began.
type Seq int64

// Version is a position in Berth's log. The zero Version is before every other.
type Version struct {
	Epoch Epoch
	Seq   Seq
}

// Compare orders versions by epoch, then by seq.
func (v Version) Compare(w Version) int {
	if c := cmp.Compare(v.Epoch, w.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(v.Seq, w.Seq)
}

// Less reports whether v is before w.
func (v Version) Less(w Version) bool { return v.Compare(w) < 0 }

// IsZero reports whether v is no version.
func (v Version) IsZero() bool { return v == Version{} }

func (v Version) String() string { return fmt.Sprintf("%d/%d", v.Epoch, v.Seq) }
