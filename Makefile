# Everything a newcomer or CI runs. `make help` lists the targets.
SHELL := /bin/bash
export CGO_ENABLED ?= 0
GO ?= go
TOOL := $(GO) tool -modfile=tools/go.mod
PKGS := ./...
SERVER_TARGETS := linux/amd64 linux/arm64
CLIENT_TARGETS := darwin/amd64 darwin/arm64 windows/amd64

# The guest is built with the collector that has less for each process (docs/design/0027), where the toolchain still has both. Its parts begin
# where large pages do (-R), so that the kernel can map what it only reads as such (docs/design/0039). More than half of the file is gaps for that.
GUEST_GOEXPERIMENT = $$(GOEXPERIMENT=nogreenteagc $(GO) env GOEXPERIMENT 2>/dev/null)
GUEST_LDFLAGS = -s -w -R 0x200000
GUEST_BUILD = GOEXPERIMENT=$(GUEST_GOEXPERIMENT) $(GO) build

# gVisor's own build has no releases as Go modules: its go branch, pinned.
RUNSC_VERSION := v0.0.0-20260905035102-160fafc42237
RUNSC_CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/outboard/runsc-$(RUNSC_VERSION)

.PHONY: help build demo test quick check lint race fmt vet staticcheck fix shape cross sdk compat chaos bench release release-test deps runsc clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

build: ## build bin/outboard and bin/outboard-guest
	$(GUEST_BUILD) -ldflags '$(GUEST_LDFLAGS)' -o bin/outboard-guest ./cmd/outboard-guest
	$(GO) build -ldflags '-s -w' -o bin/outboard ./cmd/outboard

demo: build ## watch an agent work in a sandbox while the harness is killed under it
	@bin/outboard demo

deps: ## install what the tests need and the machine lacks (PostgreSQL, OpenSSH clients, rsync; as root crun, runc, runsc, debootstrap and a Docker engine)
	@scripts/deps

runsc: bin/runsc-$(RUNSC_VERSION) ## build gVisor's runtime as bin/runsc (some minutes, once)

# Built in a directory of its own, and kept there for other checkouts of this user.
bin/runsc-$(RUNSC_VERSION):
	@mkdir -p bin $(RUNSC_CACHE)
	@test -x $(RUNSC_CACHE)/runsc || { echo "building runsc $(RUNSC_VERSION), some minutes" >&2; cd $(RUNSC_CACHE) && \
	  GOBIN=$(RUNSC_CACHE)/new GOFLAGS= CGO_ENABLED=0 $(GO) install -ldflags '-s -w' gvisor.dev/gvisor/runsc@$(RUNSC_VERSION) && mv new/runsc runsc; }
	@cp $(RUNSC_CACHE)/runsc bin/runsc.new && mv bin/runsc.new bin/runsc && touch $@

# With RACE=true, as in CI, every test still runs, and none twice: under the race detector, which finds all that a plain run does, and plainly what
# -short leaves out of that. Without it no C compiler is needed, and the tests take about half as long.
RACE ?= $(if $(filter true,$(CI)),true)

test: deps build ## run every test, in CI under the race detector
ifeq ($(RACE),true)
	$(MAKE) --no-print-directory race
	scripts/with-dockerd scripts/with-s3 scripts/left-out $(GO) test -timeout 20m
else
	scripts/with-dockerd scripts/with-s3 $(GO) test -timeout 20m $(PKGS)
endif
	$(MAKE) --no-print-directory sdk

quick: ## the tests of what the working tree changes against main, and of the packages that import it directly
	@scripts/quick

check: lint shape cross race ## everything that must hold before a commit

lint: fmt vet staticcheck fix ## what of that needs no test to run

fmt:
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); test -z "$$out" || { echo "gofmt needed:"; echo "$$out"; exit 1; }

vet:
	$(GO) vet $(PKGS)

staticcheck:
	$(TOOL) staticcheck $(PKGS)

fix:
	@$(GO) fix -diff $(PKGS)

shape: ## how much code there is and how large its rooms are; fails if a figure got worse
	@$(GO) run ./scripts/shape -check

# The largest packages of others are not optimized where the result is thrown away, or tests run little of them: a third less to wait for.
# The host's own build is the one of `build`.
unoptimized = $(foreach p,$(1),"-gcflags=$(p)/...=-N -l")
CLIENTS := github.com/anthropics github.com/openai

cross: ## compile the server for linux, the client commands also for macOS and Windows
	@own=$$($(GO) env GOHOSTOS)/$$($(GO) env GOHOSTARCH); for t in $(SERVER_TARGETS) $(CLIENT_TARGETS); do echo "build $$t"; \
	  flags=($(call unoptimized,$(CLIENTS) modernc.org)); [ $$t != $$own ] || flags=(); \
	  GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build "$${flags[@]}" -o /dev/null ./cmd/outboard || exit 1; done
	@for t in $(SERVER_TARGETS); do GOOS=linux GOARCH=$${t#*/} $(GUEST_BUILD) -o /dev/null ./cmd/outboard-guest || exit 1; done

# SQLite's own code, C translated to Go, is not instrumented: nothing of ours is in it to race for, and tests of the store and the API take
# half the time. Everything above it is. A package left out must hold no instance of a generic type: the linker keeps one copy of each, and
# one of sync/atomic's that is not instrumented makes false reports.
race: deps build ## tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 scripts/with-dockerd scripts/with-s3 $(GO) test -race $(call unoptimized,$(CLIENTS)) -gcflags=modernc.org/sqlite/lib=-race=false -short -timeout 25m $(PKGS)

sdk: build ## the official SDKs against a real server
	@scripts/sdk

compat: build ## unmodified tools and agents in a sandbox with a key they never see (root, node, npm); docs/reference/compat.md
	@scripts/compat

chaos: build deps ## kill runners, servers, guests and sandboxes at random, then prove the log; report in docs/lab/chaos.md
	@scripts/chaos

bench: build deps ## measure; report in docs/lab/bench.md
	@scripts/bench

release: ## everything of a release in dist/: tarballs, packages, image, checksums, bills of materials; publishes nothing
	@GUEST_GOEXPERIMENT="$(GUEST_GOEXPERIMENT)" GUEST_LDFLAGS="$(GUEST_LDFLAGS)" scripts/release

release-test: ## install the package of `make release` in an empty Debian and run it, as root and as an ordinary user (root, debootstrap)
	@scripts/release-test

clean:
	rm -rf bin dist test/sdk/ts/node_modules test/e2b/node_modules
