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

func TestSettingsThatDifferHaveOtherDigestsAndWhatIsOffHasThatOfVersionsThatDoNotKnowIt(t *testing.T) {
	plain := Settings{Shards: 2, Seed: 7, Source: "kube", MaxUnschedulableSeconds: 300}
	sees := plain
	sees.PreemptionSeesVolumes = true
	all := map[uint64]string{
		hashSettings(plain): "plain", hashSettings(sees): "sees volumes",
		hashSettings(plain.Yielding([]string{"a"}, "b")): "yields", hashSettings(sees.Yielding([]string{"a"}, "b")): "both",
	}
	if len(all) != 4 {
		t.Errorf("digests %v, want 4", all)
	}
	var e Encoder // as it has been since there are settings
	e.Int(kindSettings)
	e.Int(2)
	e.Int(7)
	list(&e, plain.Profiles, encodeProfile)
	e.Text("kube")
	e.Int(0)
	e.Int(0)
	e.Int(300)
	if got, want := hashSettings(plain), hashBytes(e.b); got != want {
		t.Errorf("the digest is %#x, want %#x: members of other releases would see another", got, want)
	}
}
