package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// done is what a target has done in all its runs.
type done struct {
	Seconds     float64  `json:"seconds"`
	Execs       int64    `json:"execs"`
	Interesting int64    `json:"interesting"` // inputs that covered new code
	Findings    []string `json:"findings,omitempty"`
}

func (d done) took() time.Duration { return time.Duration(d.Seconds * float64(time.Second)) }

// state is what all targets have done, by target.
type state struct {
	file  string
	Tasks map[string]*done `json:"targets"`
}

// readState reads the file, if there is one and it is not to be forgotten.
func readState(file string, fresh bool) (*state, error) {
	s := &state{file: file, Tasks: make(map[string]*done)}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || fresh {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read what has been done: %w; -fresh forgets it", err)
	}
	if s.Tasks == nil {
		s.Tasks = make(map[string]*done)
	}
	return s, nil
}

// of returns what a target has done, to be read and changed.
func (s *state) of(t target) *done {
	d := s.Tasks[t.String()]
	if d == nil {
		d = &done{}
		s.Tasks[t.String()] = d
	}
	return d
}

// save writes the file as a whole: a reader finds the old one or the new one.
func (s *state) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(s.file+".new", s.file)
}

// table tells what the targets have done.
func table(targets []target, s *state) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "target\ttime\texecutions\tnew inputs\tfindings")
	var sum done
	for _, t := range targets {
		d := s.of(t)
		findings := strings.Join(d.Findings, " ")
		if findings == "" {
			findings = "0"
		}
		fmt.Fprintf(w, "%s\t%v\t%d\t%d\t%s\n", t, d.took().Round(time.Second), d.Execs, d.Interesting, findings)
		sum.Seconds += d.Seconds
		sum.Execs += d.Execs
		sum.Interesting += d.Interesting
		sum.Findings = append(sum.Findings, d.Findings...)
	}
	fmt.Fprintf(w, "%d targets\t%v\t%d\t%d\t%d\n", len(targets), sum.took().Round(time.Second), sum.Execs, sum.Interesting, len(sum.Findings))
	_ = w.Flush() // to memory
	return b.String()
}
