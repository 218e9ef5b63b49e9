package yoda

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestGrantsComeBackFromAnnotations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Grant{
			Cards:     rapid.SliceOfNDistinct(rapid.StringMatching(`GPU-[A-Za-z0-9._:/-]{1,124}`), 1, MaxCards, rapid.ID).Draw(t, "cards"),
			MemoryMiB: rapid.Int64Range(0, maxAmount).Draw(t, "memory"),
		}
		got, ok, err := GrantOf(g.Annotations())
		if err != nil || !ok || !got.Equal(g) {
			t.Fatalf("%v comes back as %v, %v, %v", g, got, ok, err)
		}
	})
}

func TestAGrantIsWrittenAsCUDATakesIt(t *testing.T) {
	got := Grant{Cards: []string{"GPU-1", "GPU-2"}, MemoryMiB: 5}.Annotations()
	want := map[string]string{"yoda.berth.dev/cards": "GPU-1,GPU-2", "yoda.berth.dev/cards-memory": "5"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestWholeCardsStayWholeWhateverThePodHasSaidBefore(t *testing.T) {
	on := map[string]string{AnnotationCards: "GPU-9", AnnotationCardsMemory: "5"} // whoever has made the pod has written that
	maps.Copy(on, gpus("1").Annotations())
	if g, ok, err := GrantOf(on); !ok || err != nil || !g.Equal(gpus("1")) {
		t.Errorf("%v is %v, %v, %v: want the whole card", on, g, ok, err)
	}
	for _, told := range []map[string]string{{AnnotationCards: "GPU-1"}, {AnnotationCards: "GPU-1", AnnotationCardsMemory: "0"}} {
		if g, ok, err := GrantOf(told); !ok || err != nil || !g.Equal(gpus("1")) {
			t.Errorf("%v is %v, %v, %v: want the whole card", told, g, ok, err)
		}
	}
}

func TestAnnotationsThatAreNoGrantAreErrors(t *testing.T) {
	if g, ok, err := GrantOf(map[string]string{"note": "x"}); ok || err != nil {
		t.Errorf("no annotation is %v, %v, %v", g, ok, err)
	}
	many := make([]string, MaxCards+1)
	for i := range many {
		many[i] = fmt.Sprint("GPU-", i)
	}
	for _, cards := range []string{
		"", ",", "GPU-a,", ",GPU-a", "GPU-a,,GPU-b", "GPU-a, GPU-b", "GPU-a,GPU-a", "GPU-a b", "GPU-ä", "GPU-a\n", "GPU-a;b", "GPU-" + strings.Repeat("a", maxID-3),
		"a", "0", "gpu-a", "GPU-", "MIG-a", "MIG-GPU-a/1/0", "GPU-a,MIG-b", strings.Join(many, ","),
	} {
		if g, ok, err := GrantOf(map[string]string{AnnotationCards: cards}); ok || err == nil || !strings.Contains(err.Error(), AnnotationCards) {
			t.Errorf("%q is %v, %v, %v", cards, g, ok, err)
		}
	}
	for _, memory := range []string{"", "00", "-1", "+1", "01", "1.0", "1Gi", "2147483648"} {
		if g, ok, err := GrantOf(map[string]string{AnnotationCards: "GPU-a", AnnotationCardsMemory: memory}); ok || err == nil || !strings.Contains(err.Error(), AnnotationCardsMemory) {
			t.Errorf("%q MiB is %v, %v, %v", memory, g, ok, err)
		}
	}
	if g, ok, err := GrantOf(map[string]string{AnnotationCardsMemory: "5"}); ok || err == nil {
		t.Errorf("memory of no cards is %v, %v, %v", g, ok, err)
	}
}

// FuzzGrantOf: what is accepted is what would be written for it, to the byte, but that no memory is as good as 0.
func FuzzGrantOf(f *testing.F) {
	f.Add("GPU-1,GPU-2", "")
	f.Add("GPU-2", "16384")
	f.Add("GPU-2", "0")
	f.Add("GPU-2,GPU-2", "007")
	f.Fuzz(func(t *testing.T, cards, memory string) {
		told := map[string]string{AnnotationCards: cards}
		if memory != "" {
			told[AnnotationCardsMemory] = memory
		}
		g, ok, err := GrantOf(told)
		if err != nil {
			if text := err.Error(); ok || len(text) >= 1024 || !utf8.ValidString(text) {
				t.Fatalf("%v, error %q", ok, text)
			}
			return
		}
		if memory == "" {
			told[AnnotationCardsMemory] = "0"
		}
		if !ok || !maps.Equal(g.Annotations(), told) {
			t.Fatalf("%v is accepted as %v, %v, and would be written as %v", told, g, ok, g.Annotations())
		}
	})
}

func TestOnlySharedCardsAreGrantedByMemory(t *testing.T) {
	cards := wantChosen(t, bookOf(titan("a", 0), titan("b", 1)), &Request{Number: 2}, "a b")
	if got, want := (&Request{Number: 2, MemoryMiB: 5}).Grant(cards), gpus("a", "b"); !got.Equal(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := (&Request{Number: 2, MemoryMiB: 5, Share: true}).Grant(cards), gpuShares(5, "a", "b"); !got.Equal(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
