package yoda

import (
	"strings"
	"testing"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

func TestANodesLevelGoesBeforeThatOfModels(t *testing.T) {
	args, err := ParseArgs([]byte(`{"levels":[{"model":"NVIDIA TITAN*","level":"low"},{"model":"*","level":"High"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	cards := []v1alpha1.Card{titan("a", 0), with(titan("b", 1), func(c *v1alpha1.Card) { c.Model = "NVIDIA A100" })}
	for _, test := range []struct {
		label string // "": none
		args  *Args
		level Level
		want  string
	}{
		{"", args, Low, "a"}, {"", args, High, "b"}, {"", args, Medium, ""},
		{"", nil, Low, ""}, {"", nil, NoLevel, "a"},
		{"Medium", args, Medium, "a"}, {"Medium", args, Low, ""}, {"Medium", nil, Medium, "a"},
		{"excellent", args, Low, ""}, {"excellent", args, NoLevel, "a"},
	} {
		b := bookOf(cards...)
		if test.label != "" {
			b.SetNode("n", FactsOf(map[string]string{LabelNodeLevel: test.label}, nil, nil))
		}
		got, _ := Choose(b.View("n"), &Request{Number: 1, Level: test.level}, test.args, start)
		if idsOf(got) != test.want {
			t.Errorf("label %q, level %q: cards %q, want %q", test.label, test.level, idsOf(got), test.want)
		}
	}
}

func TestArgumentsAreReadStrictly(t *testing.T) {
	for text, ok := range map[string]bool{
		``: true, ` `: true, `{}`: true, `{"levels":[]}`: true, `{"levels":[{"model":"a[bc]","level":"medium"}]}`: true,
		`{"level":[]}`: false, `{} {}`: false, `{"levels":[{"model":"a"}]}`: false, `{"levels":[{"level":"Low"}]}`: false,
		`{"levels":[{"model":"a[","level":"Low"}]}`: false, `{"levels":[{"model":"a","level":"LOW"}]}`: false, `[`: false,
		`{"levels":[{"model":"` + strings.Repeat("a", 257) + `","level":"Low"}]}`:                             false,
		`{"levels":[` + strings.Repeat(`{"model":"a","level":"Low"},`, 256) + `{"model":"a","level":"Low"}]}`: false,
	} {
		if _, err := ParseArgs([]byte(text)); (err == nil) != ok {
			t.Errorf("%.60s: %v, want an error: %v", text, err, !ok)
		}
	}
}
