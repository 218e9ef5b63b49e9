// Module release makes what a release of Berth is made of. "make release" runs it.
//
// It is a module of its own, because what writes images and reads charts is no business of who imports Berth.
module github.com/berth-scheduler/berth/release

go 1.26.0

require (
	github.com/google/go-containerregistry v0.22.1
	golang.org/x/crypto/x509roots/fallback v0.0.0-20261030153154-30a33513ff6d
	golang.org/x/mod v0.43.0
	helm.sh/helm/v3 v3.21.4
)

require (
	github.com/Masterminds/semver/v3 v3.5.0 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	golang.org/x/sync v0.22.0 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)
