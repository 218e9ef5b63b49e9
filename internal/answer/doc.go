// Package answer answers the questions of the public API that are tried on a sandbox: why a pod is where it is, what would
// happen if, how many more fit, what another configuration would change. The gateway answers from its replica, and clients from
// a file, by the same functions. Errors are those of the API: see internal/rpc.
package answer
