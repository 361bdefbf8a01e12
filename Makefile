# Every target: make help
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
# Tests sleep for most of their time, for a disk or until a transaction is tried again, so more run at once than there
# are processors.
TOGETHER = -p 3 -parallel 8
# Where memory may grow to four times what is in use, a fifth less of the processors goes into collecting it, in tests
# as in compilers. Not where something is measured.
gate full lint bare test race sim sim-ci broken socket conformance linear fuzz crash e2e release-check: export GOGC ?= 400
# A build does not depend on the folder of the checkout, so that every checkout shares one cache.
export GOFLAGS ?= -trimpath
# The one number from which every random test takes its seed. A new number is a commit of its own.
export SEED ?= 20261125
STATICCHECK = $(GO) tool -modfile=tools/go.mod staticcheck

.PHONY: help
help: ## this list
	@grep -hE '^[a-z][a-z-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.PHONY: setup
setup: ## switch on the check of commit messages in .githooks
	git config core.hooksPath .githooks

.PHONY: demo
demo: ## load 20,000 real departures, drain them with 4 processes of which two are killed, verify it
	@$(GO) run ./cmd/fdbfifo demo

.PHONY: orders
orders: ## a service of three processes on one folder: 5,000 orders, four of its processes killed, verify it (ARGS=-json)
	@$(GO) run ./examples/orders run $(ARGS)

.PHONY: pipeline
pipeline: ## four stages as processes on one folder: 1,200 seat requests in place, two processes killed, verify it (ARGS=-json)
	@$(GO) run ./examples/pipeline run $(ARGS)

# Tests that make full has, and make test has not: those that kill, stop or start processes, need real time, or take
# long; and packages of which that holds for every test.
SLOW_TESTS = ^(TestBadPeersHarmNobody|TestBenchJSON|TestBenchmarks|TestConformance(Process|Socket)|TestCrash|TestDemoProcesses(Killed)?|TestHandOverUnderLoad|TestHistoriesProcess|TestKills(Together)?|TestLinearizableProcesses|TestNobodyCanServe|TestProcesses|TestRename|TestRootBeatsTheSwap|TestStoppedServer)$$
SLOW_PACKAGES = /internal/(soak(/cmd)?|bench/hookpoints)$$

.PHONY: test
test: ## the tests of the main module with the seed SEED: about two minutes on 2 cores (the slow ones: make test-slow)
	$(GO) test $(TEST_FLAGS) $(VET) $(TOGETHER) -count 1 -skip '$(SLOW_TESTS)' $$($(GO) list ./... | grep -vE '$(SLOW_PACKAGES)')

.PHONY: test-slow
test-slow: ## the tests that make test leaves out: processes that are killed, real time, much work
	$(GO) test $(VET) -p 1 -parallel 4 -count 1 -run '$(SLOW_TESTS)' $$($(GO) list ./... | grep -vE '$(SLOW_PACKAGES)')
	$(GO) test $(VET) -p 1 -parallel 4 -count 1 $$($(GO) list ./... | grep -E '$(SLOW_PACKAGES)')

# The checker of accessibility, if npm is here.
E2E_NPM = if command -v npm > /dev/null && [ ! -d e2e/node_modules/axe-core ]; then \
	npm --prefix e2e install --no-audit --no-fund --no-package-lock || echo "npm could not install axe-core"; fi
.PHONY: e2e
e2e: ## the console in a real browser, top in tmux, the board in a real Prometheus; says SKIP, and how to get it, where one is missing
	@$(E2E_NPM)
	$(GO) -C e2e vet ./...
	@set -o pipefail; $(GO) -C e2e test ./... -count 1 -v | grep -v '^=== '

.PHONY: pictures
pictures: ## take the pictures of docs/pictures anew, in a real browser; the diff is the review
	@mkdir -p docs/pictures
	$(GO) -C e2e test . -run '^TestPictures$$' -count 1 -args -pictures

.PHONY: otel
otel: ## OpenTelemetry's spans and metrics, in the module otelfifo: vet, staticcheck, tests, tidy modules
	@cd otelfifo && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./... && $(GO) mod tidy -diff && $(GO) test ./... -count 1

PEERS = docs/benchmarks/peers.md
.PHONY: peers
peers: ## measure this queue beside others (PostgreSQL, River, Redis, the recipe), into docs/benchmarks/peers.md: some minutes, on a quiet machine
	$(GO) -C peers run . -out $(CURDIR)/$(PEERS) $(ARGS)

.PHONY: peers-check
peers-check: ## the module peers: vet, staticcheck, tests with the servers that are here, tidy modules
	@cd peers && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./... && $(GO) mod tidy -diff && $(GO) test ./... -count 1

.PHONY: build
build: ## the command, into bin/
	CGO_ENABLED=0 $(GO) build -o bin/fdbfifo ./cmd/fdbfifo

# Tests of the layer in which one caller makes one call after the other, many of them, and what is read or done is compared.
ONE_BY_ONE = ^(TestFootprints|TestGroupMachine|TestUnorderedCost|TestWalkMissesNothing|TestBoundsAtTheLimit)$$
# Packages of which nothing runs at once, in the test's own process.
ALONE = /(internal/(lint|release|model|linear|bench/hookpoints)|kv/tuple)(/|$$)

# The packages of which goroutines share memory.
RACED = ./layer ./layer/layertest ./layer/internal/... ./worker ./kv/embedded ./sqs ./metrics ./console ./internal/checks
.PHONY: race-gate
race-gate: ## the race detector over the packages with goroutines, cut short
	CGO_ENABLED=1 $(GO) test $(TEST_FLAGS) -race -short -vet=off $(TOGETHER) -count 1 -skip '$(SLOW_TESTS)|$(ONE_BY_ONE)' $(RACED)

.PHONY: race
race: ## the tests under the race detector, the long ones cut short; not those of the source text, nor such as run nothing at once
	CGO_ENABLED=1 $(GO) test -race -short -vet=off $(TOGETHER) -count 1 -skip '$(ONE_BY_ONE)' $$($(GO) list ./... | grep -vE '$(ALONE)')

.PHONY: lint
lint: ## format, vet, staticcheck, tidy modules
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) mod tidy -diff

.PHONY: floors
floors: ## figures of the layer's structure, and what goes upwards; JSON=1: the figures alone, as JSON
ifdef JSON
	@$(GO) run ./internal/lint/floors --json
else
	@$(GO) run ./internal/lint/floors
	@$(GO) run ./internal/lint/floors --list upward
endif

.PHONY: bare
bare: ## build and vet as on a machine without a C compiler
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) vet ./...

SEEDS ?= 700
OPERATIONS ?= 300
LINES ?= 60
LINEAR ?= 1
.PHONY: sim
sim: ## the simulation: SEEDS fresh seeds from SEED on, OPERATIONS calls each, every LINEAR. with porcupine, half as many of workers (40 at most); a failed one prints how to replay it
	@echo "SEED=$(SEED) SEEDS=$(SEEDS) OPERATIONS=$(OPERATIONS)"
	$(GO) test ./internal/sim -run '^Test(Seeds|Workers|SameSeedSameTrace)$$' -count 1 -parallel 3 -timeout 1h -v -args -seed $(SEED) -seeds $(SEEDS) -linear $(LINEAR) \
		-operations $(OPERATIONS) -lines $(LINES) | grep -vE '^ *(=== |--- PASS: Test(Seeds|Workers)/)'; exit $${PIPESTATUS[0]}

.PHONY: sim-gate
sim-gate: ## the simulation with 150 fixed seeds
	@$(MAKE) --no-print-directory sim SEED=1 SEEDS=150

.PHONY: sim-ci
sim-ci: ## the simulation with 450 fixed seeds and 50 fresh ones, over 200,000 calls, and 40 of workers; every fault and rare path seen
	@$(MAKE) --no-print-directory sim SEED=1 SEEDS=450
	@$(MAKE) --no-print-directory sim SEED=$$(date +%s) SEEDS=50

.PHONY: broken
broken: ## the layer without each of its guards: the tests, and the simulation where it can, must find what goes wrong
	$(GO) vet -tags broken ./layer/... ./worker ./internal/sim
	$(STATICCHECK) -tags broken ./layer/... ./worker ./internal/sim
	$(GO) test -vet=off -tags broken ./layer -run '^(TestBrokenByTests|TestGuardsAreListed)$$' -count 1 -parallel 3
	$(GO) test -vet=off -tags broken ./internal/sim -run '^(TestBroken|TestBrokenAlone|TestCanary|TestNoOtherGuards)$$' -count 1 -parallel 3 -timeout 20m -v \
		| grep -vE '^ *(=== |--- PASS: Test[A-Za-z]*/)'; exit $${PIPESTATUS[0]}

# Ten guards of ten parts of the queue.
GUARDS = claim-lock|dedup-item|index|letter|purge-lock|receipt|settle-lock|take-lock|token|wake-unlocked
.PHONY: broken-gate
broken-gate: ## the layer without each of ten guards: a test fails
	$(GO) test -vet=off -tags broken ./layer -run '^(TestBrokenByTests|TestGuardsAreListed)$$/^without$$/^($(GUARDS))$$' -count 1 -parallel 3

KILLS ?= 200
.PHONY: crash
crash: ## kill KILLS processes that work on a queue on disk, and as many where several have it open, check what each leaves; a failed run prints how to replay it
	@echo "SEED=$(SEED) KILLS=$(KILLS)"
	$(GO) test ./internal/crash -run '^TestKills(Together)?$$' -count 1 -timeout 1h -v -args -seed $(SEED) -kills $(KILLS)

HISTORIES ?= 40
.PHONY: linear
linear: ## HISTORIES runs of concurrent callers of each sort on each engine, as many of callers in several processes, and as many seeds of the simulation, from SEED on, checked for linearizability
	@echo "SEED=$(SEED) HISTORIES=$(HISTORIES)"
	$(GO) test ./internal/linear -count 1
	$(GO) test ./layer/layertest -run '^TestLinearizable(Processes)?$$' -count 1 -timeout 1h -v -args -layer.seed $(SEED) -layer.histories $(HISTORIES) \
		| grep -vE '^ *(=== |--- PASS: TestLinearizable(Processes)?/.*/)'; exit $${PIPESTATUS[0]}
	$(MAKE) --no-print-directory sim SEED=$(SEED) SEEDS=$(HISTORIES)

.PHONY: socket
socket: ## the layer's tests through the socket of a folder that another DB has open
	$(GO) test ./layer/layertest -count 1 $(TOGETHER) -timeout 20m -run '^Test' -args -layer.socket

.PHONY: conformance
conformance: ## the engines' suite with every pair of range selectors, of which make test tries a quarter
	KVTEST_WHOLE=1 $(GO) test $(TOGETHER) ./kv/... -run Conformance -count 1

HANDLES ?= 1000
WORKERS ?= 16
SHARDS ?= 16
.PHONY: handles
handles: ## HANDLES handles with WORKERS workers each, in virtual time and with a cluster's latencies: conflicts and shares
	$(GO) test ./internal/herd -count 1 -v -timeout 60m -run TestHandles -args -herd.handles $(HANDLES) \
		-herd.workers $(WORKERS) -herd.shards $(SHARDS) -herd.hold

MINUTES ?= 10
ENGINE ?= memory
.PHONY: soak
soak: ## steady load for MINUTES on ENGINE (memory, disk, disk:FOLDER, fdb, fdb:CLUSTERFILE), fails if anything is left over
ifeq ($(firstword $(subst :, ,$(ENGINE))),fdb)
	cd fdbkv && $(GO) run ./testcluster -- $(GO) run ./soak -minutes $(MINUTES) -engine $(ENGINE)
else
	$(GO) run ./internal/soak/cmd -minutes $(MINUTES) -engine $(ENGINE)
endif

.PHONY: model
model: ## the model of docs/model, checked by TLC: TLA2TOOLS=path of tla2tools.jar, or tlc on the PATH; else SKIP
	@$(GO) run ./internal/model

# A number of executions, as in CI: a time that ends while a worker is busy fails with "context deadline exceeded".
FUZZTIME ?= 20000x
.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME: so many executions, 20000x, or for a time, 60s
	@set -e; mkdir -p bin; for d in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs dirname | sort -u); do \
		$(GO) test -c -fuzz Fuzz -o $(CURDIR)/bin/fuzz.test $$d; \
		for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' $$d/*_test.go); do \
			echo "$$t ($$d)"; \
			(cd $$d && $(CURDIR)/bin/fuzz.test -test.run '^$$' -test.fuzz "^$$t\$$" -test.fuzztime $(FUZZTIME) \
				-test.fuzzminimizetime 100x \
				-test.fuzzcachedir "$$($(GO) env GOCACHE)/fuzz/$$($(GO) list .)"); \
		done; \
	done

.PHONY: bench
bench: ## the benchmark table: every figure and its target
	$(GO) run ./cmd/fdbfifo bench

PAIRS ?= 31
.PHONY: hooks
hooks: ## what hooks cost by CPU, PAIRS runs each: their places without any set, and all set; builds the layer without them
	@$(GO) run ./internal/bench/hookpoints -pairs $(PAIRS)

# Only the packages that have benchmarks: the test binaries of the others would be linked in vain.
BENCHED = $(GO) list -f '{{$$d := .Dir}}{{range .TestGoFiles}}{{$$d}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$d}}/{{.}} {{end}}' ./... \
	| xargs grep -lE '^func Benchmark' | xargs -n1 dirname | sort -u
.PHONY: bench-once
bench-once: ## every Go benchmark once, so that none rots
	$(GO) test -run '^$$' -bench . -benchtime 1x $$($(BENCHED))

.PHONY: rules
rules: ## write docs/rules.md (from a rule to its guards, tests and scenarios) and docs/footprints.md anew
	$(GO) run ./internal/lint/rules

GENERATED = layer/testdata layer/layertest/testdata docs/rules.md docs/footprints.md docs/combinations.md
.PHONY: golden
golden: ## write the golden files and the pages made of them anew; the diff is the review
	$(GO) test ./layer/layertest -run 'TestFootprints|TestCombinations' -rewrite
	$(MAKE) --no-print-directory rules
	git diff --stat -- $(GENERATED)

.PHONY: unchanged
unchanged: golden ## fail if generated files are not what is committed
	git diff --exit-code -- $(GENERATED)

# fdbkv/, the adapter to FoundationDB, is a module of its own. Only to build it and to run it takes FoundationDB.
FDBKV_STATICCHECK = $(GO) tool -modfile=../tools/go.mod staticcheck

.PHONY: typecheck-fdb
typecheck-fdb: ## the types of fdbkv/ and its tests, on any machine
	@cd fdbkv && CGO_ENABLED=0 $(GO) run ./typecheck
	@cd fdbkv && CGO_ENABLED=0 $(GO) test ./typecheck ./internal/cluster
	@cd fdbkv && $(GO) mod tidy -diff

.PHONY: test-fdb
test-fdb: ## every suite on a cluster: FDB_CLUSTER_FILE, or a throw-away one (FDB_BIN, FDB_ENGINE=ssd, FDB_SERVERS=7); else SKIP
	@cd fdbkv && $(GO) run ./testcluster -- $(MAKE) --no-print-directory -C .. fdb-suites

.PHONY: fdb-suites
fdb-suites: # of test-fdb, which sets FDB_CLUSTER_FILE
	@cd fdbkv && if ! client=$$($(GO) run ./testcluster/client 2>&1); then \
		echo "SKIP: there is a cluster, but no client library to build with: that takes cgo, foundationdb/fdb_c.h" \
			"(CGO_CFLAGS=-I...) and libfdb_c (CGO_LDFLAGS=-L...)"; \
		echo "$$client"; \
	else \
		command -v "$${FDB_BIN:+$$FDB_BIN/}fdbserver" >/dev/null || \
			echo "SKIP: the tests that kill, restart or lock a cluster of their own: no fdbserver in FDB_BIN or on the PATH"; \
		echo "$$client" && $(GO) vet ./... && $(FDBKV_STATICCHECK) ./... && KVTEST_WHOLE=1 $(GO) test -count 1 -timeout 30m ./...; \
	fi

.PHONY: trouble
trouble: ## the suites with faults, and HISTORIES of linear, on seven servers that are killed, frozen, excluded, configured by SEED; else SKIP
	@echo "SEED=$(SEED) HISTORIES=$(HISTORIES)"
	@cd fdbkv && FDB_CLUSTER_FILE= FDB_SERVERS=7 FDB_TROUBLE=$(SEED) \
		$(GO) run ./testcluster -- $(MAKE) --no-print-directory -C .. trouble-suites

# TestFootprints counts what one attempt reads.
.PHONY: trouble-suites
trouble-suites: # of trouble, which sets FDB_CLUSTER_FILE
	cd fdbkv && $(GO) test ./layertest -run './cluster with faults' -skip '^TestFootprints$$' -count 1 -timeout 1h -args -layer.seed $(SEED)
	cd fdbkv && $(GO) test ./layertest -run '^TestLinearizable$$' -count 1 -timeout 1h -v -args -layer.seed $(SEED) -layer.histories $(HISTORIES) \
		| grep -vE '^ *(=== |--- PASS: TestLinearizable/.*/)'; exit $${PIPESTATUS[0]}

.PHONY: build-fdb
build-fdb: ## the command with the engine fdb, bin/fdbfifo-fdb: needs libfdb_c and its header
	cd fdbkv && CGO_ENABLED=1 $(GO) build -o ../bin/fdbfifo-fdb ./cmd/fdbfifo

.PHONY: module
module: ## give the whole tree another module path: make module MODULE=example.com/you/fdbfifo
	@$(GO) run ./internal/release rename "$(MODULE)"

.PHONY: release-check
release-check: ## pack both modules as a release would, build and run a new program on them, without a replace; build a renamed tree
	$(GO) test ./internal/release -run '^TestRename$$' -count 1 -args -build
	@$(GO) run ./internal/release check

SQS_NODE ?= $(CURDIR)/bin/node
# The packages of the clients for JavaScript, if npm is here.
SQS_NPM = mkdir -p $(SQS_NODE) && { ! command -v npm > /dev/null || test -d $(SQS_NODE)/node_modules/aws-sdk \
		|| npm install --silent --no-audit --no-fund --prefix $(SQS_NODE) @aws-sdk/client-sqs@3 sqs-consumer@14 aws-sdk@2 > /dev/null 2>&1 \
		|| echo "npm could not install the clients for JavaScript" >&2; }
.PHONY: e2e-sqs
e2e-sqs: ## the SQS server with twelve clients, as far as they are here: Go, Python, JavaScript, PHP, Perl, the AWS CLI; killed amid eight workers; the proof of sqs-demo
	@$(SQS_NPM)
	@set -o pipefail; for module in sqs/clienttest examples/sqs; do \
		( cd $$module && $(GO) mod tidy -diff && $(GO) vet . && { ! test -d $(SQS_NODE)/node_modules || export SQS_NODE=$(SQS_NODE); } \
			&& $(GO) test . -count 1 -v | grep -vE '^ *=== ' ) || exit 1; done

.PHONY: sqs-demo
sqs-demo: ## an order service in Node, Python and Go that speaks SQS to fdbfifo serve: 400 orders, six processes killed, verify it (ARGS=--json)
	@$(SQS_NPM)
	@CGO_ENABLED=0 $(GO) build -o bin/fdbfifo ./cmd/fdbfifo && $(GO) -C examples/sqs build -o $(CURDIR)/bin/sqs-demo . \
		&& bin/sqs-demo run -server bin/fdbfifo -node $(SQS_NODE) -scripts examples/sqs $(ARGS)

SQS_FOR ?= 5m
SQS_ENGINE ?= disk
.PHONY: sqs-crash
sqs-crash: ## two SQS servers killed every 2 s amid eight mixed workers for SQS_FOR (5m), by SEED; SQS_ENGINE=fdb on the cluster of FDB_CLUSTER_FILE, or a throw-away one
	@echo "SEED=$(SEED) SQS_FOR=$(SQS_FOR) SQS_ENGINE=$(SQS_ENGINE)"
	@{ ! test -d $(SQS_NODE)/node_modules || export SQS_NODE=$(SQS_NODE); } \
		&& if test $(SQS_ENGINE) = fdb; then cd fdbkv && on="$(GO) run ./testcluster --"; fi \
		&& $$on $(GO) -C $(CURDIR)/sqs/clienttest test . -run '^TestKilled$$' -count 1 -timeout 1h -v -args \
		-killed.seed $(SEED) -killed.for $(SQS_FOR) -killed.engine $(SQS_ENGINE)

# The other modules: types, linter, tidy, and the tests that need no other program.
MODULES = otelfifo peers sqs/clienttest examples/sqs e2e
.PHONY: modules
modules: ## the other modules: vet, tidy, and the tests that need nothing but Go
	@set -e; for m in $(MODULES); do ( cd $$m && $(GO) vet ./... && $(GO) mod tidy -diff ); done
	$(GO) -C otelfifo test ./... -count 1

# Of the targets of a list the first write or read the tree's files, and compile what the others need. Of the others two
# run at a time, for each leaves the processors alone for a part of its time; the longest come first.
GATE = race-gate test sim-gate modules broken-gate typecheck-fdb
.PHONY: gate
gate: ## what .ci/run runs: quick, the same verdict for the same commit; six minutes on 2 cores with nothing else to do
	@echo "SEED=$(SEED)"
	@CGO_ENABLED=0 $(GO) run ./internal/checks -first "lint unchanged" $(GATE)

FULL = race sim-ci broken e2e socket crash test-slow fuzz linear release-check peers-check e2e-sqs conformance bench-once otel test-fdb model
.PHONY: full
full: ## everything: the gate, fresh seeds, kills, sockets, fuzz, a browser, SQS clients, a cluster: an hour; continues after a failure
	@echo "SEED=$(SEED)"
	@$(GO) run ./internal/checks -first "lint bare unchanged" $(GATE) $(FULL)

OUT ?= $(or $(TMPDIR),/tmp)/fdbfifo-trials
.PHONY: hunt
hunt: MINUTES = 60
hunt: ## every random suite with fresh seeds for MINUTES=60 in fair shares; keeps failing seeds and adds up over calls in OUT
	@$(GO) run ./internal/trials hunt -minutes $(MINUTES) -out $(OUT)

RUNS ?= 20
.PHONY: flaky
flaky: ## the gate's tests RUNS=20 times beside a load of its own; names each test that failed, and adds up over calls in OUT
	@$(GO) run ./internal/trials flaky -runs $(RUNS) -out $(OUT)
