package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// crashFolder names the folder in which this binary, started by TestCrash, is to write until it is killed.
const crashFolder = "EMBEDDED_CRASH_FOLDER"

// shareFolder names the folder in which this binary, started by TestProcesses, is to work together with others.
const shareFolder = "EMBEDDED_SHARE_FOLDER"

func TestMain(m *testing.M) {
	if path := os.Getenv(shareFolder); path != "" {
		if err := workTogether(path, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if path := os.Getenv(crashFolder); path != "" {
		if err := writeUntilKilled(path, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	crashWriters = 8
	crashKeys    = 5 // of one transaction, far apart
)

// writeUntilKilled commits in several goroutines and prints each transaction's name and version once its commit is
// acknowledged. A transaction writes its name under crashKeys keys, and clears those of the one before the last.
func writeUntilKilled(path, life string) error {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	if err != nil {
		return err
	}
	var out sync.Mutex
	failed := make(chan error)
	for w := range crashWriters {
		go func() {
			for n := 0; ; n++ {
				tx, err := db.Begin(kv.TxOptions{})
				if err != nil {
					failed <- err
					return
				}
				name := fmt.Sprintf("%s.%d.%d", life, w, n)
				for i := range crashKeys {
					tx.Set(crashKey(i, name), append(make([]byte, 300), name...))
					tx.Clear(crashKey(i, fmt.Sprintf("%s.%d.%d", life, w, n-2)))
				}
				if _, err := tx.Commit().Wait(context.Background()); err != nil {
					failed <- err
					return
				}
				version, err := tx.CommittedVersion()
				if err != nil {
					failed <- err
					return
				}
				out.Lock()
				fmt.Println(name, version)
				out.Unlock()
			}
		}()
	}
	return <-failed
}

func crashKey(i int, name string) []byte { return fmt.Appendf(nil, "%d/%s", i, name) }

// A process killed in the middle of commits leaves every acknowledged transaction, every other whole or not at
// all, and versions that go on above all that were given out.
func TestCrash(t *testing.T) {
	path := t.TempDir()
	newest := int64(0)
	for life := range 4 {
		acknowledged := runUntilKilled(t, path, strconv.Itoa(life), 150+100*life)
		db, err := embedded.OpenDisk(path, embedded.Options{})
		require.NoError(t, err)
		tx := begin(t, db)
		version := wait(t, tx.ReadVersion())
		last := map[string]int{} // of each writer
		for _, a := range acknowledged {
			require.Less(t, a.version, version)
			require.Greater(t, a.version, newest)
			last[a.writer] = a.n
		}
		newest = version
		for writer, n := range last {
			// n was acknowledged; n+1 may have been committed, and then has cleared n-1.
			require.Equal(t, crashKeys, keysOf(t, tx, writer, n), "%s.%d was acknowledged", writer, n)
			next := keysOf(t, tx, writer, n+1)
			require.Contains(t, []int{0, crashKeys}, next, "%s.%d is whole or absent", writer, n+1)
			if n > 0 {
				require.Equal(t, crashKeys-next, keysOf(t, tx, writer, n-1), "cleared by %d", n+1)
			}
			require.Zero(t, keysOf(t, tx, writer, n+2), "never sent")
			if n > 1 {
				require.Zero(t, keysOf(t, tx, writer, n-2), "cleared by %d", n)
			}
		}
		require.NoError(t, db.Close())
	}
}

func keysOf(t *testing.T, tx kv.Tx, writer string, n int) int {
	t.Helper()
	found := 0
	for i := range crashKeys {
		if wait(t, tx.Get(crashKey(i, fmt.Sprintf("%s.%d", writer, n)))) != nil {
			found++
		}
	}
	return found
}

type acknowledgement struct {
	writer  string // life and writer
	n       int
	version int64
}

// runUntilKilled starts a writing process, kills it after so many acknowledgements, and returns all of them.
func runUntilKilled(t *testing.T, path, life string, after int) []acknowledgement {
	t.Helper()
	child := exec.Command(os.Args[0], life)
	child.Env = append(os.Environ(), crashFolder+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var acks []acknowledgement
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break // a last line cut short was not acknowledged in full
		}
		require.NoError(t, err)
		name, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok, line)
		dot := strings.LastIndex(name, ".")
		n, err := strconv.Atoi(name[dot+1:])
		require.NoError(t, err)
		v, err := strconv.ParseInt(version, 10, 64)
		require.NoError(t, err)
		acks = append(acks, acknowledgement{name[:dot], n, v})
		if len(acks) == after {
			require.NoError(t, child.Process.Kill())
		}
	}
	require.Error(t, child.Wait(), "killed")
	require.GreaterOrEqual(t, len(acks), after)
	return acks
}
