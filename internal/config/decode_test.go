package config

import (
	"strings"
	"testing"
)

func TestAliasesOfAConfigurationStandForSoMuchAtMost(t *testing.T) {
	text := []byte("x: &a " + strings.Repeat("a", 100<<10) + "\ny: [" + strings.TrimSuffix(strings.Repeat("*a,", 2000), ",") + "]\n")
	const want = "aliases stand for more than 4194304 bytes"
	if _, err := Decode(text); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Decode: %v, want %q", err, want)
	}
	if _, _, err := Convert(text); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Convert: %v, want %q", err, want)
	}
}
