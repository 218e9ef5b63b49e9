package measure

import (
	"fmt"
	"math"
	"slices"
)

// Sample is the figures that the repetitions of one measurement gave, in any order.
type Sample []float64

// Median returns the middle figure, or the mean of the two in the middle; NaN of an empty sample.
func (s Sample) Median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Quantile returns the smallest figure that is no less than the fraction q, from 0 to 1, of all (nearest rank); NaN of an
// empty sample.
func (s Sample) Quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Format returns the median and, of more than one figure, the least and the largest: "827 (790-861)". The verb is that of
// one figure, such as "%.0f". An empty sample is a dash.
func (s Sample) Format(verb string) string {
	switch len(s) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf(verb, s[0])
	}
	return fmt.Sprintf(verb+" ("+verb+"-"+verb+")", s.Median(), slices.Min(s), slices.Max(s))
}

// Ratios returns the figures of s over those of base, pair by pair: both are in the order of the repetitions, in which the two
// took turns. What has no partner, or a partner of 0, is left out.
func (s Sample) Ratios(base Sample) Sample {
	var ratios Sample
	for i := range min(len(s), len(base)) {
		if base[i] != 0 {
			ratios = append(ratios, s[i]/base[i])
		}
	}
	return ratios
}
