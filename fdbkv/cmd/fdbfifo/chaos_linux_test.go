package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/cli"
	"fdbfifo/fdbkv"
	"fdbfifo/fdbkv/internal/cluster"
	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The demo's four worker processes drain departures while the test does harm, and the demo judges what is then in the
// database: its exit code is 0 only if nothing is lost, doubled or out of order, and Check finds nothing. A handler's
// effects are written in the transaction that acks.

// messages is how many departures are drained: four seconds of work for the processes, or less.
const messages = 8000

// demoRun is a demo in a process of its own, and a look at its queue from here.
type demoRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
	ended  chan struct{} // closed when it has ended

	db    *fdbkv.DB
	name  string
	queue *layer.Queue
}

// startDemo starts a demo on a cluster, with more arguments, and returns when its queue is there.
func startDemo(t *testing.T, clusterFile, lease string, limit time.Duration, more ...string) *demoRun {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	d := &demoRun{t: t, name: queue(t), ended: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, self, append([]string{"demo", "--engine", "fdb:" + clusterFile, "--queue", d.name,
		"--data", departures(t, messages), "--processes", "4", "--lease", lease, "--json"}, more...)...)
	d.cmd.Env = append(os.Environ(), asCommand+"=1")
	d.cmd.Stdout, d.cmd.Stderr = &d.stdout, &d.stderr
	require.NoError(t, d.cmd.Start())
	go func() {
		_ = d.cmd.Wait() // its exit code is asked for in finish
		close(d.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-d.ended
	})

	require.NoError(t, selectAPIVersion())
	d.db, err = fdbkv.Open(clusterFile)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.db.Close()) })
	d.until("its queue is there", func() bool {
		d.queue, err = layer.Open(ctx, d.db, tuple.Tuple{"fdbfifo"}.Pack(), d.name, layer.Options{})
		if !errors.Is(err, layer.ErrNoQueue) {
			require.NoError(t, err)
		}
		return err == nil
	})
	t.Cleanup(func() { require.NoError(t, d.queue.Close(context.WithoutCancel(ctx))) })
	return d
}

// until looks again and again until reached; the demo must not be over before.
func (d *demoRun) until(what string, reached func() bool) {
	d.t.Helper()
	for !reached() {
		select {
		case <-d.ended:
			require.Fail(d.t, "the demo ended before "+what, "%s%s", &d.stdout, &d.stderr)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stats are those of the queue.
func (d *demoRun) stats() layer.Stats {
	d.t.Helper()
	s, err := d.queue.Stats(d.t.Context(), layer.StatsOptions{})
	require.NoError(d.t, err)
	return s
}

// finish waits for the demo's end and holds it to its promises.
func (d *demoRun) finish() {
	d.t.Helper()
	<-d.ended
	require.Equal(d.t, cli.ExitOK, d.cmd.ProcessState.ExitCode(), "%s%s", &d.stdout, &d.stderr)
	var got map[string]float64
	require.NoError(d.t, json.Unmarshal(d.stdout.Bytes(), &got))
	require.EqualValues(d.t, messages, got["messages"])
	require.EqualValues(d.t, 4, got["processes"])
	require.Zero(d.t, got["lost"]+got["doubled"]+got["order_violations"])
	require.EqualValues(d.t, messages, d.stats().Acked, "counted once each")
}

// TestServerKilled: the server of an ssd cluster is killed with SIGKILL and restarted, once while the producer enqueues
// and twice while four processes work. The outcome of commits in flight is then unknown. Still no message is lost or
// doubled, and order is kept.
func TestServerKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short")
	}
	t.Setenv(cluster.EngineVariable, "ssd")
	c, err := cluster.Start(t.Context())
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip("no cluster of its own to kill: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })

	d := startDemo(t, c.File, "3s", limit)
	for _, at := range []struct{ enqueued, acked int64 }{{messages / 4, 0}, {messages, 1}, {messages, messages / 2}} {
		d.until("the server was killed", func() bool {
			s := d.stats()
			return s.Enqueued >= at.enqueued && s.Acked >= at.acked
		})
		require.NoError(t, c.Kill())
		require.NoError(t, c.Restart(t.Context()))
	}
	d.finish()
}

// TestTrouble: a process of the demo is killed while the servers of a cluster of several are killed, frozen, excluded
// and reconfigured.
func TestTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short")
	}
	c, err := cluster.StartSeveral(t.Context(), cluster.MinServers)
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip("no cluster of its own to do harm to: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })

	seed := seeds.Of(t.Name())
	ended := make(chan error, 1)
	go func() {
		harm, err := c.Trouble(t.Context(), seed)
		t.Logf("seed %d: %s", seed, harm)
		ended <- err
	}()
	t.Cleanup(func() { require.NoError(t, <-ended) }) // before the cluster's end
	startDemo(t, c.File, "3s", 5*limit, "--kill").finish()
}

// TestWorkerFrozenPastItsLease: a process is stopped with SIGSTOP while it has groups in flight, and goes on with
// SIGCONT when others have taken all of them over. The acks that it then sends are refused, with the effects that
// they carry.
func TestWorkerFrozenPastItsLease(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short")
	}
	d := startDemo(t, os.Getenv(cluster.FileVariable), layer.MinLease.String(), limit)
	d.until("work had begun", func() bool { return d.stats().Acked > messages/20 })

	var number, pid int
	var held map[string]int64 // by group: the token
	d.until("one was frozen with groups in flight", func() bool {
		for number, pid = range d.workers() {
			d.signal(pid, syscall.SIGSTOP)
			d.settle()
			if held = d.held(number); len(held) > 0 {
				return true
			}
			d.signal(pid, syscall.SIGCONT)
		}
		return false
	})
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGCONT) // else it would stay
		}
	})
	before := d.effects()
	d.until("its groups were taken over", func() bool { return len(d.held(number)) == 0 })
	d.signal(pid, syscall.SIGCONT)
	d.finish()

	refused := 0
	effects := d.effects()
	for group, token := range held {
		of := effects[group]
		require.NotEmpty(t, of)
		if of[token] == before[group][token] {
			refused++
		}
	}
	t.Logf("%d groups were in the hands of process %d; %d of their acks were refused", len(held), number, refused)
	require.Positive(t, refused, "one that it held, and others finished")
}

// workers are the process ids of the demo's processes, by number.
func (d *demoRun) workers() map[int]int {
	d.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(d.t, err)
	found := make(map[int]int)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(text), "\x00")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(d.t, err)
		var queue string
		var number int
		for i := range len(args) - 1 {
			switch args[i] {
			case "--queue":
				queue = args[i+1]
			case "--number":
				number, err = strconv.Atoi(args[i+1])
				require.NoError(d.t, err)
			}
		}
		if queue == d.name && number > 0 {
			found[number] = pid
		}
	}
	return found
}

func (d *demoRun) signal(pid int, s syscall.Signal) {
	d.t.Helper()
	require.NoError(d.t, syscall.Kill(pid, s))
}

// settle returns when what others had sent before has landed: a commit of our own comes behind theirs.
func (d *demoRun) settle() {
	d.t.Helper()
	_, err := kv.Run(d.t.Context(), d.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Clear(tuple.Tuple{"fdbfifo-test", d.name}.Pack()) // it is not there
		return nil
	})
	require.NoError(d.t, err)
}

// held are the claims of a process, as the database has them: tokens by group.
func (d *demoRun) held(number int) map[string]int64 {
	d.t.Helper()
	page, err := d.queue.Admin().Groups(d.t.Context(), layer.GroupsOptions{MaxDepth: 1})
	require.NoError(d.t, err)
	held := make(map[string]int64)
	for _, g := range page.Groups {
		if g.Owner == fmt.Sprintf("demo process %d", number) {
			held[g.Group] = g.Token
		}
	}
	return held
}

// effects counts the effects in the database, by group and token.
func (d *demoRun) effects() map[string]map[int64]int {
	d.t.Helper()
	found := make(map[string]map[int64]int)
	for row, err := range kv.Rows(d.t.Context(), d.db, kv.PrefixRange(tuple.Tuple{"fdbfifo-demo", d.name}.Pack())) {
		require.NoError(d.t, err)
		key, err := tuple.Unpack(row.Key)
		require.NoError(d.t, err)
		value, err := tuple.Unpack(row.Value)
		require.NoError(d.t, err)
		group, token := key[2].(string), value[3].(int64)
		if found[group] == nil {
			found[group] = make(map[int64]int)
		}
		found[group][token]++
	}
	return found
}
