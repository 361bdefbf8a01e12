// Command cmd soaks a queue on an engine of the root module: see make soak.
package main

import (
	"os"

	"fdbfifo/internal/soak"
)

func main() { os.Exit(soak.Main(os.Args[1:], os.Stdout, soak.Embedded())) }
