package layer

import (
	"sync/atomic"

	"fdbfifo/kv"
)

// chores is what a transaction of receives, or a take, has done for groups that have given nothing by it. Much of that
// may be in the way: what a dead worker has left, say. Each chore takes reads that come after the others, so a
// transaction that did everything would outlast itself on a slow engine, again and again. Therefore it leaves what is
// more to the next transaction, and a handle whose transactions fail amid chores does fewer of them: see stride.
type chores struct {
	halvings             int32 // of the bounds, see stride
	done                 int   // in all: each clears what it was about
	lapsed               int   // holdings ended, see lapse
	agedItems, agedBytes int   // items past retention removed, and the bytes of their values
	postponed            bool  // a group was left to the next transaction
}

const (
	// maxChores bounds the chores of a transaction.
	maxChores = 100
	// maxLapsed bounds the holdings that a transaction ends beside those which it takes over.
	maxLapsed = 8
	// overdueWidth bounds the items which one look reads: 5 MB with the largest values.
	overdueWidth = 50
	// overdueItems and overdueBytes bound what a transaction removes before finding something to deliver, and what a
	// step of a sweep removes: dead-lettered items are written again.
	overdueItems = 200
	overdueBytes = 1 << 20
)

// most returns what is left of a bound.
func (c *chores) most(bound int) int { return halved(bound, int(c.halvings)) }

// halved halves a bound so many times; to 1 at least.
func halved(bound, times int) int { return max(1, bound>>min(times, 16)) }

// enough reports whether the transaction has done maxChores.
func (c *chores) enough() bool { return c.done >= c.most(maxChores) }

// tired reports whether the transaction has ended maxLapsed holdings.
func (c *chores) tired() bool { return c.lapsed >= c.most(maxLapsed) }

// leaves reports whether the transaction may have left chores to the next.
func (c *chores) leaves() bool { return c.postponed || c.tired() || c.enough() }

// spent reports whether the transaction has reached overdueItems or overdueBytes.
func (c *chores) spent() bool {
	return (c.agedItems >= c.most(overdueItems) || c.agedBytes >= overdueBytes) && !lacks(guardSpent)
}

// stride is how often a handle halves the bounds of the chores of its transactions: once more after each that fails
// amid chores, once less after each that comes to its commit with some. Transactions without chores say nothing.
type stride struct{ halvings atomic.Int32 }

// maxHalvings halves the largest bound to 1.
const maxHalvings = 7

// learn notes how the body of a transaction has ended.
func (s *stride) learn(c *chores, err error) {
	switch {
	case c.done == 0:
	case err == nil:
		s.halvings.Store(max(0, c.halvings-1))
	case kv.Code(err) != 0:
		s.halvings.Store(min(maxHalvings, c.halvings+1))
	}
}
