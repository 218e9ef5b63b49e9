package manifest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// costlyTexts are costly by these bounds: with an exponent, or with many digits, each as it stands in JSON.
func costlyTexts(b bounds) (texts []string) {
	for _, mantissa := range []string{"", "1", "12", "123", "1234", "12345", "1.", "1.5", ".25", "0", `\u0031`, "12.3456"} {
		for _, e := range []string{"e", "E", `\u0065`, `\u0045`} {
			for _, sign := range []string{"", "-", "+", `\u002d`, `\u002B`} {
				for _, exponent := range []string{"1000", "9999", "12345", "0001000", "999999999", `100\u0030`, `\u0031\u0030\u0030\u0030`} {
					texts = append(texts, mantissa+e+sign+exponent)
				}
			}
		}
	}
	digits := strings.Repeat("7", b.digits+1)
	for dot := range digits {
		texts = append(texts, digits[:dot]+"."+digits[dot+1:], digits[:dot]+`\u002e`+digits[dot+1:], digits[:dot]+`\u0037`+digits[dot+1:])
	}
	for _, suffix := range []string{"", "m", "Ki", "e3"} {
		texts = append(texts, digits+suffix)
	}
	return texts
}

func TestNoCostlyQuantityIsOverlooked(t *testing.T) {
	b := bounds{values: 1 << 20, digits: 20, exponent: 999}
	texts := costlyTexts(b)
	if len(texts) < 1000 {
		t.Fatalf("%d texts", len(texts))
	}
	for _, text := range texts {
		for _, sign := range []string{"", "-", "+"} {
			for _, before := range []string{"", " ", `\t`, `\n`, `\u0009`, `\u00a0`, `\u0085`, `\u2003`, `\u202f`, `\u205F`, "\u00a0", "\u2028"} {
				for _, behind := range []string{"", " ", `\n`, `\u3000`, "\u00a0"} {
					for pad := range 4 { // since not every byte is looked at
						raw := []byte(`{"status":{"allocatable":{` + strings.Repeat(" ", pad) + `"cpu":"` + before + sign + text + behind + `"}}}`)
						if !suspect(raw, b) {
							t.Fatalf("%s is not suspect", raw)
						}
						if pad > 0 || before+behind != "" {
							continue
						}
						found := newQuantities(raw, b)
						if found.value(reflect.TypeFor[v1.Node](), nil); len(found.costly) != 1 {
							t.Fatalf("%s is not costly", raw)
						}
						bare := []byte(`{"status":{"allocatable":{"cpu":` + sign + text + `}}}`)
						if json.Valid(bare) && !suspect(bare, b) {
							t.Fatalf("%s is not suspect", bare)
						}
					}
				}
			}
		}
	}
}

// TestWhatIsUsualIsNotSuspect: to look at each value takes several times as long as to decode it.
func TestWhatIsUsualIsNotSuspect(t *testing.T) {
	for _, text := range []string{
		`{"Node":"node-0002000"}`, `{"name":"node-0002000"}`, `{"uid":"5e123456-1e23-4e55-8e34-1e2345678901"}`, `{"uid":"0ae12345-1e23-4e55-8e34-1e2345678901"}`,
		`{"creationTimestamp":"2026-11-23T10:20:59Z"}`, `{"image":"registry.example/app@sha256:1e99999999999a1e5000b"}`, `{"annotation":"\u003ca href=\u0026\u003e\u000a"}`,
		`{"cpu":"1e3","memory":"268435456Ki","other":"9223372036854775807"}`, `{"resourceVersion":"123456789"}`, `{"name":"e2e-1e12345"}`, `{"name":"v1.1e12345"}`, `{"name":"app-v+1e12345"}`,
	} {
		if suspect([]byte(text), stored) {
			t.Errorf("%s is suspect", text)
		}
	}
	for _, kind := range []string{KindPod, KindNode} {
		found := 0
		for n := range 10_000 {
			if raw, _ := usual(kind, n); suspect(raw, stored) {
				found++
			}
		}
		if found > 10 {
			t.Errorf("%d of 10000 of kind %s are suspect", found, kind)
		}
	}
}
