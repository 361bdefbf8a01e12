// Command fdbfifo keeps grouped FIFO queues. See fdbfifo --help, and package cli, which does the work.
//
// It has the embedded engines only and needs neither cgo nor a client library. The same command for a FoundationDB
// cluster is fdbkv/cmd/fdbfifo.
package main

import (
	"os"

	"fdbfifo/cli"
)

func main() { os.Exit(cli.Main(cli.New())) }
