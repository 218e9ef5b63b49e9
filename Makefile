# Everything there is to do with this project. `make` lists it.
SHELL := /bin/bash
BIN   := $(CURDIR)/.bin
PACKAGES := ./...

# Packages that are never tested with the race detector, which makes their tests take five times as long: they start no goroutine.
# test/rules holds it.
PURE  := ./internal/aliases ./internal/answer ./internal/cluster ./internal/config ./internal/explain \
  ./internal/ingest ./internal/manifest ./internal/quantity ./internal/wire ./services/queue/pending \
  ./test/rules

# Packages that are not tested with the race detector either, whatever they start: those whose tests start Berth as processes, which are built without it, so that it would see what starts them and nothing else; and BULK, which has a Berth
# in its process, but writes so much that it would take ten minutes, through code that others test with it.
PROCESSES := ./test/app ./test/bench ./test/benchcost ./test/benchkube ./test/chaos ./test/overload
BULK      := ./test/soak

# Tests that take a minute and more with the race detector, and start no goroutine: they are run without it. test/rules holds it.
SLOW  := TestABatchOfPodsThatShareClaimsIsPlacedAsPodByPod TestASandboxThatManyClassesWereTriedInIsSwollen TestClassesOfManyImagesAreScoredAsThoseOfFew \
  TestRankingsThatAreKeptAreThoseMadeAnew
SLOW_IN := ./internal/engine ./internal/whatif
empty :=
SLOW_NAMES = ^($(subst $(empty) $(empty),|,$(strip $(SLOW))))$$

# What NVIDIA's bindings are compiled with: they name all functions of NVML, deprecated ones too, each of which the compiler would tell of.
NVML_CFLAGS := "-O2 -g -Wno-deprecated-declarations"

export PATH := $(BIN):$(PATH)

# Tools, pinned. Each is built from its module into .bin.
BUF                 := github.com/bufbuild/buf/cmd/buf@v1.57.0
PROTOC_GEN_GO       := google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
PROTOC_GEN_GO_GRPC  := google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
PROTOC_GEN_GATEWAY  := github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-grpc-gateway@v2.29.0
STATICCHECK         := honnef.co/go/tools/cmd/staticcheck@v0.7.0
DEADCODE            := golang.org/x/tools/cmd/deadcode@v0.38.0
GOVULNCHECK         := golang.org/x/vuln/cmd/govulncheck@v1.3.0
GRPCURL             := github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# What members say they were built from, binary or image.
VERSION ?= $(shell git describe --tags --always --dirty)

.PHONY: build
build: ## build .bin/berth
	CGO_ENABLED=0 go build -trimpath -ldflags="-X github.com/berth-scheduler/berth/internal/member.version=$(VERSION)" -o $(BIN)/berth ./cmd/berth

.PHONY: plugin
plugin: ## build .bin/kubectl-berth, the kubectl plugin
	CGO_ENABLED=0 go build -trimpath -ldflags="-X github.com/berth-scheduler/berth/internal/member.version=$(VERSION)" -o $(BIN)/kubectl-berth ./cmd/kubectl-berth

.PHONY: demo
demo: build ## schedule a generated GPU fleet and keep serving; EXIT=1 ends by itself
	$(BIN)/berth demo $(if $(EXIT),--exit)

.PHONY: berth-yoda demo-gpu
berth-yoda: ## build .bin/berth-yoda, a berth that has the GPU plugin compiled in
	cd plugins/yoda && CGO_ENABLED=0 go build -trimpath -ldflags="-X github.com/berth-scheduler/berth/internal/member.version=$(VERSION)" -o $(BIN)/berth-yoda ./cmd/berth-yoda

demo-gpu: berth-yoda ## schedule jobs on a played fleet of GPUs, on a real API server, and keep serving; EXIT=1 ends by itself
	go run ./test/benchkube build
	cd plugins/yoda && go run ./cmd/demo-gpu --berth-yoda $(BIN)/berth-yoda --crd ../../deploy/kustomize/components/yoda/crd.yaml $(if $(EXIT),--exit)

# The collector is linked dynamically, for it loads the driver's library. For processors other than this machine's, Debian's cross compiler builds it (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross), and qemu-user tries it.
# ARCH is that of the command line: an environment may have one that means something else.
SCV_HOST   = $(shell go env GOHOSTARCH)
SCV_ARCH   = $(if $(filter command,$(firstword $(origin ARCH))),$(ARCH),$(SCV_HOST))
SCV_CROSS  = $(if $(filter-out $(SCV_HOST),$(SCV_ARCH)),$(or $(if $(filter arm64,$(SCV_ARCH)),aarch64-linux-gnu),$(error ARCH=$(SCV_ARCH): want arm64)))
SCV_ENV    = GOOS=linux GOARCH=$(SCV_ARCH) CGO_ENABLED=1 CGO_CFLAGS=$(NVML_CFLAGS) $(if $(SCV_CROSS),CC=$(SCV_CROSS)-gcc)
SCV_EXEC   = $(if $(SCV_CROSS),qemu-aarch64 -L /usr/$(SCV_CROSS))

.PHONY: berth-scv test-scv
berth-scv: ## build .bin/berth-scv-ARCH, the collector, for linux; ARCH=arm64 by a cross compiler
	cd cmd/berth-scv && $(SCV_ENV) go build -trimpath -ldflags="-s -w -X main.version=$(VERSION)" -o $(BIN)/berth-scv-$(SCV_ARCH) .

test-scv: berth-scv ## test that, and what it reads of NVIDIA's library, on the processor that it is for, emulated if need be; ARCH=arm64
	$(SCV_EXEC) $(BIN)/berth-scv-$(SCV_ARCH) --help
	cd cmd/berth-scv && $(SCV_ENV) go test -count=1 $(if $(SCV_EXEC),-exec "$(SCV_EXEC)") ./internal/driver ./internal/cards

# With the race detector, which CI sets: RACE=1.
RACE ?=

.PHONY: test
test: grpcurl ## run every test; RACE=1 with the race detector, as in CI; needs Go, a C compiler, the module proxy, and Chromium, which root gets by apt
	go run ./test/benchkube build # the control plane and its clients, once: minutes that no test should have to wait for
	@# Tests start it too. Built by several packages at a time, it would be compiled as often.
	CGO_ENABLED=0 go build -o $(BIN)/test/berth ./cmd/berth
	@# Without the race detector most of the time is waiting: for processes, sockets and leases. So modules of their own are tested beside the rest.
	@# With it, modules are tested behind the rest, two at a time.
	$(if $(RACE),failed=0; $(MAKE) --no-print-directory test-packages || failed=1; $(MAKE) --no-print-directory -k -j2 test-modules || failed=1; exit $$failed,$(MAKE) --no-print-directory -k -j2 test-packages test-modules)

.PHONY: test-packages test-modules test-modules-by-code test-modules-by-process
test-packages:
	@# Four packages at a time. Those that wait longest begin first.
	all=$$(go list $(PACKAGES)) && unraced=$$(go list $(BULK) $(PROCESSES) $(PURE)) || exit 1; failed=0; \
	  go test $(if $(RACE),-race -skip '$(SLOW_NAMES)') -p 4 -timeout 40m ./test/system $$(grep -vxF "$$unraced" <<<"$$all") || failed=1; \
	  CGO_ENABLED=0 go test -p 4 -timeout 40m $(BULK) $(PROCESSES) $(PURE) || failed=1; \
	  $(if $(RACE),CGO_ENABLED=0 go test -timeout 40m -run '$(SLOW_NAMES)' $(SLOW_IN) || failed=1;) exit $$failed

test-modules: test-modules-by-code test-modules-by-process

test-modules-by-code:
	cd test/oracle && CGO_ENABLED=0 go test -count=1 .
	cd release && CGO_ENABLED=0 go test -count=1 .
	cd berthapp && CGO_ENABLED=0 go test -count=1 ./...
	cd internal/source/kube137 && CGO_ENABLED=0 go test -count=1 .
	cd test/monitoring && CGO_ENABLED=0 go test -count=1 .

test-modules-by-process:
	cd plugins/yoda && CGO_ENABLED=$(if $(RACE),1,0) go test $(if $(RACE),-race) -count=1 -timeout 40m ./...
	cd cmd/berth-scv && CGO_ENABLED=1 CGO_CFLAGS=$(NVML_CFLAGS) go test $(if $(RACE),-race) -count=1 -timeout 40m ./...
	cd test/page && CGO_ENABLED=0 go test -count=1 .
	cd test/deploy && CGO_ENABLED=0 go test -count=1 .

.PHONY: oracle
oracle: ## compare decisions with kube-scheduler's own plugins, at length, and count them; CHECKS=… SEQUENCES=…
	cd test/oracle && CGO_ENABLED=0 go test -v -count=1 -timeout 0 . -rapid.checks=$(or $(CHECKS),24000) -sequences=$(or $(SEQUENCES),300)

.PHONY: lint
lint: tools lint-go lint-proto ## gofmt, vet, staticcheck, dead code, buf lint, whether the API of the last release still holds, and whether generated code is current

.PHONY: lint-go
lint-go: tools
	@unformatted=$$(git ls-files '*.go' | grep -v '^internal/gen/' | xargs gofmt -l); \
	  if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	go vet $(PACKAGES) && $(BIN)/staticcheck $(PACKAGES)
	go vet -tags volumes ./test/system && $(BIN)/staticcheck -tags volumes ./test/system # what make volumes alone runs
	go vet -tags skew ./test/system && $(BIN)/staticcheck -tags skew ./test/system # and make skew
	go vet -tags extenders ./test/extenders && $(BIN)/staticcheck -tags extenders ./test/extenders # and make extenders
	$(BIN)/deadcode -f '{{range .Funcs}}{{println $$.Path .Name}}{{end}}' ./cmd/... | grep . | grep -v '\.delta$$' | LC_ALL=C sort | \
	  diff <(grep -v '^#' test/rules/deadcode.txt) - || { echo "only tests call these, or test/rules/deadcode.txt names what is called, or gone"; exit 1; }
	for module in berthapp internal/source/kube137 plugins/yoda release cmd/berth-scv test/oracle test/deploy test/monitoring test/page; do (cd $$module && CGO_CFLAGS=$(NVML_CFLAGS) go vet ./... && CGO_CFLAGS=$(NVML_CFLAGS) $(BIN)/staticcheck ./...) || exit 1; done

.PHONY: lint-proto
lint-proto: tools
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(BASELINE)
	@BUF=$(BIN)/buf test/rules/breaking.sh
	@rm -rf .bin/drift && mkdir -p .bin/drift && $(BIN)/buf generate -o .bin/drift
	@diff -r .bin/drift/internal/gen internal/gen || { echo "generated code is not current: run make generate"; exit 1; }

# The API that buf breaking compares with: that of the last release. It has imports, and no comments.
BASELINE := proto/baseline.binpb

.PHONY: baseline
baseline: tools ## renew proto/baseline.binpb: at a release, never to make lint pass
	$(BIN)/buf build --exclude-source-info -o $(BASELINE)

.PHONY: generate
generate: tools ## generate internal/gen from the protos
	rm -rf internal/gen && $(BIN)/buf generate

.PHONY: test-compose
test-compose: ## run docker-compose.yaml: schedule, kill, scale; needs root, installs docker.io and docker-compose if missing; COMPOSE=1.29 or v2
	go run ./test/compose $(if $(COMPOSE),--compose=$(COMPOSE))

.PHONY: image
image: ## build the image berth:dev with Docker; BASE=… BUILDER=… IMAGE=…
	docker build -f deploy/Dockerfile --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) $(foreach a,BASE BUILDER,$(if $($(a)),--build-arg $(a)=$($(a)))) -t $(or $(IMAGE),berth:dev) .

.PHONY: release
release: ## what a release is made of, in .bin/release/VERSION, and its tag; VERSION=v0.1.0, DRY_RUN=1 makes no tag, and PLATFORMS=linux/amd64,… some of it (docs/releasing.md)
	cd release && go run . --version '$(if $(filter file,$(origin VERSION)),,$(VERSION))' $(if $(DRY_RUN),--dry-run) $(if $(PLATFORMS),--platforms '$(PLATFORMS)')

.PHONY: bench
bench: build ## Berth on its local source: decisions per second, memory, latency; BENCHFLAGS='--workload all' for 1,000,000 nodes too
	go run ./test/bench --berth $(BIN)/berth $(BENCHFLAGS)

.PHONY: bench-go
bench-go: ## benchmarks of the pure parts
	go test -run '^$$' -bench . -benchmem ./internal/engine ./internal/cluster ./services/binder ./services/queue/pending ./test/benchcost

.PHONY: profile
profile: build ## profiles of a workload of bench-kube, or as local-NAME of bench, in .bin/profiles and .bin/profiles/local; WORKLOAD=…
	go run ./test/$(if $(filter local-%,$(WORKLOAD)),bench,benchkube) --berth $(BIN)/berth \
	  --workload $(or $(WORKLOAD:local-%=%),plain) --profile $(BIN)/profiles$(if $(filter local-%,$(WORKLOAD)),/local) $(BENCHFLAGS)

.PHONY: plots
plots: ## measure the engine's cost per decision, and draw it in docs/plots
	go run ./test/benchcost --out docs/plots

.PHONY: bench-kube
bench-kube: build ## kube-scheduler and Berth in turn on a real API server: 5,000 nodes, 10,000 plain pods; BENCHFLAGS='--workload all' for others, '--workload volumes' for pods with claims
	go run ./test/benchkube --berth $(BIN)/berth $(BENCHFLAGS)

.PHONY: bench-plugins
bench-plugins: build ## the same with a filter and a score of others: none, as a plugin service, compiled in and signed, and not, as an HTTP extender, and kube-scheduler with them compiled in and with that
	cd berthapp && go build -o $(BIN)/berth-bench ./bench
	go run ./test/benchkube --berth $(BIN)/berth --compiled-in $(BIN)/berth-bench --timeout 10m --contenders berth-all,berth-service,berth-signed,berth-compiled-in,kube-compiled-in,berth-extender,kube-extender $(BENCHFLAGS)

.PHONY: bench-gpu
bench-gpu: build berth-yoda ## pods that ask for GPUs, on 5,000 nodes of 8: without a plugin, with Yoda as a service and compiled in, kube-scheduler, and that with the original Yoda's rules; BENCHFLAGS='--workload gpu-openb --openb DIR' on the demand of a trace
	cd berthapp && go build -o $(BIN)/berth-bench ./bench
	go run ./test/benchkube --berth $(BIN)/berth --compiled-in $(BIN)/berth-bench --yoda $(BIN)/berth-yoda --timeout 30m --workload gpu $(BENCHFLAGS)

# Of cards: Yoda's service is killed, paused and cut off from the API server; collectors die; cards fall sick, vanish and come back.
.PHONY: chaos
chaos: build berth-yoda ## Berth with faults, on a real API server, with Yoda and its cards, and whether its history shows a violation; SEED=… DURATION=…
	go run ./test/chaos --berth $(BIN)/berth --yoda $(BIN)/berth-yoda --seed $(or $(SEED),1) --duration $(or $(DURATION),5m) $(CHAOSFLAGS)

.PHONY: swap
swap: ## kube-scheduler and Berth take over from each other, with pods arriving; SWAPS=…
	go test -v -count=1 -timeout 0 ./test/system -run 'TestKubeSchedulerAndBerthTakeTurns' -swaps=$(or $(SWAPS),10)

.PHONY: volumes
volumes: ## real controllers of volumes and StatefulSets: 1,000 pods with claims while 50 active binders are killed, what pods without their volumes say, and preemption that sees volumes; STATEFUL=… KILLS=… SEED=…
	go test -tags volumes -v -count=1 -timeout 0 ./test/system -run 'ThousandPodsOfStatefulSets|WithoutTheirVolumesSayWhy|PreemptorsGetThePlaces' \
	  -stateful=$(or $(STATEFUL),1000) -binder-kills=$(or $(KILLS),50) -volumes-seed=$(or $(SEED),1)

.PHONY: scheduler-plugins
scheduler-plugins: ## the plugins of sigs.k8s.io/scheduler-plugins, unchanged, in a kube-scheduler and in Berth: whether pods go to the same nodes; builds both first
	cd test/schedulerplugins && go vet . && CGO_ENABLED=0 go test -v -count=1 -timeout 0 .

.PHONY: scheduler-plugins-integration
scheduler-plugins-integration: ## the integration tests that scheduler-plugins has itself, beside kube-scheduler and beside Berth; ONLY=… for those of a name
	cd test/schedulerplugins && go vet ./... && cd integration && CGO_ENABLED=0 go test -v -count=1 -timeout 0 -run SchedulerPluginsOwn . -only '$(or $(ONLY),.)'

.PHONY: upstream-plugins
upstream-plugins: ## the tests that kube-scheduler has itself of plugins at each extension point, beside kube-scheduler and beside Berth; ONLY=… for those of a name
	cd test/schedulerplugins && go vet ./... && cd integration && CGO_ENABLED=0 go test -v -count=1 -timeout 0 -run KubeSchedulersOwn . -only '$(or $(ONLY),.)'

.PHONY: extenders
extenders: ## two extenders of others, TopoLVM's and gpushare's, beside kube-scheduler and beside Berth: what they are asked, to the byte, and where pods go; builds them first
	go test -tags extenders -v -count=1 -timeout 0 ./test/extenders

.PHONY: skew
skew: ## API servers of Kubernetes 1.34 and 1.35, beside that of 1.36: pods of several kinds are placed on each; builds them first
	go test -tags skew -v -count=1 -timeout 0 ./test/system -run 'OlderAPIServers'

.PHONY: overload
overload: ## 110,000 pods for a cluster with room for 10,000, then more calls than are answered, then room for all; WAITING=…
	go test -v -count=1 -timeout 0 ./test/overload -waiting=$(or $(WAITING),100000) -within=10m

.PHONY: soak-etcd
soak-etcd: ## pods come and go until 2 GiB have gone through an etcd with a quota of 16 MiB; WRITTEN=… in MiB
	go test -v -count=1 -timeout 0 ./test/soak -run 'NeverFillsUp|FromFillingUp' -written=$(or $(WRITTEN),2048)

.PHONY: vuln
vuln: ## known vulnerabilities that Berth calls; VULNDB=https://vuln.go.dev, or a directory with a copy of it
	@test -n "$(VULNDB)" || { echo "make vuln: VULNDB is not set, so nothing was checked. Give it a database of Go vulnerabilities:"; \
	  echo "  make vuln VULNDB=https://vuln.go.dev      where that can be reached"; \
	  echo "  make vuln VULNDB=/path/to/vulndb          a directory with https://vuln.go.dev/vulndb.zip unpacked"; exit 2; }
	@mkdir -p $(BIN); if [ "$$(cat $(BIN)/.govulncheck 2>/dev/null)" != "$(GOVULNCHECK)" ]; then \
	  echo "go install $(GOVULNCHECK)"; CGO_ENABLED=0 GOBIN=$(BIN) go install $(GOVULNCHECK) && echo "$(GOVULNCHECK)" > $(BIN)/.govulncheck; fi
	GOVULNCHECK=$(BIN)/govulncheck test/rules/vuln.sh
	@for module in $(MODULES); do echo "govulncheck in $$module"; \
	  (cd $$module && if [ -n "$$(go list ./... 2>/dev/null)" ]; then $(BIN)/govulncheck -db $(VULNDB_URL) ./...; fi) || exit 1; done

# Every Go module of the repository; and the database as a URL, from a directory too.
MODULES    := . $(patsubst %/go.mod,%,$(wildcard berthapp/go.mod cmd/*/go.mod internal/*/*/go.mod plugins/*/go.mod release/go.mod test/*/go.mod test/*/*/go.mod))
VULNDB_URL  = $(if $(findstring ://,$(VULNDB)),$(VULNDB),file://$(abspath $(VULNDB)))

.PHONY: fuzz
fuzz: ## run every fuzz target for its time, going on where it was; FUZZTIME=10m of decoders, RPCTIME=2m of RPCs, FUZZFLAGS='-run wire -parallel 1'
	go run ./test/fuzzing -decoders $(or $(FUZZTIME),10m) -rpcs $(or $(RPCTIME),2m) $(FUZZFLAGS)

# What takes hours, or time itself, or is built elsewhere, is a proof and no test: make test is the facts, in minutes. New ones are
# added here.
.PHONY: proofs
proofs: ## what takes hours: oracle at length, overload, attack, swap, volumes, extenders, skew, scheduler-plugins and its own tests, those of kube-scheduler's plugins, soak-etcd, churn, an hour of chaos, and every fuzz target; each also has a target of its own
	$(MAKE) oracle
	$(MAKE) overload
	$(MAKE) attack
	$(MAKE) swap
	$(MAKE) volumes
	$(MAKE) extenders
	$(MAKE) skew
	$(MAKE) scheduler-plugins
	$(MAKE) scheduler-plugins-integration
	$(MAKE) upstream-plugins
	$(MAKE) soak-etcd
	$(MAKE) churn
	$(MAKE) chaos DURATION=$(or $(DURATION),1h)
	$(MAKE) fuzz

.PHONY: attack
attack: ## what an honest caller gets of a gateway that is attacked in each way, quiet and meanwhile; CALLS=… of each kind, ATTACK=… for those of a name, OTHER=1 to attack another gateway beside it
	go test -v -count=1 -timeout 0 -run HonestCallers ./test/overload -attack-calls=$(or $(CALLS),400) -attack-only='$(ATTACK)' -attack-other=$(if $(OTHER),true,false)

.PHONY: churn
churn: ## a month of churn in one process: 10,000,000 pods and 100,000 nodes come and go; PODS=… NODES=…
	go test -v -count=1 -timeout 0 -run '^TestChurnEndsWithTheMemoryItBeganWith$$' ./services/queue/pending \
	  -churn.pods=$(or $(PODS),10000000) -churn.nodes=$(or $(NODES),100000)

.PHONY: clean
clean: ## remove what was built here
	rm -rf $(BIN)

# A stamp holds the versions, so that a changed version is installed.
TOOLS := $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(PROTOC_GEN_GATEWAY) $(STATICCHECK) $(DEADCODE)
.PHONY: tools
tools:
	@mkdir -p $(BIN); if [ "$$(cat $(BIN)/.tools 2>/dev/null)" != "$(TOOLS)" ]; then \
	  for t in $(TOOLS); do echo "go install $$t"; CGO_ENABLED=0 GOBIN=$(BIN) go install $$t || exit 1; done; \
	  echo "$(TOOLS)" > $(BIN)/.tools; fi

.PHONY: grpcurl
grpcurl:
	@mkdir -p $(BIN); if [ "$$(cat $(BIN)/.grpcurl 2>/dev/null)" != "$(GRPCURL)" ]; then \
	  echo "go install $(GRPCURL)"; CGO_ENABLED=0 GOBIN=$(BIN) go install $(GRPCURL) && echo "$(GRPCURL)" > $(BIN)/.grpcurl; fi
