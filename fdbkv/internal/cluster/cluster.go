// Package cluster runs a FoundationDB cluster for tests: of one process or of several, on loopback, in a temporary
// folder, thrown away afterwards.
//
// A cluster of several keeps two copies of everything and commits by two proxies and two resolvers, so it goes on when
// any one of its processes is gone. Trouble sees to it that one often is.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Environment variables that tests and tools share.
const (
	FileVariable    = "FDB_CLUSTER_FILE" // a cluster that is running already
	BinVariable     = "FDB_BIN"          // the folder of fdbserver and fdbcli; otherwise PATH is searched
	EngineVariable  = "FDB_ENGINE"       // storage engine, "memory" (the default) or "ssd"
	ServersVariable = "FDB_SERVERS"      // processes of a cluster that is started: 1 (the default), MinServers, ...
	TroubleVariable = "FDB_TROUBLE"      // a seed: harm that it draws is done to a cluster of several: Trouble
)

// ErrNoBinaries is returned by Start where fdbserver or fdbcli is not installed.
var ErrNoBinaries = errors.New("no fdbserver and fdbcli in FDB_BIN or on the PATH")

// startTimeout bounds all of Start.
const startTimeout = 90 * time.Second

// Cluster is a running cluster.
type Cluster struct {
	File    string // its cluster file
	Servers []*Server

	dir string
	cli string
}

// errEnded: the server ended by itself.
var errEnded = errors.New("fdbserver ended")

// Start starts a cluster of one process and waits until it answers. Servers end with this process even if Stop is never
// called.
func Start(ctx context.Context) (*Cluster, error) { return start(ctx, []string{""}) }

// MinServers is the least number of processes of a cluster of several: two for logs and two for the rest, and three for
// storage, so that one of those can be excluded and two copies are left.
const MinServers = 7

// StartSeveral starts a cluster of n processes, MinServers or more, as Start does.
func StartSeveral(ctx context.Context, n int) (*Cluster, error) {
	if n < MinServers {
		return nil, fmt.Errorf("cluster: %d servers, it takes %d", n, MinServers)
	}
	// The first three coordinate: one of each class.
	classes := []string{"storage", "log", "stateless", "log", "stateless"}
	for len(classes) < n {
		classes = append(classes, "storage")
	}
	return start(ctx, classes)
}

// coordinators is how many of a cluster's first servers coordinate it.
func coordinators(servers int) int { return min(servers, 3) }

func start(ctx context.Context, classes []string) (*Cluster, error) {
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
	// Another process may take a port before the server does.
	const attempts = 3
	for n := 1; ; n++ {
		c, err := launch(ctx, server, cli, classes)
		if err == nil {
			return c, nil
		}
		if n == attempts || !errors.Is(err, errEnded) {
			return nil, fmt.Errorf("cluster: %w", err)
		}
	}
}

func launch(ctx context.Context, server, cli string, classes []string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "fdb-testcluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{File: filepath.Join(dir, "fdb.cluster"), dir: dir, cli: cli}
	if err := c.start(ctx, server, classes); err != nil {
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

func (c *Cluster) start(ctx context.Context, program string, classes []string) error {
	engine := os.Getenv(EngineVariable)
	if engine == "" {
		engine = "memory"
	}
	var addresses []string
	for n, class := range classes {
		s, err := newServer(program, c.File, c.dir, class, n)
		if err != nil {
			return err
		}
		c.Servers = append(c.Servers, s)
		addresses = append(addresses, s.Address)
	}
	file := "test:test@" + strings.Join(addresses[:coordinators(len(addresses))], ",") + "\n"
	if err := os.WriteFile(c.File, []byte(file), 0o600); err != nil {
		return err
	}
	// Tenants are off in a new database, and the adapter has a test of them.
	configure := "configure new single " + engine + " tenant_mode=optional_experimental"
	if len(classes) > 1 {
		configure = "configure new double " + engine + " tenant_mode=optional_experimental " + roles(2, 2)
	}
	// "configure" returns before the database is there.
	return c.serve(ctx, configure)
}

// roles is what "configure" is told of those that commit.
func roles(proxies, resolvers int) string {
	return fmt.Sprintf("commit_proxies=%d grv_proxies=1 resolvers=%d logs=2", proxies, resolvers)
}

// answers is a command that ends when a key can be read.
const answers = "get ready"

// serve starts all servers, executes commands, and waits until the cluster answers. It ends at once if a server has
// ended.
func (c *Cluster) serve(ctx context.Context, commands ...string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, s := range c.Servers {
		if err := s.Start(); err != nil {
			return err
		}
		run, exited := s.run, s.exited
		go func() {
			select {
			case <-exited:
				cancel(fmt.Errorf("%w: %s", errEnded, run.ProcessState))
			case <-ctx.Done():
			}
		}()
	}
	for _, command := range commands {
		if err := c.run(ctx, command); err != nil {
			return err
		}
	}
	for {
		err := c.run(ctx, answers)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// A cluster that has just recovered may refuse a read, as trouble.tell says.
		select {
		case <-time.After(askAgain):
		case <-ctx.Done(): // run returns the cause
		}
	}
}

// askAgain is the pause between two questions whether the cluster answers.
const askAgain = 100 * time.Millisecond

// Kill ends all servers with SIGKILL, as a power cut does: what they had not synced is gone. Their folders stay.
func (c *Cluster) Kill() (err error) {
	for _, s := range c.Servers {
		err = errors.Join(err, s.Kill())
	}
	return err
}

// Restart starts the servers again after Kill, on the same data, and waits until the cluster answers.
func (c *Cluster) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.serve(ctx); err != nil {
		return fmt.Errorf("cluster: restart: %w", err)
	}
	return nil
}

// run executes one command of fdbcli.
func (c *Cluster) run(ctx context.Context, command string) error {
	out, err := exec.CommandContext(ctx, c.cli, "-C", c.File, "--exec", command).CombinedOutput()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, errEnded) {
		return cause
	}
	return fmt.Errorf("fdbcli %s: %w: %s", command, err, strings.TrimSpace(string(out)))
}

// Stop ends the servers and removes their folders.
func (c *Cluster) Stop() error {
	// Kill fails if a server has ended by itself. The folder must still be removed.
	_ = c.Kill()
	return os.RemoveAll(c.dir)
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
