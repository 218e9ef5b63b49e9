// Package gateway is the public face of Berth: SchedulingService by gRPC, and the same as JSON over HTTP.
//
// It answers from a replica of the ledger, so that what people ask costs the workers nothing; it asks queue members
// only what they alone know (states, attempts and verdicts of pending pods), and every member how it is. Whoever does
// not answer is told as such and spoils no answer. Manifests go to the local source, where there is one.
//
// Gateway decides nothing about pods and keeps no state that another gateway would miss.
package gateway
