package crash_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/crash"
	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the kills and of the load; 0 = of SEED")
	killsFlag = flag.Int("kills", 20, "processes to kill")
)

// childMark, in the environment, makes this binary a child that works until it is killed.
const childMark = "FDBFIFO_CRASH_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		fmt.Fprintln(os.Stderr, crash.Child(os.Stdin, os.Stdout))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func options(t *testing.T, kills int) crash.Options {
	seed := *seedFlag
	if seed == 0 {
		seed = seeds.Of(t.Name())
	}
	folder, err := os.MkdirTemp("", "fdbfifo-crash-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the folder is kept, as the last check left it: %s", folder)
		} else {
			require.NoError(t, os.RemoveAll(folder))
		}
	})
	return crash.Options{
		Seed: seed, Kills: kills, Folder: folder,
		Child: func() *exec.Cmd {
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), childMark+"=1")
			return c
		},
	}
}

// TestKills: processes that work on a queue on disk and are killed at any moment leave all that was acknowledged, no
// half of anything else, and a queue that goes on from there.
func TestKills(t *testing.T) {
	kills := *killsFlag
	if testing.Short() {
		kills /= 4
	}
	o := options(t, kills)
	report, err := crash.Run(t.Context(), o)
	t.Logf("seed %d: %s", o.Seed, report)
	require.NoError(t, err, "replay: make crash SEED=%d KILLS=%d (the kills and the load are the seed's, their timing is not)", o.Seed, o.Kills)
}

// TestLyingDiskIsFound: a disk loses a commit that it has synced, so an acknowledged operation is lost. The check finds
// it.
func TestLyingDiskIsFound(t *testing.T) {
	o := options(t, 2)
	o.Lie = true
	_, err := crash.Run(t.Context(), o)
	require.ErrorIs(t, err, crash.ErrBroken, "seed %d", o.Seed)
}

// TestFailureHasAHistory: the error of a run has the operations on the message that is wrong, with its process and
// versions, and the kills between them.
func TestFailureHasAHistory(t *testing.T) {
	o := options(t, 10)
	o.Tamper = func(ctx context.Context, db kv.DB) (bool, error) {
		return tamper(ctx, db, "item", func(tx kv.Tx, r *kv.KV) { tx.Clear(r.Key) })
	}
	_, err := crash.Run(t.Context(), o)
	require.ErrorIs(t, err, crash.ErrBroken)
	wrong := regexp.MustCompile(`G3: message (\d+) of group`).FindStringSubmatch(err.Error())
	require.NotNil(t, wrong, "%v", err)
	_, told, found := strings.Cut(err.Error(), "history of message "+wrong[1]+" of group ")
	require.True(t, found, "%v", err)
	// The process may have been killed before the answer to its enqueue.
	enqueue := `process \d+.* versions -?\d+ to (\d+|\?): enqueue.* ` + wrong[1] + ` in .*→ (done|no answer).*`
	require.Regexp(t, enqueue, told)
	require.Regexp(t, `kill \d+ \(.*; the parent opens the folder and checks it`, told)
}

// row is a row of the queue, or of the workers' own, whose key has name in it.
func row(ctx context.Context, tx kv.Tx, name string) (*kv.KV, error) {
	all, err := tx.GetRange(kv.KeyRange{End: []byte{0xff}}.Selectors(), kv.RangeOptions{}).Wait(ctx)
	for _, r := range all {
		if bytes.Contains(r.Key, tuple.Tuple{name}.Pack()) {
			return &r, err
		}
	}
	return nil, err
}

// tamper changes a row that row finds, and reports whether there was one.
func tamper(ctx context.Context, db kv.DB, name string, change func(tx kv.Tx, r *kv.KV)) (done bool, err error) {
	_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		r, err := row(ctx, tx, name)
		if done = r != nil; done {
			change(tx, r)
		}
		return err
	})
	return done, err
}

// TestHalvesAreFound: each kind of thing that can be missing, or be there twice, is found.
func TestHalvesAreFound(t *testing.T) {
	clear := func(tx kv.Tx, r *kv.KV) { tx.Clear(r.Key) }
	for _, c := range []struct {
		what, section string
		change        func(tx kv.Tx, r *kv.KV)
	}{
		{"an item lost", "item", clear},
		{"an item doubled", "item", func(tx kv.Tx, r *kv.KV) {
			again := bytes.Clone(r.Key)
			again[len(again)-1]++
			tx.Set(again, r.Value)
		}},
		{"another body", "item", func(tx kv.Tx, r *kv.KV) {
			r.Value[len(r.Value)-1]++
			tx.Set(r.Key, r.Value)
		}},
		{"a part lost", "part", clear},
		{"a dead letter lost", "dead", clear},
		{"an effect lost", "effect", clear},
		{"an effect of nothing", "item", func(tx kv.Tx, _ *kv.KV) { tx.Set(tuple.Tuple{"effect", int64(1)}.Pack(), nil) }},
		{"a state lost", "state", clear},
		{"a lock lost", "lock", clear},
		{"a counter off", "acked", func(tx kv.Tx, r *kv.KV) {
			tx.Atomic(kv.Add, r.Key, binary.LittleEndian.AppendUint64(nil, 1))
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			done := false
			o := options(t, 10)
			o.Tamper = func(ctx context.Context, db kv.DB) (_ bool, err error) {
				done, err = tamper(ctx, db, c.section, c.change)
				return done, err
			}
			_, err := crash.Run(t.Context(), o)
			if err == nil && !done {
				t.Skipf("seed %d has come by no row of %q", o.Seed, c.section)
			}
			require.ErrorIs(t, err, crash.ErrBroken, "seed %d", o.Seed)
		})
	}
}
