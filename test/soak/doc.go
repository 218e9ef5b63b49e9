// Package soak runs Berth against an etcd with a small quota, until many times the quota has been written.
package soak
