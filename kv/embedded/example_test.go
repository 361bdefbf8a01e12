package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Any number of processes can have a folder open. Here it is two DBs of one process: the first has the file, the second
// reaches the first over a socket, and takes over when the first closes.
func ExampleOpenDisk() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	first, err := embedded.OpenDisk(folder, embedded.Options{})
	if err != nil {
		log.Fatal(err)
	}
	second, err := embedded.OpenDisk(folder, embedded.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	_, err = kv.Run(ctx, first, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("greeting"), []byte("hello"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := first.Close(); err != nil {
		log.Fatal(err)
	}
	_, err = kv.Run(ctx, second, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		value, err := tx.Get([]byte("greeting")).Wait(ctx)
		if err == nil {
			fmt.Println(string(value))
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: hello
}

// In memory a database lives as long as its process: for tests.
func ExampleOpenMemory() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{Seed: 1})
	defer db.Close()
	version, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set([]byte("a"), []byte("1"))
		return nil
	})
	fmt.Println(version > 0, err)
	// Output: true <nil>
}
