// Package deploy tests what is in deploy: that the kustomizations and the chart render, that they say the same, that a real
// API server takes every object, and that Berth needs and has exactly the rights they give it.
package deploy
