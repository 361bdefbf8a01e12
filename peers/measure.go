package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// peer is a queue that is measured.
type peer interface {
	about() about
	// send sends messages, together if there are several; they are durable when send returns.
	send(ctx context.Context, msgs []message) error
	// work starts so many workers, which wait for messages. It returns when ctx has ended and all workers have stopped.
	// A message for which handle was called is finished, one by one.
	work(ctx context.Context, workers int, handle func(message)) error
	close()
}

// about says what a peer is.
type about struct {
	Name    string `json:"name"`
	What    string `json:"what"`    // the parts, with how durability is had
	Ordered bool   `json:"ordered"` // promises order and one worker at a time within a group
}

// message is the content of a message.
type message struct {
	Group int    `json:"group"`
	Seq   int    `json:"seq"`  // within the group, from 0 on
	Due   int64  `json:"due"`  // when it was to be sent, in Unix nanoseconds
	Body  string `json:"body"` // so that a message has about 100 bytes
}

const filler = "a message of an ordinary size, as orders have"

func (m message) pack() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // numbers and a constant
	}
	return b
}

func unpack(b []byte) (m message, err error) {
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("unpack message: %w", err)
	}
	return m, nil
}

// work is what each peer is given to do.
type work struct {
	single, batched, groups, callers, rate, rounds int
	period                                         time.Duration
}

// result is what a peer did.
type result struct {
	about
	SendSingle  float64         `json:"send_single_per_s"`
	SendBatched float64         `json:"send_batched_per_s"`
	Handled     float64         `json:"handled_per_s"`
	P50         float64         `json:"p50_ms"`
	P99         float64         `json:"p99_ms"`
	Missing     int             `json:"missing"`
	Doubled     int             `json:"doubled"`
	OutOfOrder  int             `json:"out_of_order"`
	Together    int             `json:"together"` // two of a group in hand at once
	times       []time.Duration // from the time to send to the handler, sorted
}

// measure has rounds in each of which every peer does all the work, so that what else the machine does falls on all.
func (w work) measure(ctx context.Context, peers []peer, progress io.Writer) ([]*result, error) {
	results := make([]*result, len(peers))
	rounds := make([][3][]float64, len(peers))
	for i, p := range peers {
		results[i] = &result{about: p.about()}
	}
	for round := range w.rounds {
		for i, p := range peers {
			figures, err := w.round(ctx, p, results[i])
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", p.about().Name, round+1, err)
			}
			for k, v := range figures {
				rounds[i][k] = append(rounds[i][k], v)
			}
			fmt.Fprintf(progress, "round %d  %-14s %6.0f sent/s  %6.0f in tens/s  %6.0f handled/s\n",
				round+1, p.about().Name, figures[0], figures[1], figures[2])
		}
	}
	for i, r := range results {
		r.SendSingle, r.SendBatched, r.Handled = median(rounds[i][0]), median(rounds[i][1]), median(rounds[i][2])
		slices.Sort(r.times)
		r.P50, r.P99 = milliseconds(r.times, 0.5), milliseconds(r.times, 0.99)
	}
	return results, nil
}

// round measures sends one by one, sends of ten, the handling of these messages, and the time from send to handler.
func (w work) round(ctx context.Context, p peer, r *result) (figures [3]float64, err error) {
	l := newLedger(w.groups)
	if figures[0], err = w.send(ctx, p, l, w.single, 1); err != nil {
		return figures, err
	}
	if figures[1], err = w.send(ctx, p, l, w.batched, 10); err != nil {
		return figures, err
	}
	begin := time.Now()
	if err := w.handle(ctx, p, l, func(context.Context) error { return nil }); err != nil {
		return figures, err
	}
	figures[2] = float64(w.single+w.batched) / l.last().Sub(begin).Seconds()
	l.addTo(r)

	l = newLedger(w.groups)
	err = w.handle(ctx, p, l, func(ctx context.Context) error { return w.pace(ctx, p, l) })
	l.addTo(r)
	r.times = append(r.times, l.times...)
	return figures, err
}

// send has callers send n messages, so many in a call, and returns how many a second. Each group is one caller's, so
// that the order of a group's messages is the order of the calls.
func (w work) send(ctx context.Context, p peer, l *ledger, n, together int) (float64, error) {
	var callers errgroup.Group
	begin := time.Now()
	for c := range w.callers {
		callers.Go(func() error {
			group := c
			for sent := c * together; sent < n; sent += w.callers * together {
				if err := p.send(ctx, l.next(group, min(together, n-sent))); err != nil {
					return err
				}
				if group += w.callers; group >= w.groups {
					group = c
				}
			}
			return nil
		})
	}
	err := callers.Wait()
	return float64(n) / time.Since(begin).Seconds(), err
}

// pace sends messages at an even rate. The time of a message counts from when it was to be sent, so that a peer which
// holds up its sender does not look better for it. The messages of a group are sent one after the other: two sends at
// once have no order.
func (w work) pace(ctx context.Context, p peer, l *ledger) error {
	var sends errgroup.Group
	gap := time.Second / time.Duration(w.rate)
	last := make([]chan struct{}, w.groups) // closed when the newest send of the group has ended
	begin := time.Now()
	for n := range int(w.period / gap) {
		due := begin.Add(time.Duration(n) * gap)
		time.Sleep(time.Until(due))
		group := n % w.groups
		msgs := l.next(group, 1)
		msgs[0].Due = due.UnixNano()
		before, sent := last[group], make(chan struct{})
		last[group] = sent
		sends.Go(func() error {
			defer close(sent)
			if before != nil {
				<-before
			}
			return p.send(ctx, msgs)
		})
	}
	return sends.Wait()
}

// patience is the time without any handled message after which the remaining messages count as missing.
const patience = 20 * time.Second

// handle starts workers that handle all messages of the ledger, also those that the function meanwhile sends.
func (w work) handle(ctx context.Context, p peer, l *ledger, meanwhile func(ctx context.Context) error) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- p.work(working, w.callers, l.handle) }()
	if err := meanwhile(ctx); err != nil {
		return err
	}
	for began := time.Now(); !l.all() && time.Since(later(began, l.last())) < patience; {
		select {
		case err := <-ended:
			return fmt.Errorf("the workers ended by themselves: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	stop()
	return <-ended
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// ledger knows which messages were sent and which were handled.
type ledger struct {
	mu      sync.Mutex
	sent    []int          // guarded by mu; by group
	seen    []map[int]bool // guarded by mu; by group
	highest []int          // guarded by mu; by group: the sequence number handled last
	inHand  []int          // guarded by mu; by group
	handled int            // guarded by mu; each message once
	lastAt  time.Time      // guarded by mu
	times   []time.Duration

	doubled, outOfOrder, together int // guarded by mu
}

func newLedger(groups int) *ledger {
	l := &ledger{
		sent: make([]int, groups), seen: make([]map[int]bool, groups), highest: make([]int, groups),
		inHand: make([]int, groups),
	}
	for g := range groups {
		l.seen[g], l.highest[g] = make(map[int]bool), -1
	}
	return l
}

// next returns the next n messages of a group.
func (l *ledger) next(group, n int) (msgs []message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		msgs = append(msgs, message{Group: group, Seq: l.sent[group], Body: filler})
		l.sent[group]++
	}
	return msgs
}

// handle is every worker's handler: it does nothing but tell the ledger.
func (l *ledger) handle(m message) {
	now := time.Now()
	l.begin(m, now)
	l.end(m)
}

func (l *ledger) begin(m message, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inHand[m.Group]++; l.inHand[m.Group] > 1 {
		l.together++
	}
	if l.seen[m.Group][m.Seq] {
		l.doubled++
		return
	}
	l.seen[m.Group][m.Seq] = true
	l.handled++
	l.lastAt = now
	if m.Seq < l.highest[m.Group] {
		l.outOfOrder++
	}
	l.highest[m.Group] = max(l.highest[m.Group], m.Seq)
	if m.Due > 0 {
		l.times = append(l.times, now.Sub(time.Unix(0, m.Due)))
	}
}

func (l *ledger) end(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inHand[m.Group]--
}

// last returns when a message was handled last.
func (l *ledger) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastAt
}

// all reports whether all that was sent has been handled.
func (l *ledger) all() bool { return l.missing() == 0 }

func (l *ledger) missing() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sent := range l.sent {
		n += sent
	}
	return n - l.handled
}

// addTo adds what went wrong to a result. The peer's workers are at rest.
func (l *ledger) addTo(r *result) {
	r.Missing += l.missing()
	r.Doubled += l.doubled
	r.OutOfOrder += l.outOfOrder
	r.Together += l.together
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// milliseconds returns a quantile of times, which are sorted.
func milliseconds(times []time.Duration, q float64) float64 {
	if len(times) == 0 {
		return 0
	}
	return float64(times[int(q*float64(len(times)-1))].Microseconds()) / 1000
}
