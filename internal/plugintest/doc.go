// Package plugintest asks a process with plugins what Berth would, and says whether it answers as berth.plugin.v1 wants.
//
// It knows nothing of what the plugins are for. That an answer is right it finds out by asking for it in another way: whatever a stream has been told, and in whatever
// order, its answers have to be those of a new stream that is told the outcome.
package plugintest
