package oracle

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

var (
	sequences     = flag.Int("sequences", 6, "how many sequences of pods whole Berths place")
	firstSequence = flag.Int("sequence", 0, "the number of the first of them")
)

// shortRun is the number of random cases per test, if -rapid.checks does not say otherwise.
const shortRun = "1500"

func TestMain(m *testing.M) {
	flag.Parse()
	given := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	seedGiven = given["rapid.seed"]
	if !given["rapid.checks"] {
		if err := flag.Set("rapid.checks", shortRun); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	code := m.Run()
	sum.printDifferences()
	if testing.Verbose() {
		sum.print(code)
	}
	os.Exit(code)
}

// fewer runs a test with a part of the random cases, because each of them takes long.
func fewer(t *testing.T, part int) {
	checks := flag.Lookup("rapid.checks").Value
	all := checks.String()
	n, err := strconv.Atoi(all)
	if err != nil {
		t.Fatal(err)
	}
	set := func(to string) {
		if err := checks.Set(to); err != nil {
			t.Fatal(err)
		}
	}
	set(strconv.Itoa(max(n/part, 1)))
	t.Cleanup(func() { set(all) })
}
