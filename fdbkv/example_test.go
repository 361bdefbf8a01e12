package fdbkv_test

import (
	"context"
	"log"

	"github.com/apple/foundationdb/bindings/go/src/fdb"
	"github.com/apple/foundationdb/bindings/go/src/fdb/directory"

	"fdbfifo/fdbkv"
	"fdbfifo/layer"
)

// A queue lives in a directory of FoundationDB's directory layer.
func ExampleFrom_directory() {
	ctx := context.Background()
	fdb.MustAPIVersion(730)
	db := fdb.MustOpenDefault()
	dir, err := directory.CreateOrOpen(db, []string{"shop", "queues"}, nil) // FoundationDB's directory layer
	if err != nil {
		log.Fatal(err)
	}
	q, err := layer.Create(ctx, fdbkv.From(db), dir.Bytes(), "orders", layer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close(ctx)
}
