package history

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"fdbfifo/kv"
)

// patience bounds every wait for a result of a stream.
const patience = time.Minute

// Play runs the stream of seed on db and returns its history. It works under a random prefix, which it clears in the
// end, and must be the only one that writes there. The error is of the kind that has no code, for instance the
// context's, or a result that never came.
func Play(ctx context.Context, db kv.DB, seed uint64) (string, error) {
	p := &player{ctx: ctx, db: db, mask: mask{prefix: "history/" + rand.Text() + "/"}}
	defer p.close()
	s := newStream(seed)
	fmt.Fprintf(&p.out, "seed %d\n", seed)
	p.setUp(s)
	for _, st := range s.steps {
		if p.err != nil {
			break
		}
		tx := p.txs[st.who]
		result := st.do(p, tx)
		fmt.Fprintf(&p.out, "%s %s", tx.name, st.text)
		if result != "" {
			p.out.WriteString(" = " + result)
		}
		p.out.WriteByte('\n')
	}
	p.fireWatches()
	p.dump()
	if p.err != nil {
		return "", fmt.Errorf("history of seed %d: %w\nso far:\n%s", seed, p.err, &p.out)
	}
	return p.out.String(), nil
}

// player is one run of a stream.
type player struct {
	ctx context.Context
	db  kv.DB
	mask
	out      strings.Builder
	txs      []*party
	versions []int64 // of the commits so far, ascending
	live     []watched
	err      error // the first that has no code; ends the run
}

// party is one named transaction.
type party struct {
	name    string
	tx      kv.ManagedTx
	failure error // of its last commit
	stamped bool  // this attempt has versionstamped operations
	pending map[int]func() string
	watches []watched
}

type watched struct {
	name   string
	key    string
	future kv.Future[struct{}]
}

func (p *player) key(k string) []byte { return []byte(p.prefix + k) }

func (p *player) keys(begin, end string) kv.KeyRange {
	return kv.KeyRange{Begin: p.key(begin), End: p.key(end)}
}

func (p *player) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// ended waits for f and returns how it ended: what show makes of the result, or the error's code.
func ended[T any](p *player, f kv.Future[T], show func(T) string) string {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := f.Wait(ctx)
	if err != nil {
		return p.code(err)
	}
	return show(v)
}

func (p *player) code(err error) string {
	c := kv.Code(err)
	if c == 0 {
		p.fail(err)
	}
	return fmt.Sprintf("error %d", c)
}

func done(struct{}) string { return "done" }

// rank counts the commits up to version.
func (p *player) rank(version int64) int {
	return sort.Search(len(p.versions), func(i int) bool { return p.versions[i] > version })
}

func (p *player) shownVersion(v int64) string {
	if v < 0 {
		return "none"
	}
	if n := p.rank(v); n > 0 && p.versions[n-1] == v {
		return fmt.Sprintf("#%d", n)
	}
	return "no commit's"
}

// update commits writes of the player's own, which count as a commit too.
func (p *player) update(write func(tx kv.Tx)) {
	v, err := kv.Run(p.ctx, p.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		write(tx)
		return nil
	})
	if err != nil {
		p.fail(fmt.Errorf("the run's own commit: %w", err))
		return
	}
	p.committed(v)
}

func (p *player) committed(v int64) {
	if n := len(p.versions); n > 0 && v <= p.versions[n-1] {
		p.fail(fmt.Errorf("commit version %d is not above the one before, %d", v, p.versions[n-1]))
	}
	p.versions = append(p.versions, v)
}

func (p *player) setUp(s *stream) {
	p.update(func(tx kv.Tx) {
		for i := range fence {
			tx.Set(p.key(fmt.Sprintf("b%02d", i)), []byte("fence"))
			tx.Set(p.key(fmt.Sprintf("t%02d", i)), []byte("fence"))
		}
		for _, row := range s.initial {
			tx.Set(p.key(row.key), row.value)
		}
	})
	p.out.WriteString("stored")
	for _, row := range s.initial {
		fmt.Fprintf(&p.out, " %s=%s", p.show([]byte(row.key)), p.show(row.value))
	}
	p.out.WriteByte('\n')
	for i := range s.parties {
		tx := &party{name: fmt.Sprintf("T%d", i), pending: map[int]func() string{}}
		p.begin(tx, kv.TxOptions{})
		p.txs = append(p.txs, tx)
	}
}

func (p *player) begin(tx *party, o kv.TxOptions) {
	o.MaxRetryDelay = time.Millisecond
	fresh, err := p.db.Begin(o)
	if err != nil {
		p.fail(fmt.Errorf("begin: %w", err))
		return
	}
	tx.tx = fresh
	tx.restarted()
}

// restarted forgets the attempt.
func (tx *party) restarted() {
	tx.failure, tx.stamped = nil, false
	tx.watches = nil
}

// conflicts lists the transaction's conflict ranges. The read version is fetched first, for it says where the
// versionstamped keys may come to lie.
func (p *player) conflicts(tx *party) string {
	reporter, ok := tx.tx.(kv.ConflictReporter)
	if !ok {
		return "not reported"
	}
	masked := p.mask
	if tx.stamped {
		ctx, cancel := context.WithTimeout(p.ctx, patience)
		defer cancel()
		if v, err := tx.tx.ReadVersion().Wait(ctx); err == nil {
			masked.stamps = append(slices.Clip(masked.stamps), pendingStamp(v))
		}
	}
	read, write, err := reporter.ConflictRanges(p.ctx)
	if err != nil {
		return p.code(err)
	}
	return "read" + masked.ranges(read) + " write" + masked.ranges(write)
}

// commit commits and says all that follows from it.
func (p *player) commit(tx *party) string {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	stamp := tx.tx.Versionstamp()
	_, err := tx.tx.Commit().Wait(ctx)
	tx.failure = err
	if err != nil {
		out := p.code(err) + ", stamp "
		switch {
		case kv.Code(err) == kv.CodeNotCommitted || kv.Code(err) == kv.CodeTransactionTooLarge:
			out += ended(p, stamp, p.shownStamp) + p.endedWatches(tx)
		case stamp.Ready():
			out += ended(p, stamp, p.shownStamp)
		default: // the commit was not sent
			out += "not ready"
			stamp.Cancel()
		}
		return out
	}
	v, err := tx.tx.CommittedVersion()
	if err != nil {
		return p.code(err)
	}
	if v >= 0 {
		p.committed(v)
	}
	got := ended(p, stamp, func(s [10]byte) string {
		if tx.stamped {
			p.stamps = append(p.stamps, shownStamp{string(s[:]), fmt.Sprintf("{#%d}", p.rank(v))})
		}
		return p.shownStamp(s)
	})
	p.live = append(p.live, tx.watches...)
	tx.watches = nil
	if tx.stamped {
		// No later read version is one at which a key was stamped.
		p.update(func(tx kv.Tx) { tx.Set(p.key("apart"), nil) })
	}
	return "version " + p.shownVersion(v) + ", stamp " + got
}

func (p *player) shownStamp(s [10]byte) string {
	return p.shownVersion(int64(binary.BigEndian.Uint64(s[:8])))
}

// endedWatches waits for the watches of an attempt that has ended without a commit.
func (p *player) endedWatches(tx *party) string {
	var b strings.Builder
	for _, w := range tx.watches {
		fmt.Fprintf(&b, ", %s %s", w.name, ended(p, w.future, done))
	}
	tx.watches = nil
	return b.String()
}

// fireWatches gives every key with a committed watch a value that it never had: all of them must fire.
func (p *player) fireWatches() {
	if p.err != nil || len(p.live) == 0 {
		return
	}
	p.update(func(tx kv.Tx) {
		for _, w := range p.live {
			tx.Set(p.key(w.key), []byte("changed in the end"))
		}
	})
	for _, w := range p.live {
		fmt.Fprintf(&p.out, "%s = %s\n", w.name, ended(p, w.future, done))
	}
}

// dump writes down what is stored in the end.
func (p *player) dump() {
	if p.err != nil {
		return
	}
	var rows []kv.KV
	_, err := kv.Run(p.ctx, p.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		rows, err = tx.GetRange(p.keys("k", "\xff").Selectors(), kv.RangeOptions{}).Wait(p.ctx)
		return err
	})
	if err != nil {
		p.fail(fmt.Errorf("reading what is stored: %w", err))
		return
	}
	p.out.WriteString("stored in the end\n")
	for _, r := range rows {
		fmt.Fprintf(&p.out, "%s=%s\n", p.show(r.Key), p.show(r.Value))
	}
}

func (p *player) close() {
	for _, tx := range p.txs {
		if tx.tx != nil {
			tx.tx.Cancel()
		}
		for _, w := range tx.watches {
			w.future.Cancel()
		}
	}
	for _, w := range p.live {
		w.future.Cancel()
	}
	// A fresh context: the run's own may have ended, and the prefix must still be cleared.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := kv.Run(ctx, p.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.ClearRange(kv.PrefixRange([]byte(p.prefix)))
		return nil
	})
	if err != nil {
		p.err = errors.Join(p.err, fmt.Errorf("clearing the prefix: %w", err))
	}
}
