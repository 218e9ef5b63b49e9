// Package whatif holds what internal/whatif says would happen against what then happens in a whole Berth.
package whatif
