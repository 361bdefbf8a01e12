package advice

import "sync/atomic"

// Stride is how often a handle halves the bounds of the chores of its transactions: once more after each that fails
// amid chores, once less after each that comes to its commit with some. Chores are work for groups that give no items,
// for example the end of an expired claim. Transactions without chores say nothing.
type Stride struct{ halvings atomic.Int32 }

// maxHalvings halves the largest bound, which is not above 128, to 1.
const maxHalvings = 7

// Halvings returns how often a transaction that begins now halves its bounds.
func (s *Stride) Halvings() int { return int(s.halvings.Load()) }

// Came notes that a transaction with chores, and with so many halvings, has come to its commit.
func (s *Stride) Came(halvings int) { s.halvings.Store(int32(max(0, halvings-1))) }

// Failed notes that a transaction with so many halvings has failed amid its chores.
func (s *Stride) Failed(halvings int) { s.halvings.Store(int32(min(maxHalvings, halvings+1))) }

// Empties counts how often the handle's recent enqueues have found a group empty. If they often do, a receive probably
// waits for the group, so the handle reads the requests ahead.
type Empties struct{ score atomic.Int64 }

// emptiesLikely is how many more enqueues must have found an empty group than not, in a count that ends at twice as
// many, before the handle reads the requests ahead.
const emptiesLikely = 4

// Note counts whether an enqueue has found its group empty.
func (e *Empties) Note(empty bool) {
	score := e.score.Load() - 1
	if empty {
		score += 2
	}
	e.score.Store(min(max(score, 0), 2*emptiesLikely))
}

// Likely reports whether the next enqueue is likely to find a group empty.
func (e *Empties) Likely() bool { return e.score.Load() >= emptiesLikely }
