package yoda

import (
	"math/bits"

	"github.com/berth-scheduler/berth/api/scv/v1alpha1"
)

// Feature is one of the things by which nodes are scored.
type Feature int

// The features. Those up to TotalMemory are means over the cards that a pod would get, and count in proportion to the most that a feasible node has. Allocate and Actual are percentages, of all healthy cards of the node, and count as they are.
const (
	Bandwidth   Feature = iota // of the link, in 10^6 bytes per second
	Clock                      // of the memory, in MHz
	Core                       // of the processors, in MHz
	Power                      // in W
	FreeMemory                 // MiB that the pod could be given
	TotalMemory                // MiB
	Allocate                   // what part of the memory is not promised to pods
	Actual                     // what part of the memory is free, as the collector says

	NumFeatures int = iota
)

var features = [NumFeatures]struct {
	name   string
	weight int64
}{
	Bandwidth: {"Bandwidth", 1}, Clock: {"Clock", 1}, Core: {"Core", 1}, Power: {"Power", 1},
	FreeMemory: {"FreeMemory", 2}, TotalMemory: {"TotalMemory", 1}, Allocate: {"Allocate", 3}, Actual: {"Actual", 2},
}

// weights is the sum of the weights of all features.
const weights = 12

// String returns the name of a feature.
func (f Feature) String() string { return features[f].name }

// Weight returns how much a feature counts among others.
func (f Feature) Weight() int64 { return features[f].weight }

// Relative reports whether a feature counts in proportion to the most that a feasible node has. Else it is a percentage, and counts as it is.
func (f Feature) Relative() bool { return f < Allocate }

// Features are the features of a node for a request, by Feature. Those that [FeaturesOf] returns are between 0 and 2147483647.
type Features [NumFeatures]int64

// featuresOf returns the features of one card. It has none of a node's.
func featuresOf(c *Card) Features {
	return Features{
		Bandwidth: c.BandwidthMBps, Clock: c.ClockMHz, Core: c.CoreMHz, Power: c.PowerWatts,
		FreeMemory: c.AvailableMiB(), TotalMemory: c.TotalMemoryMiB,
	}
}

// FeaturesOf returns the features of a node for a pod that would get the cards, which [Choose] has chosen of the view. They are means, rounded down, so that a pod that gets one card sees no difference between a node with two of these and one with eight.
func FeaturesOf(v *View, chosen []*Card) Features {
	var out Features
	for _, c := range chosen {
		for f, value := range featuresOf(c) {
			out[f] += value // 64 of less than 2^31
		}
	}
	for f := range out {
		out[f] /= max(1, int64(len(chosen)))
	}
	var total, free, promised int64
	for i := range v.cards {
		c := &v.cards[i]
		if c.Health != v1alpha1.Healthy {
			continue
		}
		total += c.TotalMemoryMiB
		free += c.FreeMemoryMiB
		if c.Whole {
			promised += c.TotalMemoryMiB
		} else {
			promised += min(c.PromisedMiB, c.TotalMemoryMiB)
		}
	}
	if total > 0 {
		out[Allocate] = (total - promised) * 100 / total
		out[Actual] = free * 100 / total
	}
	return out
}

// Maxima are the most that any node has of each feature. They are to be taken over the nodes that can run the pod, and over no others: what no pod can have is no measure. The zero value is of no node. A feature of which no node has anything counts as 1.
type Maxima [NumFeatures]int64

// Add takes a node into account.
func (m *Maxima) Add(of Features) {
	for f, value := range of {
		m[f] = max(m[f], value)
	}
}

// Score returns how good a node is, from 0 to 100: the mean of its features by their weights, rounded down. More of a feature never makes it less. What is above the maxima counts as much as they do, and what is below 0 as 0.
func Score(of Features, most Maxima) int64 {
	sum := int64(0)
	for f := range Feature(NumFeatures) {
		sum += f.Weight() * f.percent(of[f], most[f])
	}
	return sum / weights
}

// percent returns a feature as a percentage, rounded down.
func (f Feature) percent(value, most int64) int64 {
	if !f.Relative() {
		most = 100
	}
	most = max(most, 1)
	value = min(max(value, 0), most)
	hi, lo := bits.Mul64(uint64(value), 100)
	q, _ := bits.Div64(hi, lo, uint64(most)) // at most 100, for value is at most most: so hi is less than most
	return int64(q)
}
