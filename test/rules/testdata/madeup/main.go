// Command madeup shows what Berth makes of the plugin that CONTRIBUTING.md adds. It is built with that, by a test.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/berth-scheduler/berth/internal/cluster"
	"github.com/berth-scheduler/berth/internal/engine"
	"github.com/berth-scheduler/berth/services/queue/pending"
)

const scheduler = "default-scheduler"

type judge struct{ *engine.Evaluator }

func (judge) Feasible(*cluster.State, engine.Subject, cluster.PodID, cluster.NodeIndex) bool {
	return false // so that only hints wake pods
}

func main() {
	st := cluster.New(cluster.Version{Epoch: 1})
	apply := func(d cluster.Delta) {
		if err := st.Apply(d); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	room := []cluster.Quantity{{Name: "cpu", Value: 1000}, {Name: "memory", Value: 1 << 30}, {Name: "pods", Value: 10}}
	node := func(i cluster.NodeIndex, name, label string) cluster.NodeSet {
		n := cluster.Node{Name: name, Allocatable: room}
		if label != "" {
			n.Labels = []cluster.Label{{Key: label}}
		}
		return cluster.NodeSet{Index: i, Node: n}
	}
	pod := cluster.PodID(1)
	apply(cluster.SettingsSet{Settings: cluster.Settings{Shards: 1, Profiles: []cluster.Profile{engine.DefaultProfile(scheduler)}}})
	apply(cluster.ClassDefined{ID: 1, Spec: cluster.ClassSpec{SchedulerName: scheduler}})
	apply(cluster.PodSet{ID: pod, Pod: cluster.Pod{UID: "u", Namespace: "default", Name: "p", Class: 1}})
	apply(node(0, "silent", "quiet"))

	// It rejects the pod.
	e, all, now := engine.NewEvaluator(engine.EvaluatorConfig{}), cluster.Range{End: 64}, time.Unix(0, 0)
	subject := engine.SubjectOf(&st.Pod(pod).Pod)
	q := pending.NewQueue(0, judge{e})
	q.Reset(now, st)
	attempt := q.Pop(now, 1)[0]
	found, _ := e.Filter(st, subject, all)
	fmt.Println("filter:", found.FeasibleCount, "feasible:", engine.FitMessage(1, found.Verdicts))
	q.Reject(now, st, attempt, pending.Diagnosis{Verdicts: found.Verdicts, Version: st.Version()})
	for r := range q.Rejected() {
		fmt.Println("metric:", r.Plugin)
	}
	survey, _, _ := e.Survey(st, pod, nil, func(cluster.NodeIndex, []engine.Lack) {})
	lacks, _ := e.Shortfall(st, pod, 0)
	fmt.Println("explanation: 1", survey.Rejections[0].Short()+";", lacks[0].Text(engine.Blocker{}))

	// A change that is none of its business, and one that is.
	for _, d := range []cluster.Delta{node(1, "other", "quiet"), node(0, "silent", "")} {
		apply(d)
		q.Apply(now, st, d)
		q.Recheck(now, st)
		waits, _ := q.Entry(pod)
		fmt.Println("hint:", waits.Place)
	}

	// It scores.
	apply(node(1, "other", "cheap"))
	found, _ = e.Filter(st, subject, all)
	groups, _ := e.Score(st, subject, all, found.Eligible, 10)
	totals, _ := e.Totals(st, subject, groups, cluster.NoNode)
	for n, s := range groups[0].Nodes {
		_, normalized := engine.ScoreOf("QuietNodes", &groups[0], n, &totals[0])
		fmt.Println("score:", st.Nodes.Spec[s.Node].Name, normalized)
	}
	fmt.Println("more:", groups[0].Nodes[0].Fixed-groups[0].Nodes[1].Fixed)
}
