package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/cli"
	"fdbfifo/fdbkv"
	"fdbfifo/kv"
)

// apiVersion is the API version that the command asks the client library for. A process can choose only one, so the
// command chooses it, not package fdbkv.
const apiVersion = 730

// selectAPIVersion chooses the version once; the binding does not let it be chosen again, nor changed.
var selectAPIVersion = sync.OnceValue(func() error { return fdb.APIVersion(apiVersion) })

// openCluster opens the engine fdb. It asks whether the cluster answers. Without a cluster a command so fails in a few
// seconds, and does not wait without end.
func openCluster(ctx context.Context, o cli.EngineOptions) (kv.DB, error) {
	if err := selectAPIVersion(); err != nil {
		return nil, wrongVersion(err)
	}
	db, err := fdbkv.Open(o.Arg)
	if err != nil {
		return nil, explain(err)
	}
	if err := db.Ping(ctx); err != nil {
		return nil, errors.Join(explain(err), db.Close())
	}
	return db, nil
}

func wrongVersion(err error) error {
	return &cli.Error{
		Text: fmt.Sprintf("FoundationDB API version %d: %v", apiVersion, err),
		Hint: "This command needs the client library (libfdb_c) of FoundationDB 7.3 or newer.",
		Exit: cli.ExitAPIVersion,
		Err:  err,
	}
}

// explain adds to an error of fdbkv what the user can do, and the exit code. A locked database (1038) is explained by
// package cli.
func explain(err error) error {
	of := func(exit int, hint string) error {
		return &cli.Error{Text: err.Error(), Hint: hint, Exit: exit, Err: err}
	}
	switch {
	case errors.Is(err, fdbkv.ErrAPIVersion):
		return wrongVersion(err)
	case errors.Is(err, fdbkv.ErrNoClusterFile):
		return of(cli.ExitClusterFile, "Copy it from a machine of the cluster, and name it by --engine fdb:CLUSTERFILE or in FDB_CLUSTER_FILE.")
	case errors.Is(err, fdbkv.ErrClusterFile):
		return of(cli.ExitClusterFile, "Compare it with the file of a machine of the cluster.")
	case errors.Is(err, fdbkv.ErrUnreachable):
		return of(cli.ExitUnreachable, "fdbcli -C CLUSTERFILE --exec status says more.")
	}
	return err
}
