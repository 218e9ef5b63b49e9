// Package aliases bounds what the aliases of YAML may stand for: a text of 100 KiB with an anchor, and 2,000 aliases of that, is 200 MiB
// once it is read, and anchors that are made of aliases multiply. Manifests may have anchors, and people use them; so each reader of
// YAML that is not Berth's own asks here first. It reads nothing for anybody.
package aliases
