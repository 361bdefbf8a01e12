// Command overlay writes the overlay with the mutants of all guards to a folder, and prints its path: see package
// mutants. It must run in the top folder of the tree.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"fdbfifo/internal/mutants"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: go run ./internal/mutants/overlay FOLDER")
	}
	dir, err := filepath.Abs(args[0])
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	path, err := mutants.Overlay(".", dir)
	if err == nil {
		fmt.Println(path)
	}
	return err
}
