package cluster_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/fdbkv/internal/cluster"
	"fdbfifo/internal/seeds"
)

// programs makes a folder with stand-ins for fdbserver and fdbcli, and TMPDIR an empty one.
func programs(t *testing.T, server, cli string) {
	t.Helper()
	bin := t.TempDir()
	for name, script := range map[string]string{"fdbserver": server, "fdbcli": cli} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	t.Setenv(cluster.BinVariable, bin)
	t.Setenv("TMPDIR", t.TempDir())
}

func requireNothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestNoBinaries is an error of its own, for tests to skip by.
func TestNoBinaries(t *testing.T) {
	t.Setenv(cluster.BinVariable, t.TempDir())
	_, err := cluster.Start(t.Context())
	require.ErrorIs(t, err, cluster.ErrNoBinaries)
}

// TestServerThatEnds is reported at once, however long the client would wait for it, and leaves nothing behind.
func TestServerThatEnds(t *testing.T) {
	programs(t, "exit 7", "exec sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := cluster.Start(ctx)
	require.ErrorContains(t, err, "exit status 7")
	require.NoError(t, ctx.Err())
	requireNothingLeft(t)
}

// TestConfigurationThatFails ends the server, reports what fdbcli printed, and leaves nothing behind.
func TestConfigurationThatFails(t *testing.T) {
	programs(t, "exec sleep 60", "echo unknown engine; exit 1")
	_, err := cluster.Start(t.Context())
	require.ErrorContains(t, err, "unknown engine")
	requireNothingLeft(t)
}

// TestStop ends the server of a real cluster and removes its folder.
func TestStop(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c, err := cluster.Start(t.Context())
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip(err)
	}
	require.NoError(t, err)
	text, err := os.ReadFile(c.File)
	require.NoError(t, err)
	_, address, _ := strings.Cut(strings.TrimSpace(string(text)), "@")
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	require.NoError(t, c.Stop())
	_, err = net.Dial("tcp", address)
	require.Error(t, err)
	requireNothingLeft(t)
}

// TestKillAndRestart: the data that was written before the servers were killed is there after their restart.
func TestKillAndRestart(t *testing.T) {
	t.Setenv(cluster.EngineVariable, "ssd")
	c, err := cluster.Start(t.Context())
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Stop()) }()
	fdbcli(t, c, "writemode on; set here still")
	require.NoError(t, c.Kill())
	require.NoError(t, c.Restart(t.Context()))
	require.Contains(t, fdbcli(t, c, "get here"), "still")
}

// TestTrouble: the servers of a cluster of several meet all kinds of trouble. The written data is then still there, and
// no server stays excluded.
func TestTrouble(t *testing.T) {
	if testing.Short() {
		t.Skip("not with -short")
	}
	c, err := cluster.StartSeveral(t.Context(), cluster.MinServers)
	if errors.Is(err, cluster.ErrNoBinaries) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Stop()) }()
	require.Contains(t, fdbcli(t, c, "status"), "double")
	fdbcli(t, c, "writemode on; set here still")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seed := seeds.Of(t.Name())
	harm, err := c.Trouble(ctx, seed)
	require.NoError(t, err)
	t.Logf("seed %d: %s", seed, harm)
	require.NotEmpty(t, harm)
	require.Contains(t, fdbcli(t, c, "get here"), "still")
	require.Contains(t, fdbcli(t, c, "exclude"), "There are currently no servers")
}

func fdbcli(t *testing.T, c *cluster.Cluster, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.BinVariable), "fdbcli"),
		"-C", c.File, "--exec", command).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
