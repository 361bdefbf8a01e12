package kvtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// patience bounds every subtest: a future that never becomes ready fails its test instead of hanging it.
const patience = 60 * time.Second

// suite collects the promises of a chapter.
type suite struct{ promises []promise }

// promise is one property of an engine and the test of it.
type promise struct {
	name  string
	vague bool // the promise may look broken by chance on any engine
	body  func(s *space)
}

func (u *suite) promise(name string, body func(s *space)) {
	u.promises = append(u.promises, promise{name, false, body})
}

// vaguePromise is one that even an exact engine may seem to break now and then, as watches do that fire for nothing.
func (u *suite) vaguePromise(name string, body func(s *space)) {
	u.promises = append(u.promises, promise{name, true, body})
}

// lateAttempt is how long an attempt takes at least in which a transaction may have become too old (5 s).
const lateAttempt = 4 * time.Second

// check runs the test. Where failing by chance is allowed it makes three attempts, each under a fresh prefix: a
// real difference persists. The same holds for an attempt on a machine that has stood still (lateAttempt).
func (p promise) check(t *testing.T, e Engine) {
	attempts := 3
	if e.ExactConflicts && !p.vague {
		attempts = 1
	}
	for n := 1; ; n++ {
		begun := time.Now()
		failures := attempt(t, e, p.body)
		if len(failures) == 0 {
			return
		}
		late := time.Since(begun) > lateAttempt
		if n >= attempts && (!late || n >= 3) {
			t.Fatal(strings.Join(failures, "\n"))
		}
		t.Logf("attempt %d failed: %s", n, strings.Join(failures, "\n"))
	}
}

// attempt runs body once and returns what failed.
func attempt(t *testing.T, e Engine, body func(s *space)) []string {
	rec := &recorder{}
	s := &space{T: rec, test: t, Engine: e, prefix: randomPrefix()}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.ctx = ctx
	func() {
		defer func() {
			if r := recover(); r != nil && r != errFailNow {
				panic(r)
			}
		}()
		body(s)
	}()
	cancel()
	for _, tx := range s.open {
		tx.Cancel()
	}
	s.workers.Wait()
	ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := clearPrefix(ctx, e.DB, s.prefix); err != nil && !errors.Is(err, kv.ErrClosed) {
		rec.Errorf("clearing the test's prefix: %v", err)
	}
	return rec.failures
}

// errFailNow ends an attempt from inside; recorder throws it and attempt catches it.
var errFailNow = errors.New("kvtest: attempt failed")

// recorder is a require.TestingT that keeps failures for the attempt's caller. It belongs to one goroutine.
type recorder struct{ failures []string }

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) FailNow() { panic(errFailNow) }

// space is one attempt of one subtest: its own key prefix on the engine, and short forms of what all tests do.
// Its methods fail the attempt on any error they do not return.
type space struct {
	Engine
	T      require.TestingT
	test   *testing.T
	ctx    context.Context
	prefix []byte

	open    []kv.ManagedTx
	workers sync.WaitGroup
}

// start runs fn in a goroutine, which the attempt awaits before it ends. The channel gives fn's error.
func (s *space) start(fn func() error) <-chan error {
	done := make(chan error, 1)
	s.workers.Go(func() { done <- fn() })
	return done
}

func randomPrefix() []byte { return []byte("kvtest/" + rand.Text() + "/") }

func clearPrefix(ctx context.Context, db kv.DB, prefix []byte) error {
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.ClearRange(kv.PrefixRange(prefix))
		return nil
	})
	return err
}

func (s *space) key(k string) []byte { return append(append([]byte(nil), s.prefix...), k...) }

func (s *space) keys(begin, end string) kv.KeyRange {
	return kv.KeyRange{Begin: s.key(begin), End: s.key(end)}
}

// all is the range of every key that the test may write.
func (s *space) all() kv.KeyRange { return kv.PrefixRange(s.prefix) }

// short takes the prefix off a key; keys outside the prefix are shown whole.
func (s *space) short(key []byte) string {
	if k, ok := strings.CutPrefix(string(key), string(s.prefix)); ok {
		return k
	}
	return fmt.Sprintf("outside:%q", key)
}

// begin starts a transaction that is cancelled when the attempt ends.
func (s *space) begin() kv.ManagedTx { return s.beginWith(kv.TxOptions{}) }

func (s *space) beginWith(o kv.TxOptions) kv.ManagedTx {
	tx, err := s.DB.Begin(o)
	require.NoError(s.T, err)
	s.open = append(s.open, tx)
	return tx
}

// at starts a transaction whose read version is fixed now.
func (s *space) at() (kv.ManagedTx, int64) {
	tx := s.begin()
	return tx, wait(s, tx.ReadVersion())
}

// update runs fn in kv.Run and returns the commit version.
func (s *space) update(fn func(tx kv.Tx)) int64 {
	v, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		fn(tx)
		return nil
	})
	require.NoError(s.T, err)
	return v
}

// set commits pairs of key and value and returns the commit version.
func (s *space) set(pairs ...string) int64 {
	return s.update(func(tx kv.Tx) {
		for i := 0; i < len(pairs); i += 2 {
			tx.Set(s.key(pairs[i]), []byte(pairs[i+1]))
		}
	})
}

// get reads in a new transaction. An absent key is "<absent>".
func (s *space) get(k string) string { return s.getIn(s.begin(), k) }

func (s *space) getIn(tx kv.ReadTx, k string) string {
	return shown(wait(s, tx.Get(s.key(k))))
}

const absent = "<absent>"

func shown(value []byte) string {
	if value == nil {
		return absent
	}
	return string(value)
}

// rows reads a range as "key=value" strings.
func (s *space) rows(tx kv.ReadTx, r kv.KeyRange, o kv.RangeOptions) []string {
	return s.shownRows(wait(s, tx.GetRange(r.Selectors(), o)))
}

func (s *space) shownRows(rows []kv.KV) []string {
	out := []string{}
	for _, row := range rows {
		out = append(out, s.short(row.Key)+"="+string(row.Value))
	}
	return out
}

// commit requires success and returns the commit version.
func (s *space) commit(tx kv.ManagedTx) int64 {
	wait(s, tx.Commit())
	v, err := tx.CommittedVersion()
	require.NoError(s.T, err)
	return v
}

// wait requires that f succeeds.
func wait[T any](s *space, f kv.Future[T]) T {
	v, err := f.Wait(s.ctx)
	require.NoError(s.T, err)
	return v
}

// code returns the error code that f ends with, 0 for success. An error without a code fails the test.
func code[T any](s *space, f kv.Future[T]) int {
	_, err := f.Wait(s.ctx)
	return errCode(s, err)
}

func errCode(s *space, err error) int {
	if err == nil {
		return 0
	}
	c := kv.Code(err)
	if c == 0 {
		require.Fail(s.T, "an error without a code", "%v", err)
	}
	return c
}
