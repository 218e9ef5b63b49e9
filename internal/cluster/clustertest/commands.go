package clustertest

import "strings"

// Commands returns the words of each command in a paragraph of a scenario: of its first line, and of those below it that are no
// comments.
func Commands(first, rest string) [][]string {
	out := [][]string{strings.Fields(first)}
	for line := range strings.Lines(rest) {
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			out = append(out, words)
		}
	}
	return out
}
