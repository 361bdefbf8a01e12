// Package seeds gives each random test its seed. All seeds follow from one number, the environment variable SEED. The
// same number replays all of them: SEED=7 go test ./layer/layertest -run TestStress.
//
// Without SEED the number is Fixed. No test draws a seed from the clock or from another source of chance.
package seeds

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
)

// Variable is the environment variable that sets the number.
const Variable = "SEED"

// Fixed is the number of a run without SEED. The Makefile has the same.
const Fixed = 20261125

// Number returns the number from which all seeds follow. Number panics if SEED is not an unsigned number.
func Number() uint64 {
	text := os.Getenv(Variable)
	if text == "" {
		return Fixed
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("seeds: %s=%q is not an unsigned number", Variable, text))
	}
	return n
}

// Of returns the seed of the test of that name, 1 to 2^32.
func Of(name string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", Number(), name)
	return h.Sum64()>>32 + 1
}

// Replay returns the words that begin a command which replays a test: SEED=7.
func Replay() string { return fmt.Sprintf("%s=%d", Variable, Number()) }

// Concurrent returns random numbers for goroutines that share them, from the seed of that name. The numbers follow from
// the seed; which goroutine draws which number does not.
func Concurrent(name string) *rand.Rand {
	return rand.New(&locked{source: rand.NewPCG(Of(name), 0)})
}

// locked is a source for several goroutines.
type locked struct {
	mu     sync.Mutex
	source rand.Source
}

func (l *locked) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.source.Uint64()
}
