package line

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// testWatch is a watch that the test wakes.
type testWatch struct {
	woken     chan struct{}
	by        string // the goroutine that waits
	cancelled bool
	ended     bool // by the context of a Wait, as kv.Future says
}

func newTestWatch() *testWatch { return &testWatch{woken: make(chan struct{})} }

func (w *testWatch) Wait(ctx context.Context) (struct{}, error) {
	w.by = goroutine()
	if w.ended {
		return struct{}{}, &kv.Error{Code: 1101}
	}
	select {
	case <-w.woken:
		return struct{}{}, nil
	case <-ctx.Done():
		w.ended = true
		return struct{}{}, ctx.Err()
	}
}

func (w *testWatch) Ready() bool { return false }

func (w *testWatch) Cancel() { w.cancelled = true }

// restAfter ends a turn that has found nothing with r to wait for.
func (f *testFlight) restAfter(r Rest) {
	f.os[0].Turn.Rests(r)
	f.end()
}

// testLine is a waiting line without a pipeline: a turn is noted in log, and answered by turns, or by a rest without
// end.
type testLine struct {
	*Line[*testOp]
	mu      sync.Mutex
	log     []string // guarded by mu
	by      string   // the goroutine of the last turn
	turns   []func(called []*testOp)
	index   int64 // of the request
	renewAt time.Time
	gone    *testWatch
	missed  bool             // a wake came before the look
	errs    map[string]error // of the next withdrawal, renewal or sweep
}

// onTestLine runs fn with a line, in a bubble of testing/synctest.
func onTestLine(t *testing.T, fn func(t *testing.T, l *testLine)) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLine()
		defer func() {
			l.disband()
			_ = l.Stop(context.Background())
		}()
		fn(t, l)
	})
}

func newTestLine() *testLine {
	l := &testLine{Line: &Line[*testOp]{}, errs: make(map[string]error)}
	note := func(what string, done func()) error {
		l.note(what)
		err := l.errs[what]
		if delete(l.errs, what); err == nil {
			done()
		}
		return err
	}
	l.Begin(Env[*testOp]{
		RunTurn: l.runTurn, Yield: func(context.Context, string) {},
		Requested: func() (int64, bool) { return l.index, l.index != 0 && !time.Now().Before(l.renewAt) },
		Wants:     func() bool { return false },
		Withdraw:  func(context.Context, int64) error { return note("withdraw", func() { l.index = 0 }) },
		Renew: func(context.Context, int64) error {
			return note("renew", func() { l.renewAt = time.Now().Add(testRenewal) })
		},
		Sweep: func(context.Context, []string) error { return note("sweep", func() {}) },
		Gone: func() time.Duration {
			if l.gone == nil {
				return 0
			}
			return time.Second
		},
		LookGone: func(context.Context) (Rest, bool, error) {
			err := note("look", func() {})
			return Rest{Watch: l.gone}, l.missed, err
		},
		AWhile: func() time.Duration { return time.Millisecond },
		PassOn: func(context.Context) error {
			return note("pass on", func() { l.gone, l.missed = nil, false })
		},
		WatchFailed: func(error) bool { return false },
	})
	return l
}

func (l *testLine) note(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, what)
}

func (l *testLine) runTurn(called []*testOp) {
	l.note(fmt.Sprint("turn ", len(called)))
	l.by = goroutine()
	if len(l.turns) == 0 {
		called[0].Turn.Rests(Rest{Watch: newTestWatch(), Wait: time.Hour})
		l.comeBack(called)
		return
	}
	turn := l.turns[0]
	l.turns = l.turns[1:]
	turn(called)
}

// comeBack is a turn that served no receive.
func (l *testLine) comeBack(called []*testOp) {
	for _, o := range called {
		l.join(o)
	}
}

// require checks what the line has done since it was last asked.
func (l *testLine) require(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, want, l.log)
	l.log = nil
}

// testRenewal is the time after which a request is renewed.
const testRenewal = 30 * time.Second

func waiter() *testOp { return &testOp{Op: Op{Waits: true}, receives: true} }

// ends waits for the end of the attendance.
func (l *testLine) ends(t *testing.T) {
	t.Helper()
	synctest.Wait()
	l.Line.mu.Lock()
	defer l.Line.mu.Unlock()
	require.Nil(t, l.attended)
}

// TestLineIsAttended: the first to join has a turn, with all that have joined; and so has a receive that joins while
// the others rest. A receive that returns from a turn that found nothing rests. When the last quits, the attendance
// ends, and the next to join begins another.
func TestLineIsAttended(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		a, b, c := waiter(), waiter(), waiter()
		l.join(a)
		l.require(t, "turn 1")
		l.require(t)
		l.join(b)
		l.require(t, "turn 2")
		require.Equal(t, 2, l.Length())
		require.True(t, l.quit(b))
		require.False(t, l.quit(b))
		l.require(t, "turn 1")
		require.True(t, l.quit(a))
		l.ends(t)
		l.require(t)
		l.join(c)
		l.require(t, "turn 1")
		require.Equal(t, []*testOp{c}, l.disband())
	})
}

// TestLineWakes: the goroutine that waits for the watch has the turn. A turn that serves is followed by another, and
// that by a rest.
func TestLineWakes(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		w := newTestWatch()
		a, b := waiter(), waiter()
		l.join(a)
		l.require(t, "turn 1")
		l.turns = []func([]*testOp){
			func(called []*testOp) {
				called[0].Turn.Rests(Rest{Watch: w, Wait: time.Hour})
				l.comeBack(called)
			},
			func(called []*testOp) { l.comeBack(called[1:]) },
		}
		l.join(b)
		l.require(t, "turn 2")
		close(w.woken)
		l.require(t, "turn 2", "turn 1")
		require.Equal(t, w.by, l.by)
		require.True(t, w.cancelled)
		require.Equal(t, []*testOp{b}, l.disband())
	})
}

// TestLineKeepsNudge: a change while a turn is under way ends the rest that follows.
func TestLineKeepsNudge(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		a, b := waiter(), waiter()
		l.turns = []func([]*testOp){func(called []*testOp) {
			called[0].Turn.Rests(Rest{Watch: newTestWatch(), Wait: time.Hour})
			l.comeBack(called)
			l.join(b)
		}}
		l.join(a)
		l.require(t, "turn 1", "turn 2")
	})
}

// TestLineEndsDuringATurn: when a receive has ended during a turn that found nothing, the others have another turn
// before they rest, because the request of the ended receive may have to be withdrawn, and no later event would say so.
func TestLineEndsDuringATurn(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		any, named := waiter(), waiter()
		named.named = true
		l.join(any)
		l.require(t, "turn 1")
		l.turns = []func([]*testOp){func(called []*testOp) {
			l.index, l.renewAt = 1, time.Now().Add(time.Hour)
			called[0].Turn.Rests(Rest{Watch: newTestWatch(), Wait: time.Hour})
			l.comeBack(called[1:]) // any has ended: its context, or its time
		}}
		l.join(named)
		l.require(t, "turn 2", "withdraw", "turn 1")
	})
}

// TestLineRests: a turn is followed by the next when its time is up, also if the watch fails; a turn that could not
// take place after ErrorPause; one that found nothing to watch twice in a row after BusyPause.
func TestLineRests(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		watch := func(called []*testOp) {
			called[0].Turn.Rests(Rest{Watch: newTestWatch(), Wait: time.Second})
			l.comeBack(called)
		}
		fail := func(called []*testOp) {
			called[0].Turn.fail(errors.New("down"))
			l.comeBack(called)
		}
		broken := func(called []*testOp) {
			called[0].Turn.Rests(Rest{Watch: failingWatch{newTestWatch()}, Wait: time.Minute})
			l.comeBack(called)
		}
		l.turns = []func([]*testOp){watch, fail, l.comeBack, l.comeBack, broken}
		a := waiter()
		l.join(a)
		for _, pause := range []time.Duration{time.Second, ErrorPause} {
			l.require(t, "turn 1")
			time.Sleep(pause - 1)
			l.require(t)
			time.Sleep(time.Nanosecond)
		}
		l.require(t, "turn 1", "turn 1")
		time.Sleep(BusyPause)
		l.require(t, "turn 1")
		time.Sleep(time.Minute - 1)
		l.require(t)
		time.Sleep(time.Nanosecond)
		l.require(t, "turn 1")
	})
}

// failingWatch is a watch that the database refuses.
type failingWatch struct{ *testWatch }

func (failingWatch) Wait(context.Context) (struct{}, error) {
	return struct{}{}, errors.New("too many watches")
}

// TestLineKeepsRequest: the request is renewed when half of its life is over. Dead requests are swept before the rest.
// When no receive waits any more the request is withdrawn. A call that fails is tried again after ErrorPause.
func TestLineKeepsRequest(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		found := func(r Rest) func([]*testOp) {
			return func(called []*testOp) {
				l.index = 1
				r.Watch = newTestWatch()
				called[0].Turn.Rests(r)
				l.comeBack(called)
			}
		}
		l.renewAt = time.Now().Add(testRenewal)
		l.errs["renew"], l.errs["withdraw"] = errors.New("no database"), errors.New("no database")
		l.turns = []func([]*testOp){found(Rest{Wait: testRenewal}), found(Rest{Wait: time.Hour, Dead: []string{""}})}
		a := waiter()
		l.join(a)
		l.require(t, "turn 1")
		time.Sleep(testRenewal)
		l.require(t, "renew")
		time.Sleep(ErrorPause)
		l.require(t, "renew", "turn 1", "sweep")
		require.True(t, l.quit(a))
		l.require(t, "withdraw")
		time.Sleep(ErrorPause)
		l.require(t, "withdraw")
		l.ends(t)
	})
}

// TestLineClearsTheRequestOfNoReceive: a receive ends whose request is there, and which has not stood in the line. The
// attendance withdraws the request, whatever it is at.
func TestLineClearsTheRequestOfNoReceive(t *testing.T) {
	any, named := waiter(), waiter()
	named.named = true
	other := waiter()
	other.template = "other" // and so another place
	t.Run("no attendance", func(t *testing.T) {
		onTestLine(t, func(t *testing.T, l *testLine) {
			l.tidy(any)
			l.require(t)
			l.index = 1
			l.tidy(named)
			l.require(t)
			l.tidy(any)
			l.require(t, "withdraw")
			l.ends(t)
		})
	})
	t.Run("resting for another receive", func(t *testing.T) {
		onTestLine(t, func(t *testing.T, l *testLine) {
			l.join(other)
			l.require(t, "turn 1")
			l.index = 1
			l.tidy(any)
			l.require(t, "withdraw", "turn 1")
		})
	})
	t.Run("resting for a receive that needs it", func(t *testing.T) {
		onTestLine(t, func(t *testing.T, l *testLine) {
			l.index, l.renewAt = 1, time.Now().Add(testRenewal)
			l.join(waiter())
			l.require(t, "turn 1")
			l.tidy(any)
			l.require(t)
		})
	})
	t.Run("resting after all have gone", func(t *testing.T) {
		onTestLine(t, func(t *testing.T, l *testLine) {
			l.empties(t)
			l.index = 1
			l.tidy(any)
			l.require(t, "withdraw")
			l.gone = nil
		})
	})
}

// empties lets a receive come and leave: then the attendance waits for wakes of receives that have gone.
func (l *testLine) empties(t *testing.T) {
	t.Helper()
	o := waiter()
	l.join(o)
	l.require(t, "turn 1")
	l.gone = newTestWatch()
	require.True(t, l.quit(o))
	l.require(t)
}

// TestLineInWaves: a turn is for MaxWave receives at most, the oldest first.
func TestLineInWaves(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		var all, order []*testOp
		serve := func(called []*testOp) { order = append(order, called...) }
		l.turns = []func([]*testOp){
			func(called []*testOp) {
				for range MaxWave {
					all = append(all, waiter())
					l.join(all[len(all)-1])
				}
				serve(called)
			},
			serve,
		}
		all = append(all, waiter())
		l.join(all[0])
		l.ends(t)
		require.Equal(t, len(all), len(order))
		for i := range all {
			require.Same(t, all[i], order[i])
		}
		require.Equal(t, []string{"turn 1", fmt.Sprint("turn ", MaxWave)}, l.log)
	})
}

// TestLineStops: the attendance ends with the line, whatever it is at.
func TestLineStops(t *testing.T) {
	for name, turn := range map[string]func(l *testLine, called []*testOp){
		"resting": func(l *testLine, called []*testOp) {
			called[0].Turn.Rests(Rest{Watch: newTestWatch(), Wait: time.Hour})
		},
		"after a failure": func(l *testLine, called []*testOp) { called[0].Turn.fail(errors.New("down")) },
		"busy":            func(l *testLine, called []*testOp) {},
	} {
		t.Run(name, func(t *testing.T) {
			onTestLine(t, func(t *testing.T, l *testLine) {
				for range 2 {
					l.turns = append(l.turns, func(called []*testOp) {
						turn(l, called)
						l.comeBack(called)
					})
				}
				l.join(waiter())
				synctest.Wait()
				begun := time.Now()
				_ = l.Stop(context.Background())
				require.Zero(t, time.Since(begun))
			})
		})
	}
}

// TestLineWatchesWhenAllHaveGone: after the last receive has gone the attendance waits a while, looks whether a wake
// has come, watches, and passes on a wake which has come or comes. A receive that joins has a turn at once. If the
// turn finds nothing, the attendance looks for a wake again.
func TestLineWatchesWhenAllHaveGone(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		l.empties(t)
		b := waiter()
		l.join(b)
		l.require(t, "turn 1", "look")
		require.True(t, l.quit(b))
		l.require(t)
		time.Sleep(2 * time.Millisecond)
		l.require(t, "look")
		close(l.gone.woken)
		l.require(t, "pass on")
		l.ends(t)
		require.Nil(t, l.gone)
		l.gone, l.missed = newTestWatch(), true
		c := waiter()
		l.join(c)
		l.require(t, "turn 1", "look", "pass on")
		l.gone, l.missed = newTestWatch(), true
		l.errs["look"] = errors.New("down")
		require.True(t, l.quit(c))
		time.Sleep(2 * time.Millisecond)
		l.require(t, "look")
		time.Sleep(2*time.Millisecond + ErrorPause)
		l.require(t, "look", "pass on")
		l.ends(t)
	})
}

// TestLinePassesOnBesideATurn: a handle with waiting receives is woken. Until a short while ago it has also waited for
// another lane. The wake may be for that lane, so the handle passes the wake on, and its receives have a turn.
func TestLinePassesOnBesideATurn(t *testing.T) {
	onTestLine(t, func(t *testing.T, l *testLine) {
		w := newTestWatch()
		l.turns = []func([]*testOp){func(called []*testOp) {
			called[0].Turn.Rests(Rest{Watch: w, Wait: time.Hour})
			l.comeBack(called)
		}}
		l.join(waiter())
		l.require(t, "turn 1")
		l.gone = newTestWatch()
		close(w.woken)
		l.require(t, "pass on", "turn 1")
	})
}
