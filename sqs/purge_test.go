package sqs

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// TestPurgeThatFails: a purge is done also if its answer is an error, or if the outcome of its record is unknown. The
// client cannot ask again, because the server refuses a second purge for a minute.
func TestPurgeThatFails(t *testing.T) {
	for call, want := range map[string]int{"change attributes": http.StatusOK, "job": http.StatusInternalServerError} {
		var fails atomic.Bool
		once := func(code int) func(string) error {
			return func(of string) error {
				if of != call || !fails.Swap(false) {
					return nil
				}
				return &kv.Error{Code: code}
			}
		}
		open := func(t *testing.T) kv.DB {
			if want == http.StatusOK {
				return failingDB{DB: inMemory(t), lost: once(kv.CodeCommitUnknownResult)}
			}
			return failingDB{DB: inMemory(t), fails: once(kv.CodeIOError)}
		}
		bubbleOn(t, open, Options{}, func(e *env) {
			url := e.create("jobs")
			e.send(url, "", "a", "b", "c")
			time.Sleep(time.Second) // the first sweep of the server has ended
			fails.Store(true)
			status, _, body := e.do(post("PurgeQueue", object{"QueueUrl": url}))
			require.False(e, fails.Load(), call)
			require.Equal(e, want, status, body)
			code, _ := e.refused("PurgeQueue", object{"QueueUrl": url})
			require.Equal(e, "PurgeQueueInProgress", code)
			time.Sleep(purgeAgain + tidyEvery)
			require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessages"])
			e.send(url, "", "d")
			time.Sleep(nameFreeAfter + 2*tidyEvery)
			require.Equal(e, "1", e.attributes(url)["ApproximateNumberOfMessages"], "a purge ends")
		})
	}
}

// TestPurgeEndsInAMinute: a purge that could not be done in a minute is not begun again, because messages were sent
// since. A client may ask for another one.
func TestPurgeEndsInAMinute(t *testing.T) {
	var fails atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == "job" && fails.Load() {
				return &kv.Error{Code: kv.CodeIOError}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		url := e.create("jobs")
		e.send(url, "", "a")
		time.Sleep(time.Second) // the first sweep of the server has ended
		fails.Store(true)
		status, _, _ := e.do(post("PurgeQueue", object{"QueueUrl": url}))
		require.Equal(e, http.StatusInternalServerError, status)
		time.Sleep(nameFreeAfter + time.Second)
		e.send(url, "", "b")
		fails.Store(false)
		time.Sleep(nameFreeAfter)
		require.Equal(e, "2", e.attributes(url)["ApproximateNumberOfMessages"])
		e.call("PurgeQueue", object{"QueueUrl": url})
		require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessages"])
	})
}

// TestPurgeThatHangs: a server whose purge the database has kept waiting for a minute does not purge the queue later.
// Another server has done it, and the messages that were sent since stay.
func TestPurgeThatHangs(t *testing.T) {
	var hangs atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == "job" && hangs.Load() {
				return &kv.Error{Code: kv.CodeProcessBehind}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		healthy := e.db.(failingDB).DB
		other := &env{T: e.T, db: healthy, s: NewServer(healthy, Options{})}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		url := e.create("jobs")
		e.send(url, "", "before")
		time.Sleep(time.Second) // the first sweeps of the servers have ended
		hangs.Store(true)
		e.call("PurgeQueue", object{"QueueUrl": url})
		time.Sleep(2 * nameFreeAfter)
		require.Equal(e, "0", other.attributes(url)["ApproximateNumberOfMessages"])
		other.send(url, "", "since")
		hangs.Store(false)
		time.Sleep(nameFreeAfter)
		require.Equal(e, "since", bodies(other.receive(url)))
	})
}

// TestPurgeOfAWrongClock: a server whose clock differs from those of the others begins a purge, and dies. Another
// server does the purge within a minute, and never later, because messages were sent since.
func TestPurgeOfAWrongClock(t *testing.T) {
	for _, off := range []time.Duration{
		-365 * 24 * time.Hour, -4 * time.Minute, -61 * time.Second, 0, 4 * time.Minute, 365 * 24 * time.Hour,
	} {
		t.Run(off.String(), func(t *testing.T) {
			bubble(t, Options{}, func(e *env) {
				fails := failingDB{DB: e.db, fails: func(of string) error {
					if of == "job" {
						return &kv.Error{Code: kv.CodeIOError}
					}
					return nil
				}}
				now := func() time.Time { return time.Now().Add(off) }
				dies := &env{T: e.T, db: fails, s: NewServer(fails, Options{Now: now})}
				url := e.create("jobs")
				e.send(url, "", "before")
				status, _, body := dies.do(post("PurgeQueue", object{"QueueUrl": url}))
				require.Equal(e, http.StatusInternalServerError, status, body)
				require.NoError(e, dies.s.Close(e.Context()))
				code, _ := e.refused("PurgeQueue", object{"QueueUrl": url})
				require.Equal(e, "PurgeQueueInProgress", code)
				time.Sleep(purgeAgain + 2*tidyEvery)
				require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
				time.Sleep(nameFreeAfter - purgeAgain - 2*tidyEvery + time.Second)
				e.send(url, "", "since")
				time.Sleep(10 * time.Minute)
				require.Equal(e, "since", bodies(e.receive(url)))
				e.call("PurgeQueue", object{"QueueUrl": url})
			})
		})
	}
}

// TestPurgeOfAWrongClockEndsInAMinute: as TestPurgeEndsInAMinute, if the clock of the server that began the purge was
// ahead.
func TestPurgeOfAWrongClockEndsInAMinute(t *testing.T) {
	var fails atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == "job" && fails.Load() {
				return &kv.Error{Code: kv.CodeIOError}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		dies, end := e.withClock(func() time.Time { return time.Now().Add(4 * time.Minute) })
		url := e.create("jobs")
		e.send(url, "", "a")
		time.Sleep(time.Second) // the first sweeps of the servers have ended
		fails.Store(true)
		status, _, _ := dies.do(post("PurgeQueue", object{"QueueUrl": url}))
		require.Equal(e, http.StatusInternalServerError, status)
		end()
		time.Sleep(nameFreeAfter + tidyEvery)
		fails.Store(false)
		e.send(url, "", "b")
		time.Sleep(10 * time.Minute)
		require.Equal(e, "2", e.attributes(url)["ApproximateNumberOfMessages"])
	})
}

// TestPurgeOfAnEarlierQueue: a purge that was asked for of a deleted queue leaves the messages of the next queue of its
// name.
func TestPurgeOfAnEarlierQueue(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		e.send(url, "", "a")
		asked, _, err := e.s.look(e.Context(), "jobs")
		require.NoError(e, err)
		asked.ID = uuid.New()
		require.NoError(e, e.s.purge(e.Context(), "jobs", asked, 0))
		require.Equal(e, "1 visible, 0 in flight", e.numbers(url))
	})
}
