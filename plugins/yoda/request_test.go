package yoda

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestRequestsAreReadOfLabelsAndOfTheAnnotation(t *testing.T) {
	note := func(text string) map[string]string { return map[string]string{AnnotationRequest: text} }
	for _, test := range []struct {
		name        string
		labels      map[string]string
		annotations map[string]string
		want        *Request
	}{
		{"nothing", map[string]string{"app": "web"}, map[string]string{"note": "x"}, nil},
		{"a priority asks for no card", map[string]string{"scv/priority": "5"}, nil, nil},
		{"one card is what any other label asks for", map[string]string{"scv/memory": "0"}, nil, &Request{Number: 1}},
		{"second names", map[string]string{"scv/number": "2", "scv/memory": "8000", "scv/clock": "5705", "scv/level": "high", "scv/priority": "-3"}, nil, &Request{Number: 2, MemoryMiB: 8000, ClockMHz: 5705, Level: High}},
		{"first names", map[string]string{"scv/Number": "64", "scv/FreeMemory": "2147483647", "scv/Level": "Low"}, nil, &Request{Number: 64, MemoryMiB: maxAmount, Level: Low}},
		{"both names that say the same", map[string]string{"scv/Level": "Medium", "scv/level": "medium", "scv/number": "3", "scv/Number": "3"}, nil, &Request{Number: 3, Level: Medium}},
		{"empty object", map[string]string{"scv/number": "1"}, note(` {} `), &Request{Number: 1}},
		{"all of the annotation", map[string]string{"scv/number": "2"}, note(`{"number":2,"memory":"16Gi","clockMHz":5000,"coreMHz":1900,"level":"High","model":"NVIDIA \"A100\"","share":true}`),
			&Request{2, 16384, 5000, 1900, High, `NVIDIA "A100"`, true}},
		{"the annotation adds to labels", map[string]string{"scv/number": "2"}, note(`{"memory":"1","number":2,"share":false}`), &Request{Number: 2, MemoryMiB: 1}},
		{"the memory of a label is shared", map[string]string{"scv/memory": "5"}, note(`{"share":true}`), &Request{Number: 1, MemoryMiB: 5, Share: true}},
	} {
		got, err := ParseRequest(test.labels, test.annotations)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestWrongRequestsAreErrorsThatSayWhatIsRight(t *testing.T) {
	for _, test := range []struct {
		labels map[string]string
		note   string // the annotation; "": none
		want   string
	}{
		{map[string]string{"scv/number": "0"}, "", `label "scv/number" is "0": want a whole number from 1 to 64, in digits only`},
		{map[string]string{"scv/Number": "65"}, "", `label "scv/Number" is "65": want a whole number from 1 to 64, in digits only`},
		{map[string]string{"scv/clock": "1.5GHz"}, "", `label "scv/clock" is "1.5GHz": want MHz, a whole number from 0 to 2147483647, in digits only`},
		{map[string]string{"scv/Level": "HIGH"}, "", `label "scv/Level" is "HIGH": want High, Medium or Low`},
		{map[string]string{"scv/priority": "2147483648"}, "", `label "scv/priority" is "2147483648": want a whole number from -2147483648 to 2147483647, in digits only`},
		{map[string]string{"scv/memroy": "1", "scv/zzz": ""}, "", `label "scv/memroy" is none that asks for cards: want scv/number, scv/memory, scv/clock, scv/level or scv/priority`},
		{map[string]string{"scv/number": "1", "scv/Number": "2"}, "", `label "scv/number" asks for 1, and label "scv/Number" for 2: want one of them, or both the same`},
		{map[string]string{"scv/level": "high", "scv/Level": "Low"}, "", `label "scv/level" asks for High, and label "scv/Level" for Low: want one of them, or both the same`},
		{map[string]string{"scv/memory": "16"}, `{"memory":"16Gi"}`, `label "scv/memory" asks for 16, and memory of annotation "yoda.berth.dev/request" for 16384: want one of them, or both the same`},
		{map[string]string{"scv/memory": "0"}, `{"memory":"1Mi"}`, `label "scv/memory" asks for 0, and memory of annotation "yoda.berth.dev/request" for 1: want one of them, or both the same`},
		{nil, `[]`, `annotation "yoda.berth.dev/request" is "[]": want a JSON object`},
		{nil, `null`, `annotation "yoda.berth.dev/request" is "null": want a JSON object`},
		{nil, ` `, `annotation "yoda.berth.dev/request" is " ": want a JSON object of at most 4096 bytes`},
		{nil, `{} {}`, `annotation "yoda.berth.dev/request" is "{} {}": want a JSON object of at most 4096 bytes`},
		{nil, `{"number":1,}`, `annotation "yoda.berth.dev/request" is "{\"number\":1,}": want a JSON object of at most 4096 bytes`},
		{nil, "{\"model\":\"\xff\"}", `annotation "yoda.berth.dev/request" is "{\"model\":\"\xff\"}": want a JSON object of at most 4096 bytes`},
		{nil, strings.Repeat(" ", 4095) + "{}", `annotation "yoda.berth.dev/request" is "` + strings.Repeat(" ", 64) + `"…: want a JSON object of at most 4096 bytes`},
		{nil, `{"number":1,"number":1}`, `annotation "yoda.berth.dev/request" has "number" twice: want it once`},
		{nil, `{"number":1,"n\u0075mber":1}`, `annotation "yoda.berth.dev/request" has "number" twice: want it once`},
		{nil, `{"Number":1}`, `annotation "yoda.berth.dev/request" has "Number": want number, memory, clockMHz, coreMHz, level, model or share`},
		{nil, `{"number":1e0}`, `number of annotation "yoda.berth.dev/request" is "1e0": want a whole number from 1 to 64, in digits only`},
		{nil, `{"number":"1"}`, `number of annotation "yoda.berth.dev/request" is "\"1\"": want a whole number from 1 to 64, in digits only`},
		{nil, `{"coreMHz":-0}`, `coreMHz of annotation "yoda.berth.dev/request" is "-0": want MHz, a whole number from 0 to 2147483647, in digits only`},
		{nil, `{"memory":16384}`, `memory of annotation "yoda.berth.dev/request" is "16384": want a quantity such as "16Gi", from 0 to 2147483647Mi`},
		{nil, `{"level":3}`, `level of annotation "yoda.berth.dev/request" is "3": want High, Medium or Low, in quotes`},
		{nil, `{"model":""}`, `model of annotation "yoda.berth.dev/request" is "\"\"": want a string of 1 to 256 bytes`},
		{nil, `{"model":null}`, `model of annotation "yoda.berth.dev/request" is "null": want a string of 1 to 256 bytes`},
		{nil, `{"share":1}`, `share of annotation "yoda.berth.dev/request" is "1": want true or false`},
		{nil, `{"share":true}`, `annotation "yoda.berth.dev/request": share is true, and no memory is asked for: want how much of each card, in memory`},
		{nil, `{"number":1}`, `annotation "yoda.berth.dev/request" asks for cards, and no label does: want label "scv/number" too, by which others see that the pod has cards`},
		{map[string]string{"scv/priority": "1"}, `{}`, `annotation "yoda.berth.dev/request" asks for cards, and no label does: want label "scv/number" too, by which others see that the pod has cards`},
	} {
		annotations := map[string]string{}
		if test.note != "" {
			annotations[AnnotationRequest] = test.note
		}
		if r, err := ParseRequest(test.labels, annotations); err == nil {
			t.Errorf("%v %q is read as %+v, want %s", test.labels, test.note, r, test.want)
		} else if err.Error() != test.want {
			t.Errorf("%s\nwant %s", err, test.want)
		}
	}
}

func TestMemoryIsRoundedUpToMiBAndQuickToRead(t *testing.T) {
	const none = -1
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1048576": 1, "1048577": 2, "16Gi": 16384, "0.5Gi": 512, "1G": 954, "1e9": 954, "1E9": 954, "1m": 1, "1e-20": 1, "2147483647Mi": maxAmount,
		"2147483647.1Mi": none, "2147483648Mi": none, "1Ei": none, "1E": none, "-1": none, "-1Gi": none, "": none, "Gi": none, "+1Gi": none, ".5Gi": none, "16GiB": none, "16 Gi": none, "16gi": none, "NaN": none,
		"1e999999999": none, "1e-999999999": none, "1E-25": none, "1e25": none, "0e999999999": none, "1e": none, "1e+2147483648": none, strings.Repeat("9", 33): none, strings.Repeat("9", 32): none,
	} {
		got, ok := parseMemory(text)
		if !ok {
			got = none
		}
		if got != want {
			t.Errorf("%q is %d MiB, want %d", text, got, want)
		}
	}
}

func TestPriorityIsThatOfItsLabelOrElseOfTheLevel(t *testing.T) {
	for _, test := range []struct {
		labels map[string]string
		want   int32
		ok     bool
	}{
		{nil, 0, true},
		{map[string]string{"scv/priority": "7"}, 7, true},
		{map[string]string{"scv/priority": "-2147483648"}, -2147483648, true},
		{map[string]string{"scv/priority": "2147483647", "scv/Level": "Low"}, 2147483647, true},
		{map[string]string{"scv/Level": "High"}, 3, true}, {map[string]string{"scv/level": "Medium"}, 2, true}, {map[string]string{"scv/Level": "low"}, 1, true},
		{map[string]string{"scv/priority": "-2147483649"}, 0, false}, {map[string]string{"scv/priority": "2147483648"}, 0, false},
		{map[string]string{"scv/priority": "-0"}, 0, false}, {map[string]string{"scv/priority": "--1"}, 0, false}, {map[string]string{"scv/priority": "-"}, 0, false},
		{map[string]string{"scv/priority": "high"}, 0, false}, {map[string]string{"scv/priority": ""}, 0, false}, {map[string]string{"scv/priority": "01"}, 0, false},
		{map[string]string{"scv/Level": "Best"}, 0, false}, {map[string]string{"scv/Level": "High", "scv/level": "low"}, 0, false},
	} {
		got, err := Priority(test.labels)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%v: %d, %v, want %d", test.labels, got, err, test.want)
		}
		if _, wrong := ParseRequest(test.labels, nil); (wrong == nil) != test.ok {
			t.Errorf("%v: read as a request: %v", test.labels, wrong)
		}
	}
}

// FuzzParseRequest: what is accepted is within bounds, can be written in one way, and comes back from there; what is not says why in few words. Labels are lines of a name, "=" and a value.
func FuzzParseRequest(f *testing.F) {
	f.Add("scv/number=2\nscv/memory=8000\nscv/clock=5705\nscv/level=high\nscv/priority=-1", "")
	f.Add("scv/Number=1\nscv/FreeMemory=1\nscv/Level=Low", `{"number":1,"memory":"1Mi","level":"low","share":true}`)
	f.Add("", `{"memory":"1e-24","model":"<\u0000\ud800>","clockMHz":2147483647,"coreMHz":0}`)
	f.Add("scv/memory=0", `{"memory":"0"}`)
	f.Add("scv/memory=00", `{"memory":"+1.5Gi","memory":""}`)
	f.Fuzz(func(t *testing.T, lines, note string) {
		labels, annotations := map[string]string{}, map[string]string{}
		for line := range strings.SplitSeq(lines, "\n") {
			if name, value, ok := strings.Cut(line, "="); ok {
				labels[name] = value
			}
		}
		if note != "" {
			annotations[AnnotationRequest] = note
		}
		r, err := ParseRequest(labels, annotations)
		again, err2 := ParseRequest(labels, annotations)
		if (err == nil) != (err2 == nil) || (err != nil && err.Error() != err2.Error()) || !cmp.Equal(r, again) {
			t.Fatalf("read twice: %+v, %v and %+v, %v", r, err, again, err2)
		}
		if err != nil {
			if text := err.Error(); r != nil || len(text) >= 1024 || !utf8.ValidString(text) || !strings.Contains(text, "want ") {
				t.Fatalf("%+v, error %q", r, text)
			}
			return
		}
		if _, err := Priority(labels); err != nil {
			t.Fatalf("a request is accepted, and its priority is not: %v", err)
		}
		if (r != nil) != Asks(labels) {
			t.Fatalf("%v asks for %+v", labels, r)
		}
		if r == nil {
			return
		}
		if r.Number < 1 || r.Number > MaxCards || r.Share && r.MemoryMiB == 0 || len(r.Model) > maxModel {
			t.Fatalf("%+v is out of bounds", r)
		}
		for _, n := range []int64{r.MemoryMiB, r.ClockMHz, r.CoreMHz} {
			if n < 0 || n > maxAmount {
				t.Fatalf("%+v is out of bounds", r)
			}
		}
		written := r.Annotation()
		back, err := ParseRequest(map[string]string{LabelNumber: fmt.Sprint(r.Number)}, map[string]string{AnnotationRequest: written})
		if err != nil || !cmp.Equal(back, r) {
			t.Fatalf("%+v is written as %s, which is read as %+v, %v", r, written, back, err)
		}
		if both, err := ParseRequest(labels, map[string]string{AnnotationRequest: written}); err != nil || !cmp.Equal(both, r) {
			t.Fatalf("%+v with %s beside its labels is %+v, %v", r, written, both, err)
		}
	})
}
