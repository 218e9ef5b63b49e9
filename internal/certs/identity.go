package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// trustDomain is the authority part of every identity.
const trustDomain = "berth"

// MemberName is a host name that certificates of processes have, and those of their mere callers have not. Nothing resolves it.
// Scrapers, who go by addresses, ask for it; etcd can be told to take no client without it.
const MemberName = "member.berth.internal"

// identity returns the URI of a role.
func identity(role string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: "/" + role}
}

// roleOf returns the role that a certificate names. It says nothing about who signed it.
func roleOf(cert *x509.Certificate) (string, error) {
	if len(cert.URIs) == 1 {
		u := cert.URIs[0]
		role := strings.TrimPrefix(u.Path, "/")
		if u.Scheme == "spiffe" && u.Host == trustDomain && role != "" {
			return role, nil
		}
	}
	return "", fmt.Errorf("certificate of %q: its URIs are %v, want one, %v", cert.Subject, cert.URIs, identity("<role>"))
}

// PeerRole returns the role of the other side of a connection that [Source.Server] or [Source.Client] has made, and ""
// if it showed no certificate, or one that names no role.
func PeerRole(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	role, err := roleOf(state.PeerCertificates[0])
	if err != nil {
		return ""
	}
	return role
}
