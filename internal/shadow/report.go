package shadow

import (
	"math"
	"time"
)

// Report is what has been found so far.
type Report struct {
	Since time.Time `json:"since"` // since when binds are looked at
	// Of the pods that the scheduler has bound:
	Same       int `json:"same"`       // Berth would have taken the same node,
	Equal      int `json:"equal"`      // another one of the same total score,
	OtherOrder int `json:"otherOrder"` // one of these two in another order of the binds that were in flight,
	Sampled    int `json:"sampled"`    // a better one, where the scheduler stops looking when it has found enough nodes, and may well not have looked at the better ones,
	Better     int `json:"better"`     // a better one for no reason that is known,
	Elsewhere  int `json:"elsewhere"`  // another one, and not the scheduler's,
	Nowhere    int `json:"nowhere"`    // none at all.
	// Of these nothing can be said: the node has gone, or the pod was nominated, or has claims, which say where it is to go before it is bound.
	Unknown int `json:"unknown"`
	Unseen  int `json:"unseen"` // They were seen first when they were bound.
	// Places are pods that the scheduler says fit nowhere, and for which Berth has found a node at each look for half a minute.
	Places   int      `json:"places"`
	Examples Examples `json:"examples"`
	// How long the scheduler took from when a pod was seen first to when it was bound, its queue included, and how long Berth took to choose a node, in seconds.
	Waited   Quantiles `json:"waited"`
	Choosing Quantiles `json:"choosing"`
	Behind   float64   `json:"behind"` // for how long what is told waits to be looked at, in seconds, beyond what it always waits

	waited, choosing durations
}

// Examples are some pods of each outcome that is worth a look, the first ones.
type Examples struct {
	OtherOrder []Example `json:"otherOrder,omitempty"`
	Sampled    []Example `json:"sampled,omitempty"`
	Better     []Example `json:"better,omitempty"`
	Elsewhere  []Example `json:"elsewhere,omitempty"`
	Nowhere    []Example `json:"nowhere,omitempty"`
	Places     []Example `json:"places,omitempty"`
}

// Example is a pod.
type Example struct {
	Pod   string `json:"pod"`
	Node  string `json:"node,omitempty"`  // that the scheduler has chosen
	Berth string `json:"berth,omitempty"` // that Berth would have chosen, in the order in which the binds arrived
	// Total is what the scheduler's node scores, by kube-scheduler's plugins and weights, and Best what Berth's does.
	Total int64  `json:"total,omitempty"`
	Best  int64  `json:"best,omitempty"`
	Order string `json:"order,omitempty"` // in which the choice is explained
	Why   string `json:"why,omitempty"`   // Berth would not have put it there, or what the scheduler says
}

// Quantiles are of durations, in seconds; 0 if there are none.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Bound returns how many pods have been looked at that were bound, and Explained how many of them went where Berth would have put them, or for a reason that is known.
func (r *Report) Bound() int {
	return r.Same + r.Equal + r.OtherOrder + r.Sampled + r.Better + r.Elsewhere + r.Nowhere
}

// Explained is described at Bound.
func (r *Report) Explained() int { return r.Same + r.Equal + r.OtherOrder + r.Sampled }

func (r *Report) took(choosing, waited time.Duration) {
	r.choosing.add(choosing)
	r.waited.add(waited)
}

func (r *Report) say(all *[]Example, e Example, most int) {
	if len(*all) < most {
		*all = append(*all, e)
	}
}

// durations counts durations by their size: buckets grow by a tenth from a microsecond on.
type durations struct {
	counts [256]int
	n      int
	most   time.Duration
}

const bucketGrowth = 1.1

func (d *durations) add(t time.Duration) {
	i := 0
	if us := float64(t) / float64(time.Microsecond); us > 1 {
		i = min(len(d.counts)-1, int(math.Log(us)/math.Log(bucketGrowth)))
	}
	d.counts[i]++
	d.n++
	d.most = max(d.most, t)
}

func (d *durations) quantile(q float64) float64 {
	left := int(math.Ceil(q * float64(d.n)))
	for i, n := range d.counts {
		if left -= n; left <= 0 && d.n > 0 {
			return min(math.Pow(bucketGrowth, float64(i+1))/1e6, d.most.Seconds())
		}
	}
	return 0
}

func (d *durations) quantiles() Quantiles {
	return Quantiles{d.quantile(0.5), d.quantile(0.99), d.most.Seconds()}
}
