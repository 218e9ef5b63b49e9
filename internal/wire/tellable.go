package wire

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// MaxTold is the most bytes that a delta may take of what a source tells, encoded: as much as a message of the log carries. An
// object of the API server is hardly larger.
const MaxTold = 1 << 20

// Tellable returns why a delta cannot be told to replicas, nil if it can be: it does not encode, or is larger than MaxTold.
// Whoever applies what others have written asks first: a delta that is in the ledger and not in the log is the end of the epoch.
func Tellable(d cluster.Delta) error {
	if p, ok := d.(cluster.PodSet); ok {
		return tellablePod(&p)
	}
	b, err := Encode(d)
	switch {
	case err != nil:
		return err
	case len(b) > MaxTold:
		return fmt.Errorf("it takes %d bytes, which is more than %d", len(b), MaxTold)
	}
	return nil
}

// tellablePod is Tellable of the delta that there are most of, without encoding it: its ids are the ledger's own.
func tellablePod(d *cluster.PodSet) error {
	size := 0
	bad := ""
	text := func(field, s string) {
		if size += len(s) + 4; bad == "" && !utf8.ValidString(s) {
			bad = field
		}
	}
	text("uid", d.Pod.UID)
	text("namespace", d.Pod.Namespace)
	text("name", d.Pod.Name)
	text("required_node", d.Pod.RequiredNode)
	text("node name", d.Pod.NodeName)
	text("nominated node", d.Pod.Nominated)
	text("group", d.Pod.Group)
	for _, gate := range d.Pod.Gates {
		text("scheduling gates", gate)
	}
	const numbers = 256 // bytes for all that is no text
	switch {
	case bad != "":
		return errors.New("its " + bad + ": not valid UTF-8")
	case size > MaxTold-numbers:
		return fmt.Errorf("it takes %d bytes, which is more than %d", size, MaxTold-numbers)
	}
	return nil
}
