// Command fdbfifo keeps grouped FIFO queues. It is the command of the module fdbfifo with one more engine, a
// FoundationDB cluster. The engine fdb (--engine fdb) is the cluster of FDB_CLUSTER_FILE, of ./fdb.cluster, or of the
// system's default file. The engine fdb:CLUSTERFILE is the cluster of that file.
//
// Building it needs cgo, FoundationDB's header and libfdb_c (7.3), running it needs libfdb_c.
package main

import (
	"os"

	"fdbfifo/cli"
)

func main() { os.Exit(cli.Main(app())) }

// engine is the name of the engine.
const engine = "fdb"

func app() *cli.App {
	a := cli.New()
	a.Engines[engine] = openCluster
	a.Shared = append(a.Shared, engine)
	a.EngineHelp = "fdb or fdb:CLUSTERFILE is a FoundationDB cluster, by default that of FDB_CLUSTER_FILE or else of the " +
		"system's file (API version 730)"
	return a
}
