package cluster

import "math/bits"

// Bitmap is a set of node indexes. Bit i%64 of word i/64 stands for index i. Reading past the end finds nothing.
type Bitmap []uint64

// NewBitmap returns an empty set with room for n indexes.
func NewBitmap(n int) Bitmap { return make(Bitmap, (n+63)/64) }

// Has reports whether i is in the set.
func (b Bitmap) Has(i NodeIndex) bool {
	w := int(i >> 6)
	return i >= 0 && w < len(b) && b[w]&(1<<(uint(i)&63)) != 0
}

// Set adds i, which must be within the bitmap.
func (b Bitmap) Set(i NodeIndex) { b[i>>6] |= 1 << (uint(i) & 63) }

// Clear removes i, which must be within the bitmap.
func (b Bitmap) Clear(i NodeIndex) { b[i>>6] &^= 1 << (uint(i) & 63) }

// Put adds or removes i, which must be within the bitmap.
func (b Bitmap) Put(i NodeIndex, in bool) {
	if in {
		b.Set(i)
	} else {
		b.Clear(i)
	}
}

// Count returns the size of the set.
func (b Bitmap) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// Grow returns the bitmap with room for at least n indexes.
func (b Bitmap) Grow(n int) Bitmap {
	for len(b)*64 < n {
		b = append(b, 0)
	}
	return b
}

// Range is the half-open interval [First, End) of node indexes: the unit of fan-out.
type Range struct{ First, End NodeIndex }

// Len returns the number of indexes in the range.
func (r Range) Len() int { return int(max(r.End-r.First, 0)) }

// Clip returns the part of the range below n.
func (r Range) Clip(n int) Range {
	return Range{First: min(r.First, NodeIndex(n)), End: min(r.End, NodeIndex(n))}
}

// LeastRange is the smallest range worth a call of its own, in nodes.
const LeastRange = 512

// Ranges cuts the indexes [0, n) into at most parts ranges of about equal size whose bounds are multiples of 64 and
// which are, but for the last, no smaller than least.
func Ranges(n, parts, least int) []Range {
	if n <= 0 {
		return nil
	}
	words := (n + 63) / 64
	leastWords := max((least+63)/64, 1)
	parts = max(min(parts, words/leastWords), 1)
	out := make([]Range, 0, parts)
	for i := range parts {
		first, end := words*i/parts, words*(i+1)/parts
		out = append(out, Range{First: NodeIndex(first * 64), End: NodeIndex(end * 64)})
	}
	return out
}
