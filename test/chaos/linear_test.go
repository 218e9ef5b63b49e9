package main

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
)

// turns is the history of a node to which pods come and go, each before the next comes; the last does not fit if it is to be too much.
func turns(n int, tooMuch bool) []porcupine.Operation {
	var out []porcupine.Operation
	add := func(verb, uid string, cpu int64) {
		at := int64(2 * len(out))
		out = append(out, porcupine.Operation{Input: fill{verb, uid, cpu, 4000}, Call: at, Return: at + 1})
	}
	add(verbBind, "stays", 2000)
	for i := range n {
		uid := fmt.Sprintf("%06d", i) // none is a part of another
		add(verbBind, uid, 2000)
		add(verbDelete, uid, 2000)
	}
	if tooMuch {
		add(verbBind, "last", 2001)
	}
	return out
}

func TestALongHistoryIsJudgedInParts(t *testing.T) {
	for _, tooMuch := range []bool{false, true} {
		history := turns(5*partSize, tooMuch)
		cut := parts(history)
		if len(cut) < 5 {
			t.Errorf("%d operations are cut into %d parts", len(history), len(cut))
		}
		good := true
		var before load
		for _, part := range cut {
			good = good && porcupine.CheckOperations(nodeModel(before), part)
			before = before.behind(part)
		}
		if good == tooMuch {
			t.Errorf("too much: %v, judged good: %v", tooMuch, good)
		}
	}
}
