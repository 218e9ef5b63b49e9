// Package certs gives processes their identities: it reads the key pair and the authorities of a process from files,
// again when they change, and configures TLS by them; and it makes authorities and key pairs, for where nothing else
// does (see [Make]).
//
// A certificate names the role of its owner in its only URI, as a SPIFFE id: spiffe://berth/filter-worker. Roles know each
// other by that and not by host names: members are reached at addresses that come and go. People know the gateway, and
// roles know etcd, by host names.
//
// The package decides nothing about who may do what.
package certs
