package oracle

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// seedGiven: -rapid.seed is given, and each test begins with that very seed.
var seedGiven bool

// runSeed is what the seeds of the tests of this run are made of.
var runSeed = rand.Uint64()

// check is rapid.Check with cases that no other test draws. If one fails, it says in the end how that one is repeated.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	seed := flag.Lookup("rapid.seed").Value
	if !seedGiven {
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s", runSeed, t.Name())
		if err := seed.Set(strconv.FormatUint(max(h.Sum64(), 1), 10)); err != nil { // 0 is any
			t.Fatal(err)
		}
	}
	first, err := strconv.ParseUint(seed.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	cases, failed := uint64(0), false
	defer func() {
		if failed {
			// The seed of a case is that of the one before and the number of those before.
			sum.note(t, fmt.Sprintf("-rapid.seed=%d -rapid.checks=1", first+cases*(cases-1)/2))
		}
	}()
	rapid.Check(t, func(t *rapid.T) {
		if !failed { // else the case is being made smaller
			cases++
		}
		passed := false
		defer func() { failed = failed || !passed || t.Failed() }()
		property(t)
		passed = true
	})
}

// note notes that a test has failed, and with which flags it does so again.
func (n *tally) note(t *testing.T, flags string) {
	n.repeats = append(n.repeats, repeatOf(t, flags))
}

// repeatOf is the command that repeats a test.
func repeatOf(t *testing.T, flags string) string {
	var each []string
	for _, name := range strings.Split(t.Name(), "/") {
		each = append(each, "^"+regexp.QuoteMeta(name)+"$")
	}
	return fmt.Sprintf("go test -count=1 . -run '%s' %s", strings.Join(each, "/"), flags)
}

// planted is the environment variable that says which number, of those that it draws, TestPlanted is to fail at.
const planted = "BERTH_ORACLE_PLANTED"

// TestPlanted is part of what follows.
func TestPlanted(t *testing.T) {
	remainder, err := strconv.ParseUint(os.Getenv(planted), 10, 64)
	if err != nil {
		return
	}
	check(t, func(t *rapid.T) {
		if n := rapid.Uint64().Draw(t, "n"); n%89 == remainder {
			fmt.Printf("drawn: %d\n", n)
			t.Fatalf("%d", n)
		}
	})
}

// TestTheFlagsThatAreToldRepeatTheCase has a test fail at one of many cases, and again with the flags that are told of that.
func TestTheFlagsThatAreToldRepeatTheCase(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (drawn, told string) {
		cmd := exec.Command(self, append(args, "-rapid.nofailfile", "-rapid.shrinktime=0")...)
		cmd.Env = append(os.Environ(), planted+"=7")
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); !errors.As(err, &exit) {
			t.Fatalf("%v: %v, and is to fail\n%s", args, err, out)
		}
		line := func(prefix string) string {
			_, rest, _ := bytes.Cut(out, []byte(prefix))
			text, _, _ := bytes.Cut(rest, []byte("\n"))
			return string(text)
		}
		drawn, told = line("drawn: "), line("the same case: ")
		if drawn == "" || told == "" {
			t.Fatalf("%v: a number drawn, or the command, is missing\n%s", args, out)
		}
		return drawn, told
	}
	drawn, told := run("-test.run=^TestPlanted$", "-rapid.checks=5000")
	flags := strings.Fields(strings.ReplaceAll(told, "'", ""))[4:] // behind go test -count=1 .
	again, _ := run(append([]string{"-test.run=" + flags[1]}, flags[2:]...)...)
	if again != drawn {
		t.Errorf("%s: the case is about %s, and was about %s", told, again, drawn)
	}
}
