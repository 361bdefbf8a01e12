// The same on a FoundationDB cluster: only the database is opened otherwise.
package main

import (
	"context"
	"log"

	"fdbfifo/fdbkv"
	"fdbfifo/layer"
)

func main() {
	ctx := context.Background()
	db, err := fdbkv.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	names, err := layer.Queues(ctx, db, []byte("app/"))
	if err != nil {
		log.Fatal(err)
	}
	log.Println(names)
}
