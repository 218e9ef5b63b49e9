// Package secureport serves operators as kube-scheduler's --secure-port does: with kube-scheduler's flags, over TLS, and to those whom the API server knows and
// lets in. What a flag means, how certificates are found and read again, and how the API server is asked are k8s.io/apiserver's own, as in kube-scheduler; which
// paths there are, and how much one caller may hold, are internal/rpc's.
package secureport
