// Package fault makes any engine as unkind as a cluster: it wraps a kv.DB and injects, by a seeded plan, the
// errors that FoundationDB's contract allows and that a small engine on a good day never shows.
//
// The real engine is asked for everything else. An injected error goes to the engine's own OnError, so what is
// retried, and after which delay, is the engine's choice.
package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"fdbfifo/kv"
)

// Plan says which faults strike. The n-th call at a place (read version, read, commit, watch) draws its fault from
// Seed, the place and n alone, so a single-threaded caller meets the same faults in every run. With several goroutines
// the order of their calls decides which of them meets a fault.
//
// The zero value injects only the forced faults. Set the fields before Wrap. A Plan is safe for concurrent use. Its
// counts continue when a closed database is opened and wrapped again.
type Plan struct {
	Seed uint64
	// Chances is the probability, 0 to 1, of each kind at a call of its place.
	Chances map[Kind]float64
	// OnCommit, if not nil, chooses the fault of the n-th commit that writes something, counted from 1, unless Force
	// has chosen already. It returns a kind of the commit, None or Chance. Its operations on tx meet no faults, and
	// belong to the transaction that is about to commit.
	OnCommit func(n int, tx kv.Tx) Kind
	// KeepLate leaves late commits to Land and Close; otherwise a few commits overtake each, as many as the seed draws.
	KeepLate bool

	mu       sync.Mutex
	calls    [places]int
	forced   map[call]Kind
	injected []event
	late     []*lateCommit
}

// call is the n-th call at a place.
type call struct {
	place place
	n     int
}

type event struct {
	kind Kind
	n    int
}

// Default returns the plan that tests run under when they have no other: 5 % of the commits end in a conflict,
// 5 % in an unknown result although applied, 5 % in an unknown result and nothing applied, and every other fault
// that a caller is to survive strikes at 1 % of its calls. Time-outs, which end a retry loop, are left out.
func Default(seed uint64) *Plan {
	return &Plan{Seed: seed, Chances: map[Kind]float64{
		Conflict:       0.05,
		UnknownApplied: 0.05,
		UnknownLost:    0.05,
		CommitTooOld:   0.01,
		MemoryLimit:    0.01,

		VersionChangedLate: 0.01,
		VersionChangedLost: 0.01,

		ReadTooOld:        0.01,
		FutureVersion:     0.01,
		ProcessBehind:     0.01,
		ReadVersionFailed: 0.01,
		Throttled:         0.01,
		WatchSpurious:     0.01,
		WatchError:        0.01,
	}}
}

// Force makes the n-th call at k's place, counted from 1 since the plan began, meet k.
func (p *Plan) Force(k Kind, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.force(call{table[k].place, n}, k)
}

// ForceNext makes the next call at k's place meet k, or the first after it for which none is forced yet.
func (p *Plan) ForceNext(k Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := call{table[k].place, p.calls[table[k].place] + 1}
	for p.forced[c] != Chance {
		c.n++
	}
	p.force(c, k)
}

func (p *Plan) force(c call, k Kind) {
	if c.place == nowhere {
		panic(fmt.Sprintf("fault: %s cannot be forced", k))
	}
	if p.forced == nil {
		p.forced = map[call]Kind{}
	}
	p.forced[c] = k
}

// Counts returns how often each kind was injected. A commit that was to be unknown-applied and failed by itself
// is not counted.
func (p *Plan) Counts() map[Kind]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[Kind]int{}
	for _, e := range p.injected {
		counts[e.kind]++
	}
	return counts
}

// String describes the plan and the injected faults, for the message of a failed test. The seed and the probabilities
// replay a single-threaded run. Each fault has the number of its call, so a test can force it.
func (p *Plan) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "fault plan, seed %d;", p.Seed)
	for _, k := range slices.Sorted(maps.Keys(p.Chances)) {
		fmt.Fprintf(&s, " %s %.3g%%", k, 100*p.Chances[k])
	}
	if p.OnCommit != nil {
		s.WriteString("; with a commit hook")
	}
	fmt.Fprintf(&s, "; %d read versions, %d reads, %d commits, %d watches; injected:",
		p.calls[atReadVersion], p.calls[atRead], p.calls[atCommit], p.calls[atWatch])
	for _, e := range p.injected {
		fmt.Fprintf(&s, " %s@%s %d", e.kind, placeNames[table[e.kind].place], e.n)
	}
	if len(p.injected) == 0 {
		s.WriteString(" nothing")
	}
	return s.String()
}

// choose counts a call at a place and returns its fault, or None.
func (p *Plan) choose(at place) event {
	e, _ := p.next(at)
	if e.kind == Chance {
		e.kind = p.draw(at, e.n)
	}
	return e
}

// chooseCommit is choose for a commit of tx.
func (p *Plan) chooseCommit(tx kv.Tx) event {
	e, hook := p.next(atCommit)
	if e.kind == Chance && hook != nil {
		e.kind = hook(e.n, tx)
		if e.kind != Chance && e.kind != None && table[e.kind].place != atCommit {
			panic(fmt.Sprintf("fault: OnCommit chose %s", e.kind))
		}
	}
	if e.kind == Chance {
		e.kind = p.draw(atCommit, e.n)
	}
	return e
}

func (p *Plan) next(at place) (event, func(int, kv.Tx) Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[at]++
	n := p.calls[at]
	return event{p.forced[call{at, n}], n}, p.OnCommit
}

// draw throws the dice for the n-th call at a place.
func (p *Plan) draw(at place, n int) Kind {
	u := float64(mix(p.Seed^mix(uint64(at)<<56|uint64(n)))>>11) / (1 << 53)
	for k := range kinds {
		if table[k].place != at {
			continue
		}
		if u -= p.Chances[k]; u < 0 {
			return k
		}
	}
	return None
}

// mix is the finalizer of SplitMix64: neighbouring inputs give unrelated outputs.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// record notes that e was injected.
func (p *Plan) record(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.injected = append(p.injected, e)
}
