package wire_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	filterv1 "github.com/berth-scheduler/berth/internal/gen/berth/filter/v1"
	scorev1 "github.com/berth-scheduler/berth/internal/gen/berth/score/v1"
	"github.com/berth-scheduler/berth/internal/wire"
)

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

func TestBitmapSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.IntRange(0, 5).Draw(t, "words")
		set := make(cluster.Bitmap, words)
		for i := range set {
			set[i] = rapid.Uint64().Draw(t, "word") & rapid.SampledFrom([]uint64{0, 0xff, ^uint64(0)}).Draw(t, "mask")
		}
		b := wire.FromBitmap(set)
		if len(b) > 0 && b[len(b)-1] == 0 {
			t.Fatalf("FromBitmap(%x) = %x ends in zero", set, b)
		}
		for i := range cluster.NodeIndex(64 * words) {
			has := int(i/8) < len(b) && b[i/8]&(1<<(i%8)) != 0
			if has != set.Has(i) {
				t.Fatalf("index %d: %v on the wire, %v in the set", i, has, set.Has(i))
			}
		}
		back, err := wire.Bitmap(b, words)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(set, back); diff != "" {
			t.Fatalf("Bitmap(FromBitmap(set)) (-want +got):\n%s", diff)
		}
	})
}

func TestBitmapLongerThanItsRangeIsRefused(t *testing.T) {
	if set, err := wire.Bitmap(bytes.Repeat([]byte{0}, 9), 1); err == nil {
		t.Errorf("Bitmap of 9 bytes in one word: %v, want an error", set)
	}
	if set, err := wire.Bitmap([]byte{1}, -1); err == nil {
		t.Errorf("Bitmap of -1 words: %v, want an error", set)
	}
}

func TestGroupsSurviveTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := rapid.SliceOf(rapid.MakeCustom[engine.Group](good)).Draw(t, "groups")
		for i := range groups {
			groups[i].Count = max(groups[i].Count, int32(len(groups[i].Nodes)))
			for k := range groups[i].Nodes {
				clear(groups[i].Nodes[k].Scores[engine.ScorePlaces():]) // nobody has them
			}
		}
		back, err := wire.Groups(wire.ToGroups(groups))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(groups, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Groups(ToGroups(groups)) (-want +got):\n%s", diff)
		}
	})
}

func TestSubjectSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.Make[engine.Subject]().Draw(t, "subject")
		if back := wire.Subject(wire.ToSubject(s)); back != s {
			t.Fatalf("Subject(ToSubject(%+v)) = %+v", s, back)
		}
	})
	if s := wire.Subject(nil); s != (engine.Subject{}) {
		t.Errorf("no message is %+v, want the zero subject", s)
	}
}

func TestFixedScoresOnTheWireHaveThatOfImagesInThem(t *testing.T) {
	// A queue and a binder of a version before that know nothing of groups by images.
	m := wire.ToGroups([]engine.Group{{Count: 1, Nodes: []engine.Scored{{Node: 1, Fixed: 100}}, OfImages: 7}})[0]
	if m.GetFixed()[0] != 107 || m.GetImageLocality() != 7 {
		t.Errorf("fixed %d, of it %d for images, want 107 and 7", m.GetFixed()[0], m.GetImageLocality())
	}
}

func TestGroupsWithListsOfWrongLengthsAreRefused(t *testing.T) {
	whole := &scorev1.Group{Count: 2, Nodes: []int32{4, 5}, Fixed: []int64{7, 8}, Raw: []int32{1, 2, 3, 4, 5, 6}, TopologyProfile: make([]byte, 1<<16)}
	if _, err := wire.Groups([]*scorev1.Group{whole}); err != nil {
		t.Fatalf("Groups of a good group: %v", err)
	}
	for _, c := range []struct {
		want  string
		spoil func(*scorev1.Group)
	}{
		{"fixed: 1 scores of 2 nodes", func(g *scorev1.Group) { g.Fixed = g.Fixed[:1] }},
		{"raw: 5 scores of 2 nodes", func(g *scorev1.Group) { g.Raw = g.Raw[:5] }},
		{"fixed: 2 scores of 0 nodes", func(g *scorev1.Group) { g.Nodes = nil }},
		{"count: 1 of 2 nodes", func(g *scorev1.Group) { g.Count = 1 }},
		{"count: -1 of 0 nodes", func(g *scorev1.Group) { g.Count, g.Nodes, g.Fixed, g.Raw = -1, nil, nil, nil }},
		{"topology_profile: 65537 bytes", func(g *scorev1.Group) { g.TopologyProfile = make([]byte, 1<<16+1) }},
		{"images: 65537 bytes", func(g *scorev1.Group) { g.Images = make([]byte, 1<<16+1) }},
		{"nodes: -4", func(g *scorev1.Group) { g.Nodes = []int32{-4, 5} }},
	} {
		t.Run(c.want, func(t *testing.T) {
			spoiled := proto.CloneOf(whole)
			c.spoil(spoiled)
			_, err := wire.Groups([]*scorev1.Group{whole, spoiled})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "group 1") {
				t.Errorf("Groups: %v, want an error with %q of group 1", err, c.want)
			}
		})
	}
}

func TestVerdictsSurviveTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOf(rapid.MakeCustom[engine.VerdictCount](good)).Draw(t, "counts")
		back, err := wire.Verdicts(wire.ToVerdicts(counts))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(counts, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Verdicts(ToVerdicts(counts)) (-want +got):\n%s", diff)
		}
	})
	if _, err := wire.Verdicts([]*filterv1.VerdictCount{{Count: -1}}); err == nil {
		t.Error("Verdicts took a negative count")
	}
}

func TestDryRunSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MakeCustom[engine.DryRun](good).Draw(t, "dry run")
		want.Nodes, want.Count = max(want.Nodes, 0), int32(len(want.Candidates))
		for k := range want.Candidates {
			c := &want.Candidates[k]
			c.Victims = append(c.Victims, 7)
			c.Violations = int32(len(c.Victims))
		}
		back, err := wire.DryRun(wire.ToDryRun(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("DryRun(ToDryRun(d)) (-want +got):\n%s", diff)
		}
	})
}

func TestDryRunsThatMakeNoSenseAreRefused(t *testing.T) {
	whole := &filterv1.DryRunPreemptionResponse{Nodes: 3, CandidateCount: 1, Candidates: []*filterv1.PreemptionCandidate{
		{Node: 4, Victims: []int32{1, 2}, Violations: 2},
	}}
	if _, err := wire.DryRun(whole); err != nil {
		t.Fatalf("DryRun of a good one: %v", err)
	}
	for _, c := range []struct {
		want  string
		spoil func(*filterv1.DryRunPreemptionResponse)
	}{
		{"nodes: negative", func(m *filterv1.DryRunPreemptionResponse) { m.Nodes = -1 }},
		{"candidate_count: 0 of 1", func(m *filterv1.DryRunPreemptionResponse) { m.CandidateCount = 0 }},
		{"verdict 0: negative", func(m *filterv1.DryRunPreemptionResponse) { m.Verdicts = []*filterv1.VerdictCount{{Count: -1}} }},
		{"candidate 0: node: -4", func(m *filterv1.DryRunPreemptionResponse) { m.Candidates[0].Node = -4 }},
		{"candidate 0: victims[1]: -2", func(m *filterv1.DryRunPreemptionResponse) { m.Candidates[0].Victims[1] = -2 }},
		{"candidate 0: victims: none", func(m *filterv1.DryRunPreemptionResponse) { m.Candidates[0].Victims = nil }},
		{"violations: 3 of 2", func(m *filterv1.DryRunPreemptionResponse) { m.Candidates[0].Violations = 3 }},
		{"violations: -1 of 2", func(m *filterv1.DryRunPreemptionResponse) { m.Candidates[0].Violations = -1 }},
	} {
		t.Run(c.want, func(t *testing.T) {
			spoiled := proto.CloneOf(whole)
			c.spoil(spoiled)
			if _, err := wire.DryRun(spoiled); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("DryRun: %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestScoresThatNoPluginGivesAreNotTold(t *testing.T) {
	// A queue and a binder of a version before that know three of a node.
	node := engine.Scored{Node: 1, Scores: [4]int32{1, 2, 3, engine.NotScored}}
	if raw := wire.ToGroups([]engine.Group{{Count: 1, Nodes: []engine.Scored{node}}})[0].GetRaw(); len(raw) != 3 {
		t.Errorf("%v is told of %+v, want three scores", raw, node)
	}
	node.Scores[3] = 0
	if raw := wire.ToGroups([]engine.Group{{Count: 1, Nodes: []engine.Scored{node}}})[0].GetRaw(); len(raw) != 4 {
		t.Errorf("%v is told of %+v, want four scores", raw, node)
	}
}
