package sqs

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

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
