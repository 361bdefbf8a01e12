package kv_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// A transaction's body may run several times, until a commit succeeds: it assigns, and never appends.
func ExampleRun() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	var before string
	for _, word := range []string{"one", "two"} {
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			value, err := tx.Get([]byte("word")).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read word: %w", err) // with %w: a retryable error is retried
			}
			before = string(value)
			tx.Set([]byte("word"), []byte(word))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q, then %q\n", before, word)
	}
	// Output:
	// "", then "one"
	// "one", then "two"
}

// Rows reads a range of any size, page by page.
func ExampleRows() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		for _, name := range []string{"seat/1A", "seat/1B", "street/5"} {
			tx.Set([]byte(name), []byte("taken"))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	for row, err := range kv.Rows(ctx, db, kv.PrefixRange([]byte("seat/"))) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", row.Key, row.Value)
	}
	// Output:
	// seat/1A taken
	// seat/1B taken
}

// Atomic operations do not read, so they never end with a conflict.
func ExampleTx_atomic() {
	ctx := context.Background()
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	for range 3 {
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Atomic(kv.Add, []byte("visits"), binary.LittleEndian.AppendUint64(nil, 1))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		value, err := tx.Get([]byte("visits")).Wait(ctx)
		if err == nil {
			fmt.Println(binary.LittleEndian.Uint64(value), "visits")
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: 3 visits
}
