//go:build linux || darwin

package layer_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/linear"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	callerProcesses = 3
	callersInEach   = 3
	// processReady tells that a process has the folder open.
	processReady = "ready to call\n"
)

// TestLinearizableProcesses: what callers in several processes are told at the same time, each group could have told
// them one after the other, although the process that serves the folder is killed under them, and another of them takes
// over. All have faults, as in TestLinearizable. The order of the calls, and the clock, are in memory that all share.
func TestLinearizableProcesses(t *testing.T) {
	t.Parallel()
	requireLinear(t, 1, callFromProcesses)
}

// callerOrders is what a process of TestLinearizableProcesses is told.
type callerOrders struct {
	Folder string
	Shared string // the file of sharedClock
	Sort   callersSort
	Seed   uint64
	First  int    // number of the first caller; -1: it only serves
	Told   string // where its history goes
}

// sharedClock is memory that processes share: the stamp that orders the calls, and the clock in ms.
func sharedClock(t *testing.T, name string) (stamp, ms *atomic.Int64) {
	t.Helper()
	const size = 16
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	m, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(m)) })
	both := (*[2]atomic.Int64)(unsafe.Pointer(&m[0]))
	return &both[0], &both[1]
}

// callFromProcesses is one run: a process serves, others call, the first is killed when a part of the calls is made.
func callFromProcesses(t *testing.T, sort callersSort, seed uint64) linear.Result {
	t.Helper()
	dir := t.TempDir()
	o := callerOrders{
		Folder: filepath.Join(dir, "db"), Shared: filepath.Join(dir, "clock"), Sort: sort, Seed: seed, First: -1,
	}
	stamp, ms := sharedClock(t, o.Shared)
	ms.Store(newClock().ms.Load())
	server := startCallers(t, o)
	e := newEnv(t, func(t *testing.T) kv.DB {
		db := openFolder(t, o.Folder)
		require.Zero(t, db.Usage().FileSize, "another process serves")
		return db
	}, false)
	e.clock.ms = ms
	e.callable(sort)
	var processes []*callerProcess
	for n := range callerProcesses {
		o.First, o.Seed, o.Told = n*callersInEach, seed+uint64(n)<<32, filepath.Join(dir, fmt.Sprint("history", n))
		processes = append(processes, startCallers(t, o))
	}
	for _, p := range processes {
		p.goOn()
	}
	// A call has two stamps.
	const stamps = 2 * callerProcesses * callersInEach * callsEach
	killAt := int64(seed % stamps)
	// A turn that finds nothing to call for has none, so the last stamps may never be reached.
	due := func() bool { return stamp.Load() >= killAt || haveEnded(processes) }
	alive, stop := untilStill(t.Context(), stamp.Load)
	defer stop()
	for !due() && alive.Err() == nil {
		time.Sleep(200 * time.Microsecond)
	}
	require.NoError(t, alive.Err(), "no call is made any more")
	require.NoError(t, server.Process.Kill())
	<-server.ended
	require.Error(t, server.err)
	h := &linear.History{Stamp: stamp}
	for _, p := range processes {
		<-p.ended
		require.NoError(t, p.err, "%s", &p.output)
		var told map[string][]linear.Operation
		text, err := os.ReadFile(p.orders.Told)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &told))
		for group, all := range told {
			for _, one := range all {
				h.Add(group, one)
			}
		}
	}
	return e.judge(h, sort)
}

// callerProcess is a process that startCallers has started.
type callerProcess struct {
	*exec.Cmd
	t      *testing.T
	orders callerOrders
	in     io.Writer
	ready  chan struct{}
	ended  chan struct{}
	// Valid once ended is closed.
	output bytes.Buffer
	err    error
}

// haveEnded reports whether all the processes have.
func haveEnded(all []*callerProcess) bool {
	for _, p := range all {
		select {
		case <-p.ended:
		default:
			return false
		}
	}
	return true
}

// Write takes the output of the process.
func (p *callerProcess) Write(b []byte) (int, error) {
	before := bytes.Contains(p.output.Bytes(), []byte(processReady))
	n, err := p.output.Write(b)
	if !before && bytes.Contains(p.output.Bytes(), []byte(processReady)) {
		close(p.ready)
	}
	return n, err
}

// goOn lets the process begin.
func (p *callerProcess) goOn() {
	_, err := io.WriteString(p.in, "go\n")
	require.NoError(p.t, err)
}

// startCallers starts this program once more, as TestCallerProcess alone, and waits until it is ready.
func startCallers(t *testing.T, o callerOrders) *callerProcess {
	t.Helper()
	orders, err := json.Marshal(o)
	require.NoError(t, err)
	p := &callerProcess{
		Cmd: exec.Command(os.Args[0], "-test.run", "^TestCallerProcess$"), t: t, orders: o,
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	p.Env = append(os.Environ(), callerMark+"="+string(orders))
	p.Stdout, p.Stderr = p, p
	p.in, err = p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // it has ended, if nothing went wrong
		<-p.ended
	})
	select {
	case <-p.ready:
	case <-p.ended:
		t.Fatalf("process %d: %v: %s", o.First, p.err, &p.output)
	}
	return p
}

// callerMark, in the environment, is the orders of a process that TestLinearizableProcesses has started.
const callerMark = "FDBFIFO_CALLERS"

// TestCallerProcess is a process of TestLinearizableProcesses, and nothing without its orders.
func TestCallerProcess(t *testing.T) {
	text := os.Getenv(callerMark)
	if text == "" {
		t.Skip("of TestLinearizableProcesses, which starts it")
	}
	var o callerOrders
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	db := openFolder(t, o.Folder)
	defer db.Close()
	stamp, ms := sharedClock(t, o.Shared)
	e := &env{t: t, ctx: t.Context(), raw: db, clock: &clock{ms: ms}, seed: o.Seed, plan: roughPlan(o.Seed)}
	if o.First >= 0 {
		// The queue is there: the process before has made it.
		_, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(1))
		require.NoError(t, err)
	}
	fmt.Print(processReady)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || o.First < 0 {
		return
	}
	h := &linear.History{Stamp: stamp}
	e.callTogether(h, o.Sort, o.First, callersInEach)
	told, err := json.Marshal(h.Groups())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(o.Told, told, 0o600))
}
