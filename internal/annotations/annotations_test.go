package annotations

import (
	"fmt"
	"strings"
	"testing"
)

func TestAnnotationsAreThoseThatTheAPIServerWouldTake(t *testing.T) {
	many := make(map[string]string)
	for i := range Max + 1 {
		many[fmt.Sprintf("example.com/a%d", i)] = ""
	}
	const name = "example.com/cards"
	for _, tt := range []struct {
		chosen map[string]string
		want   string // "": nothing is wrong
	}{
		{nil, ""},
		{map[string]string{name: "GPU-1,GPU-2", "Example.com/Other": "<\n\x00>"}, ""},
		{map[string]string{"k8s.io.example.com/a": "", "my-k8s.io/a": ""}, ""},
		{map[string]string{name: strings.Repeat("x", MaxBytes-len(name))}, ""},
		{map[string]string{name: strings.Repeat("x", MaxBytes-len(name)+1)}, "annotations of 4097 bytes in all: want at most 4096"},
		{many, "65 annotations: want at most 64"},
		{map[string]string{"cards": "1"}, `annotation "cards": its name has no prefix`},
		{map[string]string{"kubernetes.io/cards": "1"}, `annotation "kubernetes.io/cards": names of kubernetes.io are Kubernetes' own`},
		{map[string]string{"Scheduler.Alpha.Kubernetes.IO/cards": "1"}, "names of scheduler.alpha.kubernetes.io are Kubernetes' own"},
		{map[string]string{"node.k8s.io/cards": "1"}, "names of node.k8s.io are Kubernetes' own"},
		{map[string]string{"": "1"}, `annotation "": its name `},
		{map[string]string{"example.com/": "1"}, `annotation "example.com/": its name `},
		{map[string]string{"a/b/c": "1"}, `annotation "a/b/c": its name `},
		{map[string]string{"example.com/" + strings.Repeat("x", 1<<20): "1"}, `annotation "example.com/xxx`},
		{map[string]string{name: "\xff"}, `annotation "example.com/cards": its value is not UTF-8`},
	} {
		got := ""
		if err := Check(tt.chosen); err != nil {
			got = err.Error()
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || len(got) > 500 {
			t.Errorf("%.100v: %.600q, want %q", tt.chosen, got, tt.want)
		}
	}
}
