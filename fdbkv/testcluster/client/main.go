// Command client says what FoundationDB's client library on this machine can do. Where it does not run, nothing of
// this module can: a C compiler, the header foundationdb/fdb_c.h or libfdb_c is missing, and its error says which.
package main

// #cgo LDFLAGS: -lfdb_c
// #define FDB_API_VERSION 730
// #include <foundationdb/fdb_c.h>
import "C"

import "fmt"

func main() { fmt.Printf("libfdb_c: API versions up to %d\n", int(C.fdb_get_max_api_version())) }
