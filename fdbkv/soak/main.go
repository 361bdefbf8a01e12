// Command soak soaks a queue on FoundationDB, or on an embedded engine: see make soak in the root module.
package main

import (
	"os"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/fdbkv"
	"fdbfifo/internal/soak"
	"fdbfifo/kv"
)

func main() {
	engines := soak.Embedded()
	engines["fdb"] = func(clusterFile string) (kv.DB, error) {
		if err := fdb.APIVersion(730); err != nil {
			return nil, err
		}
		return fdbkv.Open(clusterFile)
	}
	os.Exit(soak.Main(os.Args[1:], os.Stdout, engines))
}
