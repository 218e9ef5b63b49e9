package gateway

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/rpc"
)

const (
	defaultPage = 100
	maxPage     = 1000

	// pageBytes ends a page early: answers that clients are slow to read are kept for them, as many as a connection has
	// streams. An object is at most a manifest of 1 MiB, so a page stays below the 4 MiB that gRPC clients accept.
	pageBytes = 512 << 10
)

// pageSize returns how many objects a page has at most.
func pageSize(asked int32) (int, []rpc.Violation) {
	switch {
	case asked < 0:
		return 0, []rpc.Violation{{Field: "page_size", Description: fmt.Sprintf("%d is negative", asked)}}
	case asked == 0:
		return defaultPage, nil
	}
	return min(int(asked), maxPage), nil
}

// A page token holds the key of the last object of the page before, so that a page is found again whatever came and
// went since. It begins with a checksum over the key and the scope (the list and its filters): a token that was made up, or
// is of another list, is told from a good one.

// pageToken returns the token for what follows the object with the key.
func pageToken(scope string, key ...string) string {
	joined := strings.Join(key, "\x00")
	raw := binary.BigEndian.AppendUint64(nil, tokenSum(scope, joined))
	return base64.RawURLEncoding.EncodeToString(append(raw, joined...))
}

// readPageToken returns the key in a token of that scope, nil for the first page.
func readPageToken(token, scope string) ([]string, []rpc.Violation) {
	if token == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < 8 || binary.BigEndian.Uint64(raw) != tokenSum(scope, string(raw[8:])) {
		return nil, []rpc.Violation{{Field: "page_token", Description: "not a next_page_token of this list with these filters"}}
	}
	return strings.Split(string(raw[8:]), "\x00"), nil
}

func tokenSum(scope, key string) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q%q", scope, key) // a hash never fails
	return h.Sum64()
}

// smallest keeps the limit smallest of the things it is offered, without sorting all of them: it gathers twice as many,
// then drops the larger half, and from then on refuses what is larger than all it has kept.
type smallest[T any] struct {
	limit   int
	compare func(a, b T) int
	kept    []T
	largest T    // of what was kept when it last was cut
	cut     bool // largest is set
}

func (s *smallest[T]) offer(x T) {
	if s.cut && s.compare(x, s.largest) >= 0 {
		return
	}
	s.kept = append(s.kept, x)
	if len(s.kept) >= 2*s.limit {
		s.trim()
		s.largest, s.cut = s.kept[s.limit-1], true
	}
}

// sorted returns what was kept, in order.
func (s *smallest[T]) sorted() []T {
	s.trim()
	return s.kept
}

func (s *smallest[T]) trim() {
	slices.SortFunc(s.kept, s.compare)
	s.kept = s.kept[:min(len(s.kept), s.limit)]
}

// checkName returns what is wrong with a name in a request. max is in bytes.
func checkName(field, value string, required bool, max int) []rpc.Violation {
	switch {
	case value == "" && required:
		return []rpc.Violation{{Field: field, Description: "required"}}
	case len(value) > max:
		return []rpc.Violation{{Field: field, Description: fmt.Sprintf("longer than %d bytes", max)}}
	case strings.ContainsAny(value, "/\x00"):
		return []rpc.Violation{{Field: field, Description: "not a name: it contains a slash or a NUL"}}
	}
	return nil
}

// checkGroup returns what is wrong with the name of a group in a request: that of a PodGroup, which has more before it if it is one of Coscheduling.
func checkGroup(value string) []rpc.Violation {
	name, more := strings.CutPrefix(value, cluster.CoschedulingGroup(""))
	return checkName("pod_group", name, more, maxObject)
}

// The longest names that Kubernetes has.
const (
	maxNamespace = 63
	maxObject    = 253
)
