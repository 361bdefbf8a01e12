package layer_test

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Only this file names the engines of the tests. fdbkv/layertest has the same tests, with another file in this place
// for a FoundationDB cluster.

type engine struct {
	name   string
	open   func(t *testing.T) kv.DB // an empty one; newEnv closes it
	faults bool
}

var socketFlag = flag.Bool("layer.socket", false, "every test through a socket, on a folder that another DB serves")

var engineFlag = flag.String("layer.engine", "", "the only engine of the tests that run on each engine")

func engines() []engine {
	all := []engine{{"memory", anyEngine, false}, {"memory with faults", recovering, true}, {"disk", disk, false}}
	if *socketFlag {
		all = []engine{{"socket", socket, false}, {"socket with faults", socket, true}}
	}
	if *engineFlag == "" {
		return all
	}
	chosen := slices.DeleteFunc(all, func(e engine) bool { return e.name != *engineFlag })
	if len(chosen) == 0 {
		panic(fmt.Sprintf("-layer.engine: no engine %q", *engineFlag))
	}
	return chosen
}

// replay is the command that runs a test again with the same choices and faults.
func replay(t *testing.T, seed uint64) string {
	command := fmt.Sprintf("go test ./layer/layertest -run '^%s$' -layer.seed %d", t.Name(), seed)
	if *socketFlag {
		command += " -layer.socket"
	}
	return command
}

// anyEngine opens the engine for tests that one is enough for.
func anyEngine(t *testing.T) kv.DB {
	if *socketFlag {
		return socket(t)
	}
	return embedded.OpenMemory(embedded.Options{Clock: new(patientClock)})
}

// calmly runs a test that a pause of the process could make fail: in virtual time, on an engine in memory. A socket
// needs real time. open is the engine to use.
func calmly(t *testing.T, test func(t *testing.T, open func(t *testing.T) kv.DB)) {
	if *socketFlag {
		test(t, socket)
		return
	}
	synctest.Test(t, func(t *testing.T) { test(t, inMemory) })
}

// tooSlow reports whether the engine has ended a transaction because the machine was too slow for it. In virtual time
// it never is.
func tooSlow(err error) bool { return *socketFlag && kv.Code(err) == kv.CodeTransactionTooOld }

// patientClock is the machine's clock, but a pause of the process counts as two seconds. So no transaction that a test
// holds open becomes too old by a pause. It is not for virtual time.
type patientClock struct {
	mu        sync.Mutex
	real, now time.Time // guarded by mu
}

func (c *patientClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.now.IsZero() {
		c.real, c.now = now, now
	}
	c.now = c.now.Add(min(now.Sub(c.real), 2*time.Second))
	c.real = now
	return c.now
}

func (*patientClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// recovering opens an engine that does what a cluster does whose servers die: now and then the versions jump, by 100
// seconds' worth, and a transaction under way is too old; and a watch may be late.
func recovering(*testing.T) kv.DB {
	groups, due := 0, 0
	return embedded.OpenMemory(embedded.Options{Clock: new(patientClock), Hooks: embedded.Hooks{
		VersionGap: func() int64 {
			if groups++; groups%100 > 0 {
				return 0
			}
			return 100_000_000
		},
		HoldWatches: func() bool {
			due++
			return due%10 == 0
		},
	}})
}

func disk(t *testing.T) kv.DB { return openFolder(t, t.TempDir()) }

// socket opens a folder that another DB serves: all that the test does goes over a socket.
func socket(t *testing.T) kv.DB {
	path := t.TempDir()
	server := openFolder(t, path)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	client := openFolder(t, path)
	require.Zero(t, client.Usage().FileSize, "the other DB has the file")
	return client
}

func openFolder(t *testing.T, path string) *embedded.DB {
	db, err := embedded.OpenDisk(path, embedded.Options{Clock: new(patientClock)})
	require.NoError(t, err)
	return db
}
