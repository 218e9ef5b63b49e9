// Package pluginscore bounds what plugins of berth.plugin.v1 may score nodes: for all who serve it, and all who ask.
package pluginscore

import (
	"math"

	pluginv1 "github.com/berth-scheduler/berth/internal/gen/berth/plugin/v1"
)

// Most returns the most that a plugin may score a node: what is brought to 100 before it is weighed may be anything that its message can have.
func Most(by pluginv1.Normalization) int32 {
	switch by {
	case pluginv1.Normalization_NORMALIZATION_PROPORTIONAL, pluginv1.Normalization_NORMALIZATION_REVERSED:
		return math.MaxInt32
	}
	return 100
}
