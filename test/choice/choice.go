// Package choice is what plugins say that are there to be measured: next to no work, so that what is measured is what it costs to ask.
package choice

import "hash/fnv"

// Of says whether a node is refused, as one in ten is, and how good it is otherwise, from 0 to 10.
func Of(node string) (refused bool, score int64) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	sum := h.Sum32()
	return sum%10 == 0, int64(sum / 10 % 11)
}
