package advice

import (
	"context"
	"sync"
	"time"
)

// A queue may bound how many items start their delivery per time, over all its groups together (MaxRateTotal). One pair
// of the queue says until when the rate is used up, as each group's pair does for MaxRate. If every claim moved that
// pair, all claims of the queue would conflict with each other. So a handle draws a portion of items in a transaction
// of its own, which conflicts only with other draws. Its claims and takes spend the portion without touching the pair.
//
// A handle draws only when it has found a group to deliver and has nothing left, and at most drawBurst times at once
// and one time per drawEvery. A portion has the items that the claim needs, and as many as the handle has been spending
// in half a second. It has at most half of the rate's burst, and ends portionLife after the draw. So over any time T at
// most rate × (T + portionLife) items plus a second's worth start. If a handle dies, at most one portion is lost.
//
// Example: max_rate_total=100/s, two handles, plenty of messages. Each draws 50 items about every half second or
// second, as the pair allows, so the pair is written about two times a second.

const (
	// portionLife is how long a portion may be spent.
	portionLife = time.Second
	// drawEvery is how often a handle draws in the long run, and drawBurst how often at once.
	drawEvery = 250 * time.Millisecond
	drawBurst = 4
	// drawFor is the time for whose deliveries a portion is drawn.
	drawFor = portionLife / 2
	// drawWait is for how long at most a handle trusts that nothing can be drawn.
	drawWait = time.Second
)

// Rate identifies a rate of the queue. Two rates are the same if all fields are equal.
type Rate struct {
	Count, PerMS int64
	Burst        int64 // how many items may start at once
}

// Portions is the handle's portion of the queue's rate, from draw to draw. Times are in milliseconds, by the handle's
// clock.
type Portions struct {
	mu      sync.Mutex
	rate    Rate          // guarded by mu; the rate to which the other fields belong
	now     *portion      // guarded by mu; nil = nothing was drawn yet
	untilMS int64         // guarded by mu; nothing can be drawn before
	freeMS  int64         // guarded by mu; up to when the handle's draws are used up
	drawing chan struct{} // guarded by mu; closed when the draw under way has ended; nil = there is none
	waits   int           // guarded by mu; for the draws of others: tests tell the waiting goroutines apart by it
}

// portion is the items drawn together. The portions's mutex guards a portion.
type portion struct {
	drawnMS int64 // when it was drawn
	left    int   // items that may still be spent
	spent   int   // items spent
}

// live reports whether the portion may be spent. A clock which has leapt back ends the portion.
func (p *portion) live(nowMS int64) bool {
	age := nowMS - p.drawnMS
	return age >= 0 && age < portionLife.Milliseconds()
}

// Bookings is what the attempt of a transaction has spent of portions. If the attempt has failed, the items go back to
// their portions.
type Bookings struct {
	of   *Portions
	list []booking
}

// booking is n items spent of a portion.
type booking struct {
	of *portion
	n  int
}

// spend spends up to n items of the present portion, notes them in to (may be nil), and returns how many; 0 if the
// portion is used up or has ended. mu is held.
func (b *Portions) spend(nowMS int64, n int, to *Bookings) int {
	p := b.now
	if p == nil || !p.live(nowMS) {
		return 0
	}
	n = min(n, p.left)
	p.left, p.spent = p.left-n, p.spent+n
	if n > 0 && to != nil {
		to.list = append(to.list, booking{of: p, n: n})
	}
	return n
}

// Begin returns the bookings of a transaction, which are empty.
func (b *Portions) Begin() *Bookings { return &Bookings{of: b} }

// Attempt undoes the bookings of an attempt which was not applied. Portions which have ended stay so.
func (k *Bookings) Attempt() {
	b := k.of
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range k.list {
		s.of.left, s.of.spent = s.of.left+s.n, s.of.spent-s.n
	}
	k.list = nil
}

// End undoes the bookings of a transaction which has failed. If the outcome is unknown, the items stay spent.
func (k *Bookings) End(o Outcome) {
	if o == Failed {
		k.Attempt()
	}
}

// GiveBackLast puts n items of the last booking in k back, because the transaction does not deliver them. k = nil means
// a transaction of the caller's own, without bookings: then the items go back to the present portion.
func (b *Portions) GiveBackLast(k *Bookings, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.now
	if k != nil && len(k.list) > 0 {
		last := &k.list[len(k.list)-1]
		p = last.of
		last.n -= n
	}
	if p != nil {
		p.left, p.spent = p.left+n, p.spent-n
	}
}

// of sets the rate. If it differs from the last one, a draw may succeed at once. A portion that was drawn at another
// rate may still be spent. mu is held.
func (b *Portions) of(rate Rate) {
	if b.rate != rate {
		b.rate, b.untilMS = rate, 0
	}
}

// waitsUntil returns the time before which a draw cannot succeed, or the handle must not draw again; a time up to nowMS
// = it may draw now. mu is held.
func (b *Portions) waitsUntil(nowMS int64) int64 {
	ahead := func(ms int64) int64 { // a clock which has leapt back must not make the handle wait
		if ms-nowMS > drawWait.Milliseconds() {
			return 0
		}
		return ms
	}
	every := drawEvery.Milliseconds()
	return max(ahead(b.untilMS), ahead(b.freeMS)-(drawBurst-1)*every)
}

// UsedUp returns until when (ms) the handle has nothing to spend and nothing to draw; 0 = it may have something now.
func (b *Portions) UsedUp(rate Rate, nowMS int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(rate)
	if p := b.now; p != nil && p.live(nowMS) && p.left > 0 {
		return 0
	}
	if until := b.waitsUntil(nowMS); until > nowMS {
		return until
	}
	return 0
}

// wants returns how many items to draw for a claim of n items, at most half of the rate's burst. While the last portion
// lasts, it adds the items that the handle will need within drawFor if it spends as fast as before. mu is held.
func (b *Portions) wants(nowMS int64, n int) int64 {
	want := int64(n)
	if p := b.now; p != nil && p.live(nowMS) {
		elapsed := max(nowMS-p.drawnMS, drawEvery.Milliseconds()/2)
		want += int64(p.spent) * drawFor.Milliseconds() / elapsed
	}
	return min(want, max(1, b.rate.Burst/2))
}

// Reserve books up to n items of the handle's portion in to (may be nil), and returns how many. If the portion has none
// left, Reserve draws a new one, or waits for the draw of another goroutine. If there are no items to draw, got is 0,
// and untilMS is when to ask again.
//
// draw draws up to want items from the queue's rate, in a transaction of its own. It returns how many there were, or
// when there will be some. clock returns the present time (ms). yield is called after a wait for another goroutine's
// draw: wait is the number of that wait.
func (b *Portions) Reserve(
	ctx context.Context, rate Rate, n int, to *Bookings, clock func() int64, yield func(wait int),
	draw func(want int64) (got int64, untilMS int64, err error),
) (got int, untilMS int64, err error) {
	for {
		b.mu.Lock()
		b.of(rate)
		nowMS := clock()
		if got = b.spend(nowMS, n, to); got > 0 {
			b.mu.Unlock()
			return got, 0, nil
		}
		if other := b.drawing; other != nil {
			b.waits++
			wait := b.waits
			b.mu.Unlock()
			select {
			case <-other:
				yield(wait)
				continue
			case <-ctx.Done():
				return 0, 0, context.Cause(ctx)
			}
		}
		if untilMS = b.waitsUntil(nowMS); untilMS > nowMS {
			b.mu.Unlock()
			return 0, untilMS, nil
		}
		ended := make(chan struct{})
		b.drawing = ended
		// Each draw moves freeMS by drawEvery. waitsUntil allows drawBurst draws at once.
		b.freeMS = max(b.freeMS, nowMS)
		if b.freeMS-nowMS > drawBurst*drawEvery.Milliseconds() {
			b.freeMS = nowMS // the clock has leapt back
		}
		b.freeMS += drawEvery.Milliseconds()
		want := b.wants(nowMS, n)
		b.mu.Unlock()
		if err := b.drawn(clock, ended, func() (int64, int64, error) { return draw(want) }); err != nil {
			return 0, 0, err
		}
	}
}

// drawn runs a draw, and stores its outcome: the new portion, or when to draw again. It does so also after a panic, and
// closes ended, for the goroutines that wait for the draw.
func (b *Portions) drawn(clock func() int64, ended chan struct{}, draw func() (int64, int64, error)) (err error) {
	var got, untilMS int64
	drawnMS := clock() // before the draw, so that the portion ends early rather than late
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.drawing = nil
		close(ended)
		if got > 0 {
			b.now = &portion{drawnMS: drawnMS, left: int(got)}
		} else {
			b.untilMS = min(untilMS, clock()+drawWait.Milliseconds())
		}
	}()
	got, untilMS, err = draw()
	return err
}
