package embedded_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Lines that a process prints while it works together with others.
const (
	toldReady   = "ready"    // this process opens nothing until it is told to go on
	toldServing = "serving"  // this process has the database
	toldOpening = "opening"  // this process opens the database, until it is told to go on
	toldBegun   = "begun"    // transaction; from now on its outcome is unknown
	toldDone    = "done"     // transaction, version, nanoseconds of its begin and of its end
	toldNot     = "not"      // transaction: surely not committed
	toldUnknown = "unknown"  // transaction
	toldBroken  = "broken"   // what must not be
	toldFinish  = "finished" // the process has closed the database
)

// Lives of a process that does not work.
const (
	servesOnly = "serve"     // it has the folder open
	laterOnly  = "later"     // it has the folder open, after a line has come in
	opensOnly  = "open"      // it opens the folder, which takes until a line comes in
	aloneOnly  = "exclusive" // it has the folder open alone
)

// doorClock makes an opening last: its first call ends when a line has come in.
type doorClock struct {
	jumpClock
	door sync.Once
	in   *bufio.Scanner
}

func (c *doorClock) Now() time.Time {
	c.door.Do(func() {
		fmt.Println(toldOpening)
		c.in.Scan()
	})
	return c.jumpClock.Now()
}

const (
	togetherWorkers = 3
	togetherKeys    = 4 // of one transaction, far apart
)

func togetherKey(i int, name string, n int) []byte { return fmt.Appendf(nil, "%d/%s/%06d", i, name, n) }

var totalKey = []byte("total")

func sumKey(name string) []byte { return []byte("sum/" + name) }

// workTogether works in the folder until its standard input ends, or it is killed.
func workTogether(path, life string) error {
	clock := &jumpClock{still: life == servesOnly || life == laterOnly}
	in := bufio.NewScanner(os.Stdin)
	if life == laterOnly {
		fmt.Println(toldReady)
		in.Scan()
	}
	o := embedded.Options{Clock: clock, Exclusive: life == aloneOnly}
	if life == opensOnly {
		o.Clock = &doorClock{in: in}
	}
	db, err := embedded.OpenDisk(path, o)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	switch life {
	case servesOnly, laterOnly, opensOnly, aloneOnly:
		// Each line that comes in is how far the clock jumps.
		fmt.Println(toldServing)
		for ; in.Scan(); fmt.Println(in.Text()) {
			d, err := time.ParseDuration(in.Text())
			if err != nil {
				return err
			}
			clock.Advance(d)
		}
		return db.Close()
	}
	var mu sync.Mutex
	tell := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !over.Load() {
			if db.Usage().FileSize > 0 {
				tell(toldServing)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	for w := range togetherWorkers {
		all.Go(func() {
			name := fmt.Sprintf("%s.%d", life, w)
			for n := 0; !over.Load(); n++ {
				togetherOne(db, name, n, tell)
			}
		})
	}
	all.Go(func() { watchTotal(db, &over, tell) })
	_, err = io.Copy(io.Discard, os.Stdin)
	over.Store(true)
	all.Wait()
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	tell(toldFinish)
	return nil
}

// togetherOne is one transaction: several rows, one added to its worker's sum, and to the total that all share.
func togetherOne(db kv.DB, name string, n int, tell func(string, ...any)) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tx, err := db.Begin(kv.TxOptions{})
	if err != nil {
		tell("%s begin: %s", toldBroken, err)
		return
	}
	defer tx.Cancel()
	begun := time.Now()
	tell("%s %s %d", toldBegun, name, n)
	total := tx.Get(totalKey)
	rows := tx.GetRange(kv.PrefixRange(togetherKey(0, name, n)).Selectors(), kv.RangeOptions{})
	for i := range togetherKeys {
		tx.Set(togetherKey(i, name, n), make([]byte, 200))
	}
	tx.Atomic(kv.Add, sumKey(name), binary.LittleEndian.AppendUint64(nil, 1))
	old, err := total.Wait(ctx)
	if err == nil {
		var sum uint64
		if len(old) == 8 {
			sum = binary.LittleEndian.Uint64(old)
		}
		tx.Set(totalKey, binary.LittleEndian.AppendUint64(nil, sum+1))
		var found []kv.KV
		if found, err = rows.Wait(ctx); len(found) > 0 {
			tell("%s %s %d was there before", toldBroken, name, n)
		}
	}
	if err == nil {
		_, err = tx.Commit().Wait(ctx)
		if err == nil {
			v, failed := tx.CommittedVersion()
			if failed != nil {
				tell("%s version: %s", toldBroken, failed)
			}
			tell("%s %s %d %d %d %d", toldDone, name, n, v, begun.UnixNano(), time.Now().UnixNano())
			return
		}
	}
	switch kv.Code(err) {
	case kv.CodeNotCommitted, kv.CodeTransactionTooOld, kv.CodeFutureVersion, kv.CodeProcessBehind:
		tell("%s %s %d", toldNot, name, n)
	case kv.CodeCommitUnknownResult:
		tell("%s %s %d", toldUnknown, name, n)
	default:
		tell("%s %s %d: %s", toldBroken, name, n, err)
	}
}

// watchTotal waits for changes of the total: whatever happens to the servers, a watch of a key that changes ends.
func watchTotal(db kv.DB, over *atomic.Bool, tell func(string, ...any)) {
	for !over.Load() {
		tx, err := db.Begin(kv.TxOptions{})
		if err != nil {
			tell("%s begin: %s", toldBroken, err)
			return
		}
		w := tx.Watch(totalKey)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if _, err := tx.Commit().Wait(ctx); err != nil {
			w.Cancel()
		}
		stop := make(chan struct{})
		go func() {
			for !over.Load() && ctx.Err() == nil {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
			if over.Load() {
				cancel()
			}
		}()
		if _, err := w.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			tell("%s a watch that does not end: %s", toldBroken, err)
		}
		close(stop)
		cancel()
		tx.Cancel()
	}
}

// line is one line that a process prints.
type line struct {
	what   string
	worker string
	n      int
	at     [3]int64 // version, begin, end
	text   string
}

func readLines(r io.Reader, see func(line)) error {
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadString('\n')
		if err == io.EOF {
			return nil // a last line cut short was not told
		}
		if err != nil {
			return err
		}
		l := line{text: strings.TrimSpace(text)}
		l.what, _, _ = strings.Cut(l.text, " ")
		if l.what != toldBroken {
			_, _ = fmt.Sscan(l.text, &l.what, &l.worker, &l.n, &l.at[0], &l.at[1], &l.at[2])
		}
		see(l)
	}
}
