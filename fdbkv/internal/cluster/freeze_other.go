//go:build !unix

package cluster

import "os"

// Where there are no signals a server goes on.
func freeze(*os.Process) error { return nil }
func thaw(*os.Process) error   { return nil }
