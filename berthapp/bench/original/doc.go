// Package original is the second Yoda's rules, defects included, as a plugin for kube-scheduler 1.36: what Berth's Yoda is measured against, and for nothing else. The rules are those of its last version, for Kubernetes 1.20; only what a card is called and where it
// is told are Berth's (api/scv/v1alpha1), so that both read the same cards.
//
// What it does for each pod and node is done here too: objects are read from an informer's cache and copied as controller-runtime's cache copies them, and each line that it logs is formatted.
package original
