//go:build linux || darwin

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"fdbfifo/kv"
)

// openHere opens a folder, to be closed with the test.
func openHere(t *testing.T, path string, o Options) *DB {
	t.Helper()
	db, err := OpenDisk(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// rawPeer returns a connection to the process that serves a folder. The test need not speak the protocol on it.
func rawPeer(t *testing.T, path string, greets bool) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(path, socketName))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	if !greets {
		return c
	}
	var id clientID
	copy(id[:], fmt.Sprintf("%p", c))
	_, err = c.Write(appendFrame(nil, frameHello, func(b []byte) []byte {
		return append(appendNumbers(appendText(b, protocolMagic), protocolVersion), id[:]...)
	}))
	require.NoError(t, err)
	kind, _, err := (&frameReader{r: c, limit: maxHello}).next()
	require.NoError(t, err)
	require.Equal(t, frameWelcome, kind)
	return c
}

func change(t *testing.T, db kv.DB, key, value string) {
	t.Helper()
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte(key), []byte(value))
		return nil
	})
	require.NoError(t, err)
}

func look(t *testing.T, db kv.DB, key string) (value string) {
	t.Helper()
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get([]byte(key)).Wait(t.Context())
		value = string(v)
		return err
	})
	require.NoError(t, err)
	return value
}

// sessions are those of the clients that a database serves.
func (db *DB) sessions() (all []*session) {
	s := db.local.Load().server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.sessions {
		all = append(all, n)
	}
	return all
}

// TestBadPeersHarmNobody: peers that say nothing, garbage, a frame of 4 GiB, half of a frame, or ask for much and read
// nothing, are there by the dozen. A client that speaks the protocol does not notice, and the server's memory is
// bounded. A client that reads nothing is cut off after a while.
func TestBadPeersHarmNobody(t *testing.T) {
	path := t.TempDir()
	server := openHere(t, path, Options{})
	client := openHere(t, path, Options{})
	const size = 90_000
	change(t, client, "large", string(make([]byte, size)))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	none := func(b []byte) []byte { return b }
	huge := []byte{0xff, 0xff, 0xff, 0xff, byte(frameCommit), 1, 2, 3}
	half := []byte{0, 0x90, 0, 0, byte(frameCommit), 1, 2, 3}
	asks := numbered(frameOpen, 1, func(b []byte) []byte { return appendNumbers(b, 0) })
	for id := range uint64(2000) {
		asks = append(asks, numbered(frameGet, 2+id, func(b []byte) []byte {
			return appendText(appendNumbers(b, 1), "large")
		})...)
	}
	var greedy []net.Conn
	for n := range 8 {
		for _, bad := range []struct {
			greets bool
			sends  []byte
		}{
			{false, nil}, {false, []byte("GET / HTTP/1.1\r\n\r\n")}, {false, huge}, {false, half},
			{true, nil}, {true, huge}, {true, half}, {true, []byte("garbage, and not a frame at all")},
			{true, numbered(frameKind(99), 1, none)}, {true, numbered(frameRows, 1, none)}, {true, asks},
		} {
			c := rawPeer(t, path, bad.greets)
			_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // it may not be listened to any more
			_, _ = c.Write(bad.sends)
			if len(bad.sends) == len(asks) {
				greedy = append(greedy, c)
			}
		}
		change(t, client, "a", fmt.Sprint(n))
		require.Equal(t, fmt.Sprint(n), look(t, client, "a"))
		require.Equal(t, fmt.Sprint(n), look(t, server, "a"))
	}
	for _, s := range server.sessions() {
		require.LessOrEqual(t, s.out.size(), maxUnread+size+1000, "answers that nobody reads")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// Each that reads nothing has what waits for it twice: in the writer's hands, and behind.
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(len(greedy)+1)*4*maxUnread)
	if testing.Short() {
		return
	}
	t.Parallel() // only from here on: what others allocate would be in the figures above
	deadline := time.Now().Add(3 * slowClient)
	for _, c := range greedy {
		// The bytes sent before can still be read; the end follows.
		time.Sleep(time.Until(deadline.Add(-2*slowClient + time.Second)))
		require.NoError(t, c.SetReadDeadline(deadline))
		_, err := io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it was not cut off")
	}
	require.Equal(t, "7", look(t, client, "a"))
}

// TestClientIsBounded: snapshots, watches and commits of one client are bounded, and one that has too many is told so.
func TestClientIsBounded(t *testing.T) {
	db := OpenMemory(Options{})
	defer db.Close()
	s := newSession(db.local.Load(), nopConn{})
	answered := func() (kind frameKind) {
		r := frameReader{r: readerOf(s.out), limit: maxFrame}
		for {
			k, _, err := r.next()
			if err != nil {
				return kind
			}
			kind = k
		}
	}
	zero := func(b []byte) []byte { return appendNumbers(b, 0) }
	for id := range uint64(maxSnapshots + 1) {
		f := fields{rest: string(appendNumbers(zero(nil)))}
		require.NoError(t, s.open(id+1, f))
	}
	require.Equal(t, frameFailed, answered(), "a snapshot too many")
	require.Len(t, s.snapshots, maxSnapshots)
	for id := range s.snapshots {
		require.NoError(t, s.handle(frameRelease, fields{rest: string(appendNumbers(nil, id))}))
	}
	require.Zero(t, db.Usage().Transactions)

	baseline := string(make([]byte, kv.MaxValueSize))
	for id := range uint64(maxWatchedBytes/kv.MaxValueSize + 1) {
		f := appendValue(appendText(nil, fmt.Sprintf("k%06d", id)), value{baseline, true})
		require.NoError(t, s.watch(id+1, fields{rest: string(f)}))
	}
	s.mu.Lock()
	require.LessOrEqual(t, s.watched, maxWatchedBytes+kv.MaxValueSize)
	s.mu.Unlock()
}

func (o *outbox) isWriting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writing
}

// closing is a connection that a server closes at the moment at which an outbox sets a deadline.
type closing struct {
	nopConn
	close    func()
	deadline time.Time // the last
}

func (c *closing) SetWriteDeadline(t time.Time) error {
	if begun := c.close; begun != nil {
		c.close = nil
		begun()
	}
	c.deadline = t
	return nil
}

// TestCloseAtTheDeadline: a server that is closed while an outbox sets the deadline of a write waits for that write no
// longer than for others.
func TestCloseAtTheDeadline(t *testing.T) {
	c := &closing{}
	o := newOutbox(c, slowClient)
	c.close = func() { o.limit.Store(int64(closeLimit)) } // as server.close, which has set its deadline by then
	o.put(frameGet, func(b []byte) []byte { return b })
	o.flush()
	require.Less(t, time.Until(c.deadline), 2*closeLimit)
}

// readerOf takes the waiting frames out of an outbox.
func readerOf(o *outbox) io.Reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &buffer{o.waiting}
	o.waiting = nil
	return r
}

type buffer struct{ rest []byte }

func (b *buffer) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// TestCommitsUnderWayAreBounded: a client that sends commits faster than the disk takes them is not listened to until
// some are done. None is lost. A commit of many small mutations counts with their size in memory, and not with the few
// bytes that they take in a frame.
func TestCommitsUnderWayAreBounded(t *testing.T) {
	large, small := []mutation{}, make([]mutation, 100_000)
	for n := range 10 {
		large = append(large, mutation{opSet, fmt.Sprintf("a%d", n), string(make([]byte, kv.MaxValueSize))})
	}
	for n := range small {
		small[n] = mutation{opSet, "", ""}
	}
	t.Run("large", func(t *testing.T) { commitsUnderWay(t, 60, large) })
	t.Run("small", func(t *testing.T) { commitsUnderWay(t, 10, small) })
}

func commitsUnderWay(t *testing.T, commits int, mutations []mutation) {
	t.Helper()
	path := t.TempDir()
	slow := make(chan struct{})
	var begun atomic.Int64
	now := time.Now() // it stands still: no commit is refused because its read version is too old
	server := openHere(t, path, Options{Clock: setClock{&now}, Hooks: Hooks{
		BeforeGroup: func(commits int) { begun.Add(int64(commits)) },
		Apply:       func() error { <-slow; return nil },
	}})
	c := rawPeer(t, path, true)
	last := &commit{mutations: []mutation{{opSet, "last", "1"}}}
	sent := make(chan error, 1)
	m := &commit{mutations: mutations}
	go func() {
		for id := range commits {
			frame := numbered(frameCommit, uint64(id+1), func(b []byte) []byte { return appendCommit(b, m) })
			if _, err := c.Write(frame); err != nil {
				sent <- err
				return
			}
		}
		_, err := c.Write(numbered(frameCommit, uint64(commits+1), func(b []byte) []byte {
			return appendCommit(b, last)
		}))
		sent <- err
	}()
	underWay := func() int64 {
		q := &server.local.Load().queue
		q.mu.Lock()
		defer q.mu.Unlock()
		return (begun.Load() + int64(len(q.waiting))) * m.size()
	}
	var most int64
	require.Eventually(t, func() bool {
		before := most
		most = underWay()
		return most == before && most > maxCommitting/2
	}, time.Minute, 100*time.Millisecond)
	require.LessOrEqual(t, most, int64(maxCommitting))
	select {
	case err := <-sent:
		t.Fatalf("all was taken in: %v", err)
	default:
	}
	close(slow)
	r := frameReader{r: c, limit: maxFrame}
	for range commits + 1 {
		kind, _ := nextAnswer(t, &r)
		require.Equal(t, frameCommitted, kind)
	}
	require.NoError(t, <-sent)
	require.Equal(t, "1", look(t, server, "last"))
}

// impostor has a folder's lock and its socket, and speaks what it likes.
func impostor(t *testing.T, path string, speaks func(c net.Conn)) (leave func()) {
	t.Helper()
	d, err := openDir(path)
	require.NoError(t, err)
	file, err := d.lock()
	require.NoError(t, err)
	require.NoError(t, d.createDatabase()) // a client that finds no file gives up
	lock := &folderLock{file, d}
	l, err := d.listen()
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				speaks(c)
			})
		}
	})
	leave = sync.OnceFunc(func() {
		require.NoError(t, l.Close())
		all.Wait()
		require.NoError(t, lock.Close())
	})
	t.Cleanup(leave)
	return leave
}

// TestServerThatTalksNonsense: a process opens a folder whose server does not speak the protocol. Its error says that
// the folder is in use, where, and why.
func TestServerThatTalksNonsense(t *testing.T) {
	t.Parallel()
	for name, speaks := range map[string]func(c net.Conn){
		"hangs up": func(net.Conn) {},
		"garbage":  func(c net.Conn) { _, _ = c.Write([]byte("220 ready\r\n")) },
		"4 GiB":    func(c net.Conn) { _, _ = c.Write([]byte{0xff, 0xff, 0xff, 0xff, byte(frameWelcome), 1}) },
		"silence":  func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"a later protocol": func(c net.Conn) {
			_, _ = c.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte { return appendNumbers(b, 99) }))
			_, _ = io.Copy(io.Discard, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if (name == "silence" || name == "hangs up") && testing.Short() {
				t.Skip("takes as long as OpenDisk waits for a silent process")
			}
			path := t.TempDir()
			impostor(t, path, speaks)
			begun := time.Now()
			_, err := OpenDisk(path, Options{})
			require.ErrorIs(t, err, ErrLocked)
			require.ErrorContains(t, err, path)
			require.Less(t, time.Since(begun), 12*handshakeLimit)
			if name == "a later protocol" {
				require.ErrorContains(t, err, "another protocol: 99")
			}
		})
	}
}

// TestServerThatTurnsBad: a client whose server begins to talk nonsense drops the connection and tries again, until its
// context ends; nothing panics, and nothing is taken for an answer.
func TestServerThatTurnsBad(t *testing.T) {
	none := func(b []byte) []byte { return b }
	opened := numbered(frameOpened, 1, func(b []byte) []byte { return appendNumbers(b, 7) })
	for name, says := range map[string][]byte{
		"garbage":      []byte("garbage, and not a frame at all"),
		"4 GiB":        {0xff, 0xff, 0xff, 0xff, byte(frameRows), 1},
		"version":      numbered(frameOpened, 1, func(b []byte) []byte { return append(b, 0xff) }),
		"value":        append(opened, numbered(frameValue, 2, func(b []byte) []byte { return append(b, 9, 9, 9) })...),
		"other answer": append(opened, numbered(frameRows, 2, func(b []byte) []byte { return append(b, 0, 0) })...),
		"commit":       numbered(frameCommitted, 1, none),
		"a client's":   numbered(frameHello, 1, none),
		"no code":      numbered(frameFailed, 1, func(b []byte) []byte { return appendText(appendNumbers(b, 0), "") }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var met atomic.Int32
			impostor(t, path, func(c net.Conn) {
				if _, _, err := (&frameReader{r: c, limit: maxHello}).next(); err != nil {
					return
				}
				_, _ = c.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte {
					return appendNumbers(b, protocolVersion)
				}))
				if _, _, err := (&frameReader{r: c, limit: maxFrame}).next(); err != nil {
					return
				}
				if met.Add(1) == 3 {
					cancel()
				}
				_, _ = c.Write(says)
				_, _ = io.Copy(io.Discard, c)
			})
			db := openHere(t, path, Options{})
			_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				if name == "no code" {
					tx.Set([]byte("a"), nil) // the first frame is that of the commit
					return nil
				}
				_, err := tx.Get([]byte("a")).Wait(ctx)
				return err
			})
			require.ErrorIs(t, err, context.Canceled, "it has tried again and again")
		})
	}
}

// TestCloseBesideASilentClient: a client asks for more than the socket holds, and reads nothing, as a process does that
// is stopped. The server that writes to it ends with Close, and not only when the client's time is over.
func TestCloseBesideASilentClient(t *testing.T) {
	path := t.TempDir()
	db := openHere(t, path, Options{})
	change(t, db, "a", string(make([]byte, kv.MaxValueSize)))
	c := rawPeer(t, path, true)
	asks := numbered(frameOpen, 1, func(b []byte) []byte { return appendNumbers(b, 0) })
	for id := range uint64(100) {
		asks = append(asks, numbered(frameGet, id+2, func(b []byte) []byte {
			return appendText(appendNumbers(b, 1), "a")
		})...)
	}
	begun := time.Now() // the client's time begins later
	_, err := c.Write(asks)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		all := db.sessions()
		return len(all) == 1 && all[0].out.isWriting()
	}, time.Minute, time.Millisecond)
	require.NoError(t, db.Close())
	require.Less(t, time.Since(begun), slowClient)
}

// TestNobodyCanServe: the process that served is gone, and no other can open the file. Calls wait a while for one that
// can, and then fail with the reason. They do so also if other processes lock the folder in vain at times. When the
// file can be opened, they are answered.
func TestNobodyCanServe(t *testing.T) {
	for _, crowd := range []bool{false, true} {
		t.Run(fmt.Sprintf("crowd=%t", crowd), func(t *testing.T) {
			t.Parallel()
			nobodyCanServe(t, crowd)
		})
	}
}

func nobodyCanServe(t *testing.T, crowd bool) {
	t.Helper()
	path := t.TempDir()
	inTheWay := filepath.Join(path, fileName)
	require.NoError(t, os.Symlink(inTheWay, inTheWay)) // ELOOP for each process that opens it
	ctx, end := context.WithCancel(t.Context())
	defer end()
	leave := impostor(t, path, func(c net.Conn) {
		// The client may come again before the impostor has left.
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		if _, _, err := (&frameReader{r: c, limit: maxHello}).next(); err != nil {
			return
		}
		_, _ = c.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte {
			return appendNumbers(b, protocolVersion)
		}))
		_, _ = io.Copy(io.Discard, c)
	})
	db := openHere(t, path, Options{})
	if crowd {
		lockInVain(t, path)
	}
	end()
	leave()
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := kv.Run(patient, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		_, err := tx.Get([]byte("a")).Wait(patient)
		return err
	})
	require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	require.ErrorContains(t, err, inTheWay)
	made := t.TempDir() // a client makes no file
	require.NoError(t, openHere(t, made, Options{}).Close())
	require.NoError(t, os.Rename(filepath.Join(made, fileName), inTheWay))
	require.Eventually(t, db.Serves, time.Minute, time.Millisecond)
	change(t, db, "a", "1")
	require.Equal(t, "1", look(t, db, "a"))
}

// lockInVain has the folder's lock for half of the time until the test ends, as clients that try to open the folder and
// cannot.
func lockInVain(t *testing.T, path string) {
	t.Helper()
	d, err := openDir(path)
	require.NoError(t, err)
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			file, err := d.lock()
			time.Sleep(lastRetry)
			if err == nil {
				_ = file.Close()
			}
			select {
			case <-time.After(lastRetry):
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		all.Wait()
		require.NoError(t, d.Close())
	})
}

// mute is a server that greets a client, and then answers nothing until ctx ends. asked gets a value for each frame.
func mute(ctx context.Context, asked chan<- frameKind) func(c net.Conn) {
	return func(c net.Conn) {
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		if _, _, err := (&frameReader{r: c, limit: maxHello}).next(); err != nil {
			return
		}
		_, _ = c.Write(appendFrame(nil, frameWelcome, func(b []byte) []byte {
			return appendNumbers(b, protocolVersion)
		}))
		for r := (frameReader{r: c, limit: maxFrame}); ; {
			kind, _, err := r.next()
			if err != nil {
				return
			}
			asked <- kind
		}
	}
}

// TestServerAndFolderAreGone: a commit was sent to a process that has ended since, and its folder was removed. The
// commit ends after a while, although the folder's lock cannot prove that it has landed or never will.
func TestServerAndFolderAreGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	require.NoError(t, os.Mkdir(path, 0o700))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	asked := make(chan frameKind, 10)
	leave := impostor(t, path, mute(ctx, asked))
	db := openHere(t, path, Options{})
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := kv.Run(patient, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set([]byte("a"), nil)
			return nil
		})
		ended <- err
	}()
	for kind := range asked {
		if kind == frameCommit {
			break
		}
	}
	require.NoError(t, os.RemoveAll(path))
	end()
	leave()
	err := <-ended
	require.NoError(t, patient.Err())
	require.True(t, kv.MaybeCommitted(err), "%v", err)
	require.ErrorIs(t, err, fs.ErrNotExist)
	var e *kv.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.InFlight)
}

// TestCommitGivenUpBeforeItIsSent: the connection to the server has ended, and commits wait for another server. One
// that was given up in that time is not sent to it. Otherwise a transaction that only writes could land at any time.
func TestCommitGivenUpBeforeItIsSent(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var hangsUp atomic.Bool
	leave := impostor(t, path, func(c net.Conn) {
		if !hangsUp.Load() {
			mute(ctx, make(chan frameKind, 10))(c)
		}
	})
	db := openHere(t, path, Options{})
	hangsUp.Store(true)
	end()
	require.Eventually(t, func() bool {
		c, _, err := db.link.now()
		return c == nil && err == nil
	}, time.Minute, time.Millisecond)
	commit := func(key string) (kv.ManagedTx, kv.Future[struct{}]) {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		tx.Set([]byte(key), []byte("1"))
		return tx, tx.Commit()
	}
	ways := map[string]func(tx kv.ManagedTx, committed kv.Future[struct{}]){
		"cancelled": func(tx kv.ManagedTx, _ kv.Future[struct{}]) { tx.Cancel() },
		"reset":     func(tx kv.ManagedTx, _ kv.Future[struct{}]) { tx.Reset() },
		"future":    func(_ kv.ManagedTx, committed kv.Future[struct{}]) { committed.Cancel() },
		"end of a context": func(_ kv.ManagedTx, committed kv.Future[struct{}]) {
			_, err := committed.Wait(ctx)
			require.ErrorIs(t, err, context.Canceled)
		},
	}
	for key, giveUp := range ways {
		giveUp(commit(key))
	}
	_, committed := commit("kept")
	db.link.mu.Lock()
	require.Len(t, db.link.waiting, len(ways)+1)
	db.link.mu.Unlock()
	leave()
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := committed.Wait(patient) // behind the others
	require.NoError(t, err)
	for key := range ways {
		require.Empty(t, look(t, db, key), key)
	}
	require.Equal(t, "1", look(t, db, "kept"))
}

// TestFolderIsNotReadAgainAndAgain: a process that could not open the folder rests before it tries again, because each
// try reads the file. It rests longer each time, and tries again at once when the file has changed.
func TestFolderIsNotReadAgainAndAgain(t *testing.T) {
	path := t.TempDir()
	name := filepath.Join(path, fileName)
	require.NoError(t, os.WriteFile(name, []byte("not a database"), 0o600))
	d, err := openDir(path)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	f := &folder{path: path, is: d.info, options: Options{}.withDefaults()}
	l := newLink(newDB(f.options), f)
	tried := func() bool { // an attempt makes a socket, which changes the folder
		before, err := os.Stat(path)
		require.NoError(t, err)
		time.Sleep(20 * time.Millisecond) // more than a step of a file system's clock
		_, _, err = f.join(t.Context(), l)
		require.ErrorIs(t, err, ErrCorrupt)
		after, err := os.Stat(path)
		require.NoError(t, err)
		return !after.ModTime().Equal(before.ModTime())
	}
	require.True(t, tried())
	l.rest.until = time.Now().Add(time.Minute) // the machine may be busy
	require.False(t, tried())
	require.NoError(t, os.WriteFile(name, []byte("no database either"), 0o600))
	require.True(t, tried())
	l.rest.until = time.Now()
	require.True(t, tried())

	var r rest
	tries := 0
	synctest.Test(t, func(*testing.T) {
		for begun := time.Now(); time.Since(begun) < time.Hour; time.Sleep(lastRetry) {
			if !r.lasts(sign{}) {
				tries++
				r.after(ErrCorrupt, sign{})
			}
			if time.Since(begun) == 2*time.Second {
				assert.LessOrEqual(t, tries, 5)
			}
		}
	})
	require.InDelta(t, time.Hour/lastPause, tries, 5)
}

// TestNoTemporaryFolder: a client needs a temporary folder for a long path, and its own process has none. That is no
// fault of the process that serves: the error is not ErrLocked, and says where to look. A client that has lost its
// connection tells the same after a while, and works again when there is a temporary folder.
func TestNoTemporaryFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath))
	server := openHere(t, path, Options{})
	client := openHere(t, path, Options{})
	change(t, client, "a", "1")
	temporary := os.TempDir()
	t.Setenv("TMPDIR", filepath.Join(path, "none"))
	_, err := OpenDisk(path, Options{})
	require.ErrorContains(t, err, "TMPDIR")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotErrorIs(t, err, ErrLocked)
	for _, s := range server.sessions() {
		require.NoError(t, s.Close())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = kv.Run(ctx, client, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		_, err := tx.Get([]byte("a")).Wait(ctx)
		return err
	})
	require.Equal(t, kv.CodeIOError, kv.Code(err), "%v", err)
	require.ErrorContains(t, err, "TMPDIR")
	t.Setenv("TMPDIR", temporary)
	connected := func() bool {
		_, _, err := client.link.now()
		return err == nil
	}
	require.Eventually(t, connected, time.Minute, time.Millisecond)
	require.Equal(t, "1", look(t, client, "a"))
}

// TestNoSocket: where no socket can be made, as on some file systems, a folder belongs to its first process. The others
// are told so; nothing is lost, and a later one has it.
func TestNoSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(path, socketName, "in the way"), 0o700))
	first, err := OpenDisk(path, Options{})
	require.NoError(t, err)
	change(t, first, "a", "1")
	_, err = OpenDisk(path, Options{})
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, path)
	require.Equal(t, "1", look(t, first, "a"))
	require.NoError(t, first.Close())
	require.Equal(t, "1", look(t, openHere(t, path, Options{}), "a"))
}

// TestConnectionThatWasGivenUp: a client that waits long for an opening gives up its connection and makes another one.
// The server may read the first one's hello later than the second one's. It sends the first connection away, and the
// second one stays.
func TestConnectionThatWasGivenUp(t *testing.T) {
	path := t.TempDir()
	openHere(t, path, Options{})
	hello := appendFrame(nil, frameHello, func(b []byte) []byte {
		return append(appendNumbers(appendText(b, protocolMagic), protocolVersion), make([]byte, len(clientID{}))...)
	})
	first, second := rawPeer(t, path, false), rawPeer(t, path, false)
	_, err := second.Write(hello)
	require.NoError(t, err)
	r := frameReader{r: second, limit: maxHello}
	kind, _, err := r.next()
	require.NoError(t, err)
	require.Equal(t, frameWelcome, kind)
	if _, err = first.Write(hello); err != nil {
		require.ErrorIs(t, err, syscall.EPIPE) // a slow machine: it was sent away for its silence
	}
	requireCut(t, first, time.Minute)
	_, err = second.Write(numbered(frameOpen, 1, func(b []byte) []byte { return appendNumbers(b, 0) }))
	require.NoError(t, err)
	require.NoError(t, second.SetReadDeadline(time.Now().Add(time.Minute)))
	kind, _ = nextAnswer(t, &r)
	require.Equal(t, frameOpened, kind)
}

// TestUnreadableSnapshot: the page in which a new snapshot begins cannot be read. The snapshot is refused, and the
// process lives on. Its transaction of the file can be ended.
func TestUnreadableSnapshot(t *testing.T) {
	path := t.TempDir()
	db := openHere(t, path, Options{Exclusive: true})
	change(t, db, "a", "1")
	s, ok := db.local.Load().store.(*diskStore)
	require.True(t, ok)
	tx, err := s.file.Begin(false)
	require.NoError(t, err)
	v := &diskView{tx: tx}
	defer v.close()
	require.NoError(t, os.Truncate(filepath.Join(path, fileName), 0))
	var unread *pageFault
	require.ErrorAs(t, v.findData(), &unread)
}

// TestTornUpdate: a page that is cut off while a commit is written ends the commit with an error, whose outcome is
// unknown, and not the process. Close says that the file stays locked.
func TestTornUpdate(t *testing.T) {
	path := t.TempDir()
	db, err := OpenDisk(path, Options{Exclusive: true})
	require.NoError(t, err)
	change(t, db, "a", "1")
	s, ok := db.local.Load().store.(*diskStore)
	require.True(t, ok)
	err = s.update(func(tx *bbolt.Tx) error {
		require.NoError(t, os.Truncate(filepath.Join(path, fileName), 0))
		return tx.Bucket(dataBucket).Put(diskKey("a"), []byte("2"))
	})
	var unread *pageFault
	require.ErrorAs(t, err, &unread)
	var un *unwritten
	require.NotErrorAs(t, err, &un)
	_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("a"), []byte("3"))
		return nil
	})
	require.ErrorContains(t, err, "was truncated while it was open")
	require.ErrorContains(t, db.Close(), "stays locked until this process ends")
}

// TestTornStoreIsGivenUp: a page could not be read while bbolt held its locks. The file is whole again, and still each
// call of the store fails at once. It does not wait for those locks.
func TestTornStoreIsGivenUp(t *testing.T) {
	path := t.TempDir()
	db, err := OpenDisk(path, Options{Exclusive: true})
	require.NoError(t, err)
	change(t, db, "a", "1")
	name := filepath.Join(path, fileName)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	s, ok := db.local.Load().store.(*diskStore)
	require.True(t, ok)
	err = s.update(func(tx *bbolt.Tx) error {
		require.NoError(t, os.Truncate(name, 0))
		return tx.Bucket(dataBucket).Put(diskKey("a"), []byte("2"))
	})
	var unread *pageFault
	require.ErrorAs(t, err, &unread)
	require.NoError(t, os.WriteFile(name, whole, 0o600))
	ended := make(chan error, 2)
	go func() {
		ended <- s.apply(2*firstVersion, []mutation{{opSet, "a", "3"}})
		_, err := s.snapshot()
		ended <- err
	}()
	for i := range 2 {
		select {
		case err := <-ended:
			require.ErrorContains(t, err, "stays locked until this process ends")
			var un *unwritten
			require.Equal(t, i == 0, errors.As(err, &un), "a commit that has failed has written nothing")
		case <-time.After(time.Minute):
			require.Fail(t, "the call has not ended")
		}
	}
	require.ErrorContains(t, db.Close(), "stays locked until this process ends")
}
