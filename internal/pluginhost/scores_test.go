package pluginhost

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

const (
	asIs         = pluginv1.Normalization_NORMALIZATION_UNSPECIFIED
	proportional = pluginv1.Normalization_NORMALIZATION_PROPORTIONAL
	reversed     = pluginv1.Normalization_NORMALIZATION_REVERSED
)

// rating returns a service with one plugin, of weight 2, that scores nodes as it is told, those of a question in order.
func rating(by pluginv1.Normalization, scores ...int32) *scripted {
	return &scripted{
		plugins: []*pluginv1.PluginDescription{{Name: "P", Filters: true, Scores: true, Normalization: by}},
		answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := honest(r)
			for k, a := range out.Answers {
				for _, s := range a.Scores {
					for n, i := range r.GetQuestions()[k].GetNodes() {
						s.Scores[n] = scores[i]
					}
				}
			}
			return out, nil
		},
	}
}

func TestScoresAreNormalisedOverTheNodesThatAreLeft(t *testing.T) {
	const most = math.MaxInt32
	all := []cluster.NodeIndex{0, 1, 2}
	for _, tt := range []struct {
		by     pluginv1.Normalization
		scores []int32
		left   []cluster.NodeIndex
		want   []int64 // with weight 2
	}{
		{asIs, []int32{100, 7, 0}, all, []int64{200, 14, 0}},
		{proportional, []int32{64_000, 640, 639}, all, []int64{200, 2, 0}},
		{proportional, []int32{64_000, 640, 639}, all[1:], []int64{200, 2 * 99}}, // 99.84, rounded down
		{proportional, []int32{3, 1, 2}, all, []int64{200, 2 * 33, 2 * 66}},
		{proportional, []int32{most, most - 1, most / 2}, all, []int64{200, 2 * 99, 2 * 49}},
		{proportional, []int32{0, 0, 0}, all, []int64{0, 0, 0}},
		{reversed, []int32{most, most / 4, 0}, all, []int64{0, 2 * (100 - 24), 200}},
		{reversed, []int32{1000, 995, 10}, all, []int64{0, 2, 2 * 99}},
		{reversed, []int32{0, 0, 0}, all, []int64{200, 200, 200}},
	} {
		s := rating(tt.by, tt.scores...)
		h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", s.serve(t), "P"))
		st, subjects := world(t, 3)
		for _, kept := range []bool{false, true} {
			k, err := judge(t, h, st, subjects[0])
			if err != nil {
				t.Fatal(err)
			}
			totals := make([]int64, len(tt.left))
			if k.Score(tt.left, totals); !slices.Equal(totals, tt.want) {
				t.Errorf("%v %v of nodes %v, kept %v: %v, want %v", tt.by, tt.scores, tt.left, kept, totals, tt.want)
			}
		}
		if n := len(s.asked); n != 1 {
			t.Errorf("%v: %d requests, want one: the rest is kept", tt.by, n)
		}
		h.End(0)
	}
}

func TestScoresAreBoundedAsTheyAreNormalised(t *testing.T) {
	for _, tt := range []struct {
		by   pluginv1.Normalization
		says int32
		want string
	}{
		{asIs, 100, ""},
		{asIs, 101, "answers[0]: scores[0]: P scores 101, want 0 to 100"},
		{proportional, math.MaxInt32, ""},
		{proportional, -1, "answers[0]: scores[0]: P scores -1, want 0 to 2147483647"},
		{reversed, math.MaxInt32, ""},
		{reversed, math.MinInt32, "answers[0]: scores[0]: P scores -2147483648, want 0 to 2147483647"},
	} {
		h := newHost(t, []cluster.Profile{profile("default-scheduler", "P")}, serviceOf("s", rating(tt.by, 1, tt.says).serve(t), "P"))
		st, subjects := world(t, 2)
		if _, err := judge(t, h, st, subjects[0]); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, %d: %v, want %q", tt.by, tt.says, err, tt.want)
		}
		h.End(0)
	}
}

// What answers take is counted by how large scores are.
func TestTheBytesOfAColumnAreThoseOfItsScores(t *testing.T) {
	for _, tt := range []struct{ scores, each int }{{0, 24 + 2}, {1, 24 + 2 + 4 + 12}, {3, 24 + 2 + 3*4 + 12}} {
		c := newColumn(dependencies{}, tt.scores)
		empty := c.bytes()
		c.grow(1000)
		if got, want := c.bytes()-empty, 1000*tt.each; got != want {
			t.Errorf("%d plugins that score: %d bytes of 1000 nodes, want %d", tt.scores, got, want)
		}
	}
}

// Scores of one kind are kept apart from those of another one, however large they are.
func TestWhatIsKeptOfTwoPluginsIsOfEach(t *testing.T) {
	s := &scripted{
		plugins: []*pluginv1.PluginDescription{{Name: "A", Filters: true, Scores: true, Normalization: proportional}, {Name: "B", Filters: true, Scores: true}},
		answer: func(_ int, r *pluginv1.JudgeRequest) (*pluginv1.JudgeResponse, error) {
			out := honest(r)
			for k, a := range out.Answers {
				for n, i := range r.GetQuestions()[k].GetNodes() {
					a.Scores[0].Scores[n], a.Scores[1].Scores[n] = 1_000_000*(i+1), 10*i
				}
			}
			return out, nil
		},
	}
	h := newHost(t, []cluster.Profile{profile("default-scheduler", "A", "B")}, serviceOf("s", s.serve(t), "A", "B"))
	defer h.End(0)
	st, subjects := world(t, 4)
	k, err := judge(t, h, st, subjects[0])
	if err != nil {
		t.Fatal(err)
	}
	totals := make([]int64, 4)
	k.Score([]cluster.NodeIndex{3, 0, 1, 2}, totals)
	if want := []int64{2*100 + 2*30, 2 * 25, 2*50 + 2*10, 2*75 + 2*20}; !slices.Equal(totals, want) {
		t.Errorf("totals %v, want %v", totals, want)
	}
	if kept, is := k.Kept(st, subjects[0]); !is || !kept.Normalized {
		t.Errorf("what is known: %+v, %v: want that what one node counts as depends on others", kept, is)
	}
}

// What nodes score is normalised as DefaultNormalizeScore does it, over those that are left, whatever has been scored anew since it was added up last, and whichever were left then.
func TestScoresComeToWhatEachComesToByItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		score := rapid.OneOf(rapid.Int32Range(0, 3), rapid.Int32Range(0, math.MaxInt32))
		by := rapid.SliceOfN(rapid.SampledFrom([]pluginv1.Normalization{asIs, proportional, reversed}), 1, 3).Draw(t, "by")
		c := newColumn(dependencies{}, len(by))
		c.grow(rapid.IntRange(1, 100).Draw(t, "nodes"))
		weigh := func() []int64 { return rapid.SliceOfN(rapid.Int64Range(1, 1000), len(by), len(by)).Draw(t, "weights") }
		weights := weigh()
		for range rapid.IntRange(1, 10).Draw(t, "rounds") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				c.grow(len(c.answers) + rapid.IntRange(1, 70).Draw(t, "more"))
			case 1:
				weights = weigh()
			case 2:
				c.forget()
			}
			for range rapid.IntRange(0, 2*len(c.answers)).Draw(t, "scored anew") {
				i := rapid.IntRange(0, len(c.answers)-1).Draw(t, "node")
				if c.answers[i] = (answer{seq: 1}); rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
					c.answers[i].verdict = 1 // its scores stay what they were
				} else {
					for k := range by {
						c.scores[k][i] = score.Draw(t, "score")
					}
				}
				c.scored(cluster.NodeIndex(i))
			}
			var nodes []cluster.NodeIndex
			for i, a := range c.answers {
				if a.seq != 0 && a.verdict == 0 && rapid.IntRange(0, 3).Draw(t, "left") > 0 {
					nodes = append(nodes, cluster.NodeIndex(i))
				}
			}
			want, got := make([]int64, len(nodes)), make([]int64, len(nodes))
			for n := range nodes {
				want[n], got[n] = int64(n), int64(n)
			}
			for k, by := range by {
				most := int64(0)
				for _, i := range nodes {
					most = max(most, int64(c.scores[k][i]))
				}
				for n, i := range nodes {
					score := int64(c.scores[k][i])
					if by != asIs && most > 0 {
						score = 100 * score / most
					}
					if by == reversed {
						score = 100 - score
					}
					want[n] += weights[k] * score
				}
			}
			totals := make([]engine.NodeTotal, len(nodes))
			for n := range nodes {
				totals[n].Total = int64(n)
			}
			add := func() { c.addScores(by, weights, nodes, got) }
			if rapid.Bool().Draw(t, "as totals") {
				add = func() {
					c.addTotals(by, weights, nodes, totals)
					for n := range totals {
						got[n] = totals[n].Total
					}
				}
			}
			if add(); !slices.Equal(got, want) {
				t.Fatalf("%v: got %v, want %v", by, got, want)
			}
		}
	})
}
