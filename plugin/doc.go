// Package plugin is for plugins of Berth that are written in Go, and run in a process of their own, beside a Berth that nobody has to build anew.
//
//	err := plugin.Serve(ctx, plugin.Config{
//		Listen:  "127.0.0.1:7200",
//		Plugins: []plugin.Plugin{{Name: "GPUModel", Filter: filter, Score: score}},
//	})
//
// Berth's binder asks such a process about kinds of pods, which are pods of one specification, and nodes. It asks about a node again only when something has
// changed that the plugin's answers depend on, as [Dependencies] say: the less they do, the less is asked.
//
// Plugins can also say which pods may be tried at all, and take steps between the choice of a pod's node and its bind: note it, let it wait, prepare it, and take that back. See [Plugin] and [Placement].
//
// The package keeps what Berth has told, checks it, and answers: what a plugin returns, or does wrong, comes to Berth as berth.plugin.v1
// (proto/berth/plugin/v1/plugin.proto) wants it. A plugin that panics, fails or scores out of bounds fails the attempts of those pods only that it was asked about, with a
// text that names it. The package places nothing and remembers nothing beyond a stream: after a restart, and after any error, Berth tells everything anew. What was reserved on a stream is taken back when it ends.
package plugin
