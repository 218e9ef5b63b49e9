package oracle

import (
	"flag"
	"fmt"
	"math/rand/v2"
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
	for name, value := range map[string]string{"rapid.checks": shortRun, "rapid.seed": strconv.FormatUint(rand.Uint64(), 10)} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
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
