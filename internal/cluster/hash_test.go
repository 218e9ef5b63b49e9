package cluster

import "testing"

func TestHashesStayWhatTheyAre(t *testing.T) {
	long := make([]byte, 256)
	for i := range long {
		long[i] = byte(i)
	}
	for _, tt := range []struct {
		of   []byte
		want uint64
	}{
		{nil, 0xf52a15e9a9b5e89b}, {[]byte("a"), 0x2c0bdbf481420f8}, {[]byte("berth"), 0xa6db08f5cef8c1ff}, {long, 0xef2687f0d4371fe2},
	} {
		if got := hashBytes(tt.of); got != tt.want {
			t.Errorf("hash of %q is %#x, want %#x: members of other releases would see another digest", tt.of, got, tt.want)
		}
	}
	if allocs := testing.AllocsPerRun(100, func() { hashBytes(long) }); allocs > 0 {
		t.Errorf("a hash allocates %v times", allocs)
	}
}
