// Package announced is how processes with plugins say in etcd where they listen: the keys, the values, and what of them is taken. It knows no etcd, for those who write and
// those who read share it.
package announced

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Prefix is what keys begin with, behind Berth's own prefix: Prefix, the service, a slash, and what tells the process from others of the service.
const Prefix = "plugins/"

// What is read of a service. Processes write it that are none of Berth's, and nothing in it can make those who read it suffer.
const (
	MaxProcesses = 32  // of more some are left out
	MaxKey       = 512 // bytes behind Berth's prefix; those with more are not looked at
	MaxValue     = 512 // bytes; those with more are ignored
)

// maxHost is how long the name of a host is at most.
const maxHost = 253

// Value is that of a key, in JSON. Fields that are not known are ignored.
type Value struct {
	Address string `json:"address"`
}

// Decode returns the address that a value has. The error says what is wrong with it, in few words of which none are longer than those of the value.
func Decode(value []byte) (address string, err error) {
	if len(value) > MaxValue {
		return "", fmt.Errorf("it has more than %d bytes", MaxValue)
	}
	var v Value
	if err := json.Unmarshal(value, &v); err != nil {
		return "", errors.New(`it is not JSON such as {"address": "gpu-0.internal:9000"}`)
	}
	return v.Address, Check(v.Address)
}

// Check returns what is wrong with an address. It is host:port, where the host is a name of letters, digits, dots and hyphens, or an address of IP, which others can reach. There are no sockets
// of files: who announces one says what of the file system the binder opens.
func Check(address string) error {
	host, port, err := net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || !isHost(host) {
		return fmt.Errorf("address: %.80q: want host:port, such as gpu-0.internal:9000", address)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsUnspecified() {
		return fmt.Errorf("address: %q: is no address by which others reach anybody", address)
	}
	return nil
}

func isHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == ""
	}
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
	return host != "" && len(host) <= maxHost && strings.Trim(host, chars) == ""
}
