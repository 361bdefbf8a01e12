// Command release prepares and checks a release of the two modules: the root, and fdbkv, the adapter.
//
//	go run ./internal/release rename MODULE     gives the whole tree another module path
//	go run ./internal/release check             builds and runs a new program on both modules, as a user gets them
//
// Both run at the root of the tree, and without a network: third-party modules come from the module cache.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "rename":
		old, err := modulePath(".")
		if err != nil {
			return err
		}
		changed, err := rename(ctx, ".", args[1])
		if err != nil {
			return err
		}
		fmt.Printf("%s is now %s, in %d files\n", old, args[1], changed)
		return nil
	case len(args) == 1 && args[0] == "check":
		said, err := check(ctx, ".")
		if err != nil {
			return err
		}
		fmt.Print(said)
		return nil
	}
	return fmt.Errorf("want rename MODULE, or check; have %q", args)
}
