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

	dir    string
	cli    string
	server *exec.Cmd
	exited chan struct{} // closed when the server has ended; exit is set before
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
	c := &Cluster{File: filepath.Join(dir, "fdb.cluster"), dir: dir, cli: cli, exited: make(chan struct{})}
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
	c.server = exec.Command(server,
		"--cluster-file", c.File, "--public-address", address, "--datadir", data, "--logdir", logs,
		"--memory", "4GiB", "--storage-memory", "1GiB", "--parentpid", strconv.Itoa(os.Getpid()))
	if err := c.server.Start(); err != nil {
		c.server = nil
		return err
	}
	go func() {
		c.exit = c.server.Wait()
		close(c.exited)
	}()
	// Tenants are off in a new database, and the adapter has a test of them.
	if err := c.run(ctx, "configure new single "+engine+" tenant_mode=optional_experimental"); err != nil {
		return err
	}
	// "configure" returns before the database is there; reading a key waits for it.
	return c.run(ctx, "get ready")
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
