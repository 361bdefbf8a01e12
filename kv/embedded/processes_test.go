//go:build linux || darwin

package embedded_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/kvtest"
	"fdbfifo/kv/kvtest/history"
)

var (
	seedFlag  = flag.Uint64("embedded.seed", 0, "seed of TestProcesses; 0 = of SEED")
	killsFlag = flag.Int("embedded.kills", 6, "processes that TestProcesses kills or stops")
)

// troupe is the processes that work together in a folder, and the lines that they have printed.
type troupe struct {
	t      *testing.T
	folder string

	mu       sync.Mutex // guards the fields below
	members  []*member
	lives    int
	outcome  map[string]map[int]string // of each worker and transaction, the last one that it printed
	done     []line
	broken   []string
	finished int
}

type member struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	read    chan struct{} // closed when all that was told is read
	serving bool          // guarded by the troupe's mutex
	stderr  bytes.Buffer
}

func (r *troupe) start() *member {
	r.t.Helper()
	r.mu.Lock()
	r.lives++
	life := r.lives
	r.mu.Unlock()
	m := &member{cmd: exec.Command(os.Args[0], fmt.Sprint(life)), read: make(chan struct{})}
	m.cmd.Env = append(os.Environ(), shareFolder+"="+r.folder)
	m.cmd.Stderr = &m.stderr
	in, err := m.cmd.StdinPipe()
	require.NoError(r.t, err)
	m.stdin = in
	out, err := m.cmd.StdoutPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, m.cmd.Start())
	r.mu.Lock()
	r.members = append(r.members, m)
	r.mu.Unlock()
	go func() {
		defer close(m.read)
		_ = readLines(out, func(l line) { r.see(m, l) }) // a pipe of a killed process
	}()
	return m
}

func (r *troupe) see(m *member, l line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch l.what {
	case toldServing:
		m.serving = true
	case toldBroken:
		r.broken = append(r.broken, l.text)
	case toldFinish:
		r.finished++
	default:
		if r.outcome[l.worker] == nil {
			r.outcome[l.worker] = map[int]string{}
		}
		r.outcome[l.worker][l.n] = l.what
		if l.what == toldDone {
			r.done = append(r.done, l)
		}
	}
}

// server returns the member that serves, when there is one.
func (r *troupe) server() *member {
	r.t.Helper()
	var found *member
	require.Eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, m := range r.members {
			if m.serving {
				found = m
			}
		}
		return found != nil
	}, patience, time.Millisecond)
	return found
}

// kill ends a member with SIGKILL, and forgets it.
func (r *troupe) kill(m *member) {
	r.t.Helper()
	require.NoError(r.t, m.cmd.Process.Kill())
	<-m.read
	require.Error(r.t, m.cmd.Wait())
	require.Empty(r.t, m.stderr.String())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = slices.DeleteFunc(r.members, func(o *member) bool { return o == m })
}

// progress waits until so many transactions more are done.
func (r *troupe) progress(n int) {
	r.t.Helper()
	r.mu.Lock()
	from := len(r.done)
	r.mu.Unlock()
	require.Eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.done) >= from+n || len(r.broken) > 0
	}, patience, time.Millisecond)
}

// firstAfter returns how long after a moment the first transaction that began behind that was done.
func (r *troupe) firstAfter(at time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := time.Duration(1<<63 - 1)
	for _, l := range r.done {
		if l.at[1] > at.UnixNano() {
			first = min(first, time.Duration(l.at[2]-at.UnixNano()))
		}
	}
	return first
}

// finish lets all members end by themselves.
func (r *troupe) finish() {
	r.t.Helper()
	for _, m := range r.members {
		require.NoError(r.t, m.stdin.Close())
	}
	for _, m := range r.members {
		<-m.read
		require.NoError(r.t, m.cmd.Wait(), "%s", &m.stderr)
	}
	require.Equal(r.t, len(r.members), r.finished)
}

// Processes work together in a folder while the one that serves, or another, is killed or stopped at any moment.
// Acknowledged commits are there. Unknown commits are there once and whole, or not at all. Failed commits are not. The
// sums and the total that all add to agree.
func TestProcesses(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = seeds.Of(t.Name())
	}
	random := rand.New(rand.NewPCG(seed, 1))
	r := &troupe{t: t, folder: t.TempDir(), outcome: map[string]map[int]string{}}
	t.Cleanup(func() {
		for _, m := range r.members {
			_ = m.cmd.Process.Kill() // it has ended, if nothing went wrong
		}
	})
	for range 3 {
		r.start()
	}
	var takeovers []time.Duration
	for range *killsFlag {
		r.progress(1 + random.IntN(60))
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
		server := r.server()
		switch random.IntN(4) {
		case 0:
			m := r.members[random.IntN(len(r.members))]
			r.kill(m)
			r.start()
		case 1:
			require.NoError(t, server.cmd.Process.Signal(syscall.SIGSTOP))
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			require.NoError(t, server.cmd.Process.Signal(syscall.SIGCONT))
		default:
			at := time.Now()
			r.kill(server)
			r.progress(5)
			takeovers = append(takeovers, r.firstAfter(at))
			r.start()
		}
	}
	r.progress(20)
	r.finish()
	require.Empty(t, r.broken, "seed %d", seed)
	there, unknown := r.check()
	slices.Sort(takeovers)
	t.Logf("seed %d: %d transactions, %d of them of unknown outcome, takeovers %v", seed, there, unknown, takeovers)
}

// check compares the content of the folder with the lines that the processes printed.
func (r *troupe) check() (there, unknown int) {
	t := r.t
	db := openDisk(t, r.folder, embedded.Options{})
	tx := begin(t, db)
	for worker, outcomes := range r.outcome {
		tx.Reset()
		found := 0
		for n, what := range outcomes {
			keys := 0
			for i := range togetherKeys {
				if wait(t, tx.Get(togetherKey(i, worker, n))) != nil {
					keys++
				}
			}
			switch what {
			case toldDone:
				require.Equal(t, togetherKeys, keys, "%s %d was acknowledged", worker, n)
			case toldNot:
				require.Zero(t, keys, "%s %d failed", worker, n)
			default:
				require.Contains(t, []int{0, togetherKeys}, keys, "%s %d is whole or absent", worker, n)
				unknown++
			}
			if keys > 0 {
				found++
			}
		}
		require.Equal(t, found, number(wait(t, tx.Get(sumKey(worker)))), "sum of %s", worker)
		there += found
	}
	require.Equal(t, there, number(wait(t, tx.Get(totalKey))), "total")
	return there, unknown
}

func number(b []byte) int {
	if len(b) != 8 {
		return 0
	}
	return int(binary.LittleEndian.Uint64(b))
}

// While the process that serves is stopped, a call waits no longer than its context or time-out allows. Then all calls
// continue. A commit that was given up is there or not.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	r := &troupe{t: t, folder: t.TempDir(), outcome: map[string]map[int]string{}}
	server := r.start()
	r.server()
	db := openDisk(t, r.folder, embedded.Options{})
	put(t, db, "a", "1")
	running := begin(t, db)
	require.Equal(t, "1", string(wait(t, running.Get([]byte("a")))))

	require.NoError(t, server.cmd.Process.Signal(syscall.SIGSTOP))
	defer server.cmd.Process.Kill()
	var status syscall.WaitStatus // all threads of a process stop a moment later
	_, err := syscall.Wait4(server.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped(), "%v", status)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	_, err = running.Get([]byte("b")).Wait(ctx)
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("a"), []byte("2"))
		time.AfterFunc(time.Second, cancel) // the commit is on its way by then
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	var e *kv.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.InFlight)
	_, err = kv.Run(t.Context(), db, kv.TxOptions{Timeout: 50 * time.Millisecond},
		func(tx kv.Tx, _ kv.Attempt) error {
			_, err := tx.Get([]byte("a")).Wait(t.Context())
			return err
		})
	require.Equal(t, kv.CodeTransactionTimedOut, kv.Code(err))
	require.Less(t, time.Since(begun), patience)

	require.NoError(t, server.cmd.Process.Signal(syscall.SIGCONT))
	require.Contains(t, []string{"1", "2"}, read(t, db, "a"))
	put(t, db, "a", "3")
	require.Equal(t, "3", read(t, db, "a"))
	r.kill(server)
	_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get([]byte("a")).Wait(t.Context())
		require.True(t, err != nil || string(v) == "3", "%s", v)
		return err
	})
	require.NoError(t, err)
	require.Positive(t, db.Usage().FileSize, "this process has taken over")
}

// served opens a DB of a folder that another process has open, and returns what makes the clocks of both jump.
func served(t testing.TB, o embedded.Options) (*embedded.DB, func(time.Duration)) {
	t.Helper()
	clock := &jumpClock{}
	o.Clock = clock
	db, child := servedBy(t, o)
	return db, func(d time.Duration) {
		child.tell(d.String())
		child.hear(d.String())
		clock.Advance(d)
	}
}

// servedBy opens a DB of a folder that another process has open.
func servedBy(t testing.TB, o embedded.Options) (*embedded.DB, *process) {
	t.Helper()
	path := t.TempDir()
	child := startProcess(t, path, servesOnly)
	t.Cleanup(child.finish)
	child.hear(toldServing)
	db, err := embedded.OpenDisk(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.Zero(t, db.Usage().FileSize, "the other process has the file")
	return db, child
}

// Every promise of kv holds when another process has the database.
func TestConformanceProcess(t *testing.T) {
	t.Parallel()
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		db, advance := served(t, embedded.Options{MaxWatches: 100})
		return kvtest.Engine{DB: db, ExactConflicts: true, Advance: advance, MaxWatches: 100}
	})
}

// A database in another process gives the answers that a cluster has given.
func TestHistoriesProcess(t *testing.T) {
	t.Parallel()
	db, _ := servedBy(t, embedded.Options{Clock: &history.Clock{}, Seed: 1})
	for seed := uint64(1); seed <= history.Seeds; seed++ {
		requireHistory(t, db, seed)
	}
}

func requireHistory(t *testing.T, db kv.DB, seed uint64) {
	t.Helper()
	want, err := history.Read("../kvtest/history/testdata", seed)
	require.NoError(t, err)
	got, err := history.Play(t.Context(), db, seed)
	require.NoError(t, err)
	require.NoError(t, history.Compare(got, want), "seed %d", seed)
}

// lateDB calls late before a transaction's commit is sent.
type lateDB struct {
	kv.DB
	late func()
}

type lateTx struct {
	kv.ManagedTx
	kv.ConflictReporter
	late func()
}

func (db lateDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	return &lateTx{tx, tx.(kv.ConflictReporter), db.late}, nil
}

func (tx *lateTx) Commit() kv.Future[struct{}] {
	tx.late()
	return tx.ManagedTx.Commit()
}

// A history of a process that stands still for six seconds, in the middle of its transactions, is the same: none of
// them is too old for that.
func TestHistoriesOfALateProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("a transaction takes more than five seconds")
	}
	t.Parallel()
	db, child := servedBy(t, embedded.Options{Clock: &history.Clock{}, Seed: 1})
	commits := 0
	requireHistory(t, lateDB{db, func() {
		if commits++; commits != 4 {
			return
		}
		require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
		time.Sleep(6 * time.Second)
		require.NoError(t, child.Process.Signal(syscall.SIGCONT))
	}}, 9)
	require.GreaterOrEqual(t, commits, 4)
}
