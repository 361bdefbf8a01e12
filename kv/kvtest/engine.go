// Package kvtest is the conformance suite and the benchmark for engines behind kv.DB.
//
// Run checks every promise of FoundationDB's transactions that a layer may rely on; each subtest is named for its
// promise. Bench measures the same engine. Both run unchanged on an embedded engine and on a shared cluster: each
// subtest works under a random prefix of its own, which it clears, and asks nothing of the database outside.
//
// The chapter Model runs random transactions on the engine and on a naive model, by fixed seeds and a fresh one. A
// difference prints its seed, and KVTEST_SEED=<seed> in the environment replays it.
//
// With KVTEST_WHOLE=1 in the environment the chapter Ranges tries each pair of selectors. Otherwise it tries a quarter
// of them, or a sixteenth with -test.short.
//
// Engine declares the differences that engines may have. Nothing depends on an engine's name.
package kvtest

import (
	"testing"
	"time"

	"fdbfifo/kv"
)

// Engine is an engine under test, with its declarations. The function that opens it must also close it, by Cleanup.
type Engine struct {
	DB kv.DB

	// ExactConflicts says that a commit fails with 1020 only when a read range was written, and that no commit
	// ends with 1021 by itself. FoundationDB allows both: without the declaration a promise gets three attempts.
	ExactConflicts bool

	// Advance makes the engine's clock jump forward by d. Between jumps the clock runs as usual. nil = the engine has
	// no clock of its own: tests of the 5 s window then wait, and -short leaves them out.
	Advance func(d time.Duration)

	// RetriesClusterVersionChanged says that OnError retries 1039, as FoundationDB's multi-version client does.
	// A single client returns it.
	RetriesClusterVersionChanged bool

	// ReadsStampsAtReadVersion says that a pending versionstamped key hides only keys stamped after the read
	// version (FoundationDB 7.4 and later). In 7.3 it hides those stamped exactly at the read version too.
	ReadsStampsAtReadVersion bool

	// MaxWatches is how many watches the DB allows at once; 0 leaves the test of that limit out.
	MaxWatches int
}

// Run checks all promises on the engine that open returns. It calls open once for every chapter.
func Run(t *testing.T, open func(t *testing.T) Engine) {
	t.Helper()
	for _, c := range chapters() {
		t.Run(c.name, func(t *testing.T) {
			e := open(t)
			for _, p := range c.promises() {
				t.Run(p.name, func(t *testing.T) { p.check(t, e) })
			}
		})
	}
	t.Run("Model", func(t *testing.T) { modelRuns(t, open(t)) })
}

// chapter is a part of the suite; write fills it with promises.
type chapter struct {
	name  string
	write func(u *suite)
}

func (c chapter) promises() []promise {
	var u suite
	c.write(&u)
	return u.promises
}

func chapters() []chapter {
	return []chapter{
		{"Isolation", isolation},
		{"Conflicts", conflicts},
		{"Observed", observed},
		{"OwnWrites", ownWrites},
		{"Selectors", selectors},
		{"Ranges", ranges},
		{"Atomic", atomics},
		{"Versionstamps", versionstamps},
		{"Watches", watches},
		{"Limits", limits},
		{"Lifecycle", lifecycle},
		{"Aftermath", aftermath},
		{"Retries", retries},
		{"Versions", versions},
		{"RetryLoop", retryLoop},
		{"Closing", closing}, // of the engine that was opened for this chapter
	}
}
