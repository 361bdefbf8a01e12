# Every target: make help
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
# Tests sleep for most of their time, for a disk or until a transaction is tried again, so more run at once than there
# are processors.
TOGETHER = -p 4 -parallel 8 -timeout 30m
# Where memory may grow to four times what is in use, a fifth less of the processors goes into collecting it, in tests
# as in compilers. Not where something is measured.
gate full lint bare test race race-gate sim sim-ci broken socket conformance linear fuzz crash e2e release-check: export GOGC ?= 400
# A build does not depend on the folder of the checkout, so that every checkout shares one cache.
export GOFLAGS ?= -trimpath
# The one number from which every random test takes its seed. A new number is a commit of its own.
export SEED ?= 20261125
STATICCHECK = $(GO) tool -modfile=tools/go.mod staticcheck

.PHONY: help
help: ## use: print this list
	@for group in use change prove; do printf '%s it\n' $$group; \
		sed -nE "s/^([a-z][a-z0-9-]*):[^#]*## $$group: (.*)/  \1\t\2/p" $(MAKEFILE_LIST) | expand -t 17; done

.PHONY: setup
setup: ## change: switch on the check of commit messages in .githooks
	git config core.hooksPath .githooks

.PHONY: demo
demo: ## use: four processes handle 20,000 departures, two are killed; the order is verified
	@$(GO) run ./cmd/fdbfifo demo

.PHONY: orders
orders: ## use: a service takes 5,000 orders, four processes are killed; the ledger is verified
	@$(GO) run ./examples/orders run $(ARGS)

.PHONY: pipeline
pipeline: ## use: four stages as processes, two are killed; the books are verified; ARGS=-json
	@$(GO) run ./examples/pipeline run $(ARGS)

# Tests that make full has, and make test has not: those that kill, stop or start processes, need real time, or take
# long; and packages of which that holds for every test.
SLOW_TESTS = ^(TestBadPeersHarmNobody|TestBenchJSON|TestBenchmarks|TestBoundsAtTheLimit|TestConformanceProcess|TestConformanceSocket|TestCrash|TestDemoProcesses|TestDemoProcessesKilled|TestHandOverUnderLoad|TestHistoriesOfALateProcess|TestHistoriesProcess|TestKills|TestKillsTogether|TestLinearizableProcesses|TestLongOpening|TestNobodyCanServe|TestOpenersAreKilledInTurn|TestProcesses|TestRename|TestRootBeatsTheSwap|TestStoppedOpener|TestStoppedServer|TestTakeoverWithLittleSpace)$$
SLOW_PACKAGES = /internal/(soak(/cmd)?|bench/hookpoints)$$

# The packages that take longest begin first, so that no one of them runs alone at the end.
LONGEST = ./layer/layertest ./cli ./internal/sim ./kv/embedded
.PHONY: test
test: ## change: the tests of the main module: two minutes on 2 cores
	$(GO) test $(TEST_FLAGS) $(VET) $(TOGETHER) -count 1 -skip '$(SLOW_TESTS)' $(LONGEST) $$($(GO) list ./... | grep -vE '$(SLOW_PACKAGES)')

.PHONY: test-slow
test-slow: ## prove: the tests that make test leaves out: killed processes, real time, much work
	$(GO) test $(VET) -p 1 -parallel 4 -count 1 -run '$(SLOW_TESTS)' $$($(GO) list ./... | grep -vE '$(SLOW_PACKAGES)')
	$(GO) test $(VET) -p 1 -parallel 4 -count 1 $$($(GO) list ./... | grep -E '$(SLOW_PACKAGES)')

# The checker of accessibility, if npm is here.
E2E_NPM = if command -v npm > /dev/null && [ ! -d e2e/node_modules/axe-core ]; then \
	npm --prefix e2e install --no-audit --no-fund --no-package-lock || echo "npm could not install axe-core"; fi
# The target says SKIP where a program is missing, and how to get it.
.PHONY: e2e
e2e: ## prove: the console in a browser, top in tmux, the board in Prometheus; else SKIP
	@$(E2E_NPM)
	$(GO) -C e2e vet ./...
	@set -o pipefail; $(GO) -C e2e test ./... -count 1 -v | grep -v '^=== '

.PHONY: pictures
pictures: ## change: write docs/pictures, in a real browser; review the diff
	@mkdir -p docs/pictures
	$(GO) -C e2e test . -run '^TestPictures$$' -count 1 -args -pictures

.PHONY: otel
otel: ## prove: the module otelfifo: vet, staticcheck, tests, tidy
	@cd otelfifo && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./... && $(GO) mod tidy -diff && $(GO) test ./... -count 1

PEERS = docs/benchmarks/peers.md
# PostgreSQL, River, Redis and the recipe; some minutes, on a quiet machine.
.PHONY: peers
peers: ## prove: measure this queue and others; writes docs/benchmarks/peers.md
	$(GO) -C peers run . -out $(CURDIR)/$(PEERS) $(ARGS)

.PHONY: peers-check
peers-check: ## prove: the module peers: vet, staticcheck, tests, tidy
	@cd peers && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./... && $(GO) mod tidy -diff && $(GO) test ./... -count 1

.PHONY: build
build: ## use: build the command, bin/fdbfifo
	CGO_ENABLED=0 $(GO) build -o bin/fdbfifo ./cmd/fdbfifo

# Long tests in which one caller makes one call after the other, or as many callers as in a shorter test: the race
# detector has nothing to find in them. With very many timers in virtual time it also crashes now and then
# (https://github.com/golang/go/issues/78156): once in 3 runs of TestManyDeadHandles with 700 handles.
ONE_BY_ONE = ^(TestBoundsAtTheLimit|TestDamagedPages|TestFootprints|TestGroupMachine|TestHistoryAgainstList|TestHistoryAtEachVersion|TestIdleWaitOfManyGroups|TestLargeWorkGetsNarrow|TestManyDeadHandles|TestManyPartsOfAGroup|TestPollOfManyTemplates|TestMovesLoseNothing|TestOverlayAgainstSingleKeys|TestReceiptsOfEarlierVersions|TestSpoiltRows|TestStored|TestSweepOfDedupGoesOn|TestUnorderedCost|TestViewsStayAsTaken|TestWalkMissesNothing|TestWrittenKeepsNoValues|FuzzConsoleForms|FuzzQuery|FuzzSpoiltRows)$$
# Packages of which nothing runs at once, in the test's own process.
ALONE = /(internal/(lint|release|model|linear|bench/hookpoints)|kv/tuple)(/|$$)

# Tests that take long under the race detector, and in which one caller makes one call after the other, or the memory of
# a process is measured. make race has them.
LONG_RACES = ^(TestAHeartbeatBesideAClockAhead|TestALiveLongLeaseBesideAClockBehind|TestArchiveBounds|TestCheckUnconfirmed|TestChoresGetFewer|TestClocksAtRandom|TestCombinations|TestConflicts|TestCountsOfManyMessages|TestHoldsAgainstAModel|TestIdleWaitOfManyTemplates|TestJoinInOrder|TestJoinMany|TestLanePastManyLocks|TestLanesAgainstAModel|TestLapsedHoldsEndByPages|TestLargestQueueIsDeleted|TestLayersFitATransaction|TestLists|TestLongPollsHaveNoMemory|TestManyTimersOfAClockAhead|TestMemoryOfAttacks|TestMemoryUntilTheAnswer|TestModel|TestOnceAtTheLimit|TestPauseReadsPastManyLocks|TestPollOfManyGroups|TestRateHolds|TestReadsOfFarItems|TestReadsOfManyLanes|TestReceiveComesThroughManyOverdue|TestRedriveStepsByBytes|TestRefusedResumeOfManyLanes|TestRetroactiveDelayLonger|TestRetroactiveDelayModel|TestRetroactiveDelaySetInUse|TestScenarios|TestSmallTransactionsMakeProgress|TestStepsThatAreTooLarge|TestSuspectsHideNoOthers|TestSweepOverdueGoesOn|TestTurnsAgainstAModel|TestUnreadableArchivedItem|TestUnreadableItemOfManyLanes)$$

# The packages of which goroutines share memory.
RACED = ./layer ./layer/internal/... ./worker ./kv ./kv/embedded ./sqs ./metrics ./console ./internal/callback ./internal/checks
RACE_GATE = CGO_ENABLED=1 $(GO) test $(TEST_FLAGS) -race -short -vet=off $(TOGETHER) -count 1 -skip '$(SLOW_TESTS)|$(ONE_BY_ONE)|$(LONG_RACES)'
# The tests of layer/layertest run on one engine here, on three in make race.
.PHONY: race-gate
race-gate: ## prove: the race detector over the packages with goroutines, cut short
	$(RACE_GATE) ./layer/layertest -args -layer.engine 'memory with faults'
	$(RACE_GATE) $(RACED)

# It leaves out the tests of the source text, and the packages in which nothing runs at once. In the second line callers
# change their messages as soon as a call has returned.
RACE = CGO_ENABLED=1 $(GO) test -race -short -vet=off $(TOGETHER) -count 1 -skip '$(ONE_BY_ONE)'
.PHONY: race
race: ## prove: the tests under the race detector, the long ones cut short
	$(RACE) $$($(GO) list ./... | grep -vE '$(ALONE)')
	$(RACE) ./layer/layertest -args -layer.engine 'memory with faults' -layer.take-back

.PHONY: lint
lint: ## change: format, vet, staticcheck, tidy modules
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) mod tidy -diff

.PHONY: floors
floors: ## change: figures of the structure of package layer; JSON=1 prints JSON
ifdef JSON
	@$(GO) run ./internal/lint/floors --json
else
	@$(GO) run ./internal/lint/floors
	@$(GO) run ./internal/lint/floors --list upward
endif

.PHONY: bare
bare: ## prove: build and vet without a C compiler
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) vet ./...

SEEDS ?= 700
OPERATIONS ?= 300
LINES ?= 60
LINEAR ?= 1
# One seed in LINEAR is checked by porcupine, too. There are half as many seeds of workers, at most 40. A failed seed prints
# the command that replays it. Every test of the package runs, so that a new one is not left out.
.PHONY: sim
sim: ## prove: the simulation: SEEDS=700 from SEED on, OPERATIONS=300 calls each
	@echo "SEED=$(SEED) SEEDS=$(SEEDS) OPERATIONS=$(OPERATIONS)"
	$(GO) test ./internal/sim -count 1 -parallel 3 -timeout 1h -v -args -seed $(SEED) -seeds $(SEEDS) -linear $(LINEAR) \
		-operations $(OPERATIONS) -lines $(LINES) | grep -avE '^ *(=== |--- PASS: Test[A-Za-z]*/)'; exit $${PIPESTATUS[0]}

.PHONY: sim-gate
sim-gate: ## prove: the simulation with 150 fixed seeds
	@$(MAKE) --no-print-directory sim SEED=1 SEEDS=150

# 450 seeds, and 40 of workers; every fault and every rare path must be seen.
.PHONY: sim-ci
sim-ci: ## prove: the simulation with 450 fixed seeds and 50 fresh ones
	@$(MAKE) --no-print-directory sim SEED=1 SEEDS=450
	@$(MAKE) --no-print-directory sim SEED=$$(date +%s) SEEDS=50

# The overlay lets a build leave out the guards that are checks: see internal/mutants. Each go command gets the flag, also
# one that a test starts.
OVERLAY = bin/broken
OVERLAID = GOFLAGS="$$GOFLAGS -overlay=$(CURDIR)/$(OVERLAY)/overlay.json"
.PHONY: broken
broken: ## prove: the tree without each guard, and with each mutant: a test must fail
	$(GO) run ./internal/mutants/overlay $(OVERLAY)
	$(OVERLAID) $(GO) vet -tags broken ./layer/... ./worker ./internal/sim ./internal/mutants
	$(STATICCHECK) -tags broken ./layer/... ./worker ./internal/sim ./internal/mutants
	$(GO) test -vet=off -tags broken ./layer/internal/guard -count 1
	$(GO) test -vet=off -tags broken ./internal/mutants -run '^TestCaught$$' -count 1 -parallel 2 -timeout 20m
	$(OVERLAID) $(GO) test -vet=off -tags broken ./layer -run '^(TestBrokenByTests|TestGuardsAreListed)$$' -count 1 -parallel 3
	$(OVERLAID) $(GO) test -vet=off -tags broken ./internal/sim -run '^(TestBroken|TestBrokenAlone|TestCanary|TestNoOtherGuards)$$' -count 1 -parallel 3 -timeout 20m -v \
		| grep -avE '^ *(=== |--- PASS: Test[A-Za-z]*/)'; exit $${PIPESTATUS[0]}

# Ten guards of ten parts of the queue.
GUARDS = claim-lock|dedup-item|index|letter|owed-wake|purge-lock|receipt|settle-lock|take-lock|token
.PHONY: broken-gate
broken-gate: ## prove: the layer without each of ten guards: a test must fail
	$(GO) run ./internal/mutants/overlay $(OVERLAY)
	$(OVERLAID) $(GO) vet -tags broken ./layer/internal/... ./worker
	$(GO) test -vet=off -tags broken ./layer/internal/guard -count 1
	$(OVERLAID) $(GO) test -vet=off -tags broken ./layer -run '^(TestBrokenByTests|TestGuardsAreListed)$$/^without$$/^($(GUARDS))$$' -count 1 -parallel 3

KILLS ?= 200
# As many processes are killed where several have the queue open. A failed run prints the command that replays it.
.PHONY: crash
crash: ## prove: kill KILLS=200 processes at work on a queue on disk, check what each leaves
	@echo "SEED=$(SEED) KILLS=$(KILLS)"
	$(GO) test ./internal/crash -run '^TestKills(Together)?$$' -count 1 -timeout 1h -v -args -seed $(SEED) -kills $(KILLS)

# The oldest commit of which every version reads the queues. A newer one may be given.
OLD ?= 20272d7
.PHONY: compat
compat: ## prove: the command of commit OLD and today's on one folder; SKIP without the commit
	@$(GO) run ./internal/compat -old $(OLD)

HISTORIES ?= 40
# HISTORIES runs of each sort of callers on each engine, as many of callers in several processes, and as many seeds of the
# simulation, from SEED on.
.PHONY: linear
linear: ## prove: HISTORIES=40 concurrent runs on each engine, checked for linearizability
	@echo "SEED=$(SEED) HISTORIES=$(HISTORIES)"
	$(GO) test ./internal/linear -count 1
	$(GO) test ./layer/layertest -run '^TestLinearizable(Processes)?$$' -count 1 -timeout 1h -v -args -layer.seed $(SEED) -layer.histories $(HISTORIES) \
		| grep -vE '^ *(=== |--- PASS: TestLinearizable(Processes)?/.*/)'; exit $${PIPESTATUS[0]}
	$(MAKE) --no-print-directory sim SEED=$(SEED) SEEDS=$(HISTORIES)

.PHONY: socket
socket: ## prove: the tests of the layer through the socket of an open folder
	$(GO) test ./layer/layertest -count 1 $(TOGETHER) -timeout 20m -run '^Test' -args -layer.socket

.PHONY: conformance
conformance: ## prove: the suite of the engines with every pair of range selectors
	KVTEST_WHOLE=1 $(GO) test $(TOGETHER) ./kv/... -run Conformance -count 1

HANDLES ?= 1000
WORKERS ?= 16
SHARDS ?= 16
# With WORKERS workers each, and with the latencies of a cluster.
.PHONY: handles
handles: ## prove: HANDLES=1000 handles in virtual time: conflicts and shares
	$(GO) test ./internal/herd -count 1 -v -timeout 60m -run TestHandles -args -herd.handles $(HANDLES) \
		-herd.workers $(WORKERS) -herd.shards $(SHARDS) -herd.hold

MINUTES ?= 10
ENGINE ?= memory
# It fails if anything is left over. ENGINE may also be fdb:CLUSTERFILE.
.PHONY: soak
soak: ## prove: steady load for MINUTES=10 on ENGINE=memory, disk, disk:FOLDER or fdb
ifeq ($(firstword $(subst :, ,$(ENGINE))),fdb)
	cd fdbkv && $(GO) run ./testcluster -- $(GO) run ./soak -minutes $(MINUTES) -engine $(ENGINE)
else
	$(GO) run ./internal/soak/cmd -minutes $(MINUTES) -engine $(ENGINE)
endif

.PHONY: model
model: ## prove: TLC checks the model of docs/model; TLA2TOOLS=tla2tools.jar; else SKIP
	@$(GO) run ./internal/model

# A number of executions, as in CI: a time that ends while a worker is busy fails with "context deadline exceeded".
FUZZTIME ?= 20000x
.PHONY: fuzz
fuzz: ## prove: each fuzz target for FUZZTIME=20000x executions, or for a time, 60s
	@mkdir -p bin; rm -f bin/fuzz.test; failed=; for d in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs dirname | sort -u); do \
		$(GO) test -c -fuzz Fuzz -o $(CURDIR)/bin/fuzz.test $$d || exit 1; \
		for t in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' $$d/*_test.go); do \
			echo "$$t ($$d)"; \
			(cd $$d && $(CURDIR)/bin/fuzz.test -test.run '^$$' -test.fuzz "^$$t\$$" -test.fuzztime $(FUZZTIME) \
				-test.fuzzminimizetime 100x \
				-test.fuzzcachedir "$$($(GO) env GOCACHE)/fuzz/$$($(GO) list .)") || failed="$$failed $$t"; \
		done; \
	done; \
	if [ -n "$$failed" ]; then echo "FAIL: fuzz targets:$$failed"; exit 1; fi

.PHONY: bench
bench: ## prove: every benchmark: each figure and its target
	$(GO) run ./cmd/fdbfifo bench

PAIRS ?= 31
# With hooks at their places but none set, and with all set; it builds the layer without them, too.
.PHONY: hooks
hooks: ## prove: the CPU that hooks cost, PAIRS=31 runs each
	@$(GO) run ./internal/bench/hookpoints -pairs $(PAIRS)

# Only the packages that have benchmarks: the test binaries of the others would be linked in vain.
BENCHED = $(GO) list -f '{{$$d := .Dir}}{{range .TestGoFiles}}{{$$d}}/{{.}} {{end}}{{range .XTestGoFiles}}{{$$d}}/{{.}} {{end}}' ./... \
	| xargs grep -lE '^func Benchmark' | xargs -n1 dirname | sort -u
.PHONY: bench-once
bench-once: ## prove: every Go benchmark once
	$(GO) test -run '^$$' -bench . -benchtime 1x $$($(BENCHED))

.PHONY: rules
rules: ## change: write docs/rules.md and docs/footprints.md
	$(GO) run ./internal/lint/rules

GENERATED = layer/testdata layer/layertest/testdata docs/rules.md docs/footprints.md docs/combinations.md
.PHONY: golden
golden: ## change: write the golden files and the pages made from them; review the diff
	$(GO) test ./layer/layertest -run 'TestFootprints|TestCombinations' -rewrite
	$(MAKE) --no-print-directory rules
	git diff --stat -- $(GENERATED)

.PHONY: unchanged
unchanged: golden ## prove: fail if a generated file differs from the committed one
	git diff --exit-code -- $(GENERATED)

# fdbkv/, the adapter to FoundationDB, is a module of its own. Only to build it and to run it takes FoundationDB.
FDBKV_STATICCHECK = $(GO) tool -modfile=../tools/go.mod staticcheck

.PHONY: typecheck-fdb
typecheck-fdb: ## prove: the types of fdbkv/ and its tests, on any machine
	@cd fdbkv && CGO_ENABLED=0 $(GO) run ./typecheck
	@cd fdbkv && CGO_ENABLED=0 $(GO) test ./typecheck ./internal/cluster
	@cd fdbkv && $(GO) mod tidy -diff

# FDB_CLUSTER_FILE names a cluster. Without it the target starts one and throws it away: FDB_BIN is the folder of fdbserver and
# fdbcli, FDB_ENGINE=ssd, FDB_SERVERS=7.
.PHONY: test-fdb
test-fdb: ## prove: every suite on a cluster, one of FDB_CLUSTER_FILE or its own; else SKIP
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
		echo "$$client" && $(GO) vet ./... && $(FDBKV_STATICCHECK) ./... && KVTEST_WHOLE=1 $(GO) test -count 1 -timeout 3h ./...; \
	fi

# The servers are killed, frozen, excluded and configured, by SEED, while HISTORIES runs of linear are checked.
.PHONY: trouble
trouble: ## prove: the suites with faults on seven servers that are killed by SEED; else SKIP
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
build-fdb: ## use: build the command with the engine fdb, bin/fdbfifo-fdb; needs libfdb_c
	cd fdbkv && CGO_ENABLED=1 $(GO) build -o ../bin/fdbfifo-fdb ./cmd/fdbfifo

.PHONY: module
module: ## use: give the tree another module path: MODULE=example.com/you/fdbfifo
	@$(GO) run ./internal/release rename "$(MODULE)"

# The program builds without a replace.
.PHONY: release-check
release-check: ## prove: pack both modules, build a new program on them, rename the tree
	$(GO) test ./internal/release -run '^TestRename$$' -count 1 -args -build
	@$(GO) run ./internal/release check

SQS_NODE ?= $(CURDIR)/bin/node
# The packages of the clients for JavaScript, if npm is here.
SQS_NPM = mkdir -p $(SQS_NODE) && { ! command -v npm > /dev/null || test -d $(SQS_NODE)/node_modules/aws-sdk \
		|| npm install --silent --no-audit --no-fund --prefix $(SQS_NODE) @aws-sdk/client-sqs@3 sqs-consumer@14 aws-sdk@2 > /dev/null 2>&1 \
		|| echo "npm could not install the clients for JavaScript" >&2; }
# As far as they are here: Go, Python, JavaScript, PHP, Perl, the AWS CLI. Servers are killed amid eight workers, and the
# proof of sqs-demo runs.
.PHONY: e2e-sqs
e2e-sqs: ## prove: the SQS server with twelve clients, in six languages, and killed
	@$(SQS_NPM)
	@set -o pipefail; for module in sqs/clienttest examples/sqs; do \
		( cd $$module && $(GO) mod tidy -diff && $(GO) vet . && { ! test -d $(SQS_NODE)/node_modules || export SQS_NODE=$(SQS_NODE); } \
			&& $(GO) test . -count 1 -v | grep -vE '^ *=== ' ) || exit 1; done

.PHONY: sqs-demo
sqs-demo: ## use: a shop in Node, Python and Go over SQS, six processes killed; ARGS=--json
	@$(SQS_NPM)
	@CGO_ENABLED=0 $(GO) build -o bin/fdbfifo ./cmd/fdbfifo && $(GO) -C examples/sqs build -o $(CURDIR)/bin/sqs-demo . \
		&& bin/sqs-demo run -server bin/fdbfifo -node $(SQS_NODE) -scripts examples/sqs $(ARGS)

SQS_FOR ?= 5m
SQS_ENGINE ?= disk
# Two servers, eight mixed workers, by SEED. fdb is the cluster of FDB_CLUSTER_FILE, or a throw-away one.
.PHONY: sqs-crash
sqs-crash: ## prove: SQS servers killed every 2 s for SQS_FOR=5m; SQS_ENGINE=disk or fdb
	@echo "SEED=$(SEED) SQS_FOR=$(SQS_FOR) SQS_ENGINE=$(SQS_ENGINE)"
	@{ ! test -d $(SQS_NODE)/node_modules || export SQS_NODE=$(SQS_NODE); } \
		&& if test $(SQS_ENGINE) = fdb; then cd fdbkv && on="$(GO) run ./testcluster --"; fi \
		&& $$on $(GO) -C $(CURDIR)/sqs/clienttest test . -run '^TestKilled$$' -count 1 -timeout 1h -v -args \
		-killed.seed $(SEED) -killed.for $(SQS_FOR) -killed.engine $(SQS_ENGINE)

# The other modules: types, linter, tidy, and the tests that need no other program.
MODULES = otelfifo peers sqs/clienttest examples/sqs e2e
.PHONY: modules
modules: ## prove: the other modules: vet, tidy, and the tests that need nothing but Go
	@set -e; for m in $(MODULES); do ( cd $$m && $(GO) vet ./... && $(GO) mod tidy -diff ); done
	$(GO) -C otelfifo test ./... -count 1

# Of the targets of a list the first write or read the tree's files, and compile what the others need. Of the others two
# run at a time, for each leaves the processors alone for a part of its time; the longest come first.
GATE = test race-gate sim-gate modules broken-gate typecheck-fdb
.PHONY: gate
gate: ## prove: the check before a change lands: six minutes, one verdict for one commit
	@echo "SEED=$(SEED)"
	@CGO_ENABLED=0 $(GO) run ./internal/checks -first "lint unchanged" $(GATE)

FULL = race sim-ci broken e2e socket crash compat test-slow fuzz linear release-check peers-check e2e-sqs conformance bench-once otel model
.PHONY: full
full: ## prove: the gate and all that is slow: an hour; continues after a failure
	@echo "SEED=$(SEED)"
	@$(GO) run ./internal/checks -limit 3h -first "lint bare unchanged" -last "test-fdb" $(GATE) $(FULL)

OUT ?= $(or $(TMPDIR),/tmp)/fdbfifo-trials
.PHONY: hunt
hunt: MINUTES = 60
hunt: ## prove: all random suites with fresh seeds for MINUTES=60; keeps failed seeds in OUT
	@$(GO) run ./internal/trials hunt -minutes $(MINUTES) -out $(OUT)

RUNS ?= 20
# The books in OUT count runs of the same program, over all calls.
.PHONY: flaky
flaky: ## prove: the gate's tests under load until each ran RUNS=20 times; names the failed
	@$(GO) run ./internal/trials flaky -runs $(RUNS) -out $(OUT)
