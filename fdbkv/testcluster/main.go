// Command testcluster runs a command against a FoundationDB cluster:
//
//	go run ./testcluster -- go test ./...
//
// The command finds the cluster by FDB_CLUSTER_FILE. If that is set already, it is left alone. Otherwise a throw-away
// cluster is started on loopback, with the fdbserver and fdbcli of FDB_BIN or the PATH and the storage engine
// FDB_ENGINE (memory or ssd), and is stopped after the command. It has one process, or FDB_SERVERS (7 or more), which
// keep two copies and commit by two proxies and two resolvers. With a seed in FDB_TROUBLE the processes are killed,
// frozen, excluded and reconfigured while the command runs, as the seed draws it:
//
//	FDB_SERVERS=7 FDB_TROUBLE=1 go run ./testcluster -- go test ./layertest -run TestLinearizable
//
// The exit code is the command's. Where there is no cluster and nothing to start one with, testcluster prints one line
// that begins with SKIP, and exits with 0.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"fdbfifo/fdbkv/internal/cluster"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testcluster [--] command [argument ...]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
	}
	os.Exit(code)
}

// run returns the exit code; an error is one of testcluster's own.
func run(args []string) (code int, err error) {
	// An interrupt reaches the command too, since it shares the terminal; here it must not keep Stop from running.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	file := os.Getenv(cluster.FileVariable)
	if file == "" {
		var end func() error
		file, end, err = cluster.Provide(ctx)
		if errors.Is(err, cluster.ErrNoBinaries) {
			fmt.Println(cluster.Skip)
			return 0, nil
		}
		if err != nil {
			return 1, err
		}
		defer func() {
			if ended := end(); ended != nil {
				code, err = max(code, 1), errors.Join(err, ended)
			}
		}()
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = append(os.Environ(), cluster.FileVariable+"="+file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
