//go:build !unix

package cli

import (
	"os"
	"os/exec"
)

// ownGroup does nothing where there are no process groups.
func ownGroup(*exec.Cmd) {}

func freeze(*os.Process) error { return nil }
func thaw(*os.Process) error   { return nil }
