// Command typecheck checks the types of the adapter, its tests, and the binding under it, on machines without
// FoundationDB's C header and library, and without a C compiler:
//
//	CGO_ENABLED=0 go run ./typecheck
//
// It sees every use of the binding; what it cannot see are the names and types of C itself, which the binding uses
// and the adapter does not.
package main

import (
	"fmt"
	"os"
)

func main() {
	// The folder of the module, where "go run ./typecheck" is called.
	errs, err := check(".", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(2)
	}
	for _, err := range errs {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	fmt.Println("fdbkv type-checks against the binding (C itself excepted)")
}
