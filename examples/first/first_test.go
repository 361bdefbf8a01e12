package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// asProgram is set in the environment of a process that is to be the program, not its test.
const asProgram = "FDBFIFO_FIRST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestFirst: the program handles its own messages, and those that another process enqueues while it runs. An interrupt
// ends it in good order, and no message is left. A second run on the same folder does the same.
func TestFirst(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("a folder belongs to one process here")
	}
	folder := t.TempDir()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // nothing that works comes near it
		c := exec.CommandContext(ctx, os.Args[0])
		c.Dir, c.Env = folder, append(os.Environ(), asProgram+"=1")
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "%v", lines.Err())
		require.Equal(t, "customer-7: 2 apples", lines.Text())

		db, err := embedded.OpenDisk(folder+"/shop.data", embedded.Options{})
		require.NoError(t, err)
		q, err := layer.Open(ctx, db, []byte("shop/"), "orders", layer.Options{})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, layer.Message{Group: "customer-9", Body: []byte("3 pears")})
		require.NoError(t, err)
		require.True(t, lines.Scan(), "%v", lines.Err())
		require.Equal(t, "customer-9: 3 pears", lines.Text())
		require.NoError(t, c.Process.Signal(os.Interrupt))
		require.NoError(t, c.Wait())

		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.Zero(t, report.Items)
		require.NoError(t, q.Close(ctx))
		require.NoError(t, db.Close())
		cancel()
	}
}
