// Package cluster runs a FoundationDB cluster of one process for tests: on loopback, in a temporary folder, thrown
// away afterwards.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Environment variables that tests and tools share.
const (
	FileVariable   = "FDB_CLUSTER_FILE" // a cluster that is running already
	BinVariable    = "FDB_BIN"          // the folder of fdbserver and fdbcli; otherwise PATH is searched
	EngineVariable = "FDB_ENGINE"       // storage engine, "memory" (the default) or "ssd"
)

// ErrNoBinaries is returned by Start where fdbserver or fdbcli is not installed.
var ErrNoBinaries = errors.New("no fdbserver and fdbcli in FDB_BIN or on the PATH")

// startTimeout bounds all of Start.
const startTimeout = 90 * time.Second

// Cluster is a running cluster.
type Cluster struct {
	File string // its cluster file

	dir  string
	cli  string
	args []string // of the server, its program first

	server *exec.Cmd     // the latest run; nil = there was none
	exited chan struct{} // closed when it has ended; exit is set before
	exit   error
}

// errEnded: the server ended by itself.
var errEnded = errors.New("fdbserver ended")

// Start starts a cluster and waits until it answers. The server ends with this process even if Stop is never called.
func Start(ctx context.Context) (*Cluster, error) {
	server, err := find("fdbserver")
	if err != nil {
		return nil, err
	}
	cli, err := find("fdbcli")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// Another process may take the port before the server does.
	const attempts = 3
	for n := 1; ; n++ {
		c, err := launch(ctx, server, cli)
		if err == nil {
			return c, nil
		}
		if n == attempts || !errors.Is(err, errEnded) {
			return nil, fmt.Errorf("cluster: %w", err)
		}
	}
}

func launch(ctx context.Context, server, cli string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "fdb-testcluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{File: filepath.Join(dir, "fdb.cluster"), dir: dir, cli: cli}
	if err := c.start(ctx, server); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func find(name string) (string, error) {
	if bin := os.Getenv(BinVariable); bin != "" {
		name = filepath.Join(bin, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("cluster: %w: %w", ErrNoBinaries, err)
	}
	return path, nil
}

func (c *Cluster) start(ctx context.Context, server string) error {
	engine := os.Getenv(EngineVariable)
	if engine == "" {
		engine = "memory"
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.File, []byte("test:test@"+address+"\n"), 0o600); err != nil {
		return err
	}
	data, logs := filepath.Join(c.dir, "data"), filepath.Join(c.dir, "logs")
	for _, d := range []string{data, logs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	c.args = []string{
		server, "--cluster-file", c.File, "--public-address", address, "--datadir", data, "--logdir", logs,
		"--memory", "4GiB", "--storage-memory", "1GiB", "--parentpid", strconv.Itoa(os.Getpid()),
	}
	if err := c.serve(); err != nil {
		return err
	}
	// Tenants are off in a new database, and the adapter has a test of them.
	if err := c.run(ctx, "configure new single "+engine+" tenant_mode=optional_experimental"); err != nil {
		return err
	}
	// "configure" returns before the database is there.
	return c.answers(ctx)
}

// serve starts the server.
func (c *Cluster) serve() error {
	server, exited := exec.Command(c.args[0], c.args[1:]...), make(chan struct{})
	if err := server.Start(); err != nil {
		return err
	}
	c.server, c.exited = server, exited
	go func() {
		c.exit = server.Wait()
		close(exited)
	}()
	return nil
}

// answers waits until a key can be read.
func (c *Cluster) answers(ctx context.Context) error { return c.run(ctx, "get ready") }

// Kill ends the server with SIGKILL, as a machine that fails does: what it had not synced is gone. Its folder stays.
func (c *Cluster) Kill() error {
	err := c.server.Process.Kill()
	<-c.exited
	return err
}

// Restart starts the server anew after Kill, on the same data, and waits until it answers.
func (c *Cluster) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.serve(); err != nil {
		return fmt.Errorf("cluster: restart: %w", err)
	}
	if err := c.answers(ctx); err != nil {
		return fmt.Errorf("cluster: restart: %w", err)
	}
	return nil
}

// run executes one command of fdbcli. It fails at once if the server has ended.
func (c *Cluster) run(ctx context.Context, command string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-c.exited:
			cancel()
		case <-done:
		}
	}()
	out, err := exec.CommandContext(ctx, c.cli, "-C", c.File, "--exec", command).CombinedOutput()
	if err == nil {
		return nil
	}
	select {
	case <-c.exited:
		return fmt.Errorf("%w: %v", errEnded, c.exit)
	default:
		return fmt.Errorf("fdbcli %s: %w: %s", command, err, strings.TrimSpace(string(out)))
	}
}

// Stop ends the server and removes its folder.
func (c *Cluster) Stop() error {
	if c.server != nil {
		// It may have ended by itself: the folder has to go all the same.
		_ = c.server.Process.Kill()
		<-c.exited
	}
	return os.RemoveAll(c.dir)
}

// freeAddress returns a loopback address that nobody listened on a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
