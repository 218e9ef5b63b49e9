package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/berth-scheduler/berth/internal/cluster"
)

// Bitmap returns the set that FromBitmap was given, as a bitmap of that many words of 64 indexes. Bit i of byte j
// stands for index 8j+i. It fails if b is longer than the words.
func Bitmap(b []byte, words int) (cluster.Bitmap, error) {
	if words < 0 || len(b) > 8*words {
		return nil, fmt.Errorf("decode bitmap: %d bytes, want at most %d", len(b), 8*max(words, 0))
	}
	out := make(cluster.Bitmap, words)
	w := 0
	for ; len(b) >= 8; b = b[8:] {
		out[w] = binary.LittleEndian.Uint64(b)
		w++
	}
	for j, c := range b {
		out[w] |= uint64(c) << (8 * j)
	}
	return out, nil
}

// FromBitmap returns the set as bytes, without the zero bytes at the end; nil if it is empty.
func FromBitmap(set cluster.Bitmap) []byte {
	for len(set) > 0 && set[len(set)-1] == 0 {
		set = set[:len(set)-1]
	}
	if len(set) == 0 {
		return nil
	}
	b := make([]byte, 0, 8*len(set))
	for _, w := range set {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}
