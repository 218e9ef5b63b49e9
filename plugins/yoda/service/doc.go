// Package service has Yoda's plugins as Berth asks them: a plugin service of package plugin, which a program compiles in or serves by itself (cmd/berth-yoda).
//
// [Yoda] filters, reserves and sorts; each feature by which nodes are scored is a plugin of its own, so that a profile weighs it, and Berth says of each node what it scored: "Yoda" and the name of the feature, [yoda.Feature]. All of them see the same cards
// chosen, by the arguments that the profile gives Yoda.
package service
